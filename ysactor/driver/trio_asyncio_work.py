"""Coroutines of asyncio's flavour, run as tasks of the trio-asyncio loop and waited for in Trio tasks."""

from __future__ import annotations

import importlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

T = TypeVar("T")


def known_failures() -> tuple[type[Exception], ...]:
    """What asyncpg raises when it is the server or the network that failed, and not the program."""
    exceptions: Any = importlib.import_module("asyncpg.exceptions")
    return (OSError, exceptions.PostgresError, exceptions.InterfaceError, exceptions.InternalClientError)


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds every call of a session, in seconds. Infinite is None."""

    socket_timeout: float | None
    """A call that takes longer costs the session."""
    command_timeout: float | None
    """The time-out of a call that is given none. Not left to asyncpg: its COPY loses its way with it.

    It does not leave a source that waits, lets a cancellation of its own out of a file, and fails with an
    `AttributeError` where the server has refused the COPY already.
    """

    def of(self, timeout: float | None) -> float | None:
        """The time-out of a call that was given this one."""
        return self.command_timeout if timeout is None else timeout


def after(timeout: float | None) -> float:
    """When that many seconds are over, on Trio's clock."""
    return math.inf if timeout is None else trio.current_time() + timeout


@dataclass(frozen=True, slots=True)
class _Errand:
    """Something Trio-flavoured that a call waits for."""

    run: Callable[[], Awaitable[Any]]
    done: Any
    is_sink: bool


class Work:
    """A coroutine that runs as a task of the loop, and the Trio task that waits for it.

    The waiting task also does its errands: what is Trio-flavoured in an asyncio-flavoured call, such as the source of a
    COPY, runs in the caller's own task, where the caller's cancel scopes and context are.
    """

    def __init__(self, loop: Any, call: Coroutine[Any, Any, Any], transport: Any = None) -> None:
        self._transport = transport
        self._wake = trio.Event()
        self._errands: deque[_Errand] = deque()
        self._doing: trio.CancelScope | None = None
        self._given_up = False
        self.has_failed_errand = False
        """Whether a source or sink raised: asyncpg then gives the call up in the middle, as if cancelled."""
        self.sinks_error: Exception | None = None
        """What a sink raised. It is not told to asyncpg; see `_step_out`."""
        self._asked: _Errand | None = None
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
                await self._do(self._errands.popleft())

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

    async def ask(self, run: Callable[[], Awaitable[T]], *, is_sink: bool = False) -> T:
        """Have a Trio-flavoured function run in the waiting task. asyncio-flavoured."""
        self._asked = _Errand(run, self._loop.create_future(), is_sink)
        self._errands.append(self._asked)
        self._wake.set()
        result: T = await self._asked.done
        return result

    def leave(self) -> None:
        """Cancel it, and do no more errands. It ends some turns of the loop later."""
        self._errands.clear()
        if not self.task.done():
            # A task that is about to run is let run first: it may be given a piece of a COPY, see `_step_out`.
            self._loop.call_soon(self._cancel, pause(self._transport))

    def _cancel(self, is_paused: bool) -> None:
        asked = self._asked
        if asked is not None and asked.is_sink and not asked.done.done():
            self._step_out(asked)
        else:
            self.task.cancel()
        if is_paused:
            self._loop.call_soon(read_on, self._transport)

    def _step_out(self, asked: _Errand) -> None:
        """Leave a call that waits for its sink.

        asyncpg takes any error in a sink, a cancellation as well, as a reason to wait for the end of the server's
        answer: for ever, if it has had that already, together with the piece that the sink was given. So it is let go
        on, and is either at its end then, or waits for the next piece and is cancelled there.
        """
        asked.done.set_result(None)
        self._loop.call_soon(self.leave)

    def fail(self, error: Exception) -> None:
        """A sink that is no errand, a file, has raised, and has not told asyncpg either."""
        self.has_failed_errand, self.sinks_error = True, error
        self._loop.call_soon(self.leave)  # after the task has gone on

    def give_up(self) -> None:
        """Cancel it and wake who waits, without waiting for it to end."""
        self._given_up = True
        self.leave()
        self._wake.set()
        if self._doing is not None:
            self._doing.cancel()

    def end_errand(self) -> None:
        """End the errand that is under way, if there is one: the call that waits for it has to find its socket gone."""
        if self._doing is not None:
            self._doing.cancel()

    async def _do(self, asked: _Errand) -> None:
        with trio.CancelScope() as self._doing:
            try:
                result = await asked.run()
            except Exception as error:
                self.has_failed_errand = True
                if asked.is_sink and not asked.done.done():
                    self.sinks_error = error
                    self._step_out(asked)
                elif not asked.done.done():
                    asked.done.set_exception(error)
            else:
                if not asked.done.done():
                    asked.done.set_result(result)
        if self._doing.cancelled_caught and not asked.done.done():
            asked.done.set_exception(ConnectionResetError("the connection was closed"))
        self._doing = None

    def _ended(self, task: Any) -> None:
        if not task.cancelled():
            task.exception()  # looked at, lest asyncio complain about the outcome of a call that was left
        self._wake.set()


def pause(transport: Any) -> bool:
    """Stop reading, if it is being read. Returns whether it was.

    For as long as it takes to cancel a call: a piece of a COPY that comes between the cancellation of asyncpg's future
    and what asyncpg does about that has it ask for nothing, and lose count of what the server still sends.
    """
    if transport is None or not transport.is_reading():
        return False
    transport.pause_reading()
    return True


def read_on(transport: Any) -> None:
    """Undo `pause`."""
    if not transport.is_closing():
        transport.resume_reading()


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
