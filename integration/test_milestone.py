"""When the pool is done: what a failing server costs its callers, and what cancellation and closing leave behind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
import trio

import ysactor
from integration.scenario import (
    Transport,
    level,
    on_both_transports,
    open_case,
    until,
    watched,
)
from ysactor.testing.postgres import ThreeZones

pytestmark = watched


class Callers:
    """Fifty callers who use the pool without a pause, and write down what it costs them."""

    def __init__(self, pool: ysactor.Pool) -> None:
        self.pool = pool
        self.done = 0
        self.last_done = 0.0
        self.losses: list[str] = []
        """Of which server each lost connection was. A COMMIT that was under way has its own word for it."""
        self.last_loss = 0.0
        self.others: list[Exception] = []
        self.stop = False

    def start(self, nursery: trio.Nursery, number: int = 50) -> None:
        kinds = [self._lease, self._statement, self._transaction]
        for index in range(number):
            nursery.start_soon(self._repeat, kinds[index % len(kinds)])

    async def _repeat(self, once: Callable[[], Awaitable[None]]) -> None:
        while not self.stop:
            try:
                await once()
            except (ysactor.ConnectionLost, ysactor.CommitOutcomeUnknown) as loss:
                self.last_loss = trio.current_time()
                self.losses.append(str(loss.server))
            except Exception as error:  # written down, and looked at by the test
                self.others.append(error)
            else:
                self.done += 1
                self.last_done = trio.current_time()

    async def _lease(self) -> None:
        async with self.pool.acquire() as conn:
            for _ in range(3):
                await conn.fetch("SELECT pg_sleep(0.002)")

    async def _statement(self) -> None:
        await self.pool.fetch("SELECT pg_sleep(0.003)")

    async def _transaction(self) -> None:
        async with self.pool.acquire() as conn, conn.transaction():
            await conn.execute("SELECT pg_sleep(0.002)")
            await conn.execute("SELECT pg_sleep(0.002)")


@on_both_transports
@pytest.mark.parametrize("victim", range(3))
async def test_killing_one_of_three_servers_costs_its_holders_one_loss_each_and_nobody_anything_else(
    three_zones: ThreeZones, transport: Transport, victim: int
) -> None:
    bed = three_zones
    name = str(bed.members[victim])
    connect_timeout = 3.0
    async with open_case(
        bed,
        transport,
        load_balance=True,
        pool_size=12,
        connect_timeout=connect_timeout,
        rebalance_interval=0.05,
        failed_host_reconnect_delay_secs=0,
    ) as case:
        pool = case.pool
        await pool.ready(12)
        assert level(bed, pool)
        callers = Callers(pool)
        async with trio.open_nursery() as nursery:
            callers.start(nursery)
            await until(lambda: callers.done > 100, "the callers are served")
            assert pool.statistics().waiting > 30

            killed = trio.current_time()
            held = pool.statistics().by_host[name]
            await bed.kill(victim)
            with trio.fail_after(connect_timeout):
                await pool.fetch("SELECT 1")
            print("gap_s", round(trio.current_time() - killed, 4))  # shown by -rP
            others = [index for index in range(3) if index != victim]
            await until(
                partial(level, bed, pool, *others), lambda: f"the others carry all: {pool.statistics().by_host}"
            )
            print("full_again_s", round(trio.current_time() - killed, 4))  # shown by -rP
            done = callers.done
            await until(lambda: callers.done > done + 100, "the callers are served by the others")
            assert not callers.others
            assert len(callers.losses) <= held == 4
            assert set(callers.losses) <= {name}
            assert callers.last_loss - killed < 2.0

            await bed.start(victim)
            await pool.cluster.refresh()
            await until(lambda: level(bed, pool), lambda: f"level again under load: {pool.statistics().by_host}")
            assert not callers.others
            assert len(callers.losses) <= held
            callers.stop = True
        assert level(bed, pool)
        await case.at_rest()
        await until(lambda: level(bed, pool), "level at rest")


@on_both_transports
async def test_after_a_restart_and_a_refresh_an_idle_pool_gets_level(
    three_zones: ThreeZones, transport: Transport
) -> None:
    bed = three_zones
    async with open_case(
        bed, transport, load_balance=True, pool_size=10, rebalance_interval=0.05, failed_host_reconnect_delay_secs=0
    ) as case:
        pool = case.pool
        await pool.ready(10)
        for victim in range(3):
            await bed.kill(victim)
            others = [index for index in range(3) if index != victim]
            await until(partial(level, bed, pool, *others), lambda: f"the others carry all: {pool.statistics()}")
            await bed.start(victim)
            await pool.cluster.refresh()
            await until(lambda: level(bed, pool), lambda: f"level again: {pool.statistics().by_host}")


# --- a thousand cancellations ----------------------------------------------------------------------------------------


async def _statement(pool: ysactor.Pool, rng: random.Random) -> None:
    await pool.fetch("SELECT generate_series(1, $1), pg_sleep($2)", rng.randrange(1, 500), 0.0)


async def _sleeping_statement(pool: ysactor.Pool, rng: random.Random) -> None:
    await pool.execute(f"SELECT pg_sleep({rng.uniform(0, 0.01)})")


async def _lease(pool: ysactor.Pool, rng: random.Random) -> None:
    async with pool.acquire() as conn:
        for _ in range(rng.randrange(4)):
            await conn.fetchval("SELECT $1::int", rng.randrange(100))
            await conn.execute(f"SELECT pg_sleep({rng.uniform(0, 0.004)})")


async def _block(pool: ysactor.Pool, rng: random.Random) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("INSERT INTO marks VALUES (1)")
        async with conn.transaction():
            await conn.execute(f"SELECT pg_sleep({rng.uniform(0, 0.004)})")


async def _function(pool: ysactor.Pool, rng: random.Random) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT INTO marks VALUES (2)")
        await conn.execute(f"SELECT pg_sleep({rng.uniform(0, 0.004)})")

    await pool.transaction(fn)


async def _by_hand(pool: ysactor.Pool, rng: random.Random) -> None:
    conn = await pool.checkout()
    try:
        await conn.execute(f"SELECT pg_sleep({rng.uniform(0, 0.004)})")
    finally:
        (pool.discard if rng.random() < 0.1 else pool.checkin)(conn)


async def _cursor(pool: ysactor.Pool, rng: random.Random) -> None:
    async with pool.acquire() as conn, conn.transaction():
        seen = 0
        async for _ in conn.cursor("SELECT generate_series(1, 300)", prefetch=20):
            seen += 1
            if seen > rng.randrange(300):
                break


async def _copy(pool: ysactor.Pool, rng: random.Random) -> None:
    async def records() -> Any:
        for number in range(rng.randrange(200)):
            yield (number,)
            if number % 50 == 0:
                await trio.sleep(0.001)

    async with pool.acquire() as conn, aclosing(records()) as source:
        await conn.copy_records_to_table("marks", records=source)


@on_both_transports
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_thousand_random_cancellations_under_load_leave_everything_in_its_place(
    three_zones: ThreeZones, transport: Transport, seed: int
) -> None:
    bed = three_zones
    rng = random.Random(seed)
    kinds = [_statement, _sleeping_statement, _lease, _block, _function, _by_hand, _cursor, _copy]
    for server in bed.servers:
        server.sql("create table marks(i int)")
    cancelled: Counter[str] = Counter()
    async with open_case(bed, transport, load_balance=True, pool_size=9) as case:
        pool = case.pool
        await pool.ready(9)

        async def client(rounds: int) -> None:
            for _ in range(rounds):
                kind = rng.choice(kinds)
                with trio.move_on_after(rng.uniform(0, 0.02)) as scope:
                    await kind(pool, rng)
                if scope.cancelled_caught:
                    cancelled[kind.__name__] += 1
                s = pool.statistics()
                assert s.idle + s.leased + s.opening <= 9

        async with trio.open_nursery() as nursery:
            for _ in range(25):
                nursery.start_soon(client, 60)
        assert sum(cancelled.values()) > 300, cancelled
        assert set(cancelled) == {kind.__name__ for kind in kinds}
        await case.at_rest()
        # With cancel_timeout a second, a server on this machine settles every one of them: no connection is spent.
        assert set(pool.statistics().connections_closed) <= {"discarded", "busy"}
