"""What a user may do to asyncpg's own connection harms that connection, and nothing else."""

from __future__ import annotations

import pytest
import trio

import ysactor
from ysactor.testing.postgres import three_zones


async def test_awaiting_asyncpgs_coroutines_directly_costs_that_connection_only() -> None:
    with three_zones(1) as bed:
        async with ysactor.open_pool(bed.dsn(), pool_size=2) as pool:
            for _ in range(3):
                async with pool.acquire() as conn:
                    with pytest.raises((TypeError, RuntimeError)):
                        await conn.raw.fetchval("SELECT 9")
                with trio.fail_after(5):
                    assert await pool.fetchval("SELECT 1") == 1
