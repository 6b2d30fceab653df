"""Leases: the line, cancellation, and the end of a lease from every side."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import ysactor
from ysactor.testing import FakeCluster, FakeServer, error

OpenPool = Callable[..., AbstractAsyncContextManager[ysactor.Pool]]


def adds_up(pool: ysactor.Pool) -> bool:
    s = pool.statistics()
    return s.idle + s.leased + s.opening == s.size


async def at_rest(pool: ysactor.Pool) -> ysactor.PoolStatistics:
    """The statistics once everything that was on its way has arrived."""
    while True:
        s = pool.statistics()
        if s.idle == s.size and not s.closing:
            return s
        await trio.sleep(0.01)


async def test_one_statement_on_whichever_connection_is_free(open_pool: OpenPool) -> None:
    async with open_pool() as pool:
        assert await pool.fetchval("SELECT 1") == 1
        assert await pool.fetchval("SELECT $1::int", 7) == 7
        assert [tuple(row.values()) for row in await pool.fetch("SELECT 1")] == [(1,)]
        assert await pool.execute("SET x = '1'") == "SET"


async def test_the_connections_are_spread_over_the_servers(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=9) as pool:
        await pool.ready(9)
        assert set(pool.statistics().by_host.values()) == {3}
        assert pool.statistics().by_host == {str(server.at): 3 for server in world.servers}
        assert world.sessions == 9


async def test_leaving_the_block_leaves_no_session_behind(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool() as pool:
        await pool.ready(3)
    assert world.sessions == 0
    with pytest.raises(ysactor.PoolClosed):
        await pool.fetchval("SELECT 1")


async def test_callers_are_served_in_the_order_they_came(open_pool: OpenPool) -> None:
    served: list[int] = []
    async with open_pool(pool_size=1) as pool, trio.open_nursery() as nursery:

        async def use(number: int) -> None:
            async with pool.acquire() as conn:
                served.append(number)
                await conn.fetchval("SELECT 1")

        async with pool.acquire():
            for number in range(20):
                nursery.start_soon(use, number)
                await wait_all_tasks_blocked()
            assert pool.statistics().waiting == 20
    assert served == list(range(20))


async def test_a_caller_that_is_cancelled_in_line_leaves_it_and_loses_nothing(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        async with pool.acquire():
            with trio.move_on_after(1) as scope:
                await pool.fetchval("SELECT 1")
            assert scope.cancelled_caught
            assert pool.statistics().waiting == 0
        assert pool.statistics().idle == 1
        assert pool.statistics().checkouts_cancelled == 1
        assert await pool.fetchval("SELECT 1") == 1


async def test_a_checkout_in_a_cancelled_scope_takes_nothing(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        await pool.ready()
        with trio.CancelScope() as scope:
            scope.cancel()
            async with pool.acquire():
                pytest.fail("it was cancelled before")
        assert scope.cancelled_caught
        assert pool.statistics().idle == 1


async def test_a_statement_in_a_cancelled_scope_sends_nothing(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        await pool.ready()
        world.journal.clear()
        with trio.CancelScope() as scope:
            scope.cancel()
            await pool.execute("INSERT INTO t VALUES (1)")
        assert scope.cancelled_caught
        assert "INSERT INTO t VALUES (1)" not in world.journal.statements()
        assert pool.statistics().idle == 1


async def test_the_limit_in_line_gives_the_situation(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1, checkout_timeout=2) as pool:
        async with pool.acquire():
            start = trio.current_time()
            with pytest.raises(ysactor.CheckoutTimeout, match="1 leased"):
                await pool.fetchval("SELECT 1")
            assert trio.current_time() - start == pytest.approx(2)
            with pytest.raises(TimeoutError):
                async with pool.acquire(timeout=0):
                    pytest.fail("there was nothing to have")
        assert pool.statistics().checkout_timeouts == 2


async def test_without_a_limit_a_caller_waits(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1, checkout_timeout=1) as pool, trio.open_nursery() as nursery, pool.acquire():

        async def wait() -> None:
            async with pool.acquire(timeout=None) as conn:
                assert await conn.fetchval("SELECT 1") == 1

        nursery.start_soon(wait)
        await trio.sleep(100)


async def test_more_callers_than_may_wait_are_refused(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1, max_waiting=2) as pool, trio.open_nursery() as nursery, pool.acquire():
        nursery.start_soon(pool.fetchval, "SELECT 1")
        nursery.start_soon(pool.fetchval, "SELECT 1")
        await wait_all_tasks_blocked()
        with pytest.raises(ysactor.PoolOverloaded):
            await pool.fetchval("SELECT 1")


async def test_a_caller_cancelled_in_mid_query_is_free_at_once_and_the_connection_is_reused(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    async with open_pool(pool_size=1) as pool:
        await pool.ready()
        start = trio.current_time()
        with trio.move_on_after(1) as scope:
            await pool.fetchval("SELECT pg_sleep(100)")
        assert scope.cancelled_caught
        assert trio.current_time() - start == pytest.approx(1)
        assert adds_up(pool)

        assert await pool.fetchval("SELECT 1") == 1

        assert len(world.journal.cancels()) == 1
        assert pool.statistics().connections_opened == 1
        assert not any(server.orphans for server in world.servers)


async def test_a_connection_that_cannot_be_settled_in_time_is_closed(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1, cancel_timeout=3, connect_timeout=1, checkout_timeout=10) as pool:
        await pool.ready()
        stuck = next(server for server in world.servers if server.sessions)
        with trio.move_on_after(1):
            stuck.hang()
            await pool.fetchval("SELECT 1")
        start = trio.current_time()

        assert await pool.fetchval("SELECT 1") == 1

        assert 3 <= trio.current_time() - start < 3 + 1 + 1 + 1
        assert pool.statistics().connections_closed == {"unsettled": 1}
        assert str(stuck.at) not in pool.statistics().by_host


async def test_a_late_cancel_request_never_meets_the_next_holders_statement(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """C07: a slow cancel request hits whoever is on the session when it arrives."""
    chance = Random(7)
    async with open_pool(pool_size=1) as pool:
        for server in world.servers:
            server.slow(cancel=0.3)
        for _ in range(100):
            with trio.move_on_after(chance.uniform(0.0, 0.06)):
                await pool.fetchval("SELECT pg_sleep(0.05)")
            await pool.fetchval("SELECT pg_sleep(0.5)")
        assert (await at_rest(pool)).connections_opened == 1


async def test_within_a_lease_the_next_call_waits_until_the_last_one_is_settled(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    async with open_pool(pool_size=1) as pool, pool.acquire() as conn:
        conn.server  # noqa: B018
        for server in world.servers:
            server.slow(cancel=0.2)
        with trio.move_on_after(1):
            await conn.fetchval("SELECT pg_sleep(100)")
        with pytest.raises(TimeoutError):
            await conn.fetchval("SELECT pg_sleep(100)", timeout=1)
        assert await conn.fetchval("SELECT 2") == 2


async def test_a_connection_that_dies_under_a_holder_cancels_the_block(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        with pytest.raises(ysactor.ConnectionLost) as caught:
            async with pool.acquire() as conn:
                world.server(str(conn.server)).kill_sessions()
                await trio.sleep(1000)
        assert str(caught.value.server) in {str(server.at) for server in world.servers}
        assert trio.current_time() < 10
        assert await pool.fetchval("SELECT 1") == 1
        assert pool.statistics().connections_closed == {"lost": 1}
        assert pool.cluster.info().failed == ()


async def test_a_connection_that_dies_in_a_call_raises_from_the_call(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool, trio.open_nursery() as nursery:
        await pool.ready()

        async def kill() -> None:
            await trio.sleep(1)
            for server in world.servers:
                server.kill_sessions()

        nursery.start_soon(kill)
        with pytest.raises(ysactor.ConnectionLost):
            await pool.fetchval("SELECT pg_sleep(100)")
        nursery.cancel_scope.cancel()
        assert (await at_rest(pool)).idle == 1


async def test_connections_that_die_idle_are_replaced_and_no_caller_notices(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """C17."""
    async with open_pool(pool_size=6) as pool:
        for _ in range(5):
            await pool.ready(6)
            for server in world.servers:
                server.kill_sessions()
            await trio.sleep(0.01)
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(pool.fetchval, "SELECT 1")
        assert (await at_rest(pool)).idle == 6
        assert pool.cluster.info().failed == ()


async def test_a_connection_used_after_its_lease_raises_and_touches_nobody(open_pool: OpenPool) -> None:
    """C84."""
    async with open_pool(pool_size=1) as pool:
        async with pool.acquire() as old:
            statement = await old.prepare("SELECT 1")
            transaction = old.transaction()
        async with pool.acquire() as conn, conn.transaction():
            for use in (
                lambda: old.fetchval("SELECT 1"),
                lambda: old.execute("ROLLBACK"),
                lambda: statement.fetchval(),
                lambda: transaction.start(),
            ):
                with pytest.raises(ysactor.LeaseEnded):
                    await use()
            pool.checkin(old)
            pool.discard(old)
            assert conn.is_in_transaction()
            assert await conn.fetchval("SELECT 1") == 1


async def test_by_hand_giving_back_works_in_a_cancelled_scope(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        conn = await pool.checkout()
        with trio.CancelScope() as scope:  # noqa: ASYNC100  that there is no checkpoint is what is tested
            scope.cancel()
            pool.checkin(conn)
        pool.checkin(conn)
        assert pool.statistics().idle == 1
        with pytest.raises(ysactor.LeaseEnded):
            await conn.fetchval("SELECT 1")


async def test_a_discarded_connection_is_closed_and_replaced(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        conn = await pool.checkout()
        pid = conn.get_server_pid()
        pool.discard(conn)
        async with pool.acquire() as other:
            assert other.get_server_pid() != pid
        assert world.sessions == 1


async def test_a_connection_left_in_a_transaction_is_closed_not_handed_on(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        async with pool.acquire() as conn:
            pid = conn.get_server_pid()
            await conn.execute("BEGIN")
        async with pool.acquire() as conn:
            assert not conn.is_in_transaction()
            assert conn.get_server_pid() != pid
        await pool.execute("BEGIN")
        assert (await at_rest(pool)).connections_closed == {"in_transaction": 2}


async def test_two_tasks_on_one_connection_get_a_clear_error_and_harm_nothing(open_pool: OpenPool) -> None:
    """C09."""
    async with open_pool(pool_size=1) as pool, pool.acquire() as conn, trio.open_nursery() as nursery:
        nursery.start_soon(conn.fetchval, "SELECT pg_sleep(1)")
        await wait_all_tasks_blocked()
        with pytest.raises(Exception, match="another operation"):
            await conn.fetchval("SELECT 1")
        await trio.sleep(2)
        assert await conn.fetchval("SELECT 1") == 1


async def test_a_connection_given_back_in_a_call_is_not_handed_on(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool, trio.open_nursery() as nursery:

        async def outlive(conn: ysactor.Connection) -> None:
            with pytest.raises(ysactor.ConnectionLost):
                await conn.fetchval("SELECT pg_sleep(100)")

        async with pool.acquire() as conn:
            nursery.start_soon(outlive, conn)
            await wait_all_tasks_blocked()
        assert await pool.fetchval("SELECT 1") == 1
        assert not any(server.orphans for server in world.servers)


async def test_a_cancelled_block_exits_at_once_whatever_surrounds_it(world: FakeCluster, open_pool: OpenPool) -> None:
    """C03: in a cancelled scope every await of a clean-up is cancelled again."""
    async with open_pool(pool_size=2) as pool:
        for number in range(100):
            start = trio.current_time()
            with trio.move_on_after(0.05):
                async with pool.acquire() as conn:
                    if number % 2:
                        async with conn.transaction():
                            await conn.fetchval("SELECT pg_sleep(10)")
                    await conn.fetchval("SELECT pg_sleep(10)")
            assert trio.current_time() - start == pytest.approx(0.05)
        s = await at_rest(pool)
        assert s.idle == 2
        assert world.sessions == 2
        assert s.connections_opened == 2
        assert all(view.state == "idle" for server in world.servers for view in server.sessions)
        assert not any(server.orphans for server in world.servers)


async def test_a_sibling_that_fails_frees_the_connection(world: FakeCluster, open_pool: OpenPool) -> None:
    """C03, the other half."""

    async def fail() -> None:
        await trio.sleep(0.05)
        raise ValueError

    async with open_pool(pool_size=1) as pool:
        for _ in range(20):
            with pytest.raises(ExceptionGroup):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(fail)
                    async with pool.acquire() as conn:
                        await conn.fetchval("SELECT pg_sleep(10)")
        assert (await at_rest(pool)).connections_opened == 1


async def test_a_thousand_random_cancellations_leave_everything_in_its_place(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    chance = Random(42)
    for server in world.servers:
        server.slow(query=0.002, cancel=0.001)

    async def work(pool: ysactor.Pool) -> None:
        match chance.randrange(4):
            case 0:
                await pool.fetchval("SELECT pg_sleep(0.01)")
            case 1:
                async with pool.acquire() as conn:
                    await conn.fetchval("SELECT 1")
                    async with conn.transaction():
                        await conn.fetchval("SELECT pg_sleep(0.01)")
            case 2:

                async def body(conn: ysactor.Connection) -> None:
                    await conn.execute("SELECT 1")

                await pool.transaction(body)
            case _:
                conn = await pool.checkout()
                try:
                    await conn.fetchval("SELECT 1")
                finally:
                    pool.checkin(conn)

    async def caller(pool: ysactor.Pool) -> None:
        for _ in range(20):
            with trio.move_on_after(chance.uniform(0, 0.03)):
                await work(pool)
            assert adds_up(pool)

    async with open_pool(pool_size=6) as pool:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(caller, pool)
        s = await at_rest(pool)
        assert s.idle == world.sessions == 6
        assert all(view.state == "idle" for server in world.servers for view in server.sessions)
        assert not any(server.orphans for server in world.servers)
        assert s.connections_closed == {}


async def test_a_connect_goes_on_when_the_caller_that_asked_has_gone(world: FakeCluster, open_pool: OpenPool) -> None:
    """C05."""
    for server in world.servers:
        server.slow(connect=0.3)
    successes = 0
    async with open_pool(pool_size=2, checkout_timeout=0.1) as pool:
        for _ in range(60):
            try:
                await pool.fetchval("SELECT 1")
                successes += 1
            except ysactor.CheckoutTimeout:
                pass
            assert pool.statistics().opening <= 2
            await trio.sleep(0.05)
        assert successes > 50
        assert len(world.journal.logins()) <= 2 + len(world.journal.dials()) - 2


async def test_elastic_a_half_open_connection_is_never_forgotten(world: FakeCluster, open_pool: OpenPool) -> None:
    """C01."""
    for server in world.servers:
        server.slow(connect=0.02)
    chance = Random(5)
    async with open_pool(min_size=0, max_size=3) as pool, trio.open_nursery() as nursery:

        async def checkout() -> None:
            with trio.move_on_after(chance.uniform(0, 0.03)):
                async with pool.acquire():
                    await trio.sleep(0.005)

        for _ in range(200):
            nursery.start_soon(checkout)
            await trio.sleep(0.003)
            assert world.sessions <= 3
        await trio.sleep(2)
        s = pool.statistics()
        assert s.idle == s.size == world.sessions
        conns = [await pool.checkout(timeout=1) for _ in range(3)]
        for conn in conns:
            pool.checkin(conn)


def servers_up(world: FakeCluster) -> list[FakeServer]:
    return [server for server in world.servers if server.sessions]


async def test_a_call_made_in_a_lease_is_not_run_after_it(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        async with pool.acquire() as conn:
            call = conn.raw.fetch("SELECT 1")
        with pytest.raises(ysactor.LeaseEnded):
            await conn.run_raw(call)
        assert "SELECT 1" not in world.journal.statements()


async def test_a_block_is_entered_once(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=2) as pool:
        block = pool.acquire()
        with pytest.raises(ysactor.Error, match="entered before"):
            async with block, block:
                pytest.fail("it would lose the first lease")
        with pytest.raises(ysactor.Error, match="entered before"):
            async with block:
                pytest.fail("nor may it be used again")
        await pool.ready(2)
        assert adds_up(pool)
        assert pool.statistics().leased == 0


async def test_a_connection_that_is_not_the_pools_is_not_taken_in(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool() as pool, open_pool() as other, pool.cluster.connect() as single:
        await pool.ready(3)
        await other.ready(3)
        conn = await pool.checkout()
        for give in (other.checkin, other.discard):
            for stranger in (conn, single):
                with pytest.raises(ysactor.Error, match="not one of this pool's"):
                    give(stranger)
        assert await conn.fetchval("SELECT 1") == await single.fetchval("SELECT 1") == 1
        assert (pool.statistics().leased, other.statistics().leased, other.statistics().idle) == (1, 0, 3)
        pool.checkin(conn)
        assert adds_up(pool)
        assert adds_up(other)


async def test_listeners_end_with_their_lease_on_the_server_too(world: FakeCluster, open_pool: OpenPool) -> None:
    heard: list[str] = []

    def note(_conn: ysactor.Connection, _pid: int, _channel: str, payload: str) -> None:
        heard.append(payload)

    async with open_pool(pool_size=1) as pool:
        for _ in range(3):
            async with pool.acquire() as conn:
                await conn.add_listener("news", note)
                await conn.add_listener("weather", note)
                await conn.execute("NOTIFY news, 'in the lease'")
            assert await pool.fetchval("SELECT 1") == 1
            [session] = [session for server in world.servers for session in server.sessions]
            assert session.channels == frozenset()
        await pool.execute("NOTIFY news, 'after it'")
        assert heard == ["in the lease"] * 3
        assert pool.statistics().connections_closed == {}


async def test_what_is_tidied_up_after_a_lease_was_not_cancelled(world: FakeCluster, open_pool: OpenPool) -> None:
    """So a `cancel_timeout` of 0 does not close it."""
    world.answer("BAD", ValueError("the argument does not fit"))
    async with open_pool(pool_size=1, cancel_timeout=0) as pool:
        with pytest.raises(ValueError, match="does not fit"):
            await pool.execute("BAD")
        async with pool.acquire() as conn:
            await conn.add_listener("news", print)
            with pytest.raises(ValueError, match="does not fit"):
                await conn.execute("BAD")
        assert await pool.fetchval("SELECT 1") == 1
        assert pool.statistics().connections_closed == {}


async def test_a_connection_that_listens_inside_a_transaction_is_closed_as_any_other(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        async with pool.acquire() as conn:
            await conn.add_listener("news", print)
            await conn.execute("BEGIN")
        await at_rest(pool)
        assert pool.statistics().connections_closed == {"in_transaction": 1}


async def test_what_ends_a_lease_with_an_error_leaves_no_cycle_behind(world: FakeCluster, open_pool: OpenPool) -> None:
    """A cycle would keep the connection, and all that the error's frames hold, until the next collection."""

    async def conflict(_conn: ysactor.Connection) -> None:
        raise error("40001", "conflict")

    async def lost(pool: ysactor.Pool) -> None:
        async with pool.acquire() as conn:
            world.server(str(conn.server)).kill_sessions()
            await trio.sleep(1)

    async def kept(run: Callable[[], Awaitable[None]]) -> list[str]:
        with suppress(Exception):
            await run()
        gc.collect()
        kept = [type(thing).__name__ for thing in gc.garbage]
        gc.garbage.clear()
        return [name for name in kept if name in ("Connection", "Acquire", "traceback")]

    async with open_pool() as pool:
        await pool.ready(3)
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            assert await kept(partial(lost, pool)) == []
            assert await kept(partial(pool.transaction, conflict)) == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()


@pytest.mark.parametrize("wrong", [b"SELECT 1", None, 5])
async def test_what_is_no_query_is_refused_before_anything_is_sent(
    world: FakeCluster, open_pool: OpenPool, wrong: Any
) -> None:
    """asyncpg finds out in the middle of a message, and closes the connection over it."""
    async with open_pool(pool_size=1) as pool:
        await pool.ready()
        world.journal.clear()
        for call in (pool.fetch, pool.fetchrow, pool.fetchval, pool.execute):
            with pytest.raises(TypeError, match="a query is a str"):
                await call(wrong)
        with pytest.raises(TypeError, match="a query is a str"):
            await pool.executemany(wrong, [(1,)])
        async with pool.acquire() as conn:
            with pytest.raises(TypeError, match="a query is a str"):
                await conn.prepare(wrong)
            with pytest.raises(TypeError, match="run_raw takes a coroutine"):
                await conn.run_raw(wrong)
        assert world.journal.statements() == ()
        assert pool.statistics().connections_opened == 1
