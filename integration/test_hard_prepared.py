"""Prepared statements of a lease's own, on both transports."""

from __future__ import annotations

import asyncpg
import pytest

from integration.scenario import Transport, on_both_transports, open_case, watched
from ysactor.testing.postgres import SharedData

pytestmark = [watched, on_both_transports]


async def test_a_prepared_statement_gives_the_rows_of_all_its_runs_together(
    shared_data: SharedData, transport: Transport
) -> None:
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        statement = await conn.prepare("SELECT n, 12 / $1::int FROM generate_series(1, 2) n")
        rows = await statement.fetchmany((divisor,) for divisor in (1, 2, 3))
        assert [tuple(row) for row in rows] == [(1, 12), (2, 12), (1, 6), (2, 6), (1, 4), (2, 4)]
        assert await statement.fetchmany([]) == []
        with pytest.raises(asyncpg.DivisionByZeroError):
            await statement.fetchmany([(1,), (0,)])
        async with conn.transaction():
            assert len(await statement.fetchmany([(1,)] * 1000, timeout=20)) == 2000


HELD = "SELECT count(*) FROM pg_prepared_statements"


@pytest.mark.parametrize("is_cached", [True, False], ids=["a text that was run before", "a new text"])
async def test_what_each_lease_prepares_does_not_add_up_on_the_server(
    shared_data: SharedData, transport: Transport, is_cached: bool
) -> None:
    async with open_case(shared_data.server, transport, pool_size=1) as case:
        before = await case.pool.fetchval(HELD)
        if is_cached:
            assert await case.pool.fetchval("SELECT 7") == 7
        for _ in range(30):
            async with case.pool.acquire() as conn:
                statement = await conn.prepare("SELECT 7")
                assert await statement.fetchval() == 7
        if is_cached:
            assert await case.pool.fetchval("SELECT 7") == 7
        assert await case.pool.fetchval(HELD) <= before + 3


async def test_a_prepared_statement_is_kept_while_somebody_has_it(
    shared_data: SharedData, transport: Transport
) -> None:
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        assert await conn.fetchval("SELECT 7") == 7
        first, second = await conn.prepare("SELECT 7"), await conn.prepare("SELECT 7")
        assert first.get_name() != second.get_name()
        del first
        for n in range(5):
            assert await conn.fetchval(f"SELECT {n}") == n
            assert await second.fetchval() == 7
            assert await conn.fetchval("SELECT 7") == 7
