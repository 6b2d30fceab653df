"""One session of the trio-asyncio driver: asyncpg's connection, its calls run as asyncio tasks watched from Trio."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import trio

from ..errors import ConnectionLost
from ..policy.classify import names_a_dropped_type
from ..servers import HostPort
from .protocol import Preface, SessionEvents, Status
from .remedies import STALE, ask_again, has_lost_track
from .trio_asyncio_work import Limits, Work, after, known_failures, run

T = TypeVar("T")

_END: Any = object()


class TrioAsyncioSession:
    """An open session. Made by `TrioAsyncioDriver.connect`. All is Trio-flavoured but what says otherwise."""

    def __init__(
        self,
        loop: Any,
        connection: Any,
        host: HostPort,
        limits: Limits,
        last_words: Callable[[], str | None],
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._host = host
        self._pid: int = connection.get_server_pid()
        self._limits = Limits(None, None)
        self._limits_once_owned = limits
        self._state: Status = Status.IDLE
        """IDLE stands for IN_TRANSACTION too; asyncpg knows which."""
        self._work: Work | None = None
        self._forgets: bool | None = None
        """Statements, or (True) types too, are to be forgotten when the call that is under way is over."""
        self._settled = trio.Event()
        self._events: SessionEvents | None = None
        self._reason = ""
        self._untold: str | None = None
        self._last_words = last_words
        self.on_outdated: list[Callable[[bool], None]] = connection.on_outdated
        connection.on_end = self._terminated
        connection.on_sinks_error = self._sink_failed

    @property
    def host(self) -> HostPort:
        """The server it is connected to."""
        return self._host

    @property
    def raw(self) -> Any:
        """asyncpg's connection."""
        return self._connection

    @property
    def pid(self) -> int:
        """The server's process for it."""
        return self._pid

    @property
    def status(self) -> Status:
        """What it is doing."""
        if self._state is not Status.IDLE:
            return self._state
        if self._connection.is_closed():
            return Status.CLOSED
        return Status.IN_TRANSACTION if self._connection.is_in_transaction() else Status.IDLE

    def is_clean(self) -> bool:
        """Whether the next holder may have it as it is."""
        # The second: an object of `raw.transaction()` that was never ended makes the next holder's a savepoint.
        return self.status is Status.IDLE and self._connection._top_xact is None

    def forget_statements(self, *, types: bool = False) -> None:
        """What asyncpg keeps is not to be used any more."""
        if self._state is not Status.CLOSED:
            self._forgets = types or self._forgets is True
        if self._state is Status.IDLE:
            self._rest()

    def expect_notifications(self) -> None:
        """asyncio reads the socket at all times."""

    def attach(self, events: SessionEvents) -> None:
        """Name the owner."""
        self._events = events
        self._limits = self._limits_once_owned
        self._tell()

    async def drive(self, call: Coroutine[Any, Any, T], timeout: float | None = None, grace: float | None = None) -> T:
        """Run one of `raw`'s coroutines to its end. See the protocol.

        The coroutine is asyncio-flavoured and becomes a task of the loop, so the caller's task need not know the loop.
        """
        timeout = self._limits.of(timeout)
        try:
            until = await self._admit(timeout)
        except BaseException:
            call.close()
            raise
        socket_until = after(self._limits.socket_timeout)
        work = self._work = Work(self._loop, call, self._connection._transport)
        self._state = Status.BUSY
        try:
            await work.watch(min(until, socket_until), grace)
        except BaseException:
            self._leave(work)
            raise
        now = trio.current_time()
        if now >= socket_until:
            self._give_up("socket_timeout")
        elif not work.is_over and now >= until:
            self._leave(work)
            raise TimeoutError
        elif not work.is_over:
            self._give_up("given up after a cancellation")
        try:
            outcome: T = self._outcome(work)
            return outcome
        finally:
            del work  # its task holds the error that comes out, and that error's traceback this frame

    async def drive_after(self, preface: Preface, call: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `preface`, then `call`: a round trip for each, since the transport is asyncio's."""
        timeout = self._limits.of(timeout)
        until = after(timeout)

        async def opening() -> None:
            preface.sent = True
            await self._connection.execute(preface.sql)

        try:
            await self.drive(opening(), timeout)
        except BaseException:
            if self._state is Status.ABANDONED:
                preface.sent = True  # or will be: a task of asyncio's that is left may take its first step yet
            call.close()
            raise
        return await self.drive(call, None if timeout is None else until - trio.current_time())

    def source(self, rows: AsyncIterable[Any]) -> AsyncIterable[Any]:
        """Make a Trio-flavoured iterable an asyncio-flavoured one, for a driven call."""

        async def translated() -> AsyncIterator[Any]:
            iterator = aiter(rows)

            async def following() -> Any:
                return await anext(iterator, _END)

            while (row := await self._errand(following)) is not _END:
                yield row

        return translated()

    def sink(self, write: Callable[[bytes], Awaitable[None]]) -> Callable[[bytes], Awaitable[None]]:
        """Make a Trio-flavoured function an asyncio-flavoured one, for a driven call."""

        async def translated(data: bytes) -> None:
            await self._errand(lambda: write(data), is_sink=True)

        return translated

    async def settle(self, timeout: float) -> bool:
        """Have the server cancel the abandoned call, and wait until the session is usable again."""
        if self._state is not Status.ABANDONED:
            await trio.lowlevel.checkpoint()
            return self.status is not Status.CLOSED
        settled = False
        try:
            with trio.move_on_after(timeout), suppress(*known_failures(), asyncio.CancelledError):
                settled = timeout > 0 and await self._drain()
        finally:
            if not settled:
                self.terminate("the abandoned call could not be cancelled")
        if settled:
            self._rest()
            self._settled.set()
        return settled

    async def close(self, timeout: float) -> None:
        """Say goodbye and wait until the server has closed its end, at most so long."""
        if self._state in (Status.BUSY, Status.ABANDONED):
            self.terminate("closed")
        if self.status is Status.CLOSED:
            await trio.lowlevel.checkpoint()
            return
        self._over("closed")
        try:
            with trio.move_on_after(timeout):
                await self._run(self._connection.close())
        finally:
            self._abort()

    async def interrupt(self, timeout: float) -> None:
        """Have the server stop what it is executing for this session."""
        with trio.move_on_after(timeout):
            await self._run(self._connection.interrupt())

    def terminate(self, reason: str) -> None:
        """Close the socket now: at the loop's next turn, as asyncio does."""
        self._untold = None
        if self._state is Status.CLOSED:
            return
        self._over(reason)
        self._abort()

    # A call from beginning to end.

    async def _admit(self, timeout: float | None) -> float:
        """Wait until a call may begin; the time its `timeout` runs out."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_free()
        until = after(timeout)
        if timeout is not None and timeout <= 0:
            raise TimeoutError
        if self._state is Status.ABANDONED:
            with trio.move_on_at(until):
                await self._settled.wait()
            self._check_free()
            if not self._settled.is_set():
                raise TimeoutError
        return until

    def _check_free(self) -> None:
        match self._state:
            case Status.BUSY:
                exceptions: Any = importlib.import_module("asyncpg.exceptions")
                raise exceptions.InterfaceError("cannot perform operation: another operation is in progress")
            case Status.CLOSED:
                raise ConnectionLost(self._reason, self._host)
            case _:
                return

    def _leave(self, work: Work) -> None:
        """The caller leaves the call. asyncpg asks the server to cancel it as soon as the loop gets to it."""
        work.leave()
        if self._state is Status.CLOSED:
            return
        self._state = Status.ABANDONED
        self._settled = trio.Event()
        if self._events is not None:
            self._events.abandoned()

    def _outcome(self, work: Work) -> Any:
        self._work = None
        if self._state is Status.CLOSED:
            self._tell()
            raise ConnectionLost(self._reason, self._host)
        self._rest()
        result = None
        try:
            try:
                result = work.task.result()
            except BaseException as error:
                self._judge(work, error)
                if work.sinks_error is None:
                    raise
            if work.sinks_error is not None:
                raise work.sinks_error  # as it is, so outside of the handler: it may have a cause of its own
            return result
        finally:
            del work  # see `drive`

    def _rest(self) -> None:
        """No call is under way: none can be about to use a statement that asyncpg would close on the server."""
        self._state = Status.IDLE
        if self._forgets is None:
            return
        if self._forgets:
            self._connection._drop_local_type_cache()
        self._connection._drop_local_statement_cache()
        self._forgets = None

    def _judge(self, work: Work, error: BaseException) -> None:
        """What an error of a call says of the session. Raises `ConnectionLost` if it is over."""
        if not isinstance(error, (*known_failures(), asyncio.CancelledError)):
            # Of a text that cannot be sent, say: asyncpg has closed the connection, which is no answer to the call.
            if self._connection.is_closed():
                self._lost("closed by asyncpg")
            return
        # asyncpg has several names for a connection that is gone, `InternalClientError` among them.
        if self._connection.is_closed():
            self._lost()
            raise ConnectionLost(self._reason, self._host) from error
        if has_lost_track(error):
            self.terminate(f"asyncpg cannot go on: {error}")
            self._untold = self._reason
            self._tell()
            raise ConnectionLost(self._reason, self._host) from error
        if getattr(error, "sqlstate", None) in STALE:
            self._connection._drop_local_statement_cache()
            if names_a_dropped_type(error):
                self._connection.tell_outdated(False)
        if work.has_failed_errand:
            self._work = work
            self._leave(work)

    async def _drain(self) -> bool:
        work = self._work
        assert work is not None, "bug: an abandoned session has a call that was left"
        await work.wait()
        answered = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_again, lambda: self._run(self._connection.interrupt()), answered)
            await self._run(self._connection._protocol._wait_for_cancellation())
            answered.set()
        # asyncpg begins no statement before its cancel request has been sent, that request's connection has been closed
        # by the server, and the old statement's answer has been read. In a failed transaction it fails: just as well.
        with suppress(importlib.import_module("asyncpg.exceptions").PostgresError):
            await run(self._loop, self._connection.execute("SELECT 1"))
        self._work = None
        return self._state is Status.ABANDONED and not self._connection.is_closed()

    async def _run(self, call: Coroutine[Any, Any, Any]) -> None:
        """Run something of the session's own; a failure of the server or the network has no consequence."""
        with suppress(*known_failures(), asyncio.CancelledError):
            await run(self._loop, call)

    async def _errand(self, run: Callable[[], Awaitable[T]], *, is_sink: bool = False) -> T:
        """asyncio-flavoured."""
        assert self._work is not None, "bug: a source or sink is used inside a driven call"
        return await self._work.ask(run, is_sink=is_sink)

    def _sink_failed(self, error: Exception) -> None:
        if self._work is not None:
            self._work.fail(error)

    # The end.

    def _terminated(self) -> None:
        """asyncpg's connection is over: told from inside the loop, for every reason there is."""
        if self._state is Status.IDLE:
            self._lost()
        elif self._work is not None:
            self._work.end_errand()

    def _lost(self, otherwise: str = "closed by the server") -> None:
        words = self._last_words()
        self._over(otherwise if words is None else f"closed by the server: {words}")
        self._untold = self._reason
        self._tell()

    def _give_up(self, reason: str) -> None:
        """The call's bounds end the session: its owner, who has not asked for it, is told when the call is over."""
        self.terminate(reason)
        self._untold = reason

    def _tell(self) -> None:
        """Tell the owner of a loss, once, and never in the middle of a call."""
        if self._untold is not None and self._events is not None:
            reason, self._untold = self._untold, None
            self._events.lost(reason)

    def _over(self, reason: str) -> None:
        self._state, self._reason = Status.CLOSED, reason
        self._settled.set()
        if self._work is not None:
            self._work.give_up()

    def _abort(self) -> None:
        if not self._loop.is_closed():
            self._connection.terminate()

    def __repr__(self) -> str:
        return f"<TrioAsyncioSession to {self._host}, {self.status.value}>"
