"""Where connections are, how many, and for how long (field cases C40 to C48)."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise

import pytest
import trio

import ysactor
from integration.scenario import Case, Transport, level, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import SharedData, ThreeZones

pytestmark = watched


def spread(pool: ysactor.Pool) -> list[int]:
    return sorted(pool.statistics().by_host.values())


def _has_closed(pool: ysactor.Pool, number: int) -> bool:
    return sum(pool.statistics().connections_closed.values()) >= number


@on_both_transports
async def test_many_openings_at_once_are_spread_as_they_are_decided(
    shared_data: SharedData, transport: Transport
) -> None:
    """C40: thirty at once on three servers, again after all were terminated, and again with one that refuses."""
    bed = shared_data
    async with open_case(
        bed, transport, load_balance=True, pool_size=30, failed_host_reconnect_delay_secs=0, rebalance_interval=0.05
    ) as case:
        pool = case.pool
        await until(lambda: level(bed, pool), "all are open")
        for number in range(1, 4):
            assert spread(pool) == [10, 10, 10]
            await case.at_rest()
            assert await case.truth.terminate() == 30
            await until(partial(_has_closed, pool, 30 * number), "all are lost")
            await until(lambda: level(bed, pool) and pool.statistics().idle == 30, "all are replaced")
        await bed.kill(2)
        # A failed opening gives its count back: the two that are left share what the third had.
        await until(lambda: level(bed, pool, 0, 1), lambda: f"two share all: {pool.statistics()}")
        assert spread(pool) == [15, 15]
        assert pool.cluster.info().counts[str(bed.members[2])] == 0
        assert not any(pool.cluster.info().pending.values())
        await bed.start(2)
        await pool.cluster.refresh()
        await until(lambda: level(bed, pool), lambda: f"level again: {pool.statistics().by_host}")
        assert spread(pool) == [10, 10, 10]


async def check_counts(case: Case) -> None:
    """The cluster's counts are those of the servers, and never below zero."""

    async def equal() -> bool:
        counts = case.pool.cluster.info().counts
        assert all(count >= 0 for count in counts.values())
        seen = Counter(one.server for one in await case.truth.sessions())
        by_host = {f"{server.host}:{server.port}": seen[number] for number, server in enumerate(case.truth.servers)}
        return {host: count for host, count in counts.items() if count} == {h: n for h, n in by_host.items() if n}

    await until(equal, lambda: f"the servers count as the cluster does: {case.pool.cluster.info().counts}")


@on_both_transports
async def test_the_count_of_a_server_that_leaves_with_open_connections_stays_true(
    three_zones: ThreeZones, transport: Transport
) -> None:
    """C42: server 2 is unlisted while ten of its connections are leased, some of which are killed; then it returns."""
    bed = three_zones
    gone = str(bed.members[2])
    async with (
        open_case(bed, transport, load_balance=True, pool_size=24, rebalance_interval=0.05, rebalance_batch=4) as case,
        AsyncExitStack() as stack,
    ):
        pool = case.pool
        await pool.ready(24)
        held: list[ysactor.Connection] = []
        others: list[ysactor.Connection] = []
        for _ in range(24):
            conn = await pool.checkout()
            (held if str(conn.server) == gone else others).append(conn)
        assert len(held) == 8
        for conn in others:
            pool.checkin(conn)
        for conn in held:
            stack.callback(pool.checkin, conn)

        await bed.set_topology(bed.rows()[:2])
        await pool.cluster.refresh()
        assert pool.cluster.info().counts[gone] == 8
        await check_counts(case)
        await until(lambda: pool.statistics().draining == 8, lambda: f"all are marked: {pool.statistics()}")
        # Busy ones are not cut.
        for conn in held:
            assert await conn.fetchval("SELECT 1") == 1
        for conn in held[:3]:
            pool.checkin(conn)
        await case.truth.terminate(pids=[conn.get_server_pid() for conn in held[3:5]])
        for conn in held[3:5]:
            with pytest.raises(ysactor.ConnectionLost):
                await conn.fetchval("SELECT 1")
            pool.checkin(conn)
        await until(lambda: pool.cluster.info().counts[gone] == 3, lambda: f"three are left: {pool.statistics()}")
        await check_counts(case)
        assert pool.statistics().draining == 3

        # It returns with the number of those that are still open, and gets its share.
        await bed.set_topology(bed.rows())
        await pool.cluster.refresh()
        assert pool.cluster.info().counts[gone] == 3
        await until(lambda: pool.statistics().draining == 0, "the marks are gone")
        await until(lambda: level(bed, pool), lambda: f"level again: {pool.statistics().by_host}")
        for conn in held[5:]:
            assert await conn.fetchval("SELECT 1") == 1
            pool.checkin(conn)
        await check_counts(case)
        await case.at_rest()
        # And once more, to the end: unlisted, all its connections go, and so does its count.
        await bed.set_topology(bed.rows()[:2])
        await pool.cluster.refresh()
        await until(lambda: level(bed, pool, 0, 1), lambda: f"the others have all: {pool.statistics().by_host}")
        await check_counts(case)


@on_both_transports
async def test_load_returns_in_batches_to_a_preferred_server_that_is_back(
    three_zones: ThreeZones, transport: Transport
) -> None:
    """C44: zone a before zone b; a's server is down for a while and comes back, with callers busy all the time."""
    bed = three_zones
    batch = 2
    keys = "aws.us-east-1.us-east-1a:1,aws.us-east-1.us-east-1b:2"
    async with open_case(
        bed,
        transport,
        load_balance=True,
        topology_keys=keys,
        pool_size=10,
        rebalance_interval=0.1,
        rebalance_batch=batch,
        failed_host_reconnect_delay_secs=0,
    ) as case:
        pool = case.pool
        await pool.ready(10)
        assert level(bed, pool, 0)
        await bed.kill(0)
        await until(lambda: level(bed, pool, 1), lambda: f"all are in zone b: {pool.statistics().by_host}")
        assert [str(one) for one in pool.cluster.info().placement] == [str(bed.members[1])]

        # Never towards a server that still fails: nothing is closed for it, at any of some ten rebalances.
        closed = dict(pool.statistics().connections_closed)
        for _ in range(5):
            await pool.cluster.refresh()
            await trio.sleep(0.1)
        assert pool.statistics().connections_closed == closed
        assert level(bed, pool, 1)

        busy = [await pool.checkout() for _ in range(3)]
        await bed.start(0)
        await trio.sleep(0.25)
        assert level(bed, pool, 1), "it is not gone back to before a probe has succeeded"
        await pool.cluster.refresh()
        away = [10]
        while away[-1] > 3:
            now = pool.statistics().by_host.get(str(bed.members[1]), 0)
            if now != away[-1]:
                away.append(now)
            await trio.sleep(0.005)
        assert max(before - after for before, after in pairwise(away)) <= batch
        # Those that are busy are not cut; they go when they come back.
        await until(lambda: pool.statistics().draining == 3, "they are marked")
        for conn in busy:
            assert await conn.fetchval("SELECT 1") == 1
            pool.checkin(conn)
        await until(lambda: level(bed, pool, 0), lambda: f"all are back in zone a: {pool.statistics().by_host}")
        assert [str(one) for one in pool.cluster.info().placement] == [str(bed.members[0])]
        assert pool.statistics().connections_closed["rebalanced"] == 10


@on_both_transports
async def test_lifetimes_end_one_by_one_and_nobody_waits_for_it(three_zones: ThreeZones, transport: Transport) -> None:
    """C46: twenty connections opened at once live 0.5 s plus up to a second, under constant load for three seconds."""
    size = 20
    async with open_case(
        three_zones, transport, load_balance=True, pool_size=size, max_lifetime=0.5, lifetime_jitter=1.0
    ) as case:
        pool = case.pool
        await pool.ready(size)
        opened: list[int] = []
        slow: list[float] = []
        stop = trio.current_time() + 3.0

        async def caller() -> None:
            while trio.current_time() < stop:
                started = trio.current_time()
                await pool.fetch("SELECT pg_sleep(0.01)")
                slow.append(trio.current_time() - started)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(caller)
            while trio.current_time() < stop:
                opened.append(pool.statistics().connections_opened)
                await trio.sleep(0.1)
        # Three seconds are some three lives of a second on average.
        assert 30 <= opened[-1] - opened[0] <= 120
        in_a_tenth = [after - before for before, after in pairwise(opened)]
        assert max(in_a_tenth) <= size / 2, in_a_tenth
        # Nobody is told, and nobody waits for long.
        slow.sort()
        assert slow[int(len(slow) * 0.99)] < 0.25
        assert set(pool.statistics().connections_closed) == {"expired"}
        await until(lambda: pool.statistics().idle == size, "the size is kept")


@on_both_transports
async def test_a_pool_without_traffic_keeps_its_minimum(three_zones: ThreeZones, transport: Transport) -> None:
    """C48: three idle limits and lifetimes long, half of the connections killed meanwhile."""
    async with open_case(
        three_zones,
        transport,
        rest=False,
        load_balance=True,
        min_size=4,
        max_size=8,
        idle_timeout=0.2,
        max_lifetime=0.4,
        lifetime_jitter=0.2,
        rebalance_interval=0.05,
    ) as case:
        pool = case.pool
        async with AsyncExitStack() as stack:
            for _ in range(8):
                await stack.enter_async_context(pool.acquire())
        await until(lambda: pool.statistics().connections_closed.get("idle", 0) >= 4, "it shrinks")
        least = 8
        for round_ in range(4):
            deadline = trio.current_time() + 0.3
            while trio.current_time() < deadline:
                s = pool.statistics()
                least = min(least, s.idle + s.leased + s.opening + s.closing)
                await trio.sleep(0.005)
            if round_ == 1:
                seen = await case.truth.sessions()
                await case.truth.terminate(pids=[one.pid for one in seen[:2]])
        assert least >= 4
        await until(lambda: pool.statistics().idle == 4, "it is at its minimum")
        closed = pool.statistics().connections_closed
        # Of the two that were to be killed, one may have come to the end of its lifetime just before.
        assert 1 <= closed["lost"] <= 2
        assert closed["expired"] >= 4
        assert await pool.fetchval("SELECT 1") == 1


@on_both_transports
async def test_a_pool_without_traffic_does_not_knock_all_the_time_at_a_server_that_is_down(
    shared_data: SharedData, transport: Transport
) -> None:
    """C48, the second part: the minimum can't be kept, and no loop tries to."""
    proxy = shared_data.proxies[0]
    async with open_case(
        shared_data, transport, dsn=shared_data.dsn(0), pool_size=6, failed_host_reconnect_delay_secs=0
    ) as case:
        await case.pool.ready(6)
        proxy.set_mode("close")
        before = proxy.accepted
        proxy.reset_all()
        await trio.sleep(2.5)
        # Six at once, in place of those that were lost, and then single ones.
        assert 0 < proxy.accepted - before <= 6 + 9 * 2.5
        proxy.set_mode("pass")
        await case.pool.ready(6, timeout=5)
