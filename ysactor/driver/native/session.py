"""One open session: who may drive it, within which bounds, and how it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any, NoReturn, TypeVar

import asyncpg
import trio
from trio.lowlevel import checkpoint, enable_ki_protection

from ...errors import ConnectionLost
from ...policy.classify import names_a_dropped_type
from ...servers import HostPort
from ..protocol import ConnectFailure, Preface, SessionEvents, Status
from ..remedies import STALE, has_lost_track
from .bounds import Expired, Grace, Limits
from .cancel import send_cancel
from .copying import Source
from .copying import sink as trio_sink
from .link import Link
from .login import LoggedIn
from .messages import GOODBYE
from .names import forget_statements, hears, is_cancelling
from .preface import Ahead
from .raw import is_plain
from .settling import OVER, quieten
from .stepping import run, run_plain, run_with_users_code
from .watch import Watch

T = TypeVar("T")

_FOREVER = float("inf")


class _Stage(Enum):
    IDLE = "idle"
    BUSY = "busy"
    ABANDONED = "abandoned"
    CLOSED = "closed"


# Module globals: looking a member up in its class costs 0.06 µs (0.015 on Python 3.13), and a query does it thrice.
_IDLE, _BUSY, _ABANDONED, _CLOSED = _Stage.IDLE, _Stage.BUSY, _Stage.ABANDONED, _Stage.CLOSED


_NONE = Limits()


class NativeSession:
    """A `Session` on a Trio socket. The caller of `drive` reads the socket; between calls the driver's watch does."""

    __slots__ = (
        *("__weakref__", "_bounded", "_events", "_expects", "_forgets", "_hearing", "_host", "_idle_again", "_limits"),
        *("_limits_once_owned", "_link", "_loop", "_peer", "_raw", "_settled", "_stage", "_statements_since"),
        *("_untold", "_watch", "on_outdated"),
    )

    def __init__(self, host: HostPort, parts: LoggedIn, watch: Watch, limits: Limits) -> None:
        self._host = host
        self._raw = parts.raw
        self.on_outdated: list[Callable[[bool], None]] = parts.raw.on_outdated
        self._peer = parts.peer
        self._loop = parts.loop
        self._link = Link(parts, self._ended)
        self._watch = watch
        self._limits = _NONE
        self._limits_once_owned = limits
        self._bounded = False
        self._statements_since = trio.current_time()
        self._stage = _IDLE
        self._events: SessionEvents | None = None
        self._untold = False
        self._hearing = False
        self._expects = False
        """Whether a LISTEN was sent that asyncpg knows nothing of."""
        self._forgets: bool | None = None
        """Statements, or (True) types too, are to be forgotten when the call that is under way is over."""
        self._settled: trio.Event | None = None
        self._idle_again: trio.Event | None = None
        watch.add(self, parts.transport.sock)

    @property
    def host(self) -> HostPort:
        return self._host

    @property
    def raw(self) -> Any:
        return self._raw

    @property
    def pid(self) -> int:
        return self._link.wire.backend_pid

    @property
    def status(self) -> Status:
        match self._stage:
            case _Stage.IDLE:
                return Status.IN_TRANSACTION if self._link.wire.is_in_transaction() else Status.IDLE
            case _Stage.BUSY:
                return Status.BUSY
            case _Stage.ABANDONED:
                return Status.ABANDONED
            case _Stage.CLOSED:
                return Status.CLOSED

    def is_clean(self) -> bool:
        # The third: an object of `raw.transaction()` that was never ended makes the next holder's a savepoint.
        # Measured: a function of `names` for it takes 3 % of a checkout.
        return (
            self._stage is _IDLE and not self._link.wire.is_in_transaction() and self._raw._top_xact is None  # pyright: ignore[reportPrivateUsage]
        )

    def forget_statements(self, *, types: bool = False) -> None:
        if self._stage is _IDLE:
            forget_statements(self._raw, types)
        elif self._stage is not _CLOSED:
            # The call may be about to use a statement that it has looked up; asyncpg would close that on the server.
            self._forgets = types or self._forgets is True
            self._link.stirred = self._loop.odd = True  # or the end of the call would not look

    def expect_notifications(self) -> None:
        self._expects = True
        if self._stage is _IDLE:
            self._hear()
        else:
            self._link.stirred = self._loop.odd = True  # or the end of the call would not look

    def attach(self, events: SessionEvents) -> None:
        self._events = events
        self._limits = self._limits_once_owned
        self._bounded = self._limits.any
        self._tell()

    def source(self, rows: AsyncIterable[Any]) -> AsyncIterable[Any]:
        self._expect_users_code()
        return Source(rows, self._link)

    def sink(self, write: Callable[[bytes], Awaitable[None]]) -> Callable[[bytes], Awaitable[None]]:
        self._expect_users_code()
        return trio_sink(write, self._link)

    def _expect_users_code(self) -> None:
        """The next call has the user's own code in it, and takes the longer way."""
        self._link.streams = self._bounded = True

    # Calls.

    @enable_ki_protection
    async def drive(self, call: Coroutine[Any, Any, T], timeout: float | None = None, grace: float | None = None) -> T:
        if self._stage is not _IDLE or self._bounded or timeout is not None:
            return await self._drive_bounded(call, timeout, grace)
        self._stage = _BUSY
        try:
            bound = None if grace is None else Grace(grace, None, _FOREVER)
            return await (run_plain if is_plain(call) else run)(self._link, call, bound)
        except OVER as error:
            self._judge(error)
            raise
        except Expired:
            self._cut_off(_unanswered(grace))
        finally:
            if self._loop.odd:
                self._after()
            else:
                self._stage = _IDLE

    @enable_ki_protection
    async def drive_after(self, preface: Preface, call: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        if self._stage is not _IDLE:
            due = _FOREVER if timeout is None else trio.current_time() + timeout
            try:
                await self._admit(timeout, due)
            except BaseException:
                call.close()
                raise
            timeout = None if timeout is None else due - trio.current_time()
        # No other call can come in between: the next checkpoint is after the call's first write, or ends the call.
        transport = self._link.transport
        Ahead(self._link, preface.sql)
        preface.sent = True
        try:
            return await self.drive(call, timeout)
        finally:
            preface.sent = transport.ahead is None
            transport.ahead = None

    async def _drive_bounded(self, call: Coroutine[Any, Any, T], timeout: float | None, grace: float | None) -> T:
        limits = self._limits
        if timeout is None:
            timeout = limits.command_timeout
        due = _FOREVER if timeout is None else trio.current_time() + timeout
        try:
            await self._admit(timeout, due)
        except BaseException:
            call.close()
            raise
        self._stage = _BUSY
        self._renew_statements()
        cut = _FOREVER if limits.socket_timeout is None else trio.current_time() + limits.socket_timeout
        try:
            with trio.CancelScope(deadline=min(due, cut)) as scope:
                return await self._run_before(cut, call, None if grace is None else Grace(grace, scope, cut))
            if due < cut:
                raise _late(timeout)
            self._cut_off("socket_timeout")
        except Expired:
            over = trio.current_time() >= cut
            self._cut_off("socket_timeout" if over else _unanswered(grace))
        finally:
            self._link.streams, self._bounded = False, limits.any
            self._after()

    async def _run_before(self, cut: float, call: Coroutine[Any, Any, T], grace: Grace | None) -> T:
        """Run it. What comes at `cut` or later, be it the answer, is lost: the socket is being closed by then."""
        link = self._link
        try:
            result = await (run_with_users_code if link.streams else run)(link, call, grace)
        except Expired:
            raise
        except Exception as error:
            if trio.current_time() >= cut:
                self._cut_off("socket_timeout", error)
            self._judge(error)
            raise
        if trio.current_time() >= cut:
            self._cut_off("socket_timeout")
        return result

    def _judge(self, error: Exception) -> None:
        """What an error of a call says of the session. Raises `ConnectionLost` if it is over."""
        link = self._link
        if isinstance(error, OVER) and error is not link.users_error:
            if has_lost_track(error):
                link.lose_track(error)
            if link.closed:
                raise ConnectionLost(link.reason, self._host) from error
        if getattr(error, "sqlstate", None) in STALE:
            # A prepared statement has turned out to be of no more use.
            forget_statements(self._raw)
            if names_a_dropped_type(error):
                self._raw.tell_outdated(False)

    async def _admit(self, timeout: float | None, due: float) -> None:
        """Wait until a call may start, or raise why it may not."""
        if timeout is not None and timeout <= 0 and self._stage is not _CLOSED:
            raise _late(timeout)
        if self._stage is _ABANDONED:
            with trio.CancelScope(deadline=due):
                while self._stage is _ABANDONED and self._settled is not None:
                    await self._settled.wait()
        match self._stage:
            case _Stage.IDLE:
                return
            case _Stage.ABANDONED:
                raise _late(timeout)
            case _Stage.BUSY:
                raise asyncpg.InterfaceError("cannot perform operation: another operation is in progress")
            case _Stage.CLOSED:
                raise ConnectionLost(self._link.reason, self._host)

    def _cut_off(self, reason: str, cause: Exception | None = None) -> NoReturn:
        self._link.shut(reason)
        raise ConnectionLost(self._link.reason, self._host) from cause

    def _renew_statements(self) -> None:
        lifetime = self._limits.statement_lifetime
        if lifetime is not None and trio.current_time() - self._statements_since >= lifetime:
            self._statements_since = trio.current_time()
            forget_statements(self._raw)

    def _after(self) -> None:
        """A call has ended in some way that the fast path does not look at."""
        self._loop.run_ready()
        if self._link.closed:
            self._tell()
        elif self._loop.cancel_sent is not None or is_cancelling(self._link.wire):
            self._stage = _ABANDONED
            self._settled = trio.Event()
            if self._events is not None:
                self._events.abandoned()
        else:
            self._rest()

    def _rest(self) -> None:
        """Become idle, and catch up with what happened on the socket meanwhile."""
        self._stage = _IDLE
        if self._forgets is not None:
            forget_statements(self._raw, self._forgets)
            self._forgets = None
        self._hear()
        if self._link.stirred:
            self._link.drain()
        self._link.recount()
        self._wake()

    def _hear(self) -> None:
        """Have the idle socket watched for data where there may be some."""
        hearing = self._expects or hears(self._raw)
        if hearing is not self._hearing:
            self._hearing = hearing
            self._watch.hear(self, hearing)

    def _wake(self) -> None:
        for event in (self._settled, self._idle_again):
            if event is not None:
                event.set()
        self._settled = self._idle_again = None

    # The socket between calls: `Watched`.

    def stirred(self) -> None:
        if self._stage is _IDLE:
            self._link.drain()
        else:
            self._link.stirred = True
            self._loop.odd = True
            self._link.overhear()

    async def until_idle(self) -> bool:
        while self._stage is not _IDLE:
            if self._link.closed:
                return False
            if self._idle_again is None:
                self._idle_again = trio.Event()
            self._link.stirred = self._loop.odd = True  # or the end of the call would not look
            await self._idle_again.wait()
        return True

    # The end.

    def _ended(self) -> None:
        """The link was closed, by whichever side."""
        told_at_once = self._stage is _IDLE
        self._untold = True
        self._stage = _CLOSED
        self._watch.remove(self)
        self._wake()
        if told_at_once:
            self._tell()

    def _tell(self) -> None:
        """Tell the owner of a loss, once, outside any call."""
        if self._untold and self._events is not None:
            self._untold = False
            self._events.lost(self._link.reason)

    @enable_ki_protection
    async def settle(self, timeout: float) -> bool:
        if self._stage is not _ABANDONED:
            await checkpoint()
            return self._stage is not _CLOSED
        problem = f"a call that was left had not ended {timeout:g} s later"
        if timeout > 0:
            try:
                with trio.move_on_after(timeout):
                    await quieten(self._link, self._ask_to_cancel)
                    if not self._link.closed:
                        self._rest()
                        return True
            except (ConnectFailure, asyncio.CancelledError, *OVER) as error:
                problem = f"a call that was left could not be cancelled: {error}"
            except BaseException:
                self.terminate("the wait for a call that was left was given up")
                raise
        self.terminate(problem)
        return False

    async def _ask_to_cancel(self) -> None:
        wire = self._link.wire
        await send_cancel(self._peer, self._host, wire.backend_pid, wire.backend_secret)

    @enable_ki_protection
    async def close(self, timeout: float) -> None:
        link = self._link
        if self._stage is not _IDLE or timeout <= 0 or link.transport.backlog:
            self.terminate("closed")
            await checkpoint()
            return
        self._stage = _CLOSED
        link.reason = "closed"
        self._watch.remove(self)
        link.transport.write(GOODBYE)
        try:
            with trio.move_on_after(timeout):
                await link.until_end()
        finally:
            self._shut("closed", goodbye=False)

    async def interrupt(self, timeout: float) -> None:
        with trio.move_on_after(timeout), suppress(ConnectFailure, OSError):
            await self._ask_to_cancel()

    def terminate(self, reason: str) -> None:
        self._shut(reason, goodbye=True)

    def _shut(self, reason: str, *, goodbye: bool) -> None:
        """Close the socket by the owner's own wish: it is not told."""
        busy = self._stage is _BUSY
        self._stage = _CLOSED
        self._link.shut(reason, goodbye=goodbye and not busy)
        self._untold = False
        if not busy:
            self._loop.run_ready()


def _unanswered(grace: float | None) -> str:
    return f"cancelled, and no answer came within {grace:g} s"


def _late(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"the call did not end within {timeout:g} s")
