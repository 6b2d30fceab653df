"""What a pool promises of its servers: what leaves one out, what moves a connection, and what is never sent."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

import ysactor
from ysactor.testing import FakeCluster, FakeDriver
from ysactor.testing.pgerrors import error

from .conftest import OpenPool

LEVELS = "cloud.region.zone-1:1,cloud.region.zone-2:2"


def _listings(world: FakeCluster) -> int:
    return sum("yb_servers()" in statement for statement in world.journal.statements())


def _out(pool: ysactor.Pool) -> list[str]:
    info = pool.cluster.info()
    return [str(server) for server in (*info.failed, *info.rejected, *info.read_only)]


async def test_nothing_on_an_open_connection_leaves_its_server_out_or_starts_a_refresh(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    world.answer("SELECT cancelled", error("57014", "canceling statement due to statement timeout"))
    world.answer("SELECT fails", error("XX000", "internal error"))
    async with open_pool(socket_timeout=2) as pool:
        await pool.ready(3)
        await trio.sleep(10)
        world.journal.clear()
        for statement, code in (("SELECT cancelled", "57014"), ("SELECT fails", "XX000")):
            with pytest.raises(Exception, match=r"statement timeout|internal error") as raised:
                await pool.fetchval(statement)
            assert getattr(raised.value, "sqlstate", None) == code
        with pytest.raises(ysactor.ConnectionLost, match="socket_timeout"):
            await pool.fetchval("SELECT pg_sleep(60)")
        for server in world.servers:
            server.kill_sessions()
        await trio.sleep(20)
        await pool.ready(3)
        assert pool.statistics().connections_closed.keys() == {"socket_timeout", "lost"}
        assert not _out(pool)
        assert not _listings(world), "no refresh was brought forward"


async def test_an_idle_pool_and_its_rebalances_send_nothing_to_any_server(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    async with open_pool(rebalance_interval=1, yb_servers_refresh_interval=600, max_lifetime=None) as pool:
        await pool.ready(3)
        await trio.sleep(10)
        world.journal.clear()
        await trio.sleep(500)
        assert not list(world.journal)


async def test_a_failure_moves_nothing_and_the_fallback_keeps_its_own_until_the_preferred_server_is_back(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    preferred, second, _ = world.servers
    async with open_pool(
        pool_size=4, topology_keys=LEVELS, yb_servers_refresh_interval=10, rebalance_interval=5, max_lifetime=None
    ) as pool:
        await pool.ready(4)
        preferred.refuse()
        pool.discard(await pool.checkout())
        await trio.sleep(2)
        await pool.ready(4)
        there = {str(preferred.at): 3, str(second.at): 1}
        assert pool.statistics().by_host == there
        await trio.sleep(2000)
        assert pool.statistics().by_host == there, "however long it stays down"
        assert {str(server) for server in pool.cluster.info().allowed} == set(there)
        preferred.recover()
        await trio.sleep(30)
        assert pool.statistics().by_host == {str(preferred.at): 4}


async def test_a_mark_lapses_when_its_server_is_kept_again(world: FakeCluster, open_pool: OpenPool) -> None:
    preferred, second, _ = world.servers
    async with open_pool(
        pool_size=2, topology_keys=LEVELS, yb_servers_refresh_interval=10, rebalance_interval=5, max_lifetime=None
    ) as pool:
        await pool.ready(2)
        preferred.crash()
        await trio.sleep(3)
        await pool.ready(2)
        conn, other = await pool.checkout(), await pool.checkout()
        preferred.recover()
        await trio.sleep(30)
        assert pool.statistics().draining == 2
        pool.discard(other)
        await trio.sleep(2)
        assert pool.statistics().draining == 1, "a marked one that is gone is not counted any more"
        preferred.crash()
        await trio.sleep(20)
        assert pool.statistics().draining == 0
        opened = pool.statistics().connections_opened
        pool.checkin(conn)
        await trio.sleep(20)
        assert pool.statistics().by_host == {str(second.at): 2}
        assert pool.statistics().connections_opened == opened


async def test_a_mark_lapses_when_its_host_is_kept_again_because_every_host_is_out(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    first, second, _ = world.servers
    hosts = [str(first.at), str(second.at)]
    async with open_pool(
        hosts=hosts, load_balance=False, pool_size=2, yb_servers_refresh_interval=10, rebalance_interval=5
    ) as pool:
        await pool.ready(2)
        first.crash()
        await trio.sleep(3)
        await pool.ready(2)
        held, lost = await pool.checkout(), await pool.checkout()
        first.recover()
        await trio.sleep(20)
        assert pool.statistics().draining == 2
        first.refuse()
        second.refuse()
        pool.discard(lost)
        await trio.sleep(7)
        assert [str(server.at) for server in pool.cluster.info().failed] == hosts
        assert [str(server.at) for server in pool.cluster.info().allowed] == hosts
        assert pool.statistics().draining == 0
        pool.checkin(held)
        await trio.sleep(7)
        assert pool.statistics().by_host == {str(second.at): 1}, "no server is up, so nothing moves"


async def test_with_balancing_off_connections_gather_on_the_first_host_again_once_a_probe_has_found_it(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    first, second, third = world.servers
    async with open_pool(
        pool_size=4, load_balance=False, yb_servers_refresh_interval=10, rebalance_interval=5, rebalance_batch=2
    ) as pool:
        await pool.ready(4)
        assert pool.statistics().by_host == {str(first.at): 4}
        first.crash()
        await trio.sleep(20)
        assert pool.statistics().by_host == {str(second.at): 4}
        first.recover()
        await trio.sleep(60)
        assert pool.statistics().by_host == {str(first.at): 4}
        assert not _listings(world), "yb_servers() is never asked"
        assert not world.journal.dials(third)


async def test_a_server_that_the_listing_drops_loses_its_connections(world: FakeCluster, open_pool: OpenPool) -> None:
    dropped = world.servers[2]
    hosts = [str(world.servers[0].at)]
    async with open_pool(pool_size=6, hosts=hosts, yb_servers_refresh_interval=10, rebalance_interval=5) as pool:
        await pool.ready(6)
        assert pool.statistics().by_host[str(dropped.at)] == 2
        world.unlist(dropped)
        await trio.sleep(30)
        assert str(dropped.at) not in pool.statistics().by_host
        assert pool.statistics().idle == 6
        assert not dropped.sessions


async def test_after_everything_has_failed_at_once_what_is_open_stays_where_it_is(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    first = world.servers[0]
    async with open_pool(
        pool_size=3, topology_keys=LEVELS, yb_servers_refresh_interval=10, rebalance_interval=5, max_lifetime=None
    ) as pool:
        await pool.ready(3)
        first.refuse()
        pool.discard(await pool.checkout())
        await trio.sleep(2)
        await pool.ready(3)
        for server in world.servers:
            server.refuse()
        pool.discard(await pool.checkout())
        await trio.sleep(200)
        assert len(_out(pool)) == 3
        assert sum(pool.statistics().by_host.values()) == 2
        assert pool.statistics().connections_closed == {"discarded": 2}, "nothing was moved"


async def test_seeds_keep_connections_while_no_listed_server_can_be_reached(world: FakeCluster) -> None:
    """A load balancer's name leads somewhere, and the addresses that the servers advertise lead nowhere."""
    door = world.add("door.example", listed=False)
    for server in world.servers[:3]:
        server.refuse()
    async with ysactor.open_pool(
        hosts=[str(door.at)],
        load_balance=True,
        pool_size=3,
        yb_servers_refresh_interval=10,
        rebalance_interval=5,
        max_lifetime=None,
        driver=FakeDriver(world),
    ) as pool:
        await pool.ready(3)
        await trio.sleep(100)
        assert pool.statistics().by_host == {str(door.at): 3}
        assert pool.statistics().connections_opened == 3
        for server in world.servers[:3]:
            server.recover()
        await trio.sleep(100)
        assert pool.statistics().by_host == {str(server.at): 1 for server in world.servers[:3]}


async def test_a_connect_that_takes_long_holds_up_nobody_else(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool() as pool:
        await pool.ready(3)
        for server in world.servers:
            server.slow(connect=8)
        pool.discard(await pool.checkout())
        await trio.sleep(0.1)
        assert pool.statistics().opening == 1
        before = trio.current_time()
        assert await pool.fetchval("SELECT 1") == 1
        assert trio.current_time() - before < 0.1


async def test_a_probes_connection_is_counted_nowhere(world: FakeCluster, open_pool: OpenPool) -> None:
    down = world.servers[0]
    seen = Counter[int]()
    async with open_pool(pool_size=2, yb_servers_refresh_interval=10, rebalance_interval=1000) as pool:
        await pool.ready(2)
        down.crash()
        await trio.sleep(3)
        await pool.ready(2)
        down.recover()
        down.slow(connect=2)
        before = pool.statistics().connections_opened
        for _ in range(200):
            await trio.sleep(0.1)
            info = pool.cluster.info()
            seen[info.counts.get(str(down.at), 0) + info.pending.get(str(down.at), 0)] += 1
        assert world.journal.logins(down)
        assert not _out(pool), "the probe has found it back"
        assert seen.keys() == {0}
        assert pool.statistics().connections_opened == before
        assert not down.sessions


async def test_a_transaction_is_not_run_again_on_a_pool_that_closes(world: FakeCluster, open_pool: OpenPool) -> None:
    world.answer("SELECT conflict()", error("40001", "could not serialize"))
    runs = 0
    ended: list[BaseException] = []

    async def fn(conn: ysactor.Connection) -> None:
        nonlocal runs
        runs += 1
        await trio.sleep(1)
        await conn.execute("SELECT conflict()")

    async def run(pool: ysactor.Pool) -> None:
        with pytest.raises(Exception, match="could not serialize") as raised:
            await pool.transaction(fn)
        ended.append(raised.value)

    async with trio.open_nursery() as nursery, open_pool(shutdown_timeout=5) as pool:
        await pool.ready(3)
        nursery.start_soon(run, pool)
        await trio.sleep(0.5)
    assert runs == 1
    assert [getattr(error, "sqlstate", None) for error in ended] == ["40001"]


async def test_connections_are_counted_for_each_client_by_itself(world: FakeCluster, open_pool: OpenPool) -> None:
    first = world.servers[0]
    async with open_pool(load_balance=False, pool_size=5) as other, open_pool(pool_size=3) as pool:
        await other.ready(5)
        await pool.ready(3)
        assert other.statistics().by_host == {str(first.at): 5}
        assert pool.statistics().by_host == {str(server.at): 1 for server in world.servers}


async def test_after_the_first_discovery_no_connection_waits_for_one(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(yb_servers_refresh_interval=20) as pool:
        await pool.ready(3)

        async def wait_for_the_listing(_: object, statement: str) -> None:
            if "yb_servers()" in statement:
                await trio.sleep(8)

        world.before_statement = wait_for_the_listing
        world.journal.clear()
        await trio.sleep(22)
        assert _listings(world) == 1, "it is running"
        before = trio.current_time()
        pool.discard(await pool.checkout())
        await pool.ready(3)
        assert trio.current_time() - before < 2
        assert _listings(world) == 1
