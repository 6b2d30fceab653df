"""The few messages of the wire protocol that asyncpg's compiled protocol does not write or read for us."""

from __future__ import annotations

import struct

TLS_REQUEST = struct.pack("!ii", 8, 80877103)
GOODBYE = struct.pack("!ci", b"X", 4)
SYNC = struct.pack("!ci", b"S", 4)
_CANCEL_CODE = 80877102


def cancel_request(pid: int, secret: int | bytes) -> bytes:
    """A CancelRequest. The secret is four bytes up to protocol 3.0, and of any length from 3.2 on."""
    key = struct.pack("!i", secret) if isinstance(secret, int) else bytes(secret)
    return struct.pack("!iii", 12 + len(key), _CANCEL_CODE, pid) + key


def last_words(tail: bytes) -> str | None:
    """What a server said before it hung up: the text of a FATAL error that ends `tail`, if one does.

    `tail` may begin anywhere, so a message is looked for from its end: asyncpg before 0.32 loses the text, and every
    release loses it while no call is running.
    """
    at = tail.rfind(b"E")
    while at >= 0:
        if int.from_bytes(tail[at + 1 : at + 5], "big") == len(tail) - at - 1:
            fields = {field[:1]: field[1:] for field in tail[at + 5 :].split(b"\0") if field}
            severity = fields.get(b"V", fields.get(b"S"))
            if severity in (b"FATAL", b"PANIC") and b"M" in fields:
                return fields[b"M"].decode(errors="replace")
        at = tail.rfind(b"E", 0, at)
    return None
