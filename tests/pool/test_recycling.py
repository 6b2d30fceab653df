"""Lifetimes, idle time and rebalancing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Any

import pytest
import trio

import ysactor
from ysactor.testing import FakeCluster

OpenPool = Callable[..., AbstractAsyncContextManager[ysactor.Pool]]


async def test_lifetimes_are_fixed_at_birth_and_spread(world: FakeCluster, open_pool: OpenPool) -> None:
    """C46: jitter computed anew at each check, or absent, makes all connections expire together."""
    host = [str(world.servers[0].at)]
    async with open_pool(
        hosts=host, load_balance=False, pool_size=20, max_lifetime=100, lifetime_jitter=50, rebalance_interval=1
    ) as pool:
        await pool.ready(20)
        world.journal.clear()
        start = trio.current_time()
        await trio.sleep(155)
        seconds = Counter(int(login.time - start) for login in world.journal.logins())
        assert min(seconds) >= 100
        assert max(seconds.values()) <= 5
        assert pool.statistics().connections_closed == {"expired": 20}


async def test_without_a_limit_nothing_expires(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=3, max_lifetime=None, rebalance_interval=1) as pool:
        await pool.ready(3)
        await trio.sleep(100_00)
        assert pool.statistics().connections_closed == {}


async def test_a_leased_connection_is_never_cut_by_its_lifetime(open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1, max_lifetime=10, lifetime_jitter=0, rebalance_interval=1) as pool:
        async with pool.acquire() as conn:
            await trio.sleep(100)
            assert await conn.fetchval("SELECT 1") == 1
        await trio.sleep(0.1)
        assert pool.statistics().connections_closed == {"expired": 1}


async def test_the_size_is_kept_without_traffic_whatever_ends(world: FakeCluster, open_pool: OpenPool) -> None:
    """C48."""
    async with open_pool(pool_size=6, max_lifetime=20, lifetime_jitter=5, rebalance_interval=1) as pool:
        await pool.ready(6)
        for _ in range(6):
            await trio.sleep(15)
            world.servers[0].kill_sessions()
            await trio.sleep(1)
            assert pool.statistics().idle == 6
        for server in world.servers:
            server.crash()
        world.journal.clear()
        await trio.sleep(60)
        assert len(world.journal.dials()) < 60 * 2 * len(world.servers), "no loop of reconnects while they are down"


async def test_an_elastic_pool_grows_when_asked_and_shrinks_when_idle(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(min_size=1, max_size=5, idle_timeout=30) as pool:
        await pool.ready(1)
        assert world.sessions == 1
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(pool.fetchval, "SELECT pg_sleep(1)")
        assert world.sessions == 5
        await trio.sleep(20)
        await pool.fetchval("SELECT 1")
        await trio.sleep(15)
        s = pool.statistics()
        assert s.size == s.idle == world.sessions <= 2
        await trio.sleep(60)
        assert pool.statistics().idle == world.sessions == 1
        assert set(pool.statistics().connections_closed) == {"idle"}


async def test_a_server_that_was_down_gets_its_share_back(world: FakeCluster, open_pool: OpenPool) -> None:
    down = world.servers[2]
    async with open_pool(pool_size=9, yb_servers_refresh_interval=10, rebalance_interval=5) as pool:
        await pool.ready(9)
        down.crash()
        await trio.sleep(1)
        await pool.ready(9)
        assert str(down.at) not in pool.statistics().by_host
        down.recover()
        await trio.sleep(60)
        assert set(pool.statistics().by_host.values()) == {3}


ELASTIC: dict[str, Any] = {
    "min_size": 0,
    "idle_timeout": None,
    "max_lifetime": None,
    "yb_servers_refresh_interval": 1,
    "rebalance_interval": 1,
}
"""Nothing ends a connection but being moved."""


async def test_an_elastic_pool_moves_its_connections_and_keeps_as_many(world: FakeCluster, open_pool: OpenPool) -> None:
    """Above the minimum too: what is closed to be moved is opened again, without a caller."""
    first, *others = world.servers
    for server in others:
        server.crash()
    async with open_pool(max_size=9, **ELASTIC) as pool:
        for conn in [await pool.checkout() for _ in range(6)]:
            pool.checkin(conn)
        assert pool.statistics().by_host == {str(first.at): 6}
        for server in others:
            server.recover()
        await trio.sleep(60)
        assert sorted(pool.statistics().by_host.values()) == [2, 2, 2]
        assert pool.statistics().connections_closed == {"rebalanced": 4}


async def test_a_connection_that_is_marked_while_it_is_leased_moves_in_an_elastic_pool_too(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    left, stays, _ = world.servers
    async with open_pool(max_size=2, **ELASTIC) as pool:
        conns = [await pool.checkout() for _ in range(2)]
        held = next(conn for conn in conns if str(conn.server) == str(left.at))
        world.unlist(left)
        await trio.sleep(5)
        for conn in conns:
            pool.checkin(conn)
        await trio.sleep(5)
        assert held.is_closed()
        assert str(left.at) not in pool.statistics().by_host
        assert pool.statistics().idle == 2
        assert pool.statistics().connections_closed == {"rebalanced": 1}
        assert str(stays.at) in pool.statistics().by_host


async def test_a_pool_that_is_never_idle_gets_level_too(world: FakeCluster, open_pool: OpenPool) -> None:
    """With more callers than connections none is ever idle; what is handed on is then what can be moved."""
    down = world.servers[2]
    for server in world.servers:
        server.slow(query=0.2)
    async with open_pool(pool_size=9, yb_servers_refresh_interval=10, rebalance_interval=5) as pool:
        await pool.ready(9)
        down.crash()
        await trio.sleep(1)
        down.recover()
        down.slow(query=0.2)

        async def caller() -> None:
            while True:
                await pool.fetchval("SELECT 1")

        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(30):
                    nursery.start_soon(caller)
        assert set(pool.statistics().by_host.values()) == {3}


async def test_connections_of_no_pool_do_not_keep_a_pool_moving(world: FakeCluster, open_pool: OpenPool) -> None:
    """Placement counts them: what is moved off the servers without them would be opened there again, for ever."""
    crowded, *others = world.servers
    async with (
        open_pool(pool_size=4, yb_servers_refresh_interval=10, rebalance_interval=5, max_lifetime=None) as pool,
        trio.open_nursery() as nursery,
    ):
        await pool.ready(4)
        for server in others:
            server.crash()
        await trio.sleep(1)

        async def listen() -> None:
            async with pool.cluster.connect():
                await trio.sleep_forever()

        for _ in range(4):
            nursery.start_soon(listen)
        await trio.sleep(5)
        assert len(crowded.sessions) == 8
        for server in others:
            server.recover()
        await trio.sleep(60)
        assert pool.statistics().by_host == {str(server.at): 2 for server in others}
        opened = pool.statistics().connections_opened
        assert pool.statistics().connections_closed["rebalanced"] == 4
        await trio.sleep(600)
        assert pool.statistics().connections_closed["rebalanced"] == 4
        assert pool.statistics().connections_opened == opened
        nursery.cancel_scope.cancel()


async def test_what_levelling_has_closed_is_not_levelled_again_before_it_is_gone(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """The farewell takes longer than it is to the next rebalance, and the next connection opens only after it."""
    crowded, *others = world.servers
    async with open_pool(
        pool_size=6, yb_servers_refresh_interval=1, rebalance_interval=0.3, rebalance_batch=9, max_lifetime=None
    ) as pool:
        await pool.ready(6)
        for server in others:
            server.crash()
        await trio.sleep(1)
        await pool.ready(6)
        crowded.hang()
        for server in others:
            server.recover()
        await trio.sleep(30)
        assert set(pool.statistics().by_host.values()) == {2}
        assert pool.statistics().connections_closed["rebalanced"] == 4


async def test_connections_whose_lifetime_has_ended_make_no_others_move(open_pool: OpenPool) -> None:
    """They are closed by the very tick that levels, and placement will make good for them."""
    async with open_pool(pool_size=60, max_lifetime=30, lifetime_jitter=30, rebalance_interval=5) as pool:
        await pool.ready(60)
        await trio.sleep(300)
        closed = pool.statistics().connections_closed
        assert closed["expired"] > 200
        assert closed.keys() == {"expired"}


async def test_the_preferred_zone_gets_its_connections_back_in_batches(world: FakeCluster, open_pool: OpenPool) -> None:
    """C44."""
    keys = "cloud.region.zone-1:1,cloud.region.zone-2:2"
    preferred, second, third = world.servers
    async with open_pool(
        pool_size=6, topology_keys=keys, yb_servers_refresh_interval=10, rebalance_interval=5, rebalance_batch=2
    ) as pool:
        await pool.ready(6)
        assert pool.statistics().by_host == {str(preferred.at): 6}
        preferred.crash()
        await trio.sleep(10)
        assert pool.statistics().by_host == {str(second.at): 6}
        busy = await pool.checkout()
        preferred.recover()
        moved: list[int] = []
        for _ in range(80):
            await trio.sleep(1)
            moved.append(pool.statistics().by_host.get(str(preferred.at), 0))
        assert max(after - before for before, after in pairwise(moved)) <= 2
        assert await busy.fetchval("SELECT 1") == 1, "what is in use is not cut"
        assert pool.statistics().by_host == {str(preferred.at): 5, str(second.at): 1}
        assert pool.statistics().draining == 1
        pool.checkin(busy)
        await trio.sleep(1)
        assert pool.statistics().by_host == {str(preferred.at): 6}
        assert not third.sessions


async def test_nothing_moves_towards_a_server_that_still_fails(world: FakeCluster, open_pool: OpenPool) -> None:
    keys = "cloud.region.zone-1:1,cloud.region.zone-2:2"
    async with open_pool(pool_size=4, topology_keys=keys, yb_servers_refresh_interval=10, rebalance_interval=5) as pool:
        await pool.ready(4)
        world.servers[0].crash()
        await trio.sleep(5)
        await pool.ready(4)
        opened = pool.statistics().connections_opened
        await trio.sleep(200)
        assert pool.statistics().connections_opened == opened


@pytest.mark.parametrize("zones", [True, False])
async def test_nothing_moves_towards_a_server_where_on_connect_fails(
    world: FakeCluster, open_pool: OpenPool, zones: bool
) -> None:
    """What was closed would be opened where it was before, and closed again, for ever. One batch after each refresh
    finds out whether that is still so."""
    keys = {"topology_keys": "cloud.region.zone-1:1,cloud.region.zone-2:2"} if zones else {}
    first, second, third = world.servers
    broken = True

    async def prepare(conn: ysactor.Connection) -> None:
        if broken and str(conn.server) == str(first.at):
            raise KeyError("mine")

    first.crash()
    async with open_pool(
        hosts=[str(second.at)],
        pool_size=6,
        yb_servers_refresh_interval=60,
        failed_host_reconnect_delay_secs=1,
        rebalance_interval=5,
        rebalance_batch=2,
        on_connect=prepare,
        **keys,
    ) as pool:
        await pool.ready(6)
        first.recover()
        await trio.sleep(130)
        assert pool.cluster.info().failed == ()
        opened = pool.statistics().connections_opened
        await trio.sleep(600)
        assert 10 <= pool.statistics().connections_opened - opened <= 22
        assert pool.statistics().idle == 6

        broken = False
        await trio.sleep(130)
        by_host = {str(first.at): 6} if zones else {str(server.at): 2 for server in (first, second, third)}
        assert pool.statistics().by_host == by_host


async def test_while_nothing_can_be_opened_nothing_is_closed_to_be_elsewhere(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """What works is kept, on whichever server it is; so is what is in use."""
    keys = "cloud.region.zone-1:1,cloud.region.zone-2:2"
    first, second, _ = world.servers
    broken = False

    async def prepare(_: ysactor.Connection) -> None:
        if broken:
            raise KeyError("mine")

    first.crash()
    async with open_pool(
        hosts=[str(second.at)],
        pool_size=6,
        topology_keys=keys,
        yb_servers_refresh_interval=20,
        failed_host_reconnect_delay_secs=1,
        rebalance_interval=5,
        rebalance_batch=2,
        on_connect=prepare,
    ) as pool:
        await pool.ready(6)
        busy = await pool.checkout()
        broken = True
        first.recover()
        await trio.sleep(300)
        assert pool.statistics().openings_failed > 0
        held = pool.statistics().by_host[str(second.at)]
        # The first batch was closed before anybody could know.
        assert held == 4
        assert pool.statistics().draining == 0
        pool.checkin(busy)
        await trio.sleep(10)
        assert pool.statistics().by_host == {str(second.at): 4}

        broken = False
        await trio.sleep(60)
        assert pool.statistics().by_host == {str(first.at): 6}


async def test_statistics_and_the_cluster_tell_the_same(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=7) as pool:
        await pool.ready(7)
        conn = await pool.checkout()
        s = pool.statistics()
        assert (s.size, s.idle, s.leased, s.opening, s.waiting) == (7, 6, 1, 0, 0)
        assert s.by_host == dict(pool.cluster.info().counts)
        assert sum(s.by_host.values()) == world.sessions == 7
        with pytest.raises(AttributeError):
            s.size = 1  # type: ignore[misc]
        pool.checkin(conn)
        assert "7 idle" in repr(pool)


async def test_an_idle_connection_is_closed_in_time_whatever_the_pool_is_told_meanwhile(open_pool: OpenPool) -> None:
    """All of them were out when the pool last heard anything, and the next rebalance is far away."""
    async with open_pool(min_size=0, max_size=5, idle_timeout=5, rebalance_interval=600) as pool:

        async def use() -> None:
            async with pool.acquire():
                await trio.sleep(1)

        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(use)
            assert pool.statistics().idle == 5
            await trio.sleep(4.9)
            assert pool.statistics().idle == 5
            await trio.sleep(0.2)
            assert pool.statistics().idle == 0
