"""Timers: a child that sleeps and then sends a message. Cancelling a timer is cancelling its scope."""

from __future__ import annotations

from typing import TypeVar

import trio

from .mailbox import Ref

M = TypeVar("M")


class Timer:
    """A message that is on its way to be sent. `cancel` is synchronous and may come late."""

    __slots__ = ("_scope",)

    def __init__(self) -> None:
        self._scope = trio.CancelScope()

    def cancel(self) -> None:
        self._scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def run(self, when: float, ref: Ref[M], message: M) -> None:
        with self._scope:
            await trio.sleep_until(when)
            ref.cast(message)


def send_after(nursery: trio.Nursery, seconds: float, ref: Ref[M], message: M) -> Timer:
    """Send `message` to `ref` in `seconds`, unless the timer is cancelled or the nursery ends first."""
    timer = Timer()
    name = f"ysactor.timer[{type(message).__name__}]"
    nursery.start_soon(timer.run, trio.current_time() + seconds, ref, message, name=name)
    return timer
