"""Closing ends everything, in bounded time, whatever the servers and the holders do."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import ysactor
from ysactor.testing import FakeCluster, FakeDriver

OpenPool = Callable[..., AbstractAsyncContextManager[ysactor.Pool]]


async def test_a_lease_that_comes_back_in_time_is_not_disturbed(open_pool: OpenPool) -> None:
    done: list[int] = []
    async with trio.open_nursery() as nursery:

        async def hold(pool: ysactor.Pool) -> None:
            async with pool.acquire() as conn:
                await trio.sleep(3)
                done.append(await conn.fetchval("SELECT 1"))

        async with open_pool(shutdown_timeout=5) as pool:
            await pool.ready()
            nursery.start_soon(hold, pool)
            await wait_all_tasks_blocked()
            start = trio.current_time()
        assert done == [1]
        assert 3 <= trio.current_time() - start < 4


async def test_holders_are_ended_when_their_time_is_over(world: FakeCluster, open_pool: OpenPool) -> None:
    """C80."""
    ended: list[BaseException] = []
    async with trio.open_nursery() as nursery:

        async def hold(pool: ysactor.Pool) -> None:
            try:
                async with pool.acquire():
                    await trio.sleep(1000)
            except ysactor.PoolClosed as error:
                ended.append(error)

        async def ask(pool: ysactor.Pool) -> None:
            try:
                await pool.fetchval("SELECT pg_sleep(1000)")
            except ysactor.PoolClosed as error:
                ended.append(error)

        async def by_hand(pool: ysactor.Pool) -> None:
            conn = await pool.checkout()
            await trio.sleep(100)
            try:
                await conn.fetchval("SELECT 1")
            except ysactor.PoolClosed as error:
                ended.append(error)
            pool.checkin(conn)

        async with open_pool(shutdown_timeout=2) as pool:
            await pool.ready(3)
            for task in (hold, ask, by_hand):
                nursery.start_soon(task, pool)
            await wait_all_tasks_blocked()
            start = trio.current_time()
        assert 2 <= trio.current_time() - start < 4
        assert world.sessions == 0
        assert not any(server.orphans for server in world.servers)
    assert len(ended) == 3


async def test_those_in_line_are_refused_at_once(open_pool: OpenPool) -> None:
    refused: list[float] = []
    async with open_pool(pool_size=1) as pool, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(ysactor.PoolClosed):
                await pool.fetchval("SELECT 1")
            refused.append(trio.current_time())

        conn = await pool.checkout()
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        start = trio.current_time()
        nursery.start_soon(pool.aclose)
        await trio.sleep(1)
        assert refused == [start]
        pool.checkin(conn)


async def test_frozen_servers_do_not_hold_up_the_end(world: FakeCluster, open_pool: OpenPool) -> None:
    async with trio.open_nursery() as nursery:
        async with open_pool(shutdown_timeout=1) as pool:
            await pool.ready(3)
            for server in world.servers:
                server.hang()

            async def ask() -> None:
                with pytest.raises(ysactor.PoolClosed):
                    await pool.fetchval("SELECT 1")

            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            start = trio.current_time()
        assert trio.current_time() - start < 5


async def test_a_close_that_is_cancelled_gives_leases_no_more_time(world: FakeCluster, open_pool: OpenPool) -> None:
    async with trio.open_nursery() as nursery:
        pool: ysactor.Pool

        async def hold() -> None:
            with pytest.raises(ysactor.PoolClosed):
                async with pool.acquire():
                    await trio.sleep(1000)

        with trio.move_on_after(1) as scope:
            async with open_pool(shutdown_timeout=None) as pool:
                await pool.ready()
                nursery.start_soon(hold)
                await trio.sleep(0.5)
        assert scope.cancelled_caught
        assert trio.current_time() < 5
        assert world.sessions == 0


async def test_closing_twice_waits_for_the_first(open_pool: OpenPool) -> None:
    async with open_pool() as pool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.aclose)
            nursery.start_soon(pool.aclose)
        await pool.aclose()
        assert "closed" in repr(pool)
        with pytest.raises(ysactor.PoolClosed):
            async with pool.acquire():
                pytest.fail("it is closed")


async def test_the_blocks_exception_comes_out_bare(open_pool: OpenPool) -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with open_pool() as pool:
            await pool.ready()
            raise mine
    assert caught.value is mine
    group = ExceptionGroup("mine", [ValueError(), KeyError()])
    with pytest.raises(ExceptionGroup) as caught_group:
        async with open_pool():
            raise group
    assert caught_group.value is group


async def test_cancelled_at_any_moment_of_opening_it_ends_and_leaves_nothing(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """C82."""
    for server in world.servers:
        server.slow(connect=0.05)
    for step in range(60):
        with trio.move_on_after(step * 0.005):
            async with open_pool(shutdown_timeout=1):
                await trio.sleep_forever()
        assert world.sessions == 0


async def test_a_keyboard_interrupt_in_the_block_comes_out(world: FakeCluster, open_pool: OpenPool) -> None:
    with pytest.raises(KeyboardInterrupt):
        async with open_pool() as pool:
            await pool.ready()
            raise KeyboardInterrupt
    assert world.sessions == 0


async def test_run_pool_under_the_callers_nursery(world: FakeCluster) -> None:
    from functools import partial

    hosts = [str(server.at) for server in world.servers]
    async with trio.open_nursery() as nursery:
        run = partial(ysactor.run_pool, driver=FakeDriver(world), hosts=hosts, pool_size=2)
        pool = await nursery.start(run)
        assert await pool.fetchval("SELECT 1") == 1
        await pool.aclose()
    assert world.sessions == 0


async def test_two_pools_and_a_nested_one_live_side_by_side(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool() as outer, open_pool() as inner:
        async with open_pool() as third:
            for pool in (outer, inner, third):
                assert await pool.fetchval("SELECT 1") == 1
        assert await outer.fetchval("SELECT 1") == 1
    assert world.sessions == 0


async def test_whoever_waits_for_connections_is_told_of_the_end(world: FakeCluster, open_pool: OpenPool) -> None:
    """With every server down nothing opens or ends any more, and nothing else would wake them."""
    for server in world.servers:
        server.crash()
    refused: list[ysactor.PoolClosed] = []

    async def wait(pool: ysactor.Pool) -> None:
        with pytest.raises(ysactor.PoolClosed) as caught:
            await pool.ready()
        refused.append(caught.value)

    async with trio.open_nursery() as nursery, open_pool() as pool:
        nursery.start_soon(wait, pool)
        await trio.sleep(0.5)
    assert len(refused) == 1


async def test_an_opening_is_stopped_at_whatever_moment_it_is(world: FakeCluster, open_pool: OpenPool) -> None:
    for step in range(10):
        async with open_pool(pool_size=1) as pool:
            await pool.ready()
            for server in world.servers:
                server.hang()
                server.kill_sessions()
            for _ in range(step):
                await trio.lowlevel.checkpoint()
            start = trio.current_time()
        assert trio.current_time() - start <= 1
        for server in world.servers:
            server.recover()


def test_a_keyboard_interrupt_while_closing_does_not_hang(world: FakeCluster, open_pool: OpenPool) -> None:
    """It reaches the main task in the middle of `aclose`; the end of the block closes again."""

    async def interrupt() -> None:
        await trio.sleep(0.5)
        signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        with trio.fail_after(3):
            async with open_pool() as pool:
                await pool.ready()
                for server in world.servers:
                    server.hang()
                trio.lowlevel.spawn_system_task(interrupt)
                await pool.aclose()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_pool_that_is_cancelled_counts_its_connections_as_closed_by_it(open_pool: OpenPool) -> None:
    with trio.CancelScope() as scope:
        async with open_pool() as pool:
            await pool.ready(3)
            scope.cancel()
            await trio.sleep_forever()
    assert pool.statistics().connections_closed == {"pool_closed": 3}
