"""`prepare_on_connect`: what new connections have ready, and that nothing which goes wrong with it stops one."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio

import ysactor
from ysactor.testing import FakeCluster, FakeDriver, FakeServer, error

OpenPool = Callable[..., AbstractAsyncContextManager[ysactor.Pool]]

BY_ID = "SELECT name FROM people WHERE id = $1"
BY_NAME = "SELECT id FROM people WHERE name = $1"
SECRET = "SELECT dblink('password=hunter2', $1)"


def prepared(world: FakeCluster) -> list[tuple[str, ...]]:
    """What each open session has prepared."""
    return [session.prepared for server in world.servers for session in server.sessions]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of it."""
    return [record.getMessage() for record in caplog.records if "prepare_on_connect" in record.getMessage()]


async def test_every_new_connection_has_them_before_its_first_holder(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=3, prepare_on_connect=[BY_ID, BY_NAME, BY_ID]) as pool:
        await pool.ready(3)
        assert prepared(world) == [(BY_ID, BY_NAME)] * 3
        for server in world.servers:
            server.kill_sessions()
        await trio.sleep(5)
        await pool.ready(3)
        assert prepared(world) == [(BY_ID, BY_NAME)] * 3
        world.journal.clear()
        world.answer(BY_ID, [{"name": "Ada"}])
        assert await pool.fetchval(BY_ID, 1) == "Ada"
        assert world.journal.statements() == (BY_ID,)


async def test_without_the_option_nothing_is_prepared(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool() as pool:
        await pool.ready(3)
        assert prepared(world) == [()] * 3


async def test_connections_that_are_no_holders_are_spared(world: FakeCluster, open_pool: OpenPool) -> None:
    """Those of discovery and of probes, which are closed again."""
    async with open_pool(prepare_on_connect=[BY_ID], failed_host_reconnect_delay_secs=1) as pool:
        await pool.ready(3)
        world.servers[0].crash()
        await trio.sleep(1)
        world.servers[0].recover()
        await trio.sleep(5)
        await pool.cluster.refresh()
        await pool.ready(3)
        opened = pool.statistics().connections_opened
        assert len(world.journal.logins()) > opened
        assert world.journal.statements().count(f"PREPARE {BY_ID}") == opened


async def test_a_single_connection_has_them_too(world: FakeCluster) -> None:
    driver = FakeDriver(world)
    async with (
        ysactor.open_cluster(hosts=str(world.servers[0].at), driver=driver, prepare_on_connect=[BY_ID]) as cluster,
        cluster.connect(),
    ):
        assert prepared(world) == [(BY_ID,)]


async def test_they_are_prepared_after_the_hook(world: FakeCluster, open_pool: OpenPool) -> None:
    async def choose(conn: ysactor.Connection) -> None:
        await conn.execute("SET search_path TO app")

    async with open_pool(pool_size=1, load_balance=False, on_connect=choose, prepare_on_connect=[BY_ID]) as pool:
        await pool.ready(1)
        told = world.journal.statements()
    assert told.index("SET search_path TO app") < told.index(f"PREPARE {BY_ID}")


async def test_what_a_server_refuses_is_logged_once_until_it_works_again(
    world: FakeCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ysactor")
    world.answer(SECRET, error("42883", "function dblink(unknown, text) does not exist\nHINT: hunter2"), times=6)

    async def renew(pool: ysactor.Pool) -> None:
        for server in world.servers:
            server.kill_sessions()
        await trio.sleep(5)
        await pool.ready(3)

    async with open_pool(pool_size=3, prepare_on_connect=[BY_ID, SECRET, BY_NAME]) as pool:
        await pool.ready(3)
        assert prepared(world) == [(BY_ID, BY_NAME)] * 3
        await renew(pool)
        [line] = lines(caplog)
        assert re.match(r"statement 2 of prepare_on_connect cannot be prepared on server 10\.0\.0\.\d:5433: ", line)
        assert "function dblink(unknown, text) does not exist (SQLSTATE 42883)" in line
        assert pool.cluster.info().failed == pool.cluster.info().rejected == ()
        assert pool.statistics().connections_closed.keys() == {"lost"}

        await renew(pool)
        assert prepared(world) == [(BY_ID, SECRET, BY_NAME)] * 3
        assert [record.levelname for record in caplog.records if record.getMessage() in lines(caplog)] == [
            "WARNING",
            "INFO",
        ]
        assert "statement 2 of prepare_on_connect is prepared again" in lines(caplog)[1]

        world.answer(SECRET, error("42501", "permission denied"))
        await renew(pool)
        assert len(lines(caplog)) == 3
        assert "42501" in lines(caplog)[2]
    assert "hunter2" not in caplog.text


async def test_each_pool_has_its_own_say(
    world: FakeCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    world.answer(BY_ID, error("42P01"))
    for _ in range(2):
        async with open_pool(prepare_on_connect=[BY_ID]) as pool:
            await pool.ready(3)
    assert len(lines(caplog)) == 2


@pytest.mark.parametrize("cancel_timeout", [1, 0])
async def test_a_locked_table_costs_some_of_the_time_to_connect_and_no_server(
    world: FakeCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture, cancel_timeout: float
) -> None:
    async def lock(_server: FakeServer, sql: str) -> None:
        if sql == f"PREPARE {BY_ID}":
            await trio.sleep_forever()

    world.before_statement = lock
    statements = ["SELECT 1", BY_ID, BY_NAME]
    async with open_pool(connect_timeout=4, cancel_timeout=cancel_timeout, prepare_on_connect=statements) as pool:
        await pool.ready(3)
        assert trio.current_time() == pytest.approx(2, abs=0.1)
        assert prepared(world) == [("SELECT 1",)] * 3
        assert pool.cluster.info().failed == pool.cluster.info().rejected == ()
        assert await pool.fetchval("SELECT 1") == 1
        [line] = lines(caplog)
        assert line.startswith("statement 2 ")
        assert "took too long" in line


async def test_a_server_that_crashes_while_it_prepares_is_followed_by_another(
    world: FakeCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = world.servers

    async def crash(server: FakeServer, sql: str) -> None:
        if sql == f"PREPARE {BY_NAME}" and server is not third:
            server.crash()

    world.before_statement = crash
    hosts = [str(server.at) for server in world.servers]
    async with open_pool(hosts=hosts, load_balance=False, prepare_on_connect=[BY_ID, BY_NAME], pool_size=1) as pool:
        assert await pool.fetchval("SELECT 1") == 1
        assert trio.current_time() < 1
        assert prepared(world) == [(BY_ID, BY_NAME)]
        assert {info.at for info in pool.cluster.info().failed} == {first.at, second.at}
        assert pool.statistics().by_host == {str(third.at): 1}
    assert lines(caplog) == []


async def test_a_server_that_hangs_while_it_prepares_is_followed_by_another(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    first, second, _ = world.servers

    async def hang(server: FakeServer, sql: str) -> None:
        if server is first and sql == f"PREPARE {BY_ID}":
            server.hang()
            await server.awake()

    world.before_statement = hang
    hosts = [str(server.at) for server in (first, second)]
    async with open_pool(
        hosts=hosts, load_balance=False, prepare_on_connect=[BY_ID], pool_size=1, connect_timeout=4, checkout_timeout=9
    ) as pool:
        assert await pool.fetchval("SELECT 1") == 1
        assert trio.current_time() < 4
        assert pool.statistics().by_host == {str(second.at): 1}
        assert [info.at for info in pool.cluster.info().failed] == [first.at]


async def test_a_server_that_says_it_is_going_down_is_no_refusal(
    world: FakeCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = world.servers

    async def shut_down(server: FakeServer, sql: str) -> None:
        if server is first and sql == f"PREPARE {BY_ID}":
            raise error("57P01", "terminating connection due to administrator command", severity="FATAL")

    world.before_statement = shut_down
    hosts = [str(server.at) for server in (first, second)]
    async with open_pool(hosts=hosts, load_balance=False, prepare_on_connect=[BY_ID], pool_size=1) as pool:
        assert await pool.fetchval("SELECT 1") == 1
        assert pool.statistics().by_host == {str(second.at): 1}
    assert lines(caplog) == []


async def test_a_pool_that_closes_while_it_prepares_leaves_nothing(world: FakeCluster, open_pool: OpenPool) -> None:
    for server in world.servers:
        server.slow(query=1)
    async with open_pool(prepare_on_connect=[BY_ID, BY_NAME]):
        await trio.sleep(1.5)
        assert world.sessions == 3
    assert trio.current_time() < 3
    await trio.sleep(3)
    assert world.sessions == 0
