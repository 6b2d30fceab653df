"""C32: a server that accepts no writes any more, while its sessions live on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg
import pytest
import trio

import ysactor
from ysactor.testing import Dialled, FakeCluster

OpenPool = Callable[..., AbstractAsyncContextManager[ysactor.Pool]]

INSERT = "INSERT INTO t VALUES (1)"


@pytest.fixture
def world(world: FakeCluster) -> FakeCluster:
    world.answer(INSERT, None)
    return world


def in_order(world: FakeCluster) -> dict[str, Any]:
    """Options of a pool on the first server, with the others behind it."""
    hosts = [str(server.at) for server in world.servers]
    return {"hosts": hosts, "load_balance": False, "pool_size": 3, "target_session_attrs": "read-write"}


def dials(world: FakeCluster) -> int:
    return sum(isinstance(record, Dialled) for record in world.journal)


async def by_call(pool: ysactor.Pool) -> None:
    await pool.execute(INSERT)


async def by_lease(pool: ysactor.Pool) -> None:
    async with pool.acquire() as conn:
        await conn.execute(INSERT)


async def by_transaction(pool: ysactor.Pool) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute(INSERT)

    await pool.transaction(fn)


@pytest.mark.parametrize("write", [by_call, by_lease, by_transaction])
async def test_a_write_that_is_refused_moves_the_pool_to_the_server_that_accepts_it(
    world: FakeCluster, open_pool: OpenPool, write: Callable[[ysactor.Pool], Awaitable[None]]
) -> None:
    first, second = (str(server.at) for server in world.servers[:2])
    async with open_pool(**in_order(world), rebalance_interval=10_000, yb_servers_refresh_interval=0) as pool:
        await pool.ready(3)
        held = await pool.checkout()
        world.servers[0].close_to_writes()
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await write(pool)
        await trio.sleep(1)
        assert [str(server) for server in pool.cluster.info().read_only] == [first]
        assert pool.statistics().by_host == {first: 1, second: 2}
        await write(pool)
        pool.checkin(held)
        await trio.sleep(1)
        assert pool.statistics().by_host == {second: 3}
        assert pool.statistics().connections_closed == {"read_only": 3}

        world.servers[0].open_to_writes()
        await trio.sleep(5)
        await pool.cluster.refresh()
        assert pool.cluster.info().read_only == ()


@pytest.mark.parametrize("ask", ["transaction", "block"])
async def test_a_read_only_transaction_of_ones_own_says_nothing_of_the_server(
    world: FakeCluster, open_pool: OpenPool, ask: str
) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            async with conn.transaction():
                await conn.execute(INSERT)
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await conn.execute(INSERT)
        raise ysactor.Rollback

    async with open_pool(**in_order(world)) as pool:
        await pool.ready(3)
        before = dials(world)
        if ask == "transaction":
            await pool.transaction(fn, readonly=True)
        else:
            with pytest.raises(ysactor.Rollback):
                async with pool.acquire() as conn, conn.transaction(readonly=True):
                    await fn(conn)
        await trio.sleep(5)
        assert dials(world) == before
        assert pool.statistics().connections_closed == {}


async def test_a_server_that_accepts_writes_after_all_is_looked_at_once_a_second_and_loses_nothing(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """A transaction that was made read-only by a statement."""
    async with open_pool(**in_order(world)) as pool:
        await pool.ready(3)
        before = dials(world)
        for _ in range(30):
            async with pool.acquire() as conn:
                await conn.execute("BEGIN READ ONLY")
                with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                    await conn.execute(INSERT)
                await conn.execute("ROLLBACK")
            await trio.sleep(0.1)
        assert before < dials(world) <= before + 4
        assert pool.statistics().connections_closed == {}
        assert pool.cluster.info().read_only == ()


async def test_a_pool_that_asked_for_any_server_does_not_care(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(**{**in_order(world), "target_session_attrs": "any"}) as pool:
        await pool.ready(3)
        before = dials(world)
        world.servers[0].close_to_writes()
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await pool.execute(INSERT)
        await trio.sleep(5)
        assert dials(world) == before
        assert await pool.fetchval("SELECT 1") == 1


async def test_a_session_that_a_holder_made_read_only_is_the_only_one_to_go(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    async with open_pool(**in_order(world)) as pool:
        await pool.ready(3)
        async with pool.acquire() as conn:
            spoiled = conn.get_server_pid()
            await conn.execute("SET default_transaction_read_only TO on")
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await conn.execute(INSERT)
        await trio.sleep(5)
        assert pool.statistics().connections_closed == {"read_only": 1}
        assert pool.cluster.info().read_only == ()
        assert pool.statistics().idle == 3
        assert spoiled not in {view.pid for view in world.servers[0].sessions}
        for _ in range(6):
            await pool.execute(INSERT)


async def test_one_that_was_asked_while_idle_is_handed_on(world: FakeCluster, open_pool: OpenPool) -> None:
    """Others to the address of one that is read-only are asked as well, and callers in line wait for them."""
    async with open_pool(**in_order(world)) as pool:
        await pool.ready(3)
        async with pool.acquire() as conn:
            await conn.execute("SET default_transaction_read_only TO on")
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await conn.execute(INSERT)
        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(pool.execute, INSERT)
        assert pool.statistics().connections_closed == {"read_only": 1}
        held = await pool.checkout()
        assert held.is_closed() is False
        pool.checkin(held)
        s = pool.statistics()
        assert (s.idle, s.leased, s.settling) == (3, 0, 0)
