"""What a call that fails leaves in memory, on both transports: nothing that only the garbage collector would find."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Transport, on_both_transports, open_case, watched
from ysactor.testing.postgres import SharedData

pytestmark = [watched, on_both_transports]

REFUSED = "SELECT 1 / (length($1::text) - length($1))"


class Argument(str):
    """One that can be watched."""

    __slots__ = ("__weakref__",)


Ask = Callable[[ysactor.Pool, Argument], Awaitable[object]]


async def _by_pool(pool: ysactor.Pool, argument: Argument) -> None:
    await pool.fetchval(REFUSED, argument)


async def _in_time(pool: ysactor.Pool, argument: Argument) -> None:
    await pool.fetchval(REFUSED, argument, timeout=20)


async def _by_lease(pool: ysactor.Pool, argument: Argument) -> None:
    async with pool.acquire() as conn:
        await conn.fetchval(REFUSED, argument)


async def _by_execute(pool: ysactor.Pool, argument: Argument) -> None:
    async with pool.acquire() as conn:
        await conn.execute(REFUSED, argument)


async def _in_a_block(pool: ysactor.Pool, argument: Argument) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await conn.fetchval("SELECT 1")
        await conn.fetchval(REFUSED, argument)


async def _with_begin(pool: ysactor.Pool, argument: Argument) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await conn.fetchval(REFUSED, argument)


async def _in_a_function(pool: ysactor.Pool, argument: Argument) -> None:
    async def run(conn: ysactor.Connection) -> None:
        await conn.fetchval(REFUSED, argument)

    await pool.transaction(run)


async def _prepared(pool: ysactor.Pool, argument: Argument) -> None:
    async with pool.acquire() as conn:
        await (await conn.prepare(REFUSED)).fetchval(argument)


async def _many(pool: ysactor.Pool, argument: Argument) -> None:
    async with pool.acquire() as conn:
        await conn.executemany(REFUSED, [(argument,)])


async def _unfit(pool: ysactor.Pool, argument: Argument) -> None:
    async with pool.acquire() as conn:
        await conn.fetchval("SELECT $1::int", argument)


async def _copied(pool: ysactor.Pool, argument: Argument) -> None:
    async with pool.acquire() as conn:
        await conn.copy_records_to_table("kept", records=[(argument, "not a number")])


async def _left(pool: ysactor.Pool, argument: Argument) -> None:
    async with pool.acquire() as conn:
        with trio.move_on_after(0.02):
            await conn.fetchval("SELECT pg_sleep(10), $1::text", argument)
        assert await conn.fetchval("SELECT 1") == 1


ASKS: list[Ask] = [
    *(_by_pool, _in_time, _by_lease, _by_execute, _in_a_block, _with_begin, _in_a_function, _prepared, _many, _unfit),
    *(_copied, _left),
]


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("ask", ASKS)
async def test_the_arguments_of_a_call_that_failed_are_let_go_at_once(
    shared_data: SharedData, transport: Transport, ask: Ask
) -> None:
    """With a call that is refused again and again they would add up: megabytes for each, maybe."""
    if transport == "trio_asyncio" and sys.version_info >= (3, 12):
        pytest.skip("a frame of the loop's own holds the future, and the error's traceback that frame")
    shared_data.server.sql("create table kept(t text, n int)")
    async with open_case(shared_data.server, transport, pool_size=1) as case:
        assert await case.pool.fetchval("SELECT 1") == 1
        for n in range(3):
            argument = Argument(f"argument {n}")
            alive = weakref.ref(argument)
            with suppress(asyncpg.PostgresError, asyncpg.DataError, TypeError):
                await ask(case.pool, argument)
            del argument
            assert alive() is None
