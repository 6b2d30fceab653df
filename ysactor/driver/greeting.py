"""What a server may say during a login, checked before asyncpg sees it.

asyncpg (0.32) leaves a message of a type that it does not know in its buffer, and takes the zero byte for "no message
begun": five zero bytes as the answer to a login have its compiled reader go round for ever, in which no time-out, no
signal and no other task is heard. Other answers of what is no PostgreSQL make it wait for gigabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .words import TAIL, Ear

NOT_POSTGRES = "the answer to the login is not PostgreSQL's"

_LEAST: Mapping[int, int] = MappingProxyType(
    {
        ord("R"): 8,  # what is wanted of the login, or that it is done
        ord("v"): 12,  # another version of the protocol
        ord("S"): 6,  # a setting
        ord("K"): 12,  # the key that cancels
        ord("N"): 5,  # a notice
        ord("A"): 10,  # a notification, which may come at once after the last
        ord("E"): 5,  # an error, the last
        ord("Z"): 5,  # ready, the last
    }
)
"""The messages of a login by type, and the shortest that each can be: of what poolers send, too, there is no other."""

_TOO_LONG = 1 << 24
"""No message of a login is so long. `SSH-` would be a setting of more than a gigabyte."""

_ERROR, _READY = ord("E"), ord("Z")
_TOO_LONG_FOR_AN_ERROR = 1 << 31
"""A server that cannot start a process says so in a protocol that is older than lengths, and hangs up: text stands in
their place. What is longer than this is a negative length to asyncpg."""

_HEAD = 5


class Greeting:
    """The headers of the messages of one login, as they come, in whatever pieces.

    After the login it is of no use, and costs nothing: its user drops it. Measured: 5 µs for all of a login's messages.
    """

    __slots__ = ("_begun", "_skip", "is_over")

    def __init__(self) -> None:
        self._begun = b""
        """The first bytes of a header, too few of them."""
        self._skip = 0
        """Bytes to come of the message that was begun last."""
        self.is_over = False
        """Whether the server has said that it is ready."""

    def admits(self, data: bytes) -> bool:
        """Whether this is what a login may go on with. Once it is not, nothing more is to be read."""
        text = self._begun + data if self._begun else data
        size, at = len(text), self._skip
        while size - at >= _HEAD:
            kind, length = text[at], int.from_bytes(text[at + 1 : at + _HEAD], "big")
            limit = _TOO_LONG_FOR_AN_ERROR if kind == _ERROR else _TOO_LONG
            if not _LEAST.get(kind, limit) <= length < limit:
                return False
            self.is_over = self.is_over or kind == _READY
            at += 1 + length
        self._begun, self._skip = text[at:], max(0, at - size)
        # A byte that begins no message is not waited with: what sent it may wait as well.
        return not self._begun or self._begun[0] in _LEAST


class WaryEar(Ear):
    """Stands before asyncpg's protocol from the start of a login, and ends the connection where the answer is foreign.

    Once the login is over, it is an `Ear` and no more. asyncio-flavoured.
    """

    def __init__(self, protocol: Any, transport: Any = None) -> None:
        super().__init__(protocol)
        self._greeting = Greeting()
        self._receive = self._wary
        self._transport: Any = transport
        """What is ended, if it must be; None until it is known, and after the login."""
        self.is_foreign = False
        """Whether what answered is no PostgreSQL."""
        self.said = b""
        """The end of what came during the login, in however many pieces."""

    def connection_made(self, transport: Any) -> None:
        """Where it is read from. Over TLS asyncpg tells its own protocol only."""
        self._transport = transport
        super().connection_made(transport)

    def _wary(self, data: bytes) -> None:
        if self.is_foreign:
            return
        self.said = (self.said + data)[-TAIL:]
        if not self._greeting.admits(data):
            self.is_foreign = True
            self._transport.abort()
            return
        if self._greeting.is_over:
            self._receive = self.protocol.data_received
            self._transport, self.said = None, b""
        self.protocol.data_received(data)
