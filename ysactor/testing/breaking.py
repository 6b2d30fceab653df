"""Breaking one direction of a proxied connection at a byte of a message, and the framing that finds that byte."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import trio

Side = Literal["request", "answer"]
"""``request``: what the client sends; ``answer``: what the server sends."""
Then = Literal["reset", "close", "hold"]
"""``reset``: the client gets an RST. ``close``: it gets an orderly end. ``hold``: nothing more in this direction until
``FaultProxy.resume``."""

_HEAD = 5


@dataclass(frozen=True, slots=True)
class Break:
    """Which message is broken, and where."""

    side: Side
    kind: bytes
    """The type byte of the message."""
    at: int
    """How many of its bytes, type and length included, still arrive; all of them, if it has no more."""
    begins: bytes
    """What its content begins with, or nothing for any content."""
    then: Then

    @property
    def needed(self) -> int:
        """How much of a message must be there to tell, and to forward."""
        return max(self.at, _HEAD + len(self.begins))

    def meets(self, start: bytes | bytearray) -> bool:
        """Whether a message with this beginning is the one."""
        return start.startswith(self.kind) and start.startswith(self.begins, _HEAD)


class Framing:
    """Where messages begin in what one side sends, which arrives in chunks of any size.

    Without a break to look for, every chunk goes on as it is. With one, a message is held back until it is known
    whether it is the one that is to be broken.
    """

    def __init__(self) -> None:
        self._skip = 0
        self._part = bytearray()
        self._gone = 0
        """How much of that was forwarded before there was a break to look for."""

    def take(self, chunk: bytes, wanted: Break | None) -> tuple[bytes, bytes | None]:
        """What is to go on of this chunk, and what comes after the break, which is None if it was not met."""
        data, gone = self._part + chunk, self._gone
        self._part, self._gone = bytearray(), 0
        at = 0
        while True:
            step = min(self._skip, len(data) - at)
            at += step
            self._skip -= step
            if at == len(data):
                return bytes(data[gone:]), None
            size = 1 + int.from_bytes(data[at + 1 : at + _HEAD], "big")
            enough = _HEAD
            if wanted is not None and data.startswith(wanted.kind, at) and len(data) - at >= _HEAD:
                enough = min(size, wanted.needed)
            if len(data) - at < enough:
                self._part = data[at:]
                self._gone = len(self._part) if wanted is None else max(0, gone - at)
                return bytes(data[gone:] if wanted is None else data[gone : max(at, gone)]), None
            self._skip = size
            if wanted is not None and wanted.meets(data[at : at + enough]):
                end = max(gone, at + min(size, wanted.at))
                self._skip = max(0, size - (len(data) - at))
                if len(data) - at > size:
                    self._part, self._gone = data[at + size :], len(data) - at - size
                return bytes(data[gone:end]), bytes(data[end:])


class Breaker:
    """The break that a proxy's connections are waiting for, if there is one, and what happens at it."""

    def __init__(self) -> None:
        self.broken = 0
        """How many messages were broken."""
        self._wanted: Break | None = None
        self._resumed = trio.Event()

    def arm(self, wanted: Break) -> None:
        """From now on. Instead of one that is armed and was not met."""
        self._wanted = wanted
        self._resumed = trio.Event()

    def resume(self) -> None:
        """Let go on what is held."""
        self._wanted = None
        self._resumed.set()

    async def pass_on(
        self,
        chunk: bytes,
        framing: Framing | None,
        side: Side,
        send: Callable[[bytes], Awaitable[None]],
        reset: Callable[[], None],
    ) -> bool:
        """Send a chunk on, up to the break if it is in there. True: the connection is over.

        Without ``framing`` nothing is known of what it is, and it is sent as it comes.
        """
        wanted = self._wanted if self._wanted is not None and self._wanted.side == side else None
        now, later = (chunk, None) if framing is None else framing.take(chunk, wanted)
        if wanted is None or later is None:
            await send(now)
            return False
        self._wanted = None
        resumed = self._resumed
        await send(now)
        self.broken += 1
        match wanted.then:
            case "reset":
                reset()
                return True
            case "close":
                return True
            case "hold":
                await resumed.wait()
                await send(later)
                return False
