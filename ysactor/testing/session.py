"""The client's side of one fake session: it drives calls by the rules of `ysactor.driver.protocol.Session`."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ..driver.protocol import Preface, SessionEvents, Status
from ..errors import ConnectionLost
from ..servers import HostPort
from .backend import Backend, Request
from .executor import Work
from .pgerrors import connection_gone, interface_error
from .raw import FakeConnection
from .rows import Result

if TYPE_CHECKING:
    from .cluster import FakeCluster
    from .server import FakeServer

T = TypeVar("T")


@dataclass(slots=True)
class _Call:
    """The call that is running, and what bounds it; times are those of the clock."""

    task: trio.lowlevel.Task
    timeout_at: float
    socket_timeout_at: float
    grace: float | None
    grace_until: float | None = None
    sent: bool = False
    left: bool = False
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Cancelled by `terminate`, so that a call ends that waits for a source of its own."""


class FakeSession:
    """An open session. Made by `FakeDriver.connect`."""

    def __init__(
        self,
        cluster: FakeCluster,
        server: FakeServer,
        host: HostPort,
        socket_timeout: float | None,
        command_timeout: float | None,
    ) -> None:
        self._cluster = cluster
        self._server = server
        self._host = host
        self._limits_once_owned = (math.inf if socket_timeout is None else socket_timeout, command_timeout)
        self._socket_timeout = math.inf
        self._command_timeout: float | None = None
        self._raw = FakeConnection(self, cluster)
        self.on_outdated = self._raw.plans.on_outdated
        self._forgets: bool | None = None
        """Statements, or (True) types too, are to be forgotten when the call that is under way is over."""
        self._backend: Backend | None = None
        self._status = Status.IDLE
        self._call: _Call | None = None
        self._pending: Request | None = None
        self._settled = trio.Event()
        self._events: SessionEvents | None = None
        self._reason = ""
        self._untold: str | None = None

    def open(self, backend: Backend) -> None:
        """The login has succeeded: this is the server's end."""
        self._backend = backend

    @property
    def backend(self) -> Backend:
        """The server's end."""
        assert self._backend is not None, "bug: a session is given out once it is open"
        return self._backend

    # What the protocol asks for.

    @property
    def host(self) -> HostPort:
        """The server it is connected to, as it was dialled."""
        return self._host

    @property
    def raw(self) -> FakeConnection:
        """The connection with asyncpg's methods."""
        return self._raw

    @property
    def pid(self) -> int:
        """The server's process for it."""
        return self.backend.pid

    @property
    def status(self) -> Status:
        """What it is doing, as far as the client knows."""
        return self._status

    def is_clean(self) -> bool:
        """Whether the next holder may have it as it is."""
        return self._status is Status.IDLE

    def forget_statements(self, *, types: bool = False) -> None:
        """What the connection keeps of the schema is not to be used any more."""
        if self._status in (Status.BUSY, Status.ABANDONED):
            self._forgets = types or self._forgets is True
        else:
            self._raw.plans.forget(types)

    def expect_notifications(self) -> None:
        """There is no socket, and so none that is left unread."""

    def attach(self, events: SessionEvents) -> None:
        """Name the owner."""
        self._events = events
        self._socket_timeout, self._command_timeout = self._limits_once_owned
        self._tell()

    async def drive(self, call: Coroutine[Any, Any, T], timeout: float | None = None, grace: float | None = None) -> T:
        """Run one of `raw`'s coroutines in the caller's task, to its end. See the protocol."""
        timeout = self._command_timeout if timeout is None else timeout
        try:
            until = await self._admit(timeout)
        except BaseException:
            call.close()
            raise
        now = trio.current_time()
        running = _Call(trio.lowlevel.current_task(), until, now + self._socket_timeout, grace)
        self._call, self._status = running, Status.BUSY
        with running.scope:
            try:
                result = await call
            except BaseException as raised:
                self._finish(running, raised)
                raise
            self._finish(running, None)
            if not running.sent:
                await trio.lowlevel.checkpoint()
            return result
        # Only `terminate` cancels that scope.
        raise ConnectionLost(self._reason, self._host)

    async def drive_after(self, preface: Preface, call: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `preface`, then `call`: here each is an exchange of its own."""
        timeout = self._command_timeout if timeout is None else timeout
        until = math.inf if timeout is None else trio.current_time() + timeout

        async def opening() -> None:
            preface.sent = True
            await self._raw.execute(preface.sql)

        try:
            await self.drive(opening(), timeout)
        except BaseException:
            call.close()
            raise
        return await self.drive(call, None if timeout is None else until - trio.current_time())

    def source(self, rows: AsyncIterable[Any]) -> AsyncIterable[Any]:
        """Calls run in Trio's flavour here: nothing to translate."""
        return rows

    def sink(self, write: Callable[[bytes], Awaitable[None]]) -> Callable[[bytes], Awaitable[None]]:
        """Calls run in Trio's flavour here: nothing to translate."""
        return write

    async def settle(self, timeout: float) -> bool:
        """Have the server cancel the abandoned call, and wait until the session is usable again."""
        if self._status is not Status.ABANDONED:
            await trio.lowlevel.checkpoint()
            return self._status is not Status.CLOSED
        settled = False
        try:
            with trio.move_on_after(timeout):
                settled = timeout > 0 and await self._cancel_and_drain()
        finally:
            if not settled:
                self.terminate("the abandoned call could not be cancelled")
        if settled:
            self._rest()
            self._settled.set()
        return settled

    async def close(self, timeout: float) -> None:
        """Say goodbye and wait until the server has closed its end, at most so long."""
        if self._status in (Status.BUSY, Status.ABANDONED):
            self.terminate("closed")
        if self._status is Status.CLOSED:
            await trio.lowlevel.checkpoint()
            return
        self._status, self._reason = Status.CLOSED, "closed"
        try:
            with trio.move_on_after(timeout):
                self.backend.goodbye()
                await self.backend.closed.wait()
        finally:
            self.backend.hang_up("closed")

    async def interrupt(self, timeout: float) -> None:
        """Have the server stop what it is executing for this session."""
        with trio.move_on_after(timeout):
            await self._cluster.deliver_cancel(self._server, self.pid)

    def terminate(self, reason: str) -> None:
        """Close the socket now."""
        self._untold = None
        if self._status is Status.CLOSED:
            return
        self._over(reason)
        if self._call is not None:
            self._call.scope.cancel()
        self.backend.hang_up(reason)

    # What `raw` needs.

    async def exchange(
        self,
        sql: str,
        args: tuple[Any, ...] = (),
        work: Work | None = None,
        *,
        timeout: float | None = None,
        record: bool = True,
    ) -> Result:
        """Ask the server, and wait for the answer within the bounds of the call."""
        call = self.check_driven()
        if self._status is Status.CLOSED:
            raise interface_error("connection is closed")
        request = self._pending = self.backend.ask(sql, args, work, record=record)
        call.sent = True
        await self._wait(call, request, math.inf if timeout is None else trio.current_time() + timeout)
        if request.failure is not None:
            raise request.failure
        assert request.result is not None, "bug: an answer is a result or a failure"
        return request.result

    def check_driven(self) -> _Call:
        """The running call. A coroutine of `raw` that is awaited by itself breaks the contract, and is told so."""
        if self._call is None or self._call.task is not trio.lowlevel.current_task():
            raise RuntimeError("bug: a coroutine of `raw` is run by `Session.drive`, never awaited by itself")
        return self._call

    # What the server's end tells.

    def server_closed(self, reason: str) -> None:
        """The connection is over."""
        was = self._status
        if was is Status.CLOSED:
            return
        self._over(reason)
        self._untold = reason
        if was in (Status.IDLE, Status.IN_TRANSACTION):
            self._tell()

    def notified(self, pid: int, channel: str, payload: str) -> None:
        """A notification has arrived."""
        if self._status is not Status.CLOSED:
            self._raw.notified(pid, channel, payload)

    # A call from beginning to end.

    async def _admit(self, timeout: float | None) -> float:
        """Wait until a call may begin; the time its `timeout` runs out."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_free()
        until = math.inf if timeout is None else trio.current_time() + timeout
        if timeout is not None and timeout <= 0:
            raise TimeoutError
        if self._status is Status.ABANDONED:
            with trio.move_on_at(until):
                await self._settled.wait()
            self._check_free()
            if not self._settled.is_set():
                raise TimeoutError
        return until

    def _check_free(self) -> None:
        match self._status:
            case Status.BUSY:
                raise interface_error("cannot perform operation: another operation is in progress")
            case Status.CLOSED:
                raise ConnectionLost(self._reason, self._host) from interface_error("connection is closed")
            case _:
                return

    async def _wait(self, call: _Call, request: Request, timeout_at: float) -> None:
        until = min(call.timeout_at, call.socket_timeout_at, timeout_at)
        with trio.CancelScope(deadline=until):
            if call.grace_until is None:
                try:
                    await request.done.wait()
                except trio.Cancelled:
                    now = trio.current_time()
                    if call.grace is None or now >= until:
                        call.left = True
                        raise
                    call.grace_until = now + call.grace
            if call.grace_until is not None and not request.done.is_set():
                with trio.CancelScope(deadline=min(until, call.grace_until), shield=True):
                    await request.done.wait()
        now = trio.current_time()
        if now >= call.socket_timeout_at:
            self._give_up("socket_timeout")
            raise connection_gone()
        if request.done.is_set():
            return
        if now >= until:
            call.left = True
            raise TimeoutError
        self._give_up("given up after a cancellation")
        raise connection_gone()

    def _finish(self, call: _Call, raised: BaseException | None) -> None:
        """The call is over or left: what the session is now, and the error in our words if it is lost."""
        self._call = None
        if self._status is not Status.CLOSED and trio.current_time() >= call.socket_timeout_at:
            self._give_up("socket_timeout")
        if self._status is Status.CLOSED:
            self._tell()
            if raised is None or isinstance(raised, Exception):
                raise ConnectionLost(self._reason, self._host) from raised
            return
        if call.sent and (call.left or not (raised is None or isinstance(raised, Exception))):
            self._status = Status.ABANDONED
            self._settled = trio.Event()
            if self._events is not None:
                self._events.abandoned()
            return
        self._rest()

    def _give_up(self, reason: str) -> None:
        """The call's bounds end the session: its owner, who has not asked for it, is told when the call is over."""
        self.terminate(reason)
        self._untold = reason

    def _tell(self) -> None:
        """Tell the owner of a loss, once, and never in the middle of a call."""
        if self._untold is not None and self._events is not None:
            reason, self._untold = self._untold, None
            self._events.lost(reason)

    def _rest(self) -> None:
        in_transaction = self.backend.executor.rest_state != "idle"
        self._status = Status.IN_TRANSACTION if in_transaction else Status.IDLE
        if self._forgets is not None:
            self._raw.plans.forget(self._forgets)
            self._forgets = None

    async def _cancel_and_drain(self) -> bool:
        pending = self._pending
        if not await self._cluster.deliver_cancel(self._server, self.pid):
            return False
        if pending is not None:
            await pending.done.wait()
        return self._status is Status.ABANDONED

    def _over(self, reason: str) -> None:
        self._status, self._reason = Status.CLOSED, reason
        self._settled.set()
        if self._pending is not None:
            self._pending.reply(None, connection_gone())

    def __repr__(self) -> str:
        return f"<FakeSession to {self._host}, {self._status.value}>"
