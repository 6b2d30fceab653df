"""LISTEN that asyncpg knows nothing of, on both transports: what comes of it is read, wanted or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

import ysactor
from integration.scenario import Transport, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import SharedData

pytestmark = [watched, on_both_transports]

FLOOD = "do $$ begin for i in 1..3000 loop perform pg_notify('hand', i || repeat('x', 7000)); end loop; end $$"
"""21 MB: more than the sockets take of what nobody reads."""

Ask = Callable[[ysactor.Pool], Awaitable[object]]


async def _by_lease(pool: ysactor.Pool) -> None:
    async with pool.acquire() as conn:
        await conn.execute("LISTEN hand; SELECT 1")


async def _in_a_transaction(pool: ysactor.Pool) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await conn.fetch("LISTEN hand")


async def _prepared(pool: ysactor.Pool) -> None:
    async with pool.acquire() as conn:
        await (await conn.prepare("LISTEN hand")).fetch()


async def _by_pool(pool: ysactor.Pool) -> None:
    await pool.execute("LISTEN hand")


async def _left(pool: ysactor.Pool) -> None:
    async with pool.acquire() as conn:
        with trio.move_on_after(0.05):
            await conn.execute("LISTEN hand; COMMIT; SELECT pg_sleep(10)")


@pytest.mark.parametrize("ask", [_by_lease, _in_a_transaction, _prepared, _by_pool, _left])
async def test_what_a_listen_by_hand_brings_is_read_while_the_connection_rests(
    shared_data: SharedData, transport: Transport, ask: Ask
) -> None:
    server = shared_data.server
    async with open_case(server, transport, pool_size=1) as case:
        await ask(case.pool)
        pid = await case.pool.fetchval("SELECT pg_backend_pid()")
        await trio.to_thread.run_sync(server.sql, FLOOD)

        def all_sent() -> bool:
            waits = server.value(f"select wait_event from pg_stat_activity where pid = {pid}")
            return waits == "ClientRead" and server.value("select pg_notification_queue_usage()") == "0"

        await until(lambda: trio.to_thread.run_sync(all_sent), "the server gets rid of its notifications", limit=5)
        assert await case.pool.fetchval("SELECT pg_backend_pid()") == pid
