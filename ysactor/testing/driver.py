"""A driver whose servers are those of a `FakeCluster`."""

from __future__ import annotations

import math
import socket
import ssl

import trio

from ..config import Config, TlsMode
from ..driver.protocol import ConnectFailure, NoPassword, Phase
from ..servers import HostPort
from .backend import Backend
from .cluster import FakeCluster
from .pgerrors import error
from .server import FakeServer
from .session import FakeSession


class FakeDriver:
    """Opens sessions in a fake cluster. Give it to a pool as ``driver=``, or use it as any `Driver`."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The servers' work for this client's sessions runs here; it all ends with a cancellation."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    async def connect(self, host: HostPort, config: Config) -> FakeSession:
        """Open one session on exactly this server, logged in."""
        if self._nursery is None:
            raise RuntimeError("bug: `run` of this driver has not been started")
        cluster = self.cluster
        await trio.lowlevel.checkpoint()
        if cluster.before_connect is not None:
            await cluster.before_connect(host)
        if not host.is_unix and await self._resolve(host.host) is None:
            raise ConnectFailure(Phase.RESOLVE, f"the name {host.host} does not resolve") from socket.gaierror(
                socket.EAI_NONAME, "Name or service not known"
            )
        server = await cluster.dial(host)
        attempt = _Attempt(self._nursery, server, host, config)
        with trio.CancelScope() as scope:
            server.arriving(scope)
            try:
                return await attempt.log_in()
            finally:
                server.arrived(scope)
        raise ConnectFailure(attempt.phase, "closed by the server") from ConnectionResetError(
            "connection reset by peer"
        )

    async def resolve(self, host: str) -> str | None:
        """The address a name stands for in the cluster's resolver, or None."""
        await trio.lowlevel.checkpoint()
        return await self._resolve(host)

    async def _resolve(self, host: str) -> str | None:
        if host in self.cluster.stuck_names:
            await trio.sleep_forever()
        return self.cluster.address_of(host)


class _Attempt:
    """TLS and login of one connection that a server has accepted."""

    def __init__(self, nursery: trio.Nursery, server: FakeServer, host: HostPort, config: Config) -> None:
        self.phase = Phase.TLS
        self._nursery = nursery
        self._server = server
        self._host = host
        self._config = config

    async def log_in(self) -> FakeSession:
        """The open session. Its caller's cancel scope ends it when the server crashes."""
        tls = self._host.is_unix is False and self._config.tls.mode is not TlsMode.OFF and await self._encrypt()
        self.phase = Phase.LOGIN
        await self._server.awake()
        await trio.sleep(self._server.connect_delay)
        await self._server.awake()
        await self._check_login()
        # No checkpoint from here on: a cancelled connect leaves nothing open.
        server, config = self._server, self._config
        session = FakeSession(
            server.cluster,
            server,
            self._host,
            config.socket_timeout,
            config.asyncpg_options.get("command_timeout"),
        )
        backend = Backend(server, self._nursery, session, pid=server.cluster.next_pid(), start=_start(config))
        backend.tls = tls
        session.open(backend)
        server.admit(backend, config.application_name)
        return session

    async def _encrypt(self) -> bool:
        await self._server.awake()
        match self._server.tls:
            case "offered":
                return True
            case "broken":
                raise ConnectFailure(Phase.TLS, "the TLS handshake failed") from ssl.SSLError("handshake failure")
            case "not offered":
                if self._config.tls.mode is TlsMode.PREFER:
                    return False
                raise ConnectFailure(Phase.TLS, "the server does not offer TLS") from ConnectionError(
                    "rejected SSL upgrade"
                )

    async def _check_login(self) -> None:
        server, config, cluster = self._server, self._config, self._server.cluster
        if server.rejection is not None:
            raise _turned_away(server.rejection)
        given = await _reveal(config)
        if cluster.password is not None:
            given = given.decode() if isinstance(given, bytes) else given
            if given != cluster.password:
                raise _turned_away(
                    error("28P01", f'password authentication failed for user "{config.user}"', severity="FATAL")
                )
        if cluster.databases is not None and config.database not in cluster.databases:
            raise _turned_away(error("3D000", f'database "{config.database}" does not exist', severity="FATAL"))
        if server.max_connections is not None and len(server.sessions) >= server.max_connections:
            raise _turned_away(error("53300", "sorry, too many clients already", severity="FATAL"))


async def _reveal(config: Config) -> str | bytes | None:
    if config.password is None:
        return None
    try:
        given: object = await config.password.reveal()
    except Exception as raised:
        raise NoPassword(Phase.LOGIN, f"the password function raised {type(raised).__name__}") from raised
    if isinstance(given, str | bytes):
        return given
    raise NoPassword(Phase.LOGIN, f"the password function returned {type(given).__name__}, not text or bytes")


def _turned_away(answer: Exception) -> ConnectFailure:
    failure = ConnectFailure(Phase.LOGIN, str(answer), sqlstate=str(getattr(answer, "sqlstate", "")) or None)
    failure.__cause__ = answer
    return failure


def _start(config: Config) -> dict[str, str]:
    """The start-up message."""
    start = {"user": config.user, "database": config.database, "application_name": config.application_name}
    if config.statement_timeout is not None:
        start["statement_timeout"] = f"{math.ceil(config.statement_timeout * 1000)}ms"
    return {**start, **config.server_settings}
