"""The worlds in which the driver contract is checked: a fake cluster, and a real PostgreSQL under each real driver.

A case gets a `world` and asks nothing of the implementation but the protocol. What only the server can tell or do (see
a session, stop a process) the world does, each in its own way.
"""

from __future__ import annotations

import functools
import itertools
import socket
import ssl
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from ysactor.config import Config, Tls, TlsMode
from ysactor.secret import Secret
from ysactor.servers import HostPort
from ysactor.testing import FakeCluster, FakeDriver

IMPLEMENTATIONS = ("fake", "native", "trio_asyncio")
LIMIT = 10.0
"""Seconds, virtual for the fake, after which a case has hung."""


def _bounded(clock_of, fn, *, clock=None, instruments=()):
    async def main():
        with trio.fail_after(LIMIT):
            return await fn()

    return trio.run(main, clock=clock_of(), instruments=instruments)


_VIRTUAL = functools.partial(_bounded, lambda: trio.testing.MockClock(autojump_threshold=0))
_REAL = functools.partial(_bounded, lambda: None)


def pytest_configure(config):
    config.addinivalue_line("markers", "real_drivers: cases that need a real server")


def pytest_generate_tests(metafunc):
    if "implementation" in metafunc.fixturenames and "implementation" not in metafunc.definition.keywords:
        only = metafunc.definition.get_closest_marker("real_drivers")
        metafunc.parametrize("implementation", IMPLEMENTATIONS[1:] if only else IMPLEMENTATIONS)


def pytest_collection_modifyitems(items):
    for item in items:
        implementation = getattr(item, "callspec", None) and item.callspec.params.get("implementation")
        if implementation in IMPLEMENTATIONS:
            item.add_marker(pytest.mark.trio(run=_VIRTUAL if implementation == "fake" else _REAL))


class Events:
    """An owner that writes down what it is told."""

    def __init__(self):
        self.losses = []
        self.abandonments = 0

    def lost(self, reason):
        self.losses.append(reason)

    def abandoned(self):
        self.abandonments += 1


class World:
    """What the cases have in common; times are short because they are real for two of the three."""

    numbers = itertools.count(1)
    unresolvable = HostPort("no-such-name.invalid", 5433)

    def __init__(self, driver, host):
        self.driver = driver
        self.host = host
        # A name of its own: a server goes on with what the case before has left it.
        self.config = Config(
            user="app",
            password=Secret("app"),
            database="yugabyte",
            application_name=f"contract-{next(self.numbers)}",
            tls=Tls(TlsMode.OFF),
        )

    async def unowned(self, **changes):
        """An open session that is not handed over yet."""
        return await self.driver.connect(self.host, replace(self.config, **changes))

    async def connect(self, **changes):
        """An open session and its owner."""
        session = await self.unowned(**changes)
        events = Events()
        session.attach(events)
        return session, events

    @asynccontextmanager
    async def session(self, **changes):
        """The same, ended whatever the case has done to it."""
        session, events = await self.connect(**changes)
        try:
            yield session, events
        finally:
            session.terminate("the case has ended")

    async def until(self, condition):
        """Wait for a condition, sync; the case's limit bounds it."""
        while not condition():  # noqa: ASYNC110  what it waits for is in another process
            await trio.sleep(0.002)

    async def until_executing(self, session):
        """Wait until the server is in a pg_sleep() of this session; it is called active while it prepares, too."""
        await self.until(lambda: self.is_asleep(session.pid))


class FakeWorld(World):
    def __init__(self, driver, server):
        super().__init__(driver, server.at)
        self.server = server
        self.refused = HostPort("10.0.0.99", 5433)

    def activity(self):
        shown = (*self.server.sessions, *self.server.orphans)
        return {view.pid: view.state for view in shown if view.application_name == self.config.application_name}

    def is_asleep(self, pid):
        return self.activity().get(pid) == "active"

    def kill(self, session):
        self.server.kill_sessions(lambda view: view.pid == session.pid)

    @contextmanager
    def frozen(self, session):
        self.server.hang()
        yield
        self.server.recover()

    def tls(self, mode):
        return Tls(mode, ssl.create_default_context())

    def without_tls(self):
        self.server.without_tls()


class RealWorld(World):
    def __init__(self, driver, server, refused):
        super().__init__(driver, HostPort(server.host, server.port))
        self.server = server
        self.refused = refused

    def activity(self):
        name = self.config.application_name
        rows = self.server.sql(f"select pid, state from pg_stat_activity where application_name = '{name}'")
        return {int(pid): state for pid, state in rows}

    def is_asleep(self, pid):
        return self.server.sql(f"select from pg_stat_activity where pid = {pid} and wait_event = 'PgSleep'") != []

    def kill(self, session):
        self.server.sql(f"select pg_terminate_backend({session.pid})")

    @contextmanager
    def frozen(self, session):
        self.server.freeze()
        try:
            yield
        finally:
            self.server.thaw()

    def tls(self, mode):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return Tls(mode, context)

    def without_tls(self):
        """It is built without."""


@pytest.fixture(scope="session")
def postgres_run():
    postgres = pytest.importorskip("ysactor.testing.postgres")
    try:
        run = postgres.Run()
    except postgres.PostgresNotFound as missing:
        pytest.skip(str(missing))
    yield run
    run.close()


@pytest.fixture(scope="session")
def postgres(postgres_run):
    """One PostgreSQL that asks for passwords, for the whole session."""
    from ysactor.testing.postgres import Access, PostgresServer, create_data

    run = postgres_run
    data = create_data(run, "contract-template")
    [address] = run.addresses(1)
    server = PostgresServer(
        run, "contract", address, template=data, access=Access("scram-sha-256"), settings={"max_connections": "20"}
    )
    server.start()
    yield server
    server.close()


@pytest.fixture
def real_driver(implementation):
    def make():
        if implementation == "native":
            return pytest.importorskip("ysactor.driver.native").NativeDriver()
        return pytest.importorskip("ysactor.driver.trio_asyncio").TrioAsyncioDriver()

    return make


@pytest.fixture
def servers(request, implementation):
    """The real server, where one is needed."""
    return None if implementation == "fake" else request.getfixturevalue("postgres")


@pytest.fixture
async def world(implementation, servers, real_driver):
    if implementation == "fake":
        cluster = FakeCluster.of(1, password="app", databases={"yugabyte"})
        made = FakeWorld(FakeDriver(cluster), cluster.servers[0])
    else:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            refused = HostPort(*unused.getsockname())
        made = RealWorld(real_driver(), servers, refused)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.driver.run)
        yield made
        nursery.cancel_scope.cancel()
