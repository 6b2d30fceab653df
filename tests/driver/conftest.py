"""A PostgreSQL of the driver tests' own, with TLS and every kind of login, and a driver to reach it."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio

from ysactor.config import Config, Tls, TlsMode
from ysactor.driver.native import NativeDriver, NativeSession
from ysactor.driver.native.watch import Watch, best_watch
from ysactor.secret import Secret
from ysactor.servers import HostPort
from ysactor.testing.postgres import Access, Authority, PostgresNotFound, PostgresServer, Run, create_data, find
from ysactor.testing.postgres.configuration import ADMIN

SETUP = """
CREATE ROLE scram_user LOGIN PASSWORD 's3cret-scram';

SET password_encryption = 'md5';

CREATE ROLE md5_user LOGIN PASSWORD 's3cret-md5';

CREATE ROLE clear_user LOGIN PASSWORD 's3cret-clear';

CREATE ROLE tls_user LOGIN;

CREATE ROLE cert_user LOGIN;

CREATE ROLE capped LOGIN CONNECTION LIMIT 0;

"""


class Doors(Access):
    """Every kind of login, by the user's name."""

    def rules(self) -> str:
        return (
            f"host    all {ADMIN}     all  trust\n"
            "local   all scram_user        scram-sha-256\n"
            "local   all all               trust\n"
            "host    all scram_user  all   scram-sha-256\n"
            "host    all md5_user    all   md5\n"
            "host    all clear_user  all   password\n"
            "hostssl all tls_user    all   trust\n"
            "host    all tls_user    all   reject\n"
            "hostssl all cert_user   all   cert\n"
            "host    all all         all   trust\n"
        )


@dataclass
class Events:
    """An owner that writes down what it is told."""

    losses: list[str] = field(default_factory=list)
    abandonments: int = 0
    changed: trio.Event = field(default_factory=trio.Event)

    def lost(self, reason: str) -> None:
        self.losses.append(reason)
        self.changed.set()

    def abandoned(self) -> None:
        self.abandonments += 1


@dataclass
class Client:
    """A running driver, and what was opened with it."""

    driver: NativeDriver
    bed: Bed
    opened: list[NativeSession] = field(default_factory=list)
    events: dict[int, Events] = field(default_factory=dict)

    async def open(self, host: HostPort | None = None, config: Config | None = None, **changes: Any) -> NativeSession:
        session = await self.driver.connect(host or self.bed.tcp, config or self.bed.config(**changes))
        self.opened.append(session)
        session.attach(self.told(session))
        return session

    def told(self, session: NativeSession) -> Events:
        return self.events.setdefault(id(session), Events())

    async def ask(self, session: NativeSession, query: str, *args: Any, **bounds: Any) -> Any:
        return await session.drive(session.raw.fetchval(query, *args), **bounds)


@dataclass(frozen=True)
class Bed:
    """The server."""

    port: int
    directory: Path
    authority: Authority
    server: PostgresServer

    @property
    def tcp(self) -> HostPort:
        return HostPort("127.0.0.1", self.port)

    @property
    def unix(self) -> HostPort:
        return HostPort(str(self.directory), self.port)

    def config(self, **changes: Any) -> Config:
        if isinstance(password := changes.get("password"), str):
            changes["password"] = Secret(password)
        return replace(Config(user="yugabyte", database="yugabyte", application_name="native tests"), **changes)

    def context(self, *, check_hostname: bool = True, trusted: bool = True, verify: bool = True) -> ssl.SSLContext:
        context = self.authority.client_context() if trusted else ssl.create_default_context()
        context.check_hostname = check_hostname and verify
        context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
        return context

    def tls(self, mode: TlsMode = TlsMode.VERIFY_FULL, **changes: Any) -> Tls:
        verify = mode in (TlsMode.VERIFY_CA, TlsMode.VERIFY_FULL)
        return Tls(mode, self.context(check_hostname=mode is TlsMode.VERIFY_FULL, verify=verify), **changes)

    @asynccontextmanager
    async def client(self, watch: Callable[[], Watch] = best_watch) -> AsyncIterator[Client]:
        driver = NativeDriver(watch)
        client = Client(driver, self)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(_running, driver)
                try:
                    yield client
                finally:
                    for session in client.opened:
                        session.terminate("the test is over")
                    nursery.cancel_scope.cancel()

    def signal(self, pid: int, number: int) -> None:
        os.kill(pid, number)


async def _running(driver: NativeDriver, *, task_status: trio.TaskStatus[None]) -> None:
    await driver.run(task_status=task_status)


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    try:
        binaries = find(require_tls=True)
    except PostgresNotFound:
        pytest.skip("no PostgreSQL with TLS is installed")
    with Run(binaries) as run:
        authority = Authority(run)
        certificate = authority.issue("localhost", "127.0.0.1", "the.server.example")
        settings = {
            **authority.settings(certificate, ask_clients=True),
            "listen_addresses": "127.0.0.1,::1",
            "unix_socket_directories": str(run.path),
            "shared_buffers": "16MB",
        }
        template = create_data(run, "template", setup=SETUP)
        (address,) = run.addresses(1)
        with PostgresServer(run, "s", address, template=template, settings=settings, access=Doors()) as server:
            server.start()
            yield Bed(server.port, run.path, authority, server)


@dataclass
class Proxy:
    """A TCP proxy that can hold back, or cut. Its rules are looked at for each connection, by its first bytes."""

    at: HostPort
    delay_cancel: float = 0
    cancels: int = 0
    first_bytes: list[bytes] = field(default_factory=list)
    streams: list[trio.SocketStream] = field(default_factory=list)
    frozen: trio.Event | None = None
    last_answer: bool = False
    """The next thing that the server says is followed by the end, at the same moment."""

    def reset_all(self) -> None:
        """Cut everything with a RST."""
        for stream in self.streams:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            stream.socket.close()


CANCEL = (80877102).to_bytes(4, "big")


@pytest.fixture
def proxied(bed: Bed) -> Callable[[], Any]:
    """A proxy before the server."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Proxy]:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy = Proxy(HostPort("127.0.0.1", listeners[0].socket.getsockname()[1]))

        async def pump(source: trio.SocketStream, target: trio.SocketStream) -> None:
            try:
                async for data in source:
                    if proxy.frozen is not None:
                        await proxy.frozen.wait()
                    if proxy.last_answer and target in proxy.streams[::2]:
                        with socket.socket(fileno=os.dup(target.socket.fileno())) as twin:
                            twin.sendall(data)
                            twin.shutdown(socket.SHUT_RDWR)
                        return
                    await target.send_all(data)
                await target.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(target)

        async def serve(client: trio.SocketStream) -> None:
            first = await client.receive_some(4096)
            if not first:
                return
            proxy.first_bytes.append(bytes(first))
            if first[4:8] == CANCEL:
                proxy.cancels += 1
                await trio.sleep(proxy.delay_cancel)
            server = await trio.open_tcp_stream("127.0.0.1", bed.port)
            proxy.streams += [client, server]
            async with client, server:
                await server.send_all(first)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(pump, client, server)
                    nursery.start_soon(pump, server, client)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            yield proxy
            nursery.cancel_scope.cancel()

    return opened
