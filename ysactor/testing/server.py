"""One server of a fake cluster, and what may happen to it. The verbs read like an incident report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import trio

from ..servers import HostPort
from .backend import Backend
from .executor import State
from .journal import LoggedIn
from .pgerrors import error
from .scripts import Answer, Script, Scripts

if TYPE_CHECKING:
    from .cluster import FakeCluster


class Condition(Enum):
    """How a server meets a client."""

    UP = "up"
    REFUSING = "refusing"
    """Nothing listens; open sessions go on."""
    DOWN = "down"
    """The process is gone: dials are refused, and every session has been cut off."""
    HUNG = "hung"
    """The process is stopped: the kernel still accepts, and nothing is answered."""
    VANISHED = "vanished"
    """The machine or its network is gone: nothing at all comes back."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """One open session as its server shows it, like a row of pg_stat_activity."""

    pid: int
    application_name: str
    user: str
    database: str
    state: State
    query: str
    """The statement that is running, or the last one."""
    tls: bool
    settings: Mapping[str, str]
    """What is set in the session: start-up parameters, and SET."""
    channels: frozenset[str]
    """What it listens to."""
    prepared: tuple[str, ...]
    """The statements that were prepared in it, `prepare_on_connect` among them, oldest first."""


Listed: TypeAlias = "FakeServer | Mapping[str, Any]"
"""An entry of a listing: a server, or the row itself, malformed ones included."""


class FakeServer:
    """A database server. Made by `FakeCluster.add`; its attributes may be changed at any time."""

    def __init__(
        self,
        cluster: FakeCluster,
        at: HostPort,
        *,
        cloud: str,
        region: str,
        zone: str,
        node_type: str,
        public_ip: str,
    ) -> None:
        self.cluster = cluster
        self.at = at
        """The address in its cluster's network, and its identity here."""
        self.cloud = cloud
        self.region = region
        self.zone = zone
        self.node_type = node_type
        self.public_ip = public_ip
        self.condition = Condition.UP
        self.is_standby = False
        """Whether pg_is_in_recovery() is true and writes give 25006."""
        self.is_read_only = False
        """Whether default_transaction_read_only is on: a transaction that does not begin READ WRITE refuses writes."""
        self.max_connections: int | None = None
        """Past this many sessions a login is turned away with 53300."""
        self.connect_delay = 0.0
        self.query_delay = 0.0
        self.cancel_delay = 0.0
        self.rejection: Exception | None = None
        self.tls: Literal["offered", "broken", "not offered"] = "offered"
        self._awake = trio.Event()
        self._awake.set()
        self._changed = trio.Event()
        self._backends: dict[int, Backend] = {}
        self._ghosts: list[Backend] = []
        self._arriving: set[trio.CancelScope] = set()
        self._scripts = Scripts()
        self._listing: Sequence[Listed] | None = None
        self._cuts: list[Literal["before", "after"]] = []

    @property
    def host(self) -> str:
        """The host of `at`."""
        return self.at.host

    @property
    def port(self) -> int:
        """The port of `at`."""
        return self.at.port

    # The incidents.

    def crash(self) -> None:
        """The server's process dies: connections end at once, open transactions are lost, dials are refused."""
        self._become(Condition.DOWN)
        for scope in tuple(self._arriving):
            scope.cancel()
        for backend in tuple(self._backends.values()):
            backend.end("the server crashed")

    def hang(self) -> None:
        """The server stops answering: it still accepts, and no login or statement gets an answer before `recover`."""
        self._become(Condition.HUNG)
        self._awake = trio.Event()

    def vanish(self) -> None:
        """The machine is gone without a word: dials and statements wait for ever, and its sessions are lost.

        After `recover` it knows none of its old sessions, and resets a connection that sends something.
        """
        self._become(Condition.VANISHED)
        for backend in tuple(self._backends.values()):
            self._ghosts.append(backend)
            backend.vanish()

    def refuse(self) -> None:
        """Dials are refused; open sessions go on."""
        self._become(Condition.REFUSING)

    def reject(self, sqlstate: str, message: str = "") -> None:
        """Logins are turned away with this SQLSTATE, such as 57P03 while it starts up or shuts down."""
        self.rejection = error(sqlstate, message, severity="FATAL")

    def break_tls(self) -> None:
        """TLS handshakes fail. Connections that do not ask for TLS are not concerned."""
        self.tls = "broken"

    def without_tls(self) -> None:
        """The server offers no TLS: one that may do without goes on in the clear, any other fails."""
        self.tls = "not offered"

    def demote(self) -> None:
        """It becomes a standby. Sessions stay open; writes give 25006."""
        self.is_standby = True

    def promote(self) -> None:
        """It accepts writes."""
        self.is_standby = False

    def close_to_writes(self) -> None:
        """default_transaction_read_only is turned on, as to fence an old primary. Sessions stay open."""
        self.is_read_only = True

    def open_to_writes(self) -> None:
        """default_transaction_read_only is off again."""
        self.is_read_only = False

    def slow(self, *, connect: float | None = None, query: float | None = None, cancel: float | None = None) -> None:
        """How long a login, each statement, and a cancel request take, in (virtual) seconds; what is left out stays."""
        self.connect_delay = self.connect_delay if connect is None else connect
        self.query_delay = self.query_delay if query is None else query
        self.cancel_delay = self.cancel_delay if cancel is None else cancel

    def recover(self) -> None:
        """It is up, fast, and takes logins and TLS again. It stays a standby or read-only if it is."""
        self._become(Condition.UP)
        self.rejection = None
        self.tls = "offered"
        self.connect_delay = self.query_delay = self.cancel_delay = 0.0

    def kill_sessions(
        self,
        which: Callable[[SessionView], bool] = lambda _view: True,
        *,
        reason: str = "terminated by an administrator",
    ) -> int:
        """End sessions from the server's side, as pg_terminate_backend does; how many were ended."""
        doomed = [backend for backend in self._backends.values() if not backend.is_orphan and which(_view(backend))]
        for backend in doomed:
            backend.end(reason)
        return len(doomed)

    def cut_at_commit(self, *, before: bool, times: int = 1) -> None:
        """The next COMMIT is not answered: the connection dies before it took effect, or just after."""
        for _ in range(times):
            self._cuts.append("before" if before else "after")

    # What it says.

    def answer(self, sql: str | re.Pattern[str], answer: Answer, *, times: int | None = None) -> None:
        """Script what a statement answers on this server; the newest answer that matches is taken.

        `sql` is one statement, compared without regard to white space and case, or a pattern that must match all of it.
        `times` limits how many statements are answered so. A server error fails the transaction; raised for a COMMIT,
        it rolls back. Any other exception is a bug in the script and reaches the caller as it is.
        """
        self._scripts.add(sql, answer, times)

    def lists(self, entries: Iterable[Listed] | None) -> None:
        """What yb_servers() answers on this server, a stale view say; None is what the cluster lists."""
        self._listing = None if entries is None else tuple(entries)

    # What can be seen of it.

    @property
    def sessions(self) -> tuple[SessionView, ...]:
        """Its open sessions, oldest first."""
        return tuple(_view(backend) for backend in self._backends.values() if not backend.is_orphan)

    @property
    def orphans(self) -> tuple[SessionView, ...]:
        """Sessions whose client has gone and whose last statement is still running."""
        return tuple(_view(backend) for backend in self._backends.values() if backend.is_orphan)

    # For the other side of this package.

    def listing(self) -> list[Mapping[str, Any]]:
        """The rows of yb_servers(). Raises: 42883 where there is no such function."""
        if not self.cluster.is_yugabyte:
            raise error("42883", "function yb_servers() does not exist")
        entries = self.cluster.listed if self._listing is None else self._listing
        return [entry.row() if isinstance(entry, FakeServer) else entry for entry in entries]

    def row(self) -> Mapping[str, Any]:
        """This server's own row of yb_servers()."""
        return {
            "host": self.host,
            "port": self.port,
            "num_connections": 0,
            "node_type": self.node_type,
            "cloud": self.cloud,
            "region": self.region,
            "zone": self.zone,
            "public_ip": self.public_ip,
            "uuid": f"uuid-{self.at}",
            "universe_uuid": "universe",
        }

    @property
    def is_awake(self) -> bool:
        """Whether the process runs."""
        return self._awake.is_set()

    async def awake(self) -> None:
        """Wait until the process runs."""
        while not self._awake.is_set():
            await self._awake.wait()

    async def changed(self) -> None:
        """Wait until its condition changes."""
        await self._changed.wait()

    def script_for(self, sql: str) -> Script | None:
        """The scripted answer for this statement, its own before its cluster's."""
        return self._scripts.take(sql) or self.cluster.scripts.take(sql)

    def refusal_of(self, sql: str) -> Exception | None:
        """The scripted error that this statement meets as it is prepared."""
        script = self._scripts.find(sql) or self.cluster.scripts.find(sql)
        refusal = None if script is None else script.refusal()
        if script is not None and refusal is not None:
            script.use()
        return refusal

    def take_cut(self) -> Literal["before", "after"] | None:
        """Where this COMMIT is cut, if it is."""
        return self._cuts.pop(0) if self._cuts else None

    def backend(self, pid: int) -> Backend | None:
        """The session with this pid."""
        return self._backends.get(pid)

    def admit(self, backend: Backend, application_name: str) -> None:
        """A session is open."""
        self._backends[backend.pid] = backend
        self.cluster.journal.add(LoggedIn(trio.current_time(), self.at, backend.pid, application_name))

    def forget(self, backend: Backend) -> None:
        """A session is over."""
        self._backends.pop(backend.pid, None)

    def arriving(self, scope: trio.CancelScope) -> None:
        """A login is under way; a crash cancels its scope."""
        self._arriving.add(scope)

    def arrived(self, scope: trio.CancelScope) -> None:
        """That login is over."""
        self._arriving.discard(scope)

    def notify(self, pid: int, channel: str, payload: str) -> None:
        """Pass a notification on to its sessions."""
        for backend in tuple(self._backends.values()):
            backend.deliver(pid, channel, payload)

    def _become(self, condition: Condition) -> None:
        self.condition = condition
        self._awake.set()
        self._changed.set()
        self._changed = trio.Event()
        if condition is Condition.VANISHED:
            return
        ghosts, self._ghosts = self._ghosts, []
        for ghost in ghosts:
            ghost.reappear()
        for backend in tuple(self._backends.values()):
            backend.flush()

    def __str__(self) -> str:
        return str(self.at)

    def __repr__(self) -> str:
        return f"<FakeServer {self} {self.condition.value}, {len(self.sessions)} sessions>"


def _view(backend: Backend) -> SessionView:
    settings = backend.executor.settings.all()
    return SessionView(
        pid=backend.pid,
        application_name=settings.get("application_name", ""),
        user=backend.user,
        database=backend.database,
        state=backend.state,
        query=backend.query,
        tls=backend.tls,
        settings=settings,
        channels=frozenset(backend.executor.channels),
        prepared=tuple(backend.executor.prepared),
    )
