"""A primary and its streaming standbys: roles, lag, failover, split brain, rejoining."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial

import trio

from ysactor.testing.postgres import topology
from ysactor.testing.postgres.bed import Capability, Dialled, Member
from ysactor.testing.postgres.binaries import Binaries
from ysactor.testing.postgres.configuration import ADMIN, Access, create_data
from ysactor.testing.postgres.run import Run
from ysactor.testing.postgres.server import PostgresServer, ServerFailed, until
from ysactor.testing.postgres.threads import off_thread
from ysactor.testing.postgres.three_zones import CLEAN
from ysactor.testing.postgres.topology import ServerRow

# pg_rewind asks for the first two. wal_keep_size: a standby that was down for a test must find its place again.
_SETTINGS: Mapping[str, str] = {
    "full_page_writes": "on",
    "wal_log_hints": "on",
    "hot_standby": "on",
    "max_wal_senders": "8",
    "wal_keep_size": "32MB",
    "wal_retrieve_retry_interval": "100ms",
    "wal_receiver_status_interval": "1s",
    # A commit is written before it is answered, so that it is on its way to the standbys at once.
    "synchronous_commit": "local",
}


class Replicated(Dialled):
    """Server 0 is the primary at first, the others follow it by streaming replication. There is no ``yb_servers()``."""

    name = "replicated"
    capabilities: frozenset[Capability] = frozenset({"replication", "freeze", "signals"})
    detect_s = 1.0

    def __init__(
        self,
        run: Run,
        *,
        standbys: int = 2,
        closed: Iterable[int] = (),
        settings: Mapping[str, str] | None = None,
        access: Access | None = None,
    ) -> None:
        addresses = run.addresses(standbys + 1)
        places = topology.three_zones(len(addresses))
        super().__init__([Member(*address, place) for address, place in zip(addresses, places, strict=True)])
        self.run = run
        self._closed = frozenset(closed)
        self._first = {**_SETTINGS, **(settings or {})}
        self._access = access or Access()
        template = create_data(run, "template", settings=self._first)
        self.servers = [
            PostgresServer(run, f"server-{number}", address, template=template, access=access)
            for number, address in enumerate(addresses)
        ]
        self._build()

    def _build(self) -> None:
        """Standbys from the copy that the primary starts from: the same data, before anything was written."""
        for number, server in enumerate(self.servers):
            server.access = self._access
            server.settings = dict(self._first) | {"cluster_name": server.name}
            if number in self._closed:
                server.settings["hot_standby"] = "off"
            if number:
                self._follow(number, 0)
        self.servers[0].start()
        for number, server in enumerate(self.servers[1:], 1):
            server.start(wait=number not in self._closed)
        self.wait_streaming(0, range(1, len(self.servers)))

    def _follow(self, index: int, primary: int) -> None:
        """Write down whom it follows; it does from its next start."""
        server, source = self.servers[index], self.servers[primary]
        server.settings["primary_conninfo"] = (
            f"host={source.host} port={source.port} user={ADMIN} application_name={server.name}"
        )
        server.settings["recovery_target_timeline"] = "latest"
        signal = server.data / "standby.signal"
        signal.touch()
        self.run.give(signal)

    def wait_streaming(self, primary: int, standbys: Iterable[int], *, timeout: float = 10.0) -> None:
        """Return when all of them stream from that primary. Raises ServerFailed."""
        wanted = {self.servers[index].name for index in standbys}

        def streaming() -> bool:
            rows = self.servers[primary].sql(
                "select application_name from pg_stat_replication where state = 'streaming'"
            )
            return wanted <= {name for (name,) in rows}

        if not until(streaming, timeout):
            raise ServerFailed(f"not all of {', '.join(sorted(wanted))} follow {self.servers[primary]!r}")

    def catch_up(self, primary: int, *, timeout: float = 10.0) -> None:
        """Return when every standby of that primary has replayed what it has committed so far. Raises ServerFailed."""
        source = self.servers[primary]
        position = source.value("select pg_current_wal_flush_lsn()")
        behind = f"select 1 from pg_stat_replication where coalesce(replay_lsn < '{position}', true)"
        if not until(lambda: not source.sql(behind), timeout):
            raise ServerFailed(f"the standbys of {source!r} do not catch up")

    def fail_over(self, to: int) -> None:
        """Promote a standby, and have every other running standby follow it. The old primary is left as it is."""
        self.servers[to].promote()
        self.servers[to].settings.pop("primary_conninfo", None)
        others = [
            number
            for number, server in enumerate(self.servers)
            if number != to and server.is_running and not server.is_frozen and self._replays(number)
        ]
        for number in others:
            self.follow(number, to)

    def _replays(self, index: int) -> bool:
        return (self.servers[index].data / "standby.signal").exists()

    def follow(self, index: int, primary: int) -> None:
        """Restart a standby so that it follows that primary; returns when it streams."""
        self.servers[index].stop("fast")
        self._follow(index, primary)
        self.servers[index].start(wait=index not in self._closed)
        self.wait_streaming(primary, [index])

    def rejoin(self, index: int, primary: int) -> None:
        """Bring a former primary back as a standby: stop it, undo with pg_rewind what only it had, and follow."""
        server, source = self.servers[index], self.servers[primary]
        if server.is_running:
            server.stop("fast")
        # The new timeline must have reached the source's disk, or pg_rewind sees nothing to do.
        source.sql("checkpoint")
        origin = f"host={source.host} port={source.port} user={ADMIN} dbname=postgres"
        self.run.spawner.run(
            [self.run.binaries.tool("pg_rewind"), "-D", str(server.data), "--source-server", origin, "--no-sync"]
        )
        self._follow(index, primary)
        server.start(wait=index not in self._closed)
        self.wait_streaming(primary, [index])

    def synchronous(self, primary: int, standbys: int) -> None:
        """Have commits on the primary wait for so many standbys, 0 for none. With too few left they wait for ever."""
        server = self.servers[primary]
        names = ", ".join(f'"{other.name}"' for other in self.servers if other is not server)
        server.settings["synchronous_standby_names"] = f"ANY {standbys} ({names})" if standbys else ""
        server.settings["synchronous_commit"] = "on" if standbys else "local"
        server.reload()
        wanted = "on" if standbys else "local"
        if not until(lambda: server.value("show synchronous_commit") == wanted, 5.0):
            raise ServerFailed(f"{server!r} does not take its new settings")

    def _as_at_first(self) -> bool:
        """Server 0 is the primary and all others stream from it, in the settings they started with."""
        for number, server in enumerate(self.servers):
            follows = ("primary_conninfo", "recovery_target_timeline", "hot_standby", "cluster_name")
            settings = {name: value for name, value in server.settings.items() if name not in follows}
            first = {name: value for name, value in self._first.items() if name not in follows}
            if not server.is_running or settings != first or server.access != self._access:
                return False
            if (number > 0) != self._replays(number):
                return False
        try:
            self.wait_streaming(0, range(1, len(self.servers)), timeout=1.0)
        except (ServerFailed, OSError):
            return False
        return True

    def reset(self) -> None:
        for server in self.servers:
            server.thaw()
        if not self._as_at_first():
            for server in self.servers:
                server.recreate()
            self._build()
            return
        for number, server in enumerate(self.servers):
            if number not in self._closed:
                server.end_sessions()
                server.sql(*(CLEAN if number == 0 else CLEAN[:2]))

    async def kill(self, index: int) -> None:
        await trio.to_thread.run_sync(self.servers[index].kill)

    async def start(self, index: int) -> None:
        await trio.to_thread.run_sync(partial(self.servers[index].start, wait=index not in self._closed))

    async def freeze(self, index: int) -> None:
        await trio.to_thread.run_sync(self.servers[index].freeze)

    async def thaw(self, index: int) -> None:
        await trio.to_thread.run_sync(self.servers[index].thaw)

    async def set_topology(self, rows: Sequence[ServerRow], *, on: Iterable[int] | None = None) -> None:
        """Raises ValueError: PostgreSQL has no ``yb_servers()``."""
        raise ValueError("this bed has no yb_servers()")

    async def sessions(self, index: int, application_name: str) -> int:
        return await trio.to_thread.run_sync(self.servers[index].sessions, application_name)

    def close(self) -> None:
        for server in self.servers:
            server.close()


@contextmanager
def replicated(
    standbys: int = 2,
    *,
    closed: Iterable[int] = (),
    max_connections: int = 60,
    settings: Mapping[str, str] | None = None,
    access: Access | None = None,
    binaries: Binaries | None = None,
) -> Generator[Replicated, None, None]:
    """Build the bed, and leave nothing of it. About 0.8 s; without Trio.

    ``closed``: numbers of standbys with ``hot_standby=off``, which refuse every session with 57P03.
    """
    with ExitStack() as stack:
        run = stack.enter_context(Run(binaries))
        options = {"max_connections": str(max_connections), **(settings or {})}
        bed = Replicated(run, standbys=standbys, closed=closed, settings=options, access=access)
        stack.callback(bed.close)
        yield bed


@asynccontextmanager
async def open_replicated(
    standbys: int = 2,
    *,
    closed: Iterable[int] = (),
    max_connections: int = 60,
    settings: Mapping[str, str] | None = None,
    access: Access | None = None,
    binaries: Binaries | None = None,
) -> AsyncGenerator[Replicated, None]:
    """``replicated`` for programs under Trio: building and ending happen in a worker thread, uninterrupted."""
    manager = replicated(
        standbys,
        closed=closed,
        max_connections=max_connections,
        settings=settings,
        access=access,
        binaries=binaries,
    )
    async with off_thread(manager) as bed:
        yield bed
