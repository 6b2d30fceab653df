"""The server's side of one session: its connection, and the statement that is running.

Rules. One statement at a time. A cancel request hits whatever is running when it arrives, which may be another
statement than the one it was meant for. A client that hangs up in the middle of a statement does not stop it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import trio

from .executor import Executor, Gone, State, Work
from .journal import Asked, Closed
from .pgerrors import connection_gone, error
from .rows import Result
from .settings import Settings

if TYPE_CHECKING:
    from .server import FakeServer


class Client(Protocol):
    """What the server's end of a connection can make the client's end see."""

    def server_closed(self, reason: str) -> None:
        """The connection is over."""
        ...

    def notified(self, pid: int, channel: str, payload: str) -> None:
        """A notification has arrived."""
        ...


@dataclass(eq=False, slots=True)
class Request:
    """One thing asked of the server, and its answer when there is one."""

    done: trio.Event = field(default_factory=trio.Event)
    result: Result | None = None
    failure: BaseException | None = None

    def reply(self, result: Result | None, failure: BaseException | None) -> None:
        """Answer. Only the first answer counts: a connection that ended has already answered."""
        if not self.done.is_set():
            self.result, self.failure = result, failure
            self.done.set()


class Backend:
    """One session, as its server sees it."""

    def __init__(
        self, server: FakeServer, nursery: trio.Nursery, client: Client, *, pid: int, start: dict[str, str]
    ) -> None:
        self.server = server
        self.pid = pid
        self.query = ""
        self.closed = trio.Event()
        """Set when the connection is gone, whoever closed it."""
        self.tls = False
        self.user = start["user"]
        self.database = start["database"]
        settings = Settings({key: value for key, value in start.items() if key not in ("user", "database")})
        self.executor = Executor(server, pid, settings, is_over=lambda: self._over, cut=self.end)
        self._nursery = nursery
        self._client: Client | None = client
        self._running: tuple[Request, trio.CancelScope] | None = None
        self._undelivered: list[tuple[int, str, str]] = []
        self._over = False
        """It has ended, though its client may not know."""
        self._resets = False
        """Its machine is back and knows nothing of it: whatever the client sends is answered by a reset."""
        self._stranded = False
        """Its client is waiting for an answer that will not come."""

    # What it looks like from outside.

    @property
    def state(self) -> State:
        """What pg_stat_activity would show."""
        if self._running is not None or self.executor.copying:
            return "active"
        return self.executor.rest_state

    @property
    def is_orphan(self) -> bool:
        """Whether it is still running something for a client that has gone."""
        return self._client is None

    # What its client does.

    def ask(self, sql: str, args: tuple[Any, ...] = (), work: Work | None = None, *, record: bool = True) -> Request:
        """Begin a statement, in a task of the server's own. `work` replaces what the text would do."""
        request = Request()
        cluster = self.server.cluster
        if record:
            cluster.journal.add(Asked(trio.current_time(), self.server.at, self.pid, sql, args))
        if self._over:
            self._stranded = True
            if self._resets:
                self._tell("reset by the server")
            if self.closed.is_set():
                request.reply(None, connection_gone())
            return request
        scope = trio.CancelScope()
        self._running = (request, scope)
        self._nursery.start_soon(
            self._serve, request, scope, sql, args, work, name=f"fake server {self.server}: {sql[:40]}"
        )
        return request

    def hang_up(self, reason: str) -> None:
        """The client has closed its socket."""
        self._client = None
        if self._running is None and not self._over:
            self._end("client", reason)
        elif not self.closed.is_set():
            self.server.cluster.journal.add(Closed(trio.current_time(), self.server.at, self.pid, "client", reason))

    def goodbye(self) -> None:
        """The client has said that it will close: the server does, when it reads that."""

        async def leave() -> None:
            await self.server.awake()
            if not self._over:
                self._client = None
                self._end("client", "goodbye")

        self._nursery.start_soon(leave, name=f"fake server {self.server}: goodbye")

    # What happens to it.

    def cancel(self) -> None:
        """A cancel request has come, or pg_cancel_backend: whatever is running fails with 57014."""
        if self._running is not None:
            self._running[1].cancel()
        elif self.executor.copying:
            self.executor.copying = False
            self.executor.fail()

    def end(self, reason: str) -> None:
        """The server closes the connection. An open transaction is rolled back."""
        self._end("server", reason)

    def vanish(self) -> None:
        """The machine is gone: the session has ended, and its client is told nothing."""
        self._over = True
        self.executor.roll_back()
        self._stranded = self._running is not None
        self._stop_running()
        self.server.forget(self)

    def reappear(self) -> None:
        """The machine is back: a client that waits is told, any other when it next sends something."""
        self._resets = True
        if self._stranded:
            self._tell("reset by the server")

    def deliver(self, pid: int, channel: str, payload: str) -> None:
        """A notification for this session, kept back while its server hangs."""
        if channel in self.executor.channels:
            self._undelivered.append((pid, channel, payload))
            self.flush()

    def flush(self) -> None:
        """Send the notifications kept back."""
        while self._undelivered and self.server.is_awake and self._client is not None:
            self._client.notified(*self._undelivered.pop(0))

    # Running a statement.

    async def _serve(
        self, request: Request, scope: trio.CancelScope, sql: str, args: tuple[Any, ...], work: Work | None
    ) -> None:
        cluster = self.server.cluster
        result: Result | None = None
        failure: BaseException | None = None
        limit = self.executor.settings.seconds("statement_timeout")
        with scope:
            try:
                await self.server.awake()
                self.query = sql
                scope.deadline = trio.current_time() + limit
                if cluster.before_statement is not None:
                    await cluster.before_statement(self.server, sql)
                await trio.sleep(self.server.query_delay)
                result = await (
                    self.executor.query(sql, args) if work is None else self.executor.inside(work(self.executor))
                )
            except Gone:
                return
            except Exception as raised:
                failure = raised
        if scope.cancelled_caught:
            if self._over:
                return
            timed_out = trio.current_time() >= scope.deadline
            failure = error(
                "57014", f"canceling statement due to {'statement timeout' if timed_out else 'user request'}"
            )
            self.executor.fail()
        # A server that was stopped meanwhile has done the work and says nothing until it runs again.
        with trio.CancelScope() as answering:
            self._running = (request, answering)
            await self.server.awake()
        if self._over:
            return
        self._running = None
        request.reply(result, failure)
        if self._client is None:
            self._end("client", "")

    # The end.

    def _end(self, by: Literal["client", "server"], reason: str) -> None:
        if self._over:
            return
        self._over = True
        self.executor.roll_back()
        self.server.forget(self)
        if reason:
            self.server.cluster.journal.add(Closed(trio.current_time(), self.server.at, self.pid, by, reason))
        self._stop_running()
        self._tell("closed by the server")

    def _tell(self, reason: str) -> None:
        self.closed.set()
        client, self._client = self._client, None
        if client is not None:
            client.server_closed(reason)

    def _stop_running(self) -> None:
        if self._running is not None:
            self._running[1].cancel()

    def __repr__(self) -> str:
        return f"<Backend {self.pid} of {self.server}, {self.state}>"
