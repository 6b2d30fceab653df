"""What must never outlive a lease, and what ends a lease whose COMMIT was lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio

import ysactor
from ysactor.testing import FakeCluster

OpenPool = Callable[..., AbstractAsyncContextManager[ysactor.Pool]]


@pytest.mark.parametrize(
    "sql", ["SET ROLE other", "set  session authorization other", "SELECT set_config('role', 'other', false)"]
)
async def test_a_role_never_outlives_its_lease(world: FakeCluster, open_pool: OpenPool, sql: str) -> None:
    """C56."""
    world.answer(sql, "SET")
    world.answer("RESET SESSION AUTHORIZATION", "RESET")
    world.answer("RESET ROLE", "RESET")
    async with open_pool(pool_size=1) as pool:
        for use in ("lease", "statement"):
            world.journal.clear()
            if use == "lease":
                async with pool.acquire() as conn:
                    await conn.execute(sql)
            else:
                await pool.execute(sql)
            assert await pool.fetchval("SELECT 1") == 1
            said = [statement for statement in world.journal.statements() if "yb_servers" not in statement]
            ours, reset, next_holders = said
            assert (ours, next_holders) == (sql, "SELECT 1")
            assert "RESET ROLE" in reset
            assert "RESET SESSION AUTHORIZATION" in reset
        assert pool.statistics().connections_opened == 1


async def test_a_lease_whose_commit_was_lost_never_ends_in_anything_milder(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    for server in world.servers:
        server.cut_at_commit(before=False)
    async with open_pool() as pool:
        with pytest.raises(ysactor.CommitOutcomeUnknown):
            async with pool.acquire() as conn:
                try:
                    async with conn.transaction():
                        await conn.execute("SELECT 1")
                except ysactor.CommitOutcomeUnknown:
                    await trio.sleep(10)


async def test_a_statement_that_was_left_is_the_cause_of_the_roll_back(open_pool: OpenPool) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        with pytest.raises(TimeoutError):
            await conn.execute("SELECT pg_sleep(10)", timeout=1)

    async with open_pool() as pool:
        with pytest.raises(ysactor.TransactionAborted) as caught:
            await pool.transaction(fn)
        assert isinstance(caught.value.__cause__, TimeoutError)


async def test_an_async_listener_is_refused(open_pool: OpenPool) -> None:
    async def heard(*_args: object) -> None: ...

    async with open_pool() as pool, pool.acquire() as conn:
        with pytest.raises(ysactor.ConfigurationError, match="callback"):
            await conn.add_listener("channel", heard)
