"""Everything that a connection can do, against a real server, with both transports, and after its lease nothing."""

from __future__ import annotations

import datetime
import gc
import io
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import trio
import trio.lowlevel

import ysactor
from integration.scenario import Case, Transport, open_case, until, watched
from ysactor.testing.postgres import PostgresServer, SharedData

pytestmark = watched


@pytest.fixture(params=["native", "trio_asyncio"])
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


@pytest.fixture
async def case(shared_data: SharedData, transport: Transport) -> AsyncGenerator[Case]:
    shared_data.server.sql("create table things(id int primary key, name text)")
    async with open_case(shared_data, transport, pool_size=2) as opened:
        yield opened


@pytest.fixture
async def conn(case: Case) -> AsyncGenerator[ysactor.Connection]:
    async with case.pool.acquire() as leased:
        yield leased


# --- statements ------------------------------------------------------------------------------------------------------


async def test_fetching(conn: ysactor.Connection) -> None:
    rows = await conn.fetch("SELECT n, n * 2 AS twice FROM generate_series(1, $1::int) n", 3)
    assert [tuple(row) for row in rows] == [(1, 2), (2, 4), (3, 6)]
    assert rows[0]["twice"] == 2
    assert await conn.fetch("SELECT 1 WHERE false") == []
    row = await conn.fetchrow("SELECT 1 AS a, 'x' AS b")
    assert dict(row) == {"a": 1, "b": "x"}
    assert await conn.fetchrow("SELECT 1 WHERE false") is None
    assert await conn.fetchval("SELECT 1, 2", column=1) == 2
    assert await conn.fetchval("SELECT 1 WHERE false") is None


async def test_results_of_some_size_and_of_every_kind(conn: ysactor.Connection) -> None:
    big = await conn.fetchval("SELECT repeat('x', 8000000)")
    assert len(big) == 8_000_000
    assert len(await conn.fetch("SELECT repeat('y', 100) FROM generate_series(1, 20000)")) == 20_000
    assert await conn.fetchval("SELECT length($1::text)", "é" * 3_000_000) == 3_000_000
    values = [
        7,
        2.5,
        Decimal("1.25"),
        "text \N{SNOWMAN}",
        b"\0bytes",
        True,
        None,
        datetime.date(2024, 2, 29),
        datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC),
        datetime.timedelta(days=1, seconds=5),
        uuid.UUID(int=5),
        [1, None, 3],
    ]
    types = [
        "bigint",
        "float8",
        "numeric",
        "text",
        "bytea",
        "bool",
        "text",
        "date",
        "timestamptz",
        "interval",
        "uuid",
        "int[]",
    ]
    asked = ", ".join(f"${number}::{kind}" for number, kind in enumerate(types, 1))
    assert list(await conn.fetchrow(f"SELECT {asked}", *values)) == values


async def test_executing(conn: ysactor.Connection) -> None:
    assert await conn.execute("INSERT INTO things VALUES (1, 'a'), (2, 'b')") == "INSERT 0 2"
    assert await conn.execute("UPDATE things SET name = $1 WHERE id = $2", "c", 2) == "UPDATE 1"
    assert await conn.execute("SELECT 1; DELETE FROM things") == "DELETE 2"
    await conn.executemany("INSERT INTO things VALUES ($1, $2)", ((n, str(n)) for n in range(1000)))
    assert await conn.fetchval("SELECT count(*) FROM things") == 1000
    with pytest.raises(asyncpg.UniqueViolationError):
        await conn.executemany("INSERT INTO things VALUES ($1, $2)", [(2000, "new"), (1, "again")])
    assert await conn.fetchval("SELECT count(*) FROM things") == 1000, "all or nothing"


async def test_the_same_by_the_pool(case: Case) -> None:
    pool = case.pool
    await pool.executemany("INSERT INTO things VALUES ($1, $2)", [(1, "a"), (2, "b")])
    assert [tuple(row) for row in await pool.fetch("SELECT * FROM things ORDER BY id")] == [(1, "a"), (2, "b")]
    assert (await pool.fetchrow("SELECT name FROM things WHERE id = $1", 2))["name"] == "b"
    assert await pool.fetchval("SELECT id, name FROM things WHERE id = $1", 2, column=1) == "b"
    assert await pool.execute("DELETE FROM things") == "DELETE 2"


async def test_errors_come_as_asyncpgs_and_do_no_harm(conn: ysactor.Connection) -> None:
    for sql, args, error in (
        ("SELECT 1/0", (), asyncpg.DivisionByZeroError),
        ("SELEC 1", (), asyncpg.PostgresSyntaxError),
        ("SELECT * FROM nowhere", (), asyncpg.UndefinedTableError),
        ("SELECT $1::int", ("x",), asyncpg.DataError),
        ("SELECT $1::int", (), asyncpg.InterfaceError),
    ):
        with pytest.raises(error):
            await conn.fetch(sql, *args)
        assert await conn.fetchval("SELECT 1") == 1
    assert not conn.is_closed()


async def test_a_timeout_leaves_a_connection_that_can_be_used(conn: ysactor.Connection) -> None:
    pid = conn.get_server_pid()
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await conn.fetch("SELECT pg_sleep(10)", timeout=0.05)
        assert await conn.fetchval("SELECT pg_backend_pid()") == pid


async def test_prepared_statements(conn: ysactor.Connection) -> None:
    statement = await conn.prepare("SELECT $1::int AS n, $2::text AS t")
    assert [tuple(row) for row in await statement.fetch(1, "a")] == [(1, "a")]
    assert statement.get_statusmsg() == "SELECT 1"
    assert (await statement.fetchrow(2, "b"))["t"] == "b"
    assert await statement.fetchval(3, "c", column=1) == "c"
    assert [parameter.name for parameter in statement.get_parameters()] == ["int4", "text"]
    assert [attribute.name for attribute in statement.get_attributes()] == ["n", "t"]
    assert statement.get_query() == "SELECT $1::int AS n, $2::text AS t"
    insert = await conn.prepare("INSERT INTO things VALUES ($1, $2)", name="by_name")
    assert insert.get_name() == "by_name"
    await insert.executemany([(n, "x") for n in range(10)])
    assert await conn.fetchval("SELECT count(*) FROM things") == 10
    plan = await (await conn.prepare("SELECT * FROM things WHERE id = $1")).explain(1)
    assert "Plan" in plan[0]
    async with conn.transaction():
        assert [
            row["id"] async for row in (await conn.prepare("SELECT id FROM things ORDER BY 1")).cursor(prefetch=3)
        ] == [*range(10)]


async def test_cursors(conn: ysactor.Connection) -> None:
    with pytest.raises(asyncpg.NoActiveSQLTransactionError):
        async for _ in conn.cursor("SELECT 1"):
            pass
    async with conn.transaction():
        rows = [row[0] async for row in conn.cursor("SELECT generate_series(1, $1::int)", 250, prefetch=20)]
        assert rows == [*range(1, 251)]
        cursor = await conn.cursor("SELECT generate_series(1, 100)")
        assert [row[0] for row in await cursor.fetch(3)] == [1, 2, 3]
        assert await cursor.forward(5) == 5
        assert (await cursor.fetchrow())[0] == 9
        assert await cursor.forward(1000) == 91
        assert await cursor.fetchrow() is None
        assert await cursor.fetch(5) == []


async def test_a_cursor_that_is_left_early_is_gone_with_its_transaction(case: Case, conn: ysactor.Connection) -> None:
    for _ in range(3):
        async with conn.transaction():
            async for row in conn.cursor("SELECT generate_series(1, 1000000)", prefetch=10):
                if row[0] == 3:
                    break
            assert await conn.fetchval("SELECT count(*) FROM pg_cursors WHERE name <> ''") == 1
        assert await conn.fetchval("SELECT count(*) FROM pg_cursors WHERE name <> ''") == 0
    with trio.move_on_after(0.02) as scope:
        async with conn.transaction():
            async for _ in conn.cursor("SELECT generate_series(1, 1000000)", prefetch=5):
                await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert await conn.fetchval("SELECT count(*) FROM pg_cursors WHERE name <> ''") == 0
    gc.collect()
    assert case.pool.statistics().connections_closed == {}


async def test_what_was_only_prepared_is_not_left_open_on_the_server(
    shared_data: SharedData, transport: Transport
) -> None:
    """asyncpg prepares a statement before it looks at its arguments. An error there, or a statement that is prepared
    and not run, must not leave the server in a transaction that holds locks, for as long as the connection is idle."""
    server = shared_data.server
    server.sql("create table things(id int)")

    async def only_prepare(pool: ysactor.Pool) -> None:
        async with pool.acquire() as conn:
            await conn.prepare("SELECT * FROM things")

    async def wrong_argument(pool: ysactor.Pool) -> None:
        with pytest.raises(asyncpg.DataError):
            await pool.fetch("SELECT * FROM things WHERE id = $1", "one")

    async def wrong_argument_in_lease(pool: ysactor.Pool) -> None:
        with pytest.raises(asyncpg.DataError):
            async with pool.acquire() as conn:
                await conn.fetchrow("SELECT id FROM things WHERE id = $1", "one")

    async def wrong_number(pool: ysactor.Pool) -> None:
        with pytest.raises(asyncpg.InterfaceError):
            await pool.execute("DELETE FROM things WHERE id = $1 AND id = $2", 1)

    async def by_the_driver(pool: ysactor.Pool) -> None:
        async with pool.acquire() as conn:
            await conn.run_raw(conn.raw.prepare("SELECT id, id FROM things"))

    async def hook(conn: ysactor.Connection) -> None:
        await conn.prepare("SELECT id, id, id FROM things")

    for use in (only_prepare, wrong_argument, wrong_argument_in_lease, wrong_number, by_the_driver):
        async with open_case(shared_data, transport, pool_size=1) as case:
            await use(case.pool)
            await case.at_rest()
            assert case.pool.statistics().connections_closed == {}
            await use(case.pool)
            await until(lambda: not _locks(server), "no lock is left")
    async with open_case(shared_data, transport, pool_size=1, on_connect=hook) as case:
        await case.at_rest()
        assert not _locks(server)


def _locks(server: PostgresServer) -> int:
    return int(server.value("select count(*) from pg_locks where relation = 'things'::regclass") or 0)


# --- transactions ----------------------------------------------------------------------------------------------------


async def test_transactions_and_savepoints(conn: ysactor.Connection) -> None:
    async with conn.transaction():
        assert conn.is_in_transaction()
        await conn.execute("INSERT INTO things VALUES (1, 'outer')")
        with pytest.raises(KeyError):
            async with conn.transaction():
                await conn.execute("INSERT INTO things VALUES (2, 'inner, undone')")
                raise KeyError
        async with conn.transaction():
            await conn.execute("INSERT INTO things VALUES (3, 'inner')")
            with pytest.raises(asyncpg.UniqueViolationError):
                async with conn.transaction():
                    await conn.execute("INSERT INTO things VALUES (3, 'again')")
            await conn.execute("INSERT INTO things VALUES (4, 'inner')")
    assert not conn.is_in_transaction()
    assert [row["id"] for row in await conn.fetch("SELECT id FROM things ORDER BY id")] == [1, 3, 4]

    by_hand = conn.transaction(isolation="serializable", readonly=True, deferrable=True)
    await by_hand.start()
    assert await conn.fetchval("SHOW transaction_isolation") == "serializable"
    assert await conn.fetchval("SHOW transaction_read_only") == "on"
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await conn.execute("DELETE FROM things")
    await by_hand.rollback()
    with pytest.raises(ysactor.Error, match="has ended"):
        await by_hand.commit()


async def test_a_savepoint_that_is_cancelled_leaves_the_transaction_around_it_usable(conn: ysactor.Connection) -> None:
    async with conn.transaction():
        await conn.execute("INSERT INTO things VALUES (1, 'outer')")
        for number in range(3):
            with trio.move_on_after(0.05) as scope:
                async with conn.transaction():
                    await conn.execute("INSERT INTO things VALUES ($1, 'undone')", 10 + number)
                    await conn.execute("SELECT pg_sleep(10)")
            assert scope.cancelled_caught
        await conn.execute("INSERT INTO things VALUES (2, 'outer')")
    assert [row["id"] for row in await conn.fetch("SELECT id FROM things ORDER BY id")] == [1, 2]


async def test_a_savepoint_cancelled_on_its_way_in_or_out_never_loses_what_is_reported(
    case: Case, shared_data: SharedData
) -> None:
    """The cancellation may meet SAVEPOINT or RELEASE. Then the transaction around it is failed, and says so."""
    server = shared_data.server
    outcomes: set[str] = set()
    for proxy in shared_data.proxies:
        proxy.latency = 0.005
    for step in range(24):
        try:
            async with case.pool.acquire() as conn, conn.transaction():
                await conn.execute("INSERT INTO things VALUES ($1, 'outer')", step)
                with trio.move_on_after(0.002 + step * 0.0015):
                    async with conn.transaction():
                        await conn.execute("INSERT INTO things VALUES ($1, 'inner')", 100 + step)
                await conn.execute("INSERT INTO things VALUES ($1, 'after')", 200 + step)
        except (ysactor.TransactionAborted, asyncpg.InFailedSQLTransactionError):
            outcomes.add("aborted")
            assert server.value(f"select count(*) from things where id in ({step}, {100 + step}, {200 + step})") == "0"
        else:
            outcomes.add("done")
            assert server.value(f"select count(*) from things where id in ({step}, {200 + step})") == "2"
    for proxy in shared_data.proxies:
        proxy.latency = 0
    assert "done" in outcomes
    await case.at_rest()
    assert case.pool.statistics().connections_closed == {}


# --- COPY ------------------------------------------------------------------------------------------------------------


async def numbers(count: int) -> AsyncGenerator[tuple[int, str]]:
    for number in range(count):
        if number % 100 == 0:
            await trio.lowlevel.checkpoint()
        yield number, f"name {number}"


async def lines(count: int) -> AsyncGenerator[bytes]:
    for number in range(count):
        await trio.lowlevel.checkpoint()
        yield f"{number}\tname {number}\n".encode()


async def test_copying_in(conn: ysactor.Connection, tmp_path: Path) -> None:
    async with aclosing(numbers(1000)) as source:
        assert await conn.copy_records_to_table("things", records=source) == "COPY 1000"
    await conn.execute("TRUNCATE things")
    assert await conn.copy_records_to_table("things", records=[(1, "a"), (2, "b")], columns=["id", "name"]) == "COPY 2"
    await conn.execute("TRUNCATE things")
    async with aclosing(lines(100)) as source_of_bytes:
        assert await conn.copy_to_table("things", source=source_of_bytes) == "COPY 100"
    await conn.execute("TRUNCATE things")
    path = tmp_path / "things.csv"
    path.write_text("id,name\n1,a\n2,b\n")
    assert await conn.copy_to_table("things", source=path, format="csv", header=True) == "COPY 2"
    await conn.execute("TRUNCATE things")
    with path.open("rb") as file:
        assert await conn.copy_to_table("things", source=file, format="csv", header=True) == "COPY 2"
    await conn.execute("TRUNCATE things")
    assert await conn.copy_to_table("things", source=io.BytesIO(b"5\tfive\n")) == "COPY 1"
    assert await conn.fetchval("SELECT name FROM things WHERE id = 5") == "five"


async def test_copying_out(conn: ysactor.Connection, tmp_path: Path) -> None:
    await conn.executemany("INSERT INTO things VALUES ($1, $2)", [(n, str(n)) for n in range(2000)])
    got: list[bytes] = []

    async def take(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        got.append(data)

    expected = b"".join(b"%d\t%d\n" % (n, n) for n in range(2000))
    assert await conn.copy_from_table("things", output=take) == "COPY 2000"
    assert b"".join(got) == expected
    path = tmp_path / "out"
    assert await conn.copy_from_table("things", output=path, columns=["id"]) == "COPY 2000"
    assert path.read_bytes() == b"".join(b"%d\n" % n for n in range(2000))
    assert await conn.copy_from_table("things", output=str(path)) == "COPY 2000"
    buffer = io.BytesIO()
    asked = "SELECT * FROM things WHERE id < $1 ORDER BY id"
    assert await conn.copy_from_query(asked, 2, output=buffer, format="csv") == "COPY 2"
    assert buffer.getvalue() == b"0,0\n1,1\n"


async def test_a_source_that_raises_keeps_no_row_and_gives_its_own_error(conn: ysactor.Connection, case: Case) -> None:
    """C75, at both ends of the copy, inside a transaction and out of one."""

    async def failing(after: int) -> AsyncIterator[tuple[int, str]]:
        for number in range(after):
            yield number, "x"
        raise ValueError("x" * 12_000)

    for after in (1, 20_000):
        with pytest.raises(ValueError, match="xxx"):
            await conn.copy_records_to_table("things", records=failing(after))
        assert await conn.fetchval("SELECT count(*) FROM things") == 0
        with pytest.raises(ValueError, match="xxx"):
            async with conn.transaction():
                await conn.copy_records_to_table("things", records=failing(after))
        assert await conn.fetchval("SELECT count(*) FROM things") == 0
    assert not conn.is_closed()


async def test_a_copy_that_is_cancelled_in_its_source_or_sink_keeps_the_connection(
    conn: ysactor.Connection, case: Case
) -> None:
    async def stuck() -> AsyncIterator[tuple[int, str]]:
        yield 1, "a"
        await trio.sleep_forever()

    async def block(data: bytes) -> None:
        await trio.sleep_forever()

    pid = conn.get_server_pid()
    with trio.move_on_after(0.1) as scope:
        await conn.copy_records_to_table("things", records=stuck())
    assert scope.cancelled_caught
    assert await conn.fetchval("SELECT count(*) FROM things") == 0
    with trio.move_on_after(0.1) as scope:
        await conn.copy_from_query("SELECT generate_series(1, 1000000)", output=block)
    assert scope.cancelled_caught
    assert await conn.fetchval("SELECT pg_backend_pid()") == pid
    assert case.pool.statistics().connections_closed == {}


# --- the session -----------------------------------------------------------------------------------------------------


async def test_notifications_arrive_while_the_connection_is_idle_busy_or_in_a_transaction(
    case: Case, conn: ysactor.Connection, shared_data: SharedData
) -> None:
    heard: list[tuple[str, str]] = []

    def listen(by: ysactor.Connection, pid: int, channel: str, payload: str) -> None:
        assert by is conn
        assert pid > 0
        heard.append((channel, payload))

    await conn.add_listener("news", listen)
    await conn.add_listener('Odd "name"', listen)
    shared_data.server.sql("notify news, 'while idle'")
    await until(lambda: ("news", "while idle") in heard, "it is heard without a query")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(conn.fetch, "SELECT pg_sleep(0.1)")
        await case.truth.until_active("pg_sleep")
        shared_data.server.sql("notify news, 'while busy'")
    await until(lambda: ("news", "while busy") in heard, "it is heard after the query")
    await case.pool.execute("SELECT pg_notify($1, $2)", 'Odd "name"', "by the pool")
    await until(lambda: ('Odd "name"', "by the pool") in heard, "names are taken as they are")
    await conn.remove_listener("news", listen)
    shared_data.server.sql("notify news, 'too late'")
    assert await conn.fetchval("SELECT 1") == 1
    assert ("news", "too late") not in heard
    await conn.remove_listener("news", listen)
    await conn.remove_listener('Odd "name"', listen)


async def test_a_listener_ends_with_its_lease(case: Case, shared_data: SharedData) -> None:
    """C61, in part: nothing of it is heard by the next holder's callback, nor by the last one's."""
    heard: list[str] = []

    def listen(by: ysactor.Connection, pid: int, channel: str, payload: str) -> None:
        heard.append(payload)

    async with case.pool.acquire() as conn:
        await conn.add_listener("news", listen)
    shared_data.server.sql("notify news, 'too late'")
    for _ in range(4):
        await case.pool.fetch("SELECT 1")
    assert heard == []


async def test_type_codecs_and_settings(conn: ysactor.Connection) -> None:
    await conn.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    assert await conn.fetchval("SELECT $1::jsonb", {"a": [1, 2]}) == {"a": [1, 2]}
    await conn.reset_type_codec("jsonb", schema="pg_catalog")
    assert await conn.fetchval("SELECT $1::jsonb", '{"a": 1}') == '{"a": 1}'
    await conn.execute("SET application_name = 'renamed'")
    assert conn.get_settings().application_name == "renamed"
    await conn.execute("RESET application_name")
    version = conn.get_server_version()
    assert version.major >= 15
    assert conn.get_server_pid() == await conn.fetchval("SELECT pg_backend_pid()")
    assert conn.server.host.startswith("127.")


async def test_on_connect_runs_once_on_each_connection_and_never_on_a_probe(
    shared_data: SharedData, transport: Transport
) -> None:
    """C54: a codec is there on every connection that replaces another."""
    pids: list[int] = []

    async def prepare(conn: ysactor.Connection) -> None:
        pids.append(conn.get_server_pid())
        await conn.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        await conn.execute("SET lock_timeout = '7s'")

    async with open_case(
        shared_data, transport, pool_size=3, load_balance=True, on_connect=prepare, failed_host_reconnect_delay_secs=0
    ) as case:
        pool = case.pool
        await pool.ready(3)
        for _ in range(3):
            for _ in range(6):
                assert await pool.fetchval("SELECT '[1]'::jsonb") == [1]
                assert await pool.fetchval("SHOW lock_timeout") == "7s"
            await case.truth.terminate()
            await case.at_rest()
        await shared_data.kill(1)
        await case.at_rest()
        await shared_data.start(1)
        await pool.cluster.refresh()
        await case.at_rest()
        assert len(pids) == len(set(pids)) == pool.statistics().connections_opened
        async with pool.acquire() as conn:
            assert conn.get_server_pid() in pids


async def test_on_connect_that_raises_fails_the_connection_and_blames_no_server(
    shared_data: SharedData, transport: Transport
) -> None:
    """Its own mistake, and a server's error in it."""

    async def mistaken(conn: ysactor.Connection) -> None:
        raise KeyError("mine")

    async def refused(conn: ysactor.Connection) -> None:
        await conn.execute("SELECT 1/0")

    for hook, cause in ((mistaken, KeyError), (refused, asyncpg.DivisionByZeroError)):
        async with open_case(shared_data, transport, rest=False, pool_size=2, on_connect=hook) as case:
            with pytest.raises(ysactor.ConnectFailed) as caught:
                await case.pool.fetch("SELECT 1")
            assert isinstance(caught.value.__cause__, cause)
            assert not case.pool.statistics().by_host
            assert not case.pool.cluster.info().failed


async def test_the_driver_itself(conn: ysactor.Connection) -> None:
    assert await conn.run_raw(conn.raw.fetchval("SELECT 5")) == 5
    assert conn.raw.get_server_pid() == conn.get_server_pid()
    with pytest.raises(TimeoutError):
        await conn.run_raw(conn.raw.fetch("SELECT pg_sleep(10)"), timeout=0.05)

    async def several() -> list[int]:
        async with conn.raw.transaction():
            await conn.raw.execute("INSERT INTO things VALUES (1, 'raw')")
            return [await conn.raw.fetchval("SELECT $1::int", n) for n in range(3)]

    assert await conn.run_raw(several()) == [0, 1, 2]
    assert await conn.fetchval("SELECT name FROM things") == "raw"


# --- after the lease -------------------------------------------------------------------------------------------------


async def test_nothing_made_in_a_lease_works_after_it_or_touches_the_next_holder(
    shared_data: SharedData, transport: Transport
) -> None:
    """C84: connection, statement, cursor, transaction and raw, while somebody else holds the same connection."""
    async with open_case(shared_data, transport, pool_size=1) as case:
        pool = case.pool
        kept: dict[str, Any] = {}
        async with pool.acquire() as old:
            kept["statement"] = await old.prepare("SELECT 1")
            kept["factory"] = old.cursor("SELECT 1")
            async with old.transaction() as kept["transaction"]:
                kept["cursor"] = await old.cursor("SELECT generate_series(1, 10)")
                kept["iterator"] = aiter(old.cursor("SELECT generate_series(1, 10)"))
                await anext(kept["iterator"])
        async with pool.acquire() as new, new.transaction():
            assert await new.fetchval("SELECT 1") == 1
            calls: list[Any] = [
                lambda: old.fetch("SELECT 1"),
                lambda: old.fetchrow("SELECT 1"),
                lambda: old.fetchval("SELECT 1"),
                lambda: old.execute("ROLLBACK"),
                lambda: old.executemany("SELECT $1::int", [(1,)]),
                lambda: old.prepare("SELECT 1"),
                lambda: old.copy_records_to_table("things", records=[(1, "a")]),
                lambda: old.copy_to_table("things", source=io.BytesIO()),
                lambda: old.copy_from_query("SELECT 1", output=io.BytesIO()),
                lambda: old.copy_from_table("things", output=io.BytesIO()),
                lambda: old.add_listener("c", print),
                lambda: old.remove_listener("c", print),
                lambda: old.set_type_codec("jsonb"),
                lambda: old.set_builtin_type_codec("hstore"),
                lambda: old.reset_type_codec("jsonb"),
                lambda: kept["statement"].fetch(),
                lambda: kept["statement"].fetchrow(),
                lambda: kept["statement"].fetchval(),
                lambda: kept["statement"].executemany([()]),
                lambda: kept["statement"].explain(),
                lambda: kept["cursor"].fetch(1),
                lambda: kept["cursor"].fetchrow(),
                lambda: kept["cursor"].forward(1),
                lambda: anext(kept["iterator"]),
                lambda: old.transaction().start(),
            ]
            for call in calls:
                with pytest.raises(ysactor.LeaseEnded):
                    await call()
            for sync in (
                old.is_in_transaction,
                old.get_server_pid,
                old.get_server_version,
                old.get_settings,
                old.transaction,
                lambda: old.cursor("SELECT 1"),
                lambda: old.raw,
                lambda: aiter(kept["factory"]),
                kept["statement"].get_query,
            ):
                with pytest.raises(ysactor.LeaseEnded):
                    sync()
            with pytest.raises(ysactor.LeaseEnded):
                await kept["factory"]
            with pytest.raises(ysactor.Error):
                await kept["transaction"].commit()
            with pytest.raises(ysactor.Error):
                await kept["transaction"].rollback()
            assert old.is_closed()
            pool.checkin(old)
            pool.discard(old)
            assert new.is_in_transaction()
            assert await new.fetchval("SELECT 'untouched'") == "untouched"
        assert pool.statistics().connections_opened == 1


async def test_a_transaction_that_outlives_its_lease_touches_nobody(
    shared_data: SharedData, transport: Transport
) -> None:
    """C84: a transaction begun in a lease and never ended; its connection is not handed on."""
    async with open_case(shared_data, transport, pool_size=1) as case:
        async with case.pool.acquire() as old:
            transaction = old.transaction()
            await transaction.start()
            await old.execute("SELECT 1")
        async with case.pool.acquire() as new:
            for end in (transaction.commit, transaction.rollback):
                with pytest.raises(ysactor.Error):
                    await end()
            assert not new.is_in_transaction()
        assert case.pool.statistics().connections_closed == {"in_transaction": 1}


async def test_a_transaction_that_never_sent_anything_is_gone_with_its_lease(
    shared_data: SharedData, transport: Transport
) -> None:
    """C84, where there is nothing to end: the connection is handed on, and nothing goes ahead of what comes next."""
    async with open_case(shared_data, transport, pool_size=1) as case:
        async with case.pool.acquire() as old:
            transaction = old.transaction()
            await transaction.start()
        async with case.pool.acquire() as new:
            for end in (transaction.commit, transaction.rollback):
                with pytest.raises(ysactor.Error):
                    await end()
            assert await new.fetchval("SELECT 1") == 1
            assert not new.is_in_transaction()
        assert case.pool.statistics().connections_closed == {}


async def test_dropping_everything_in_the_middle_is_silent(
    shared_data: SharedData, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    """C86: statements, cursors and transactions, cancelled, forgotten and collected; the loop survives.

    An exception in the garbage collector fails the test, as pytest reports it and warnings are errors.
    """
    async with open_case(shared_data, transport, pool_size=2) as case:
        for step in range(30):
            with trio.move_on_after(step * 0.0007):
                async with case.pool.acquire() as conn:
                    statement = await conn.prepare("SELECT generate_series(1, 100)")
                    async with conn.transaction():
                        cursor = await conn.cursor("SELECT generate_series(1, 100)")
                        await cursor.fetch(3)
                        rows = aiter(statement.cursor(prefetch=2))
                        await anext(rows)
                        inner = conn.transaction()
                        await inner.start()
                        await conn.fetch("SELECT pg_sleep(0.01)")
            conn = statement = cursor = rows = inner = None  # type: ignore[assignment]
            gc.collect()
        await case.at_rest()
    gc.collect()
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


@pytest.mark.parametrize("transport", ["native", "trio_asyncio"])
async def test_no_later_holder_acts_as_somebody_else(shared_data: SharedData, transport: Transport) -> None:
    """C56: of what a lease changes in the session, the role is undone; the rest stays, as the guide says."""
    async with open_case(shared_data, transport, pool_size=1) as case:
        pool = case.pool
        me = await pool.fetchval("SELECT current_user")
        for change in ("SET ROLE app", "SET SESSION AUTHORIZATION app"):
            async with pool.acquire() as conn:
                pid = conn.get_server_pid()
                await conn.execute(change)
                await conn.execute("SET work_mem = '77kB'")
                assert await conn.fetchval("SELECT current_user") == "app"
            async with pool.acquire() as conn:
                assert conn.get_server_pid() == pid
                assert await conn.fetchval("SELECT current_user") == me
                assert await conn.fetchval("SHOW work_mem") == "77kB"
            await pool.execute(change)
            assert await pool.fetchval("SELECT current_user") == me
