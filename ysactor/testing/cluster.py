"""A fake cluster: a world of servers, names and data, not a list of expected calls."""

from __future__ import annotations

import errno
import ipaddress
import itertools
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio

from ..driver.protocol import ConnectFailure, Phase
from ..servers import HostPort
from .journal import CancelRequested, Dialled, Journal
from .scripts import Answer, Scripts
from .server import Condition, FakeServer, Listed
from .table import Table


class FakeCluster:
    """Servers that share their data, and the network between them and the client.

    All of it runs in the test's own Trio run, on Trio's clock: under an autojumping `trio.testing.MockClock` no wait
    takes time. `FakeDriver(cluster)` is a client's way in.
    """

    def __init__(self, *, password: str | None = None, databases: Iterable[str] | None = None) -> None:
        self.servers: list[FakeServer] = []
        """Every server, listed or not."""
        self.listed: list[Listed] = []
        """What yb_servers() lists, in its order; raw rows may be put in."""
        self.is_yugabyte = True
        self.journal = Journal()
        self.table = Table()
        """The committed data."""
        self.password = password
        """Given, a login with any other fails with 28P01."""
        self.databases = None if databases is None else set(databases)
        """Given, a login to any other fails with 3D000."""
        self.server_version = "15.0"
        self.resolver: dict[str, str | None] = {}
        """The address each name stands for; None does not resolve. Filled as servers are added."""
        self.stuck_names: set[str] = set()
        """Names whose look-up never ends."""
        self.outside = False
        """Whether the client is outside the cluster's network: only public addresses can be reached then."""
        self.before_connect: Callable[[HostPort], Awaitable[None]] | None = None
        """Awaited in the connecting task, before anything else is done."""
        self.before_statement: Callable[[FakeServer, str], Awaitable[None]] | None = None
        """Awaited on the server's side, after a statement has arrived and before it takes effect."""
        self.before_cancel: Callable[[FakeServer, int], Awaitable[None]] | None = None
        """Awaited on the server's side, after a cancel request for this pid has arrived and before it takes effect."""
        self.tables_version = 0
        self.types_version = 0
        """Both raised by `change_schema`."""
        self.scripts = Scripts()
        self._pids = itertools.count(1001)
        self._addresses = itertools.count(1)

    @classmethod
    def of(cls, size: int = 3, *, port: int = 5433, **options: Any) -> FakeCluster:
        """A cluster of this many primaries, 10.0.0.1 and so on, each in a zone of its own: zone-1 and so on."""
        cluster = cls(**options)
        for number in range(1, size + 1):
            cluster.add(f"10.0.0.{number}", port, zone=f"zone-{number}")
        return cluster

    def add(
        self,
        host: str,
        port: int = 5433,
        *,
        cloud: str = "cloud",
        region: str = "region",
        zone: str = "zone",
        node_type: str = "primary",
        public_ip: str = "",
        listed: bool = True,
    ) -> FakeServer:
        """Add a server that is up. A host or public address that is a name resolves to an address of its own."""
        server = FakeServer(
            self,
            HostPort(host, port),
            cloud=cloud,
            region=region,
            zone=zone,
            node_type=node_type,
            public_ip=public_ip,
        )
        self.servers.append(server)
        for name, network in ((host, "10.9.0"), (public_ip, "203.0.113")):
            if name and not name.startswith("/") and _literal(name) is None:
                self.resolver.setdefault(name, f"{network}.{next(self._addresses)}")
        if listed:
            self.listed.append(server)
        return server

    def list(self, server: FakeServer) -> None:
        """Have yb_servers() list this server, at the end."""
        if server not in self.listed:
            self.listed.append(server)

    def unlist(self, server: FakeServer) -> None:
        """Have yb_servers() leave this server out, as YugabyteDB does a minute after it became unreachable."""
        self.listed.remove(server)

    def not_yugabyte(self) -> None:
        """It is PostgreSQL: calling yb_servers() fails with 42883."""
        self.is_yugabyte = False

    def answer(self, sql: str | re.Pattern[str], answer: Answer, *, times: int | None = None) -> None:
        """Script a statement on every server, as `FakeServer.answer` does on one, whose answers come first."""
        self.scripts.add(sql, answer, times)

    def change_schema(self, *, types: bool = False) -> None:
        """Have every statement that is kept prepared answer in another shape from now on.

        The next use of it is unnoticed outside a transaction, and fails one that it is in, with asyncpg's
        `InvalidCachedStatementError`.

        With `types`, instead, a type in their rows is altered: the next use of any is carried out, and fails with
        `OutdatedSchemaCacheError`, in a transaction or not.
        """
        if types:
            self.types_version += 1
        else:
            self.tables_version += 1

    def server(self, at: str | HostPort) -> FakeServer:
        """The server with this identity. Raises: KeyError."""
        for server in self.servers:
            if str(server.at) == str(at):
                return server
        raise KeyError(str(at))

    @property
    def sessions(self) -> int:
        """How many sessions are open, on all servers."""
        return sum(len(server.sessions) for server in self.servers)

    # The network.

    def address_of(self, host: str) -> str | None:
        """What a host resolves to."""
        return _literal(host) or self.resolver.get(host)

    def find(self, dialled: HostPort) -> tuple[FakeServer | None, bool]:
        """The server that is reached by dialling this, and whether there is a way to it from where the client is."""
        if dialled.is_unix:
            return next((server for server in self.servers if server.at == dialled), None), True
        address = self.address_of(dialled.host)
        for server in self.servers:
            if server.port == dialled.port:
                if server.public_ip and address == self.address_of(server.public_ip):
                    return server, True
                if address == self.address_of(server.host):
                    return server, not self.outside
        return None, True

    async def dial(self, dialled: HostPort, *, record: bool = True) -> FakeServer:
        """Connect to whatever is there. Raises: `ConnectFailure` (CONNECT) where nothing is, or nothing listens."""
        server, is_reachable = self.find(dialled)
        if record:
            self.journal.add(Dialled(trio.current_time(), dialled if server is None else server.at, dialled))
        if not is_reachable:
            raise ConnectFailure(Phase.CONNECT, f"no route to {dialled}") from OSError(
                errno.EHOSTUNREACH, "No route to host"
            )
        if server is None or server.condition in (Condition.DOWN, Condition.REFUSING):
            raise ConnectFailure(Phase.CONNECT, f"{dialled} refused the connection") from ConnectionRefusedError(
                errno.ECONNREFUSED, "Connection refused"
            )
        while server.condition is Condition.VANISHED:
            await server.changed()
        return server

    async def deliver_cancel(self, server: FakeServer, pid: int) -> bool:
        """Send a cancel request and wait until the server has closed its connection; whether it got there."""
        try:
            await self.dial(server.at, record=False)
        except ConnectFailure:
            return False
        await server.awake()
        await trio.sleep(server.cancel_delay)
        self.journal.add(CancelRequested(trio.current_time(), server.at, pid))
        if self.before_cancel is not None:
            await self.before_cancel(server, pid)
        backend = server.backend(pid)
        if backend is not None:
            backend.cancel()
        return True

    def next_pid(self) -> int:
        """A pid that no other session of the cluster has or had."""
        return next(self._pids)

    def notify(self, pid: int, channel: str, payload: str) -> None:
        """Pass a committed notification on to every session that listens."""
        for server in self.servers:
            server.notify(pid, channel, payload)

    def __repr__(self) -> str:
        return f"<FakeCluster of {len(self.servers)} servers, {self.sessions} sessions>"


def _literal(host: str) -> str | None:
    """An address in its usual form, an IPv4-mapped one as IPv4; None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
