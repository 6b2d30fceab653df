"""What asyncpg takes for its event loop: one small object per session, with no thread of control of its own.

Its one idea: a future's callbacks run where the future is completed, so ordinary asyncio futures become synchronous
and the task that drives a call only has to look at `done()`. What would be user code (listeners, query loggers) is
queued instead, and run where an exception can do no harm.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

import trio

logger = logging.getLogger("ysactor.driver")

T = TypeVar("T")
Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
"""Starts a task that belongs to the driver."""


class TrioCall(Generic[T]):
    """An awaitable that asks whoever drives the coroutine to run an async function under Trio, and yields its result.

    The function then runs outside asyncpg's frames: it sees no asyncio loop, and a Trio cancellation in it can be
    turned into the kind of exception that asyncpg cleans up after.
    """

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.run = run

    def __await__(self) -> Generator[TrioCall[T], T, T]:
        return (yield self)


class StartedCall(TrioCall[T]):
    """A `TrioCall` of what has begun already and now waits: no scope may be opened around it any more."""

    __slots__ = ()


class ThreadCall(TrioCall[T]):
    """A `TrioCall` of a blocking function in a thread (COPY from and to files)."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        super().__init__(self._in_thread)

    async def _in_thread(self) -> T:
        return await trio.to_thread.run_sync(self.function)


class Handle:
    """A callback that will run later, unless cancelled. `when` is on Trio's clock."""

    __slots__ = ("args", "callback", "cancelled_", "when")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], when: float = 0) -> None:
        self.callback = callback
        self.args = args
        self.when = when
        self.cancelled_ = False

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_

    def __lt__(self, other: Handle) -> bool:
        return self.when < other.when

    def run(self) -> None:
        """Run it. What it raises is logged: it is somebody else's code, and the session lives on.

        asyncio's `CancelledError`, which is no `Exception`, is as good as one here: nothing of Trio's is cancelled.
        """
        if self.cancelled_:
            return
        try:
            self.callback(*self.args)
        except (Exception, asyncio.CancelledError):
            logger.exception("a callback of a connection raised")


class StandInTask:
    """What `asyncio.current_task()` gives inside a step: enough for `asyncio.timeout` and `wait_for`."""

    __slots__ = ("cancel_due", "cancels", "pending")

    def __init__(self) -> None:
        self.cancels = 0
        self.cancel_due = False
        self.pending: asyncio.Future[Any] | None = None
        """The future that the coroutine waits for, where it may be cancelled from a timer."""

    def cancelling(self) -> int:
        return self.cancels

    def cancel(self, msg: object = None) -> bool:
        self.cancels += 1
        if self.pending is None or not self.pending.cancel():
            self.cancel_due = True
        return True

    def uncancel(self) -> int:
        self.cancels = max(0, self.cancels - 1)
        if not self.cancels:
            self.cancel_due = False
        return self.cancels


class Errand:
    """What `create_task` returns: a coroutine (of a listener, say) that will run in a Trio task of the driver.

    Started after the step that asked for it, so that `asyncio.wait_for` with no time left can still cancel it unrun.
    """

    __slots__ = ("_callbacks", "_coroutine", "_ended")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine: Coroutine[Any, Any, Any] | None = coroutine
        self._callbacks: list[Callable[[Errand], object]] = []
        self._ended = False

    def start(self, spawn: Spawn) -> None:
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is None:
            return

        async def run() -> None:
            try:
                await coroutine
            except Exception:
                logger.exception("an async callback of a connection raised")
            finally:
                self._end()

        spawn(run)

    def cancel(self, msg: object = None) -> bool:
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is None:
            return False
        coroutine.close()
        self._end()
        return True

    def _end(self) -> None:
        self._ended = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def done(self) -> bool:
        return self._ended

    def result(self) -> Any:
        raise asyncio.CancelledError

    def add_done_callback(self, callback: Callable[[Errand], object], *, context: object = None) -> None:
        if self._ended:
            callback(self)
        else:
            self._callbacks.append(callback)

    def remove_done_callback(self, callback: Callable[[Errand], object]) -> int:
        before = len(self._callbacks)
        self._callbacks = [kept for kept in self._callbacks if kept != callback]
        return before - len(self._callbacks)


class Loop:
    """The loop object of one session."""

    __slots__ = ("_ready", "_spawn", "_timers", "cancel_sent", "odd", "poke", "task")

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._ready: list[Handle] = []
        self._timers: list[Handle] = []
        self.task = StandInTask()
        self.odd = False
        """Something is up that the fast path of a call does not look at: the one flag that it does look at.

        Measured: a look at each of the five things it stands for costs 0.03 to 0.04 µs per wait, this one 0.005.
        """
        self.cancel_sent: asyncio.Future[Any] | None = None
        """Set while asyncpg wants a command cancelled: to be completed once the server has been asked."""
        self.poke: Callable[[], object] = _nothing
        """Ends the current wait of the session's driver, if it has one that may need ending."""

    # What asyncpg and asyncio's own helpers call.

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def call_soon(self, callback: Callable[..., object], *args: Any, context: object = None) -> Handle:
        if context is not None:
            callback(*args)  # only futures give a context: their callbacks are asyncio's and asyncpg's own
            return _RUN
        handle = Handle(callback, args)
        self._ready.append(handle)
        self.odd = True
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: object = None) -> Handle:
        return self.call_at(trio.current_time() + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: object = None) -> Handle:
        handle = Handle(callback, args, when)
        heapq.heappush(self._timers, handle)
        self.odd = True
        return handle

    def time(self) -> float:
        return trio.current_time()

    def create_task(self, coroutine: Coroutine[Any, Any, Any], **_: object) -> Errand:
        errand = Errand(coroutine)
        self.call_soon(errand.start, self._spawn)
        return errand

    def run_in_executor(self, executor: object, function: Callable[..., T], *args: Any) -> ThreadCall[T]:
        return ThreadCall(lambda: function(*args))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        logger.debug("asyncpg reports: %s", context.get("message"), exc_info=context.get("exception"))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    # What the session calls.

    def run_ready(self) -> None:
        """Run what was queued."""
        while self._ready:
            ready, self._ready = self._ready, []
            for handle in ready:
                handle.run()

    def run_due(self) -> None:
        """Run the timers whose time has come."""
        while self.next_due() <= trio.current_time():
            heapq.heappop(self._timers).run()

    def next_due(self) -> float:
        """When the next timer is due; infinite if there is none."""
        timers = self._timers
        while timers and timers[0].cancelled_:
            heapq.heappop(timers)
        return timers[0].when if timers else float("inf")

    @property
    def has_timers(self) -> bool:
        """Whether one is armed, or was and has not been looked at since."""
        return bool(self._timers)

    def is_quiet(self) -> bool:
        """Whether nothing is queued, armed or asked for."""
        return not self._ready and self.next_due() == float("inf") and self.cancel_sent is None

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task that belongs to the driver."""
        self._spawn(run)


def _nothing() -> None:
    """Nobody is waiting."""


_RUN = Handle(_nothing, ())
"""What stands for a callback that has been run."""
