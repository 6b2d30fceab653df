"""Prepared statements, on the fake."""

from __future__ import annotations

import pytest

import ysactor
from ysactor.testing import FakeCluster, FakeDriver

pytestmark = pytest.mark.trio


async def test_a_prepared_statement_gives_the_rows_of_all_its_runs_together() -> None:
    world = FakeCluster.of(1)
    hosts = [str(server.at) for server in world.servers]
    async with (
        ysactor.open_pool(driver=FakeDriver(world), hosts=hosts, pool_size=1) as pool,
        pool.acquire() as conn,
    ):
        statement = await conn.prepare("SELECT $1")
        assert [row[0] for row in await statement.fetchmany((n,) for n in (1, 2, 3))] == [1, 2, 3]
        assert await statement.fetchmany([]) == []
    with pytest.raises(ysactor.LeaseEnded):
        await statement.fetchmany([(1,)])
