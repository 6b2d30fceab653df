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
