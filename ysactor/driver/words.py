"""What a server said before it hung up, looked for in the bytes that came last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    for _, fields in _ends(tail):
        severity = fields.get(b"V", fields.get(b"S"))
        is_last = severity in (b"FATAL", b"PANIC") or fields.get(b"C") == _CRASH_OF_ANOTHER
        if is_last and b"M" in fields:
            return fields[b"M"].decode(errors="replace")
    return None


def refusal(tail: bytes) -> tuple[str, str] | None:
    """The text and the SQLSTATE of the error that ends `tail`, as a login does that is refused.

    In whatever encoding it is: until a login is over the server's messages are in one of its own choice, and asyncpg
    (0.32) makes a lost connection of what is not UTF-8.
    """
    for kind, fields in _ends(tail):
        if kind == b"E" and b"M" in fields and b"C" in fields:
            return fields[b"M"].decode(errors="replace"), fields[b"C"].decode(errors="replace")
    return None


def _ends(tail: bytes) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
    """Whatever may be the error or notice that ends it, with its fields, from the shortest to the longest."""
    at = len(tail)
    while (at := max(tail.rfind(b"E", 0, at), tail.rfind(b"N", 0, at))) >= 0:
        if int.from_bytes(tail[at + 1 : at + 5], "big") == len(tail) - at - 1:
            yield tail[at : at + 1], {field[:1]: field[1:] for field in tail[at + 5 :].split(b"\0") if field}


class Ear:
    """Stands before asyncpg's protocol and keeps the end of what came last: asyncpg loses it between calls.

    All of it is asyncio-flavoured.
    """

    def __init__(self, protocol: Any) -> None:
        self.protocol: Any = protocol
        self.tail = b""
        self._receive: Callable[[bytes], None] = protocol.data_received
        self._rows: CopyOut | None = None
        self._wanted = True
        """Whether asyncpg wants to be given what comes."""
        self._resume: Callable[[], None] = _nothing
        self.connection_lost = protocol.connection_lost
        self.pause_writing = protocol.pause_writing
        self.resume_writing = protocol.resume_writing
        self.eof_received = protocol.eof_received

    def connection_made(self, transport: Any) -> None:
        """asyncpg begins to log in."""
        self.hold_back(transport)
        self.protocol.connection_made(transport)

    def hold_back(self, transport: Any) -> None:
        """Where it is read from: not at all while something is left over of a COPY, which goes first."""
        pause, self._resume, loop = transport.pause_reading, transport.resume_reading, transport._loop

        def pause_reading() -> None:
            self._wanted = False
            pause()

        def resume_reading() -> None:
            self._wanted = True
            if self._rows is not None and self._rows.left_over:
                loop.call_soon(self._read_on)
            else:
                self._resume()

        transport.pause_reading, transport.resume_reading = pause_reading, resume_reading

    def _pass_on(self) -> None:
        while self._wanted and self._rows is not None and self._rows.left_over:
            self._rows.more()

    def _read_on(self) -> None:
        self._pass_on()
        if self._wanted:
            self._resume()

    def data_received(self, data: bytes) -> None:
        """What the socket had."""
        self.tail = data[-TAIL:]
        self._receive(data)
        # If asyncpg has not paused, the call was left: it throws the rows away, and asks for nothing that is left over.
        self._pass_on()

    def expect_rows(self) -> None:
        """A COPY out begins with the next message."""
        if self._rows is None:
            self._receive = self._rows = CopyOut(self._receive, self._no_more_rows)

    def _no_more_rows(self) -> None:
        self._rows = None
        self._receive = self.protocol.data_received

    def last_words(self) -> str | None:
        """What the server said before it hung up, if it did."""
        return last_words(self.tail)


def _nothing() -> None:
    """There is nothing to read from yet."""
