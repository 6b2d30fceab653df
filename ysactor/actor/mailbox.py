"""How actors talk: a `Ref` sends, an `Inbox` receives, a `Reply` answers one request.

Inboxes are unbounded on purpose. They carry control messages, not data: a caller has at most one request under way,
and a connection a handful of events, so an inbox is bounded by tasks that already exist. In return `cast` never
blocks, and may stand in the `finally` of a cancelled task. Back-pressure on callers is the pool's line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import outcome
import trio

M = TypeVar("M")
T = TypeVar("T")


class Ended(Exception):
    """The actor that was asked has ended, or ended before it answered."""


class Reply(Generic[T]):
    """The way back to one caller: a rendezvous, so that an answer is given only to a caller that will resume with it.

    The channel has no buffer. A buffered slot, or an event with a value beside it, would accept an answer for a
    caller that is cancelled in the same pass of the scheduler, and what was handed over would be lost.
    """

    __slots__ = ("_send",)

    def __init__(self, send: trio.MemorySendChannel[outcome.Maybe[T]]) -> None:
        self._send = send

    def offer(self, value: T) -> bool:
        """Answer. True: the caller resumes with `value`, even if it is cancelled now. False: it is gone."""
        return self._offer(outcome.Value(value))

    def refuse(self, error: Exception) -> bool:
        """Answer with an error, which the caller raises. False: it is gone."""
        return self._offer(outcome.Error(error))

    def _offer(self, answer: outcome.Maybe[T]) -> bool:
        try:
            self._send.send_nowait(answer)
        except (trio.WouldBlock, trio.BrokenResourceError):
            return False
        return True


class Ref(Generic[M]):
    """The sending side of an actor's mailbox. Copies are free; it is never closed."""

    __slots__ = ("_send",)

    def __init__(self, send: trio.MemorySendChannel[M]) -> None:
        self._send = send

    def cast(self, message: M) -> bool:
        """Send, without waiting and without a checkpoint. False: the actor has ended and nobody will read it."""
        try:
            self._send.send_nowait(message)
        except trio.BrokenResourceError:
            return False
        return True

    async def call(self, request: Callable[[Reply[T]], M]) -> T:
        """Send a request and wait for its answer.

        Cancelled, the caller is gone at once, and whatever the actor offers after that is refused. Raises what the
        actor refused with, and `Ended` if it has ended.
        """
        send, receive = trio.open_memory_channel[outcome.Maybe[T]](0)
        # Only the receiving end is closed: `offer` then meets a broken channel, never one closed on its own side.
        with receive:
            # No checkpoint between sending and receiving: an actor never meets a request whose caller is not waiting.
            if not self.cast(request(Reply(send))):
                raise Ended
            answer = await receive.receive()
        return answer.unwrap()


class Inbox(Generic[M]):
    """The receiving side. Iterate over it; leave it with `close`, or callers would wait for ever."""

    __slots__ = ("_receive",)

    def __init__(self, receive: trio.MemoryReceiveChannel[M]) -> None:
        self._receive = receive

    def __aiter__(self) -> Inbox[M]:
        return self

    async def __anext__(self) -> M:
        return await self._receive.receive()

    def is_empty(self) -> bool:
        """Whether nothing is waiting to be read."""
        return self._receive.statistics().current_buffer_used == 0

    def close(self, error: Callable[[], Exception] = Ended) -> None:
        """Refuse what is left, and everything that comes later. No checkpoint."""
        left: list[Any] = []
        while True:
            try:
                left.append(self._receive.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                break
        self._receive.close()
        for message in left:
            reply = getattr(message, "reply", None)
            if isinstance(reply, Reply):
                reply.refuse(error())


def open_mailbox() -> tuple[Ref[M], Inbox[M]]:
    """A new mailbox, for messages of one union: say which by the types of what it is assigned to."""
    send, receive = trio.open_memory_channel[M](math.inf)
    return Ref(send), Inbox(receive)
