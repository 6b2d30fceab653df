"""`prepare_on_connect` on a real server: what is sent for a first query, seen by a relay before the server."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Transport, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import PostgresServer, SharedData, ThreeZones

pytestmark = [watched, on_both_transports]

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE place AS (street text, moods mood[]);
CREATE TABLE people (id int PRIMARY KEY, moods mood[], place place);
"""
BY_MOOD = "SELECT count(*) FROM people WHERE moods && $1::mood[]"
MOODS = "SELECT moods FROM people WHERE id = $1"
PLACES = "SELECT place FROM people WHERE place IS DISTINCT FROM $1::place"
MISSING = "SELECT * FROM no_such_table WHERE secret = 'hunter2'"


class Tap:
    """Passes bytes on between clients and a server, and notes what clients send.

    A text for each piece that arrives, which is one `send` of the client's, and a letter in it for each message.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.sent: list[str] = []
        self.answers = 0
        """Pieces that came back."""
        self.at_start: list[str] = []
        """What was sent before `forget`."""

    def forget(self) -> None:
        self.at_start, self.sent, self.answers = self.sent, [], 0

    async def handle(self, client: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            server = await trio.open_tcp_stream(self._server.host, self._server.port)
            async with client, server, trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_back, server, client, nursery.cancel_scope)
                await server.send_all(await client.receive_some())  # the start of the session
                async for piece in client:
                    self.sent.append(_letters(piece))
                    await server.send_all(piece)
                nursery.cancel_scope.cancel()

    async def _pass_back(self, server: trio.SocketStream, client: trio.SocketStream, end: trio.CancelScope) -> None:
        async for piece in server:
            self.answers += 1
            await client.send_all(piece)
        end.cancel()


def _letters(piece: bytes) -> str:
    found = ""
    while piece:
        found += chr(piece[0])
        piece = piece[1 + int.from_bytes(piece[1:5], "big") :]
    return found


@asynccontextmanager
async def tapped(
    server: PostgresServer, transport: Transport, **options: Any
) -> AsyncGenerator[tuple[ysactor.Pool, Tap]]:
    """A pool of one connection, open, through a tap that has forgotten how it was opened."""
    tap = Tap(server)
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, tap.handle, 0, host="127.0.0.1"))
        dsn = f"postgresql://yugabyte@127.0.0.1:{listener.socket.getsockname()[1]}/yugabyte"
        async with ysactor.open_pool(dsn, driver=transport, pool_size=1, **options) as pool:
            await pool.ready(1)
            await until(lambda: pool.statistics().idle == 1, "the connection is open")
            tap.forget()
            yield pool, tap
        nursery.cancel_scope.cancel()


@pytest.fixture
def server(shared_data: SharedData) -> PostgresServer:
    shared_data.server.sql(SCHEMA)
    return shared_data.server


async def test_a_first_query_with_types_of_ones_own_is_one_round_trip(
    server: PostgresServer, transport: Transport
) -> None:
    async with tapped(server, transport, prepare_on_connect=[BY_MOOD, PLACES]) as (pool, tap):
        assert await pool.fetchval(BY_MOOD, ["ok", "sad"]) == 0
        assert (tap.sent, tap.answers) == (["BES"], 1)
        assert await pool.execute(PLACES, ("here", ["happy"])) == "SELECT 0"
        assert (tap.sent, tap.answers) == (["BES", "BES"], 2)


async def test_without_the_option_it_is_several(server: PostgresServer, transport: Transport) -> None:
    async with tapped(server, transport) as (pool, tap):
        assert await pool.fetchval(BY_MOOD, ["ok", "sad"]) == 0
        # Its own two, and asyncpg's question after the types between them.
        assert (tap.sent[0], tap.sent[-1]) == ("PDH", "BES")
        assert len(tap.sent) > 3


async def test_a_first_query_with_plain_types_is_prepared_and_run_and_nothing_else_is_sent(
    server: PostgresServer, transport: Transport
) -> None:
    """Neither transport asks anything of its own, at connect or before a first query."""
    async with tapped(server, transport) as (pool, tap):
        assert tap.at_start == []
        assert await pool.fetchval("SELECT $1::int + 1", 1) == 2
        assert tap.sent == ["PDH", "BES"]
        assert await pool.execute("SELECT 1") == "SELECT 1"
        assert tap.sent[2:] == ["Q"]


async def test_what_is_prepared_may_fill_all_the_room_there_is(server: PostgresServer, transport: Transport) -> None:
    """asyncpg keeps what it asks for the types with in the same place, and drops what was used longest ago for it."""
    texts = ["SELECT 1", "SELECT 2", BY_MOOD]
    options = {"statement_cache_size": len(texts)}
    async with tapped(server, transport, prepare_on_connect=texts, asyncpg_options=options) as (pool, tap):
        assert await pool.fetchval(texts[0]) == 1
        assert await pool.fetchval(texts[1]) == 2
        assert await pool.fetchval(BY_MOOD, []) == 0
    assert tap.sent[:3] == ["BES", "BES", "BES"]


async def test_the_hook_comes_first_and_may_say_where_tables_are(server: PostgresServer, transport: Transport) -> None:
    async def choose(conn: ysactor.Connection) -> None:
        await conn.execute("SET search_path TO information_schema")
        await conn.set_type_codec("int4", schema="pg_catalog", encoder=str, decoder=lambda text: f"<{text}>")

    query = "SELECT 7 FROM (SELECT count(*) FROM sql_features WHERE is_supported = $1) AS counted"
    async with tapped(server, transport, prepare_on_connect=[query], on_connect=choose) as (pool, tap):
        assert await pool.fetchval(query, "YES") == "<7>"
        assert tap.sent == ["BES"]


async def test_a_refused_statement_is_logged_once_and_connections_are_used_without_it(
    shared_data: SharedData, server: PostgresServer, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["SELECT 1", MISSING, "SELEKT 'hunter2'", BY_MOOD]
    with caplog.at_level(logging.INFO, "ysactor"):
        async with open_case(shared_data, transport, pool_size=3, prepare_on_connect=texts) as case:
            await case.pool.ready(3)
            assert all(seen.state == "idle" for seen in await case.truth.sessions())
            logged = [record.getMessage() for record in caplog.records if "prepare_on_connect" in record.getMessage()]
            assert [line.split(": ")[0].rpartition(" on server")[0] for line in logged] == [
                "statement 2 of prepare_on_connect cannot be prepared",
                "statement 3 of prepare_on_connect cannot be prepared",
            ]
            assert "(SQLSTATE 42P01)" in logged[0]
            assert "(SQLSTATE 42601)" in logged[1]
            assert case.pool.cluster.info().failed == case.pool.cluster.info().rejected == ()

            server.sql("CREATE TABLE no_such_table (secret text)")
            await case.truth.terminate()
            await until(
                lambda: "statement 2 of prepare_on_connect is prepared again" in caplog.text, "it is tried again"
            )
    assert "hunter2" not in caplog.text


async def test_a_connection_at_rest_holds_no_lock_of_what_was_prepared_on_it(
    server: PostgresServer, transport: Transport
) -> None:
    # The last one is of plain types: asyncpg's question after others would end what its preparation has begun.
    query = "SELECT id FROM people WHERE id = $1"
    async with tapped(server, transport, prepare_on_connect=[MISSING, MOODS, query]) as (pool, _):
        await trio.to_thread.run_sync(server.sql, "SET lock_timeout = '1s'; DROP TABLE people")
        with pytest.raises(asyncpg.UndefinedTableError):
            await pool.fetch(query, 1)


async def test_a_statement_that_is_kept_ready_survives_a_change_of_its_table(
    server: PostgresServer, transport: Transport
) -> None:
    query = "SELECT * FROM people"
    server.sql("INSERT INTO people (id) VALUES (1)")
    async with tapped(server, transport, prepare_on_connect=[query]) as (pool, tap):
        assert len(await pool.fetchrow(query)) == 3
        await trio.to_thread.run_sync(server.sql, "ALTER TABLE people ADD age int")
        assert len(await pool.fetchrow(query)) == 4
        tap.sent.clear()
        assert len(await pool.fetchrow(query)) == 4
        assert tap.sent == ["BES"]


async def test_a_lock_on_a_table_delays_connections_and_stops_none(
    shared_data: SharedData, server: PostgresServer, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    async with ysactor.open_cluster(shared_data.dsn()) as cluster, cluster.connect() as holder:
        await holder.execute("BEGIN; LOCK TABLE people IN ACCESS EXCLUSIVE MODE")
        options = {"pool_size": 1, "connect_timeout": 1, "prepare_on_connect": [MOODS, "SELECT 1"]}
        async with open_case(shared_data, transport, **options) as case:
            await case.pool.ready(1)
            assert await case.pool.fetchval("SELECT $1::int", 1) == 1
            assert case.pool.cluster.info().failed == ()
            assert "statement 1 of prepare_on_connect cannot be prepared" in caplog.text
            assert "statement 2" not in caplog.text
            await holder.execute("COMMIT")
            assert await case.pool.fetch(MOODS, 1) == []


async def test_a_server_that_dies_while_it_prepares_is_followed_by_another(
    three_zones: ThreeZones, transport: Transport
) -> None:
    first, second, *_ = three_zones.servers
    for one in (first, second):
        one.sql("CREATE TABLE people (id int, moods text[])")
    options = {"load_balance": False, "pool_size": 1, "prepare_on_connect": [MOODS], "application_name": "dies"}
    waits = "SELECT FROM pg_stat_activity WHERE application_name = 'dies' AND wait_event_type = 'Lock'"
    hosts = [(one.host, one.port) for one in (first, second)]

    async def is_waiting() -> bool:
        return bool(await trio.to_thread.run_sync(first.sql, waits))

    with pytest.raises(ysactor.ConnectionLost):
        async with ysactor.open_cluster(hosts=hosts[:1]) as cluster, cluster.connect() as holder:
            await holder.execute("BEGIN; LOCK TABLE people IN ACCESS EXCLUSIVE MODE")
            async with ysactor.open_pool(hosts=hosts, driver=transport, **options) as pool:
                await until(is_waiting, "the statement is being prepared")
                await trio.to_thread.run_sync(first.kill)
                with trio.CancelScope(shield=True):  # the holder's block is over; the pool is what is looked at
                    assert await pool.fetch(MOODS, 1) == []
                    assert pool.statistics().by_host == {f"{second.host}:{second.port}": 1}
                    assert [str(failed) for failed in pool.cluster.info().failed] == [f"{first.host}:{first.port}"]
            await trio.sleep_forever()


class _Cutter:
    """Passes bytes on, and ends a connection in the same moment as it passes on the answer to a marked statement."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    async def handle(self, client: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            server = await trio.open_tcp_stream(self._server.host, self._server.port)
            async with client, server, trio.open_nursery() as nursery:
                marked = trio.Event()
                nursery.start_soon(self._pass_back, server, client, marked)
                async for piece in client:
                    await server.send_all(piece)
                    if b"marked" in piece:
                        marked.set()
                nursery.cancel_scope.cancel()

    async def _pass_back(self, server: trio.SocketStream, client: trio.SocketStream, marked: trio.Event) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for piece in server:
                if marked.is_set() and piece[-6:-1] == b"Z\0\0\0\5":
                    # No checkpoint in between: whoever reads the answer finds the end behind it.
                    with socket.socket(fileno=os.dup(client.socket.fileno())) as plain:
                        plain.sendall(piece)
                        plain.shutdown(socket.SHUT_WR)
                    return
                await client.send_all(piece)


async def test_a_connection_that_ends_with_its_answer_to_prepare_is_lost(
    three_zones: ThreeZones, transport: Transport
) -> None:
    """asyncpg has an answer by then, and a statement of no use."""
    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(
            partial(trio.serve_tcp, _Cutter(three_zones.servers[0]).handle, 0, host="127.0.0.1")
        )
        port = listeners[0].socket.getsockname()[1]
        async with ysactor.open_pool(
            f"postgresql://yugabyte@127.0.0.1:{port}/yugabyte", driver=transport, pool_size=1
        ) as pool:
            for number in range(20):
                with pytest.raises(ysactor.ConnectionLost) as caught:
                    async with pool.acquire() as conn:
                        statement = await conn.prepare(f"SELECT {number} AS marked")
                        await statement.fetchval()
                assert caught.value.server is not None
        nursery.cancel_scope.cancel()
