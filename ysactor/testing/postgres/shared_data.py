"""One server behind several addresses: transactions, unknown outcomes, hangs, latency and TLS on common data."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

import trio

from ysactor.testing.postgres import topology
from ysactor.testing.postgres.bed import Capability, Dialled, Member
from ysactor.testing.postgres.binaries import Binaries
from ysactor.testing.postgres.configuration import Access, create_data
from ysactor.testing.postgres.run import Address, Run
from ysactor.testing.postgres.server import PostgresServer
from ysactor.testing.postgres.threads import off_thread
from ysactor.testing.postgres.three_zones import CLEAN
from ysactor.testing.postgres.topology import Placement, ServerRow
from ysactor.testing.proxy import FaultProxy


class Backing:
    """The server behind the proxies, and the addresses kept for them. Outlives any number of ``SharedData`` beds."""

    def __init__(
        self,
        run: Run,
        *,
        count: int = 3,
        settings: Mapping[str, str] | None = None,
        access: Access | None = None,
    ) -> None:
        self.run = run
        template = create_data(run, "template", setup=topology.SETUP)
        self.fronts: list[Address] = run.addresses(count)
        (address,) = run.addresses(1)
        self._settings = dict(settings or {})
        self._access = access or Access()
        self.server = PostgresServer(run, "server", address, template=template, settings=settings, access=access)
        self.server.start()

    def reset(self) -> None:
        """The server runs, with its first settings, no strangers' sessions and an empty schema ``public``."""
        server = self.server
        server.thaw()
        if (server.settings, server.access) != (self._settings, self._access):
            server.settings, server.access = dict(self._settings), self._access
            server.stop("immediate")
        server.start()
        server.end_sessions()
        server.sql(*CLEAN)


class SharedData(Dialled):
    """As many servers as there are proxies, all with the same data, as in YugabyteDB. Made by ``open_shared_data``.

    To kill a server is to reset its proxy's connections and refuse new ones; to freeze it is a black hole.
    """

    name = "shared-data"
    capabilities: frozenset[Capability] = frozenset({"yb-servers", "topology-edit", "shared-data", "freeze", "proxy"})
    detect_s = 1.0

    def __init__(self, backing: Backing, proxies: Sequence[FaultProxy], placements: Sequence[Placement]) -> None:
        super().__init__([Member(*proxy.address, place) for proxy, place in zip(proxies, placements, strict=True)])
        self.backing = backing
        self.server = backing.server
        self.proxies = list(proxies)
        self.server.sql(*topology.rewrite(self.rows()))

    def reset(self) -> None:
        """As every bed's, but from Trio's own thread, where the proxies live; blocks it for some milliseconds."""
        for proxy in self.proxies:
            proxy.clear()
            proxy.reset_all()
        self.backing.reset()
        self.server.sql(*topology.rewrite(self.rows()))

    async def kill(self, index: int) -> None:
        self.proxies[index].kill()
        await trio.lowlevel.checkpoint()

    async def start(self, index: int) -> None:
        self.proxies[index].set_mode("pass")
        await trio.lowlevel.checkpoint()

    async def freeze(self, index: int) -> None:
        self.proxies[index].set_mode("blackhole")
        await trio.lowlevel.checkpoint()

    async def thaw(self, index: int) -> None:
        await self.start(index)

    async def set_topology(self, rows: Sequence[ServerRow], *, on: Iterable[int] | None = None) -> None:
        """All servers show the same table. Raises ValueError when asked to change some of them only."""
        if on is not None and set(on) != set(range(len(self.proxies))):
            raise ValueError("the servers of this bed share their yb_servers()")
        await trio.to_thread.run_sync(self.server.sql, *topology.rewrite(rows))

    async def sessions(self, index: int, application_name: str) -> int:
        ports = [str(connection.upstream_port) for connection in self.proxies[index].live if connection.upstream_port]
        counted = await trio.to_thread.run_sync(self.server.client_ports, application_name)
        return len(set(ports) & set(counted))


@contextmanager
def backing(
    count: int = 3,
    *,
    max_connections: int = 60,
    settings: Mapping[str, str] | None = None,
    access: Access | None = None,
    binaries: Binaries | None = None,
) -> Generator[Backing, None, None]:
    """The server for ``open_shared_data``, without Trio, and leave nothing of it."""
    with Run(binaries) as run:
        options = {"max_connections": str(max_connections), **(settings or {})}
        found = Backing(run, count=count, settings=options, access=access)
        try:
            yield found
        finally:
            found.server.close()


@asynccontextmanager
async def open_shared_data(
    on: Backing | None = None,
    *,
    count: int = 3,
    placements: Sequence[Placement] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[SharedData, None]:
    """Proxies before a server, ``on`` one that runs already or one of its own, for the length of the block.

    ``tls``: the proxies offer TLS with that context, and speak plainly to the server.
    An error in the block comes out bare.
    """
    if on is None:
        async with off_thread(backing(count)) as own, open_shared_data(own, placements=placements, tls=tls) as bed:
            yield bed
        return
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        proxies = [
            await nursery.start(FaultProxy((on.server.host, on.server.port), listen=front, tls=tls).run)
            for front in on.fronts
        ]
        chosen = topology.three_zones(len(proxies)) if placements is None else placements
        bed = await trio.to_thread.run_sync(SharedData, on, proxies, chosen)
        try:
            yield bed
        except BaseException as error:  # raised below, outside the nursery
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
