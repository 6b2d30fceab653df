"""The main promises on every kind of bed, whatever its servers are made of: what a real YugabyteDB is to be tried with.

Only what every bed offers is used, and each limit in time grows with what the bed itself needs to notice a change.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest
import trio

import ysactor
from integration.scenario import until
from ysactor.testing.postgres import Bed, Role

LIMIT = 600.0
"""Seconds for a test; a real cluster needs a minute to notice that a server is gone."""


class AnyBed(Bed, Protocol):
    """What all of the beds have beside the protocol."""

    def dsn(self, *indexes: int, role: Role = ..., database: str = ...) -> str: ...


@asynccontextmanager
async def open_on(bed: AnyBed, name: str, **options: Any) -> AsyncGenerator[ysactor.Pool]:
    """A pool on the bed; after it the servers have no session of its name."""
    with trio.fail_after(LIMIT):
        async with ysactor.open_pool(bed.dsn(), application_name=name, **options) as pool:
            yield pool
        await until(lambda: _empty(bed, name), "no session is left", limit=10 + bed.detect_s)


async def _sessions(bed: AnyBed, name: str, indexes: Sequence[int]) -> list[int]:
    return [await bed.sessions(index, name) for index in indexes]


async def _empty(bed: AnyBed, name: str) -> bool:
    return sum(await _sessions(bed, name, range(len(bed.members)))) == 0


async def _agrees(bed: AnyBed, name: str, pool: ysactor.Pool) -> bool:
    s = pool.statistics()
    resting = s.idle == s.size and not (s.leased or s.opening or s.closing)
    counted = await _sessions(bed, name, range(len(bed.members)))
    return resting and counted == [s.by_host.get(str(member), 0) for member in bed.members]


def _level(bed: AnyBed, pool: ysactor.Pool, indexes: Sequence[int]) -> bool:
    s = pool.statistics()
    counts = [s.by_host.get(str(bed.members[index]), 0) for index in indexes]
    return sum(counts) == s.size and max(counts) - min(counts) <= 1


@pytest.mark.needs("yb-servers")
async def test_connections_are_level_whatever_is_killed_and_started_again(bed: AnyBed) -> None:
    everyone = range(len(bed.members))
    options: dict[str, Any] = {"rebalance_interval": 0.1, "failed_host_reconnect_delay_secs": 0}
    async with open_on(bed, "every-kill", load_balance=True, pool_size=9, **options) as pool:
        await pool.ready(9, timeout=30)
        await until(lambda: _level(bed, pool, everyone), "level at first")
        lost = others = served = 0
        stop = trio.Event()

        async def caller() -> None:
            nonlocal lost, others, served
            while not stop.is_set():
                try:
                    await pool.fetch("SELECT pg_sleep(0.002)")
                except ysactor.ConnectionLost:
                    lost += 1
                except ysactor.Error:
                    others += 1
                else:
                    served += 1

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(caller)
            await bed.kill(1)
            await until(lambda: _level(bed, pool, [0, 2]), "the others carry all", limit=10 + bed.detect_s)
            before = served
            await until(lambda: served > before + 50, "callers are served", limit=10 + bed.detect_s)
            await bed.start(1)

            async def back() -> bool:
                await pool.cluster.refresh()
                return _level(bed, pool, everyone)

            await until(back, "level again under load", limit=20 + bed.detect_s)
            stop.set()
        assert lost <= 3
        assert others == 0
        await until(
            lambda: _agrees(bed, "every-kill", pool), "the servers count as the pool does", limit=10 + bed.detect_s
        )


@pytest.mark.needs("yb-servers", "freeze")
async def test_a_frozen_server_costs_a_limited_time(bed: AnyBed) -> None:
    async with open_on(
        bed, "every-freeze", load_balance=True, pool_size=6, socket_timeout=1, connect_timeout=2, checkout_timeout=20
    ) as pool:
        await pool.ready(6, timeout=30)
        await bed.freeze(2)
        try:
            outcomes: Counter[str] = Counter()
            for _ in range(12):
                try:
                    await pool.fetch("SELECT 1")
                except ysactor.ConnectionLost as loss:
                    outcomes[loss.reason] += 1
                else:
                    outcomes["served"] += 1
            assert outcomes["served"] >= 9
            assert set(outcomes) <= {"served", "socket_timeout"}
        finally:
            await bed.thaw(2)
        assert await pool.fetchval("SELECT 1") == 1


async def test_random_cancellations_leave_as_many_sessions_as_the_pool_says(bed: AnyBed) -> None:
    rng = random.Random(5)
    async with open_on(bed, "every-cancel", load_balance=True, pool_size=6) as pool:
        await pool.ready(6, timeout=30)
        cancelled = 0

        async def client() -> None:
            nonlocal cancelled
            for _ in range(20):
                with trio.move_on_after(rng.uniform(0, 0.03)) as scope:
                    if rng.random() < 0.5:
                        await pool.fetch("SELECT pg_sleep(0.01)")
                    else:
                        async with pool.acquire() as conn, conn.transaction(readonly=True):
                            await conn.fetch("SELECT pg_sleep(0.01)")
                cancelled += scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(client)
        assert cancelled > 30
        await until(lambda: _agrees(bed, "every-cancel", pool), "the servers count as the pool does", limit=20)


@pytest.mark.needs("yb-servers", "shared-data")
async def test_a_bank_keeps_its_books_while_servers_go_and_come(bed: AnyBed) -> None:
    rng = random.Random(6)
    done: set[int] = set()
    unknown: set[int] = set()
    failed: set[int] = set()

    async def transfer(conn: ysactor.Connection, number: int, source: int, target: int) -> None:
        await conn.execute("INSERT INTO entries VALUES ($1)", number)
        for account, change in sorted([(source, -10), (target, 10)]):
            await conn.execute("UPDATE accounts SET balance = balance + $2 WHERE id = $1", account, change)

    async with open_on(bed, "every-bank", load_balance=True, pool_size=6, checkout_timeout=20) as pool:
        await pool.execute("CREATE TABLE accounts(id int PRIMARY KEY, balance int NOT NULL)")
        await pool.execute("CREATE TABLE entries(number int NOT NULL)")
        await pool.execute("INSERT INTO accounts SELECT n, 1000 FROM generate_series(1, 10) n")
        stop = trio.Event()
        number = 0

        async def teller() -> None:
            nonlocal number
            while not stop.is_set():
                number += 1
                mine, (source, target) = number, rng.sample(range(1, 11), 2)
                try:
                    await pool.transaction(transfer, mine, source, target, attempts=10)
                except ysactor.CommitOutcomeUnknown:
                    unknown.add(mine)
                except ysactor.Error:
                    failed.add(mine)
                else:
                    done.add(mine)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(teller)
            for victim in (1, 2):
                for act in (bed.kill, bed.start):
                    before = len(done)
                    await until(lambda: len(done) > before + 50, "they work", limit=10 + bed.detect_s)  # noqa: B023
                    await act(victim)
            stop.set()
        there = Counter(row["number"] for row in await pool.fetch("SELECT number FROM entries"))
        assert all(there[one] == 1 for one in done)
        assert all(there[one] == 0 for one in failed)
        assert all(there[one] <= 1 for one in unknown)
        assert await pool.fetchval("SELECT sum(balance)::int FROM accounts") == 10_000


@pytest.mark.needs("yb-servers", "topology-edit")
async def test_a_server_that_is_unlisted_is_left_and_one_that_is_listed_again_is_used(bed: AnyBed) -> None:
    rows = [member.row(number=number) for number, member in enumerate(bed.members)]
    async with open_on(bed, "every-topology", load_balance=True, pool_size=6, rebalance_interval=0.1) as pool:
        await pool.ready(6, timeout=30)
        await bed.set_topology(rows[:2])
        await pool.cluster.refresh()
        await until(lambda: _level(bed, pool, [0, 1]), "the two that are listed have all")
        await bed.set_topology(rows)
        await pool.cluster.refresh()
        await until(lambda: _level(bed, pool, range(3)), "level again")
        await until(lambda: _agrees(bed, "every-topology", pool), "the servers count as the pool does")
