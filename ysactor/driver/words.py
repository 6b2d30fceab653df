"""What a server said before it hung up, looked for in the bytes that came last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .copy_out import CopyOut

TAIL = 1024
"""How many bytes have to be kept for it."""

_CRASH_OF_ANOTHER = b"57P02"
"""crash_shutdown. Said as a warning: the server ends this session because another of its processes has crashed."""


def last_words(tail: bytes) -> str | None:
    """The text of the message that ends `tail`, if it is one after which a server hangs up.

    `tail` may begin anywhere, so a message is looked for from its end. asyncpg loses the text while no call is running.
    """
    at = len(tail)
    while (at := max(tail.rfind(b"E", 0, at), tail.rfind(b"N", 0, at))) >= 0:
        if int.from_bytes(tail[at + 1 : at + 5], "big") == len(tail) - at - 1:
            fields = {field[:1]: field[1:] for field in tail[at + 5 :].split(b"\0") if field}
            severity = fields.get(b"V", fields.get(b"S"))
            is_last = severity in (b"FATAL", b"PANIC") or fields.get(b"C") == _CRASH_OF_ANOTHER
            if is_last and b"M" in fields:
                return fields[b"M"].decode(errors="replace")
    return None


class Ear:
    """Stands before asyncpg's protocol and keeps the end of what came last: asyncpg loses it between calls.

    All of it is asyncio-flavoured.
    """

    def __init__(self, protocol: Any) -> None:
        self.protocol: Any = protocol
        self.tail = b""
        self._receive: Callable[[bytes], None] = protocol.data_received
        self.connection_made = protocol.connection_made
        self.connection_lost = protocol.connection_lost
        self.pause_writing = protocol.pause_writing
        self.resume_writing = protocol.resume_writing
        self.eof_received = protocol.eof_received

    def data_received(self, data: bytes) -> None:
        """What the socket had."""
        self.tail = data[-TAIL:]
        self._receive(data)

    def expect_rows(self) -> None:
        """A COPY out begins with the next message."""
        if not isinstance(self._receive, CopyOut):
            plain = self._receive

            def over() -> None:
                self._receive = plain

            self._receive = CopyOut(plain, over)

    def last_words(self) -> str | None:
        """What the server said before it hung up, if it did."""
        return last_words(self.tail)
