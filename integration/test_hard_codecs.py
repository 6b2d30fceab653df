"""Types that asyncpg has no codec for, on both transports: it says so, and its connection is as good as ever."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Transport, on_both_transports, open_case, watched
from ysactor.testing.postgres import PostgresServer, SharedData

pytestmark = [watched, on_both_transports]

ROW = "SELECT ROW(1, 'ok'::mood)"
NO_COLUMNS = "SELECT z FROM nothing z"
READS = [ROW, "SELECT array_agg((n, 'ok'::mood)) FROM generate_series(1, 3) n", NO_COLUMNS]


@pytest.fixture
def server(shared_data: SharedData) -> PostgresServer:
    shared_data.server.sql(
        *("create type mood as enum ('sad', 'ok')", "create table nothing()", "insert into nothing default values"),
        "create table keys(key uuid, n int)",
    )
    return shared_data.server


async def _copied(conn: ysactor.Connection) -> object:
    """COPY of records is binary, and the codec knows text only."""
    await conn.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog", format="text")
    return await conn.copy_records_to_table("keys", records=[(str(uuid.UUID(int=1)), 1)])


ASKS: list[Callable[[ysactor.Connection], Awaitable[object]]] = [
    *(lambda conn, query=query: conn.fetch(query) for query in READS),
    _copied,
]


@pytest.mark.parametrize("ask", ASKS, ids=["row", "rows", "no columns", "records"])
async def test_a_type_without_a_codec_is_told_as_asyncpg_tells_it_and_costs_no_connection(
    server: PostgresServer, transport: Transport, ask: Callable[[ysactor.Connection], Awaitable[object]]
) -> None:
    async with open_case(server, transport, pool_size=1) as case:
        async with case.pool.acquire() as conn:
            pid = conn.get_server_pid()
            for _ in range(2):
                with pytest.raises(asyncpg.InternalClientError):
                    await ask(conn)
                assert await conn.fetchval("SELECT $1::int + 1", 41) == 42
        assert await case.pool.fetchval("SELECT pg_backend_pid()") == pid
        assert case.pool.statistics().connections_closed == {}


@pytest.mark.parametrize("query", READS, ids=["row", "rows", "no columns"])
async def test_it_is_told_to_a_caller_of_the_pool_too_and_in_a_transaction_that_goes_on(
    server: PostgresServer, transport: Transport, query: str
) -> None:
    async with open_case(server, transport, pool_size=1) as case:
        with pytest.raises(asyncpg.InternalClientError, match="type"):
            await case.pool.fetch(query)
        async with case.pool.acquire() as conn, conn.transaction():
            with pytest.raises(asyncpg.InternalClientError, match="type"):
                await conn.fetch(query)
            assert await conn.fetchval("SELECT $1::int + 1", 41) == 42
        assert case.pool.statistics().connections_closed == {}


async def test_a_transaction_is_not_run_again_for_it(server: PostgresServer, transport: Transport) -> None:
    runs: list[int] = []

    async def run(conn: ysactor.Connection) -> object:
        runs.append(conn.get_server_pid())
        await conn.execute("INSERT INTO keys (n) VALUES (1)")
        return await conn.fetchval(ROW)

    async with open_case(server, transport, pool_size=1) as case:
        with pytest.raises(asyncpg.InternalClientError, match="no decoder"):
            await case.pool.transaction(run)
        assert len(runs) == 1
        assert await case.pool.fetchval("SELECT count(*) FROM keys") == 0
        assert case.pool.statistics().connections_closed == {}


async def test_a_statement_of_prepare_on_connect_with_such_a_type_costs_no_connection_and_marks_no_server(
    server: PostgresServer, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncpg reads the type as it prepares the statement."""
    with caplog.at_level(logging.WARNING, "ysactor"):
        async with open_case(server, transport, pool_size=2, prepare_on_connect=[NO_COLUMNS, "SELECT $1::int"]) as case:
            with trio.fail_after(5):
                await case.pool.ready()
            assert await case.pool.fetchval("SELECT $1::int", 5) == 5
            assert case.pool.cluster.info().failed == ()
            assert case.pool.statistics().connections_closed == {}
    told = [record.getMessage() for record in caplog.records if "prepare_on_connect" in record.getMessage()]
    assert len(told) == 1
    assert "statement 1 of prepare_on_connect cannot be prepared" in told[0]
