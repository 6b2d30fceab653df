"""Statements whose world changes under them, and streams that are left early."""

from __future__ import annotations

import gc
import tracemalloc

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Transport, open_case
from ysactor.testing.postgres import SharedData

BOTH = pytest.mark.parametrize("transport", ["native", "trio_asyncio"])


@BOTH
async def test_a_table_that_changes_shape_is_noticed_by_nobody(shared_data: SharedData, transport: Transport) -> None:
    """C52: cached plans fail after DDL, inside a transaction unrecoverably."""
    shared_data.server.sql("create table shape(a int)", "insert into shape values (1)")
    async with open_case(shared_data, transport, pool_size=4) as case:
        pool = case.pool

        async def read(conn: ysactor.Connection) -> list[tuple[object, ...]]:
            return [tuple(row.values()) for row in await conn.fetch("SELECT * FROM shape")]

        async def on_each(what: str) -> list[object]:
            """On every connection at once, so that none is met twice."""
            results: list[object] = []
            barrier = trio.Event()
            arrived = 0

            async def one() -> None:
                nonlocal arrived
                if what == "statement":
                    results.append([tuple(row.values()) for row in await pool.fetch("SELECT * FROM shape")])
                    return

                async def fn(conn: ysactor.Connection) -> list[tuple[object, ...]]:
                    nonlocal arrived
                    arrived += 1
                    if arrived >= 4:
                        barrier.set()
                    await barrier.wait()
                    return await read(conn)

                results.append(await pool.transaction(fn))

            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(one)
            return results

        assert await on_each("transaction") == [[(1,)]] * 4
        shared_data.server.sql("alter table shape add column b int default 2")
        assert await on_each("transaction") == [[(1, 2)]] * 4
        assert 1 <= pool.statistics().transactions_retried <= 4
        shared_data.server.sql("alter table shape add column c int default 3")
        for _ in range(8):
            assert await on_each("statement") == [[(1, 2, 3)]] * 4
        assert pool.statistics().connections_closed == {}


@BOTH
@pytest.mark.parametrize("changes", [("table",), ("type",), ("table", "type")])
async def test_a_changed_schema_that_one_connection_meets_is_met_by_no_other(
    shared_data: SharedData, transport: Transport, changes: tuple[str, ...]
) -> None:
    """C52: the one run more of a transaction would otherwise meet the next connection's statement, which is as old."""
    shared_data.server.sql(
        "create type pair as (x int)", "create table shape(p pair)", "insert into shape values (row(1))"
    )
    text = "SELECT * FROM shape"
    added = 0

    def alter() -> None:
        nonlocal added
        added += 1
        what = {"table": f"table shape add column c{added}", "type": f"type pair add attribute a{added}"}
        shared_data.server.sql(*(f"alter {what[change]} int" for change in changes))

    async def read(conn: ysactor.Connection | ysactor.Pool) -> int:
        row = await conn.fetchrow(text)
        found = {"table": len(row) - 1, "type": len(row["p"]) - 1}
        assert len({found[change] for change in changes}) == 1
        return found[changes[0]]

    async with (
        open_case(shared_data, transport, pool_size=10) as case,
        ysactor.open_pool(shared_data.dsn(), driver=transport, pool_size=2) as another,
    ):
        pool = case.pool

        async def warm() -> None:
            """Have every connection keep the statement, in turn."""
            leases = [await pool.checkout() for _ in range(10)]
            for conn in leases:
                await read(conn)
                pool.checkin(conn)

        await warm()
        alter()
        assert [await pool.transaction(read) for _ in range(20)] == [added] * 20
        assert pool.statistics().transactions_retried == len(changes)

        alter()
        answers: list[int] = []

        async def one() -> None:
            answers.append(await pool.transaction(read))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
        assert answers == [added] * 20

        # One that is in a call meanwhile forgets as the call ends: it may be about to use what it has looked up.
        await warm()
        alter()
        before = pool.statistics().transactions_retried
        busy = await pool.checkout()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy.fetch, "SELECT pg_sleep(0.2)")
            await trio.sleep(0.05)
            assert await pool.transaction(read) == added
        assert pool.statistics().transactions_retried == before + len(changes)
        async with busy.transaction():
            assert await read(busy) == added
        assert await busy.fetchval(f"SELECT count(*) FROM pg_prepared_statements WHERE statement = '{text}'") == 1
        pool.checkin(busy)

        await warm()
        await read(another)
        alter()
        for each in (pool, another):
            failures = 0
            for _ in range(20):
                try:
                    assert await read(each) == added
                except asyncpg.OutdatedSchemaCacheError:
                    failures += 1
            assert failures == (1 if "type" in changes else 0), "each pool finds it out by itself"
        assert pool.statistics().connections_closed == {}


@BOTH
async def test_a_cursor_that_is_left_early_leaves_nothing_open(shared_data: SharedData, transport: Transport) -> None:
    """C77."""
    million = "SELECT generate_series(1, 1000000), repeat('x', 100)"
    async with open_case(shared_data, transport, pool_size=1) as case:
        pool = case.pool
        tracemalloc.start()
        try:
            async with pool.acquire() as conn:
                async with conn.transaction():
                    async for row in conn.cursor(million):
                        if row[0] == 3:
                            break
                assert not conn.is_in_transaction()
                assert await conn.fetchval("SELECT 1") == 1
            assert tracemalloc.get_traced_memory()[1] < 20_000_000, "what was not asked for was not read"
        finally:
            tracemalloc.stop()
        with trio.move_on_after(0.05) as scope:
            async with pool.acquire() as conn, conn.transaction():
                async for _ in conn.cursor(million):
                    await trio.sleep(0.001)
        assert scope.cancelled_caught
        assert await pool.fetchval("SELECT 1") == 1
        async with pool.acquire() as conn:
            await conn.execute("BEGIN")
            iterator = aiter(conn.cursor(million))
            await anext(iterator)
            del iterator
        gc.collect()
        assert await pool.fetchval("SELECT 1") == 1
        with pytest.raises(ysactor.LeaseEnded):
            async for _ in conn.cursor(million):
                pytest.fail("its lease has ended")
