"""Coroutines of asyncio's flavour, run as tasks of the trio-asyncio loop and waited for in Trio tasks."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import trio

T = TypeVar("T")


def known_failures() -> tuple[type[Exception], ...]:
    """What asyncpg raises when it is the server or the network that failed, and not the program."""
    exceptions: Any = importlib.import_module("asyncpg.exceptions")
    return (OSError, exceptions.PostgresError, exceptions.InterfaceError, exceptions.InternalClientError)


class Work:
    """A coroutine that runs as a task of the loop, and the Trio task that waits for it.

    The waiting task also does its errands: what is Trio-flavoured in an asyncio-flavoured call, such as the source of a
    COPY, runs in the caller's own task, where the caller's cancel scopes and context are.
    """

    def __init__(self, loop: Any, call: Coroutine[Any, Any, Any]) -> None:
        self._wake = trio.Event()
        self._errands: deque[tuple[Callable[[], Awaitable[Any]], Any]] = deque()
        self._doing: trio.CancelScope | None = None
        self._given_up = False
        self.has_failed_errand = False
        """Whether a source or sink raised: asyncpg then gives the call up in the middle, as if cancelled."""
        self._loop = loop
        self.task: Any = loop.create_task(call)
        self.task.add_done_callback(self._ended)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._given_up or bool(self.task.done())

    async def wait(self) -> None:
        """Wait until it is over, doing its errands meanwhile. Trio-flavoured; a checkpoint always."""
        await trio.lowlevel.checkpoint()
        while not self.is_over:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._errands and not self.is_over:
                await self._do(*self._errands.popleft())

    async def watch(self, until: float, grace: float | None) -> None:
        """Wait until the work is over or its time has run out. A cancellation is put off for `grace` seconds."""
        with trio.CancelScope(deadline=until):
            try:
                await self.wait()
            except trio.Cancelled:
                now = trio.current_time()
                if grace is None or now >= until:
                    raise
                with trio.CancelScope(deadline=min(until, now + grace), shield=True):
                    await self.wait()

    async def ask(self, errand: Callable[[], Awaitable[T]]) -> T:
        """Have a Trio-flavoured function run in the waiting task. asyncio-flavoured."""
        future = self._loop.create_future()
        self._errands.append((errand, future))
        self._wake.set()
        result: T = await future
        return result

    def leave(self) -> None:
        """Cancel it, and do no more errands."""
        self._errands.clear()
        self.task.cancel()

    def give_up(self) -> None:
        """Cancel it and wake who waits, without waiting for it to end."""
        self._given_up = True
        self.leave()
        self._wake.set()
        if self._doing is not None:
            self._doing.cancel()

    async def _do(self, errand: Callable[[], Awaitable[Any]], future: Any) -> None:
        with trio.CancelScope() as self._doing:
            try:
                result = await errand()
            except Exception as error:
                self.has_failed_errand = True
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)
        self._doing = None

    def _ended(self, task: Any) -> None:
        if not task.cancelled():
            task.exception()  # looked at, lest asyncio complain about the outcome of a call that was left
        self._wake.set()


async def run(loop: Any, call: Coroutine[Any, Any, T], discard: Callable[[T], object] | None = None) -> T:
    """Run an asyncio-flavoured coroutine on the loop. Trio-flavoured.

    Cancelled, it cancels the coroutine, waits for its clean-up, which must be local, and passes a result that has come
    all the same to `discard`.
    """
    work = Work(loop, call)
    try:
        await work.wait()
    except BaseException:
        work.task.cancel()
        with trio.CancelScope(shield=True):
            await work.wait()
        if discard is not None and not work.task.cancelled() and work.task.exception() is None:
            discard(work.task.result())
        raise
    result: T = work.task.result()
    return result
