"""Independent servers, one to a zone: discovery, placement, balance, topology changes and faults of processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial

import trio

from ysactor.testing.postgres import topology
from ysactor.testing.postgres.bed import Capability, Dialled, Member
from ysactor.testing.postgres.binaries import Binaries
from ysactor.testing.postgres.configuration import Access, create_data
from ysactor.testing.postgres.run import Run
from ysactor.testing.postgres.server import PostgresServer
from ysactor.testing.postgres.threads import off_thread
from ysactor.testing.postgres.topology import Placement, ServerRow

# Undoes what a test did to a server that lives on. ALTER SYSTEM must be a message of its own, outside a transaction.
# The session that cleans learns of its own reload some time later, and may be read-only until then.
CLEAN = (
    "alter system reset all",
    "select pg_reload_conf()",
    "set default_transaction_read_only = off",
    "drop schema if exists public cascade; create schema public; grant all on schema public to public",
)


class ThreeZones(Dialled):
    """Three servers, or as many as asked for, that know nothing of each other but what ``yb_servers()`` says.

    Each has its own table behind ``yb_servers()``, so they can be made to disagree, and its own data: a write on one is
    not seen on another. Also a context manager's value: see ``three_zones``.
    """

    name = "three-zones"
    capabilities: frozenset[Capability] = frozenset(
        {"yb-servers", "topology-edit", "topology-per-server", "freeze", "signals"}
    )
    detect_s = 1.0

    def __init__(
        self,
        run: Run,
        *,
        placements: Sequence[Placement],
        node_types: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        access: Access | None = None,
    ) -> None:
        addresses = run.addresses(len(placements))
        super().__init__([Member(*address, place) for address, place in zip(addresses, placements, strict=True)])
        self.run = run
        template = create_data(run, "template", setup=topology.SETUP)
        self.servers = [
            PostgresServer(run, f"server-{number}", address, template=template, settings=settings, access=access)
            for number, address in enumerate(addresses)
        ]
        self._settings = dict(settings or {})
        self._access = access or Access()
        self._node_types = tuple(node_types)
        self.start_all()
        self.write_topology(self.rows(node_types=self._node_types))

    def start_all(self) -> None:
        """Start those that do not run, all at once."""
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait_ready()

    def write_topology(self, rows: Sequence[ServerRow], *, on: Iterable[int] | None = None) -> None:
        """``set_topology`` without Trio."""
        chosen = range(len(self.servers)) if on is None else on
        for server in [self.servers[index] for index in chosen]:
            if on is not None or (server.is_running and not server.is_frozen):
                server.sql(*topology.rewrite(rows))

    def reset(self) -> None:
        for server in self.servers:
            server.thaw()
            if (server.settings, server.access) != (self._settings, self._access):
                server.settings, server.access = dict(self._settings), self._access
                server.stop("immediate")
        self.start_all()
        for server in self.servers:
            server.end_sessions()
            server.sql(*CLEAN)
        self.write_topology(self.rows(node_types=self._node_types))

    async def kill(self, index: int) -> None:
        await trio.to_thread.run_sync(self.servers[index].kill)

    async def start(self, index: int) -> None:
        await trio.to_thread.run_sync(self.servers[index].start)

    async def freeze(self, index: int) -> None:
        await trio.to_thread.run_sync(self.servers[index].freeze)

    async def thaw(self, index: int) -> None:
        await trio.to_thread.run_sync(self.servers[index].thaw)

    async def set_topology(self, rows: Sequence[ServerRow], *, on: Iterable[int] | None = None) -> None:
        await trio.to_thread.run_sync(partial(self.write_topology, rows, on=on))

    async def sessions(self, index: int, application_name: str) -> int:
        return await trio.to_thread.run_sync(self.servers[index].sessions, application_name)

    def close(self) -> None:
        for server in self.servers:
            server.close()


@contextmanager
def three_zones(
    count: int = 3,
    *,
    placements: Sequence[Placement] | None = None,
    node_types: Sequence[str] = (),
    max_connections: int = 60,
    settings: Mapping[str, str] | None = None,
    access: Access | None = None,
    binaries: Binaries | None = None,
) -> Generator[ThreeZones, None, None]:
    """Build the bed, and leave nothing of it. About 0.7 s; without Trio.

    ``placements``: one for each server, by default zones of one region, us-east-1a and on. ``node_types``: what
    ``yb_servers()`` calls each, in order, ``primary`` where left out. ``settings`` are PostgreSQL's.
    """
    chosen = topology.three_zones(count) if placements is None else placements
    with ExitStack() as stack:
        run = stack.enter_context(Run(binaries))
        options = {"max_connections": str(max_connections), **(settings or {})}
        bed = ThreeZones(run, placements=chosen, node_types=node_types, settings=options, access=access)
        stack.callback(bed.close)
        yield bed


@asynccontextmanager
async def open_three_zones(
    count: int = 3,
    *,
    placements: Sequence[Placement] | None = None,
    node_types: Sequence[str] = (),
    max_connections: int = 60,
    settings: Mapping[str, str] | None = None,
    access: Access | None = None,
    binaries: Binaries | None = None,
) -> AsyncGenerator[ThreeZones, None]:
    """``three_zones`` for programs under Trio: building and ending happen in a worker thread, uninterrupted."""
    manager = three_zones(
        count,
        placements=placements,
        node_types=node_types,
        max_connections=max_connections,
        settings=settings,
        access=access,
        binaries=binaries,
    )
    async with off_thread(manager) as bed:
        yield bed
