"""A statement sent ahead of a call, in the same packet: how BEGIN costs no round trip of its own."""

from __future__ import annotations

import struct

from .link import Link
from .messages import SYNC

_USUAL = b"1\0\0\0\x042\0\0\0\x04C\0\0\0\x0aBEGIN\0"
"""The answer to BEGIN, where nothing comes in between."""

_QUERY = ord("Q")


def unsynced(sql: str) -> bytes:
    """Parse, Bind and Execute for a statement without parameters, and no Sync."""
    text = sql.encode() + b"\0"
    parse = struct.pack("!ci", b"P", 4 + 1 + len(text) + 2) + b"\0" + text + b"\0\0"
    bind = struct.pack("!cibbhhh", b"B", 4 + 1 + 1 + 2 + 2 + 2, 0, 0, 0, 0, 0)
    return parse + bind + struct.pack("!cibi", b"E", 4 + 1 + 4, 0, 0)


class Ahead:
    """One such statement, from the first write of the call that it goes ahead of to the last of its answer.

    Without a Sync of its own, the server skips the call's messages if the statement fails: nothing of the call is
    carried out outside the transaction that it was to be in. (pgjdbc sends BEGIN so.) asyncpg sees the answers to its
    own messages only: these are taken out, and what the server sends unasked passes. An error passes too, and is the
    call's.
    """

    __slots__ = ("_due", "_held", "_link", "_receive", "_simple", "_sql")

    def __init__(self, link: Link, sql: str) -> None:
        self._link = link
        self._sql = sql
        self._due = b"12C"
        self._held = b""
        self._simple = False
        self._receive = link.receive
        link.transport.ahead = self.write

    def write(self, data: bytes | memoryview) -> bytes:
        """What to write instead of the call's first message or messages."""
        self._link.transport.ahead = None
        self._link.receive = self.receive
        self._simple = data[0] == _QUERY
        return b"".join((unsynced(self._sql), data))

    def receive(self, data: bytes) -> None:
        """In place of asyncpg's own `data_received`, until the answer is complete."""
        if not self._held and data.startswith(_USUAL):
            self._end(data[len(_USUAL) :])
            return
        held = self._held + data
        while len(held) >= 5 and len(held) > (size := int.from_bytes(held[1:5], "big")):
            kind, message, held = held[:1], held[: 1 + size], held[1 + size :]
            if kind == self._due[:1]:
                self._due = self._due[1:]
                if not self._due:
                    self._end(held)
                    return
            elif kind in (b"N", b"S", b"A"):
                self._receive(message)
            else:
                if self._simple and kind == b"E":
                    # A simple query has no Sync either, and is skipped as well.
                    self._link.transport.write(SYNC)
                self._end(message + held)
                return
        self._held = held

    def _end(self, rest: bytes) -> None:
        self._link.receive = self._receive
        if rest:
            self._receive(rest)
