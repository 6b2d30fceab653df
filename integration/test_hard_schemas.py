"""What asyncpg's own tests are hardest on, on both transports: schemas that change under statements that are cached."""

from __future__ import annotations

import datetime
import random
from typing import Any

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Transport, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import SharedData

pytestmark = watched


@on_both_transports
async def test_types_and_tables_that_change_under_cached_statements_never_give_an_old_or_a_wrong_answer(
    shared_data: SharedData, transport: Transport
) -> None:
    server = shared_data.server
    enum = "create type mood as enum ('sad', 'ok')", "create table moods(id int, m mood, ms mood[])"
    server.sql(*enum, "insert into moods values (1, 'ok', '{sad,ok}')")
    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:

        async def read() -> tuple[Any, ...]:
            return tuple(await conn.fetchrow("SELECT * FROM moods WHERE m = 'ok'"))

        assert await read() == (1, "ok", ["sad", "ok"])
        server.sql("drop table moods", "drop type mood", *enum, "insert into moods values (2, 'ok', '{ok}')")
        assert await read() == (2, "ok", ["ok"])
        server.sql("alter table moods alter id type text using 'text ' || id")
        assert await read() == ("text 2", "ok", ["ok"])
        server.sql("alter table moods alter ms type text using 'gone'", "alter table moods drop id")
        assert await read() == ("ok", "gone")
        # Inside a transaction the server has failed it before anybody can help, and says why.
        for _ in range(2):
            server.sql("alter table moods add x int default 5")
            with pytest.raises(asyncpg.InvalidCachedStatementError):
                async with conn.transaction():
                    await read()
            async with conn.transaction():
                assert await read() == ("ok", "gone", 5)
            server.sql("alter table moods drop x")
            assert await read() == ("ok", "gone")


@on_both_transports
async def test_a_type_of_an_argument_that_is_made_anew_costs_one_error_at_most(
    shared_data: SharedData, transport: Transport
) -> None:
    server = shared_data.server
    server.sql("create type mood as enum ('sad', 'ok')")
    async with open_case(server, transport, pool_size=1) as case:
        assert await case.pool.fetchval("SELECT $1::mood::text", "ok") == "ok"
        server.sql("drop type mood", "create type mood as enum ('ok', 'glad')")
        failures = 0
        for _ in range(4):
            try:
                assert await case.pool.fetchval("SELECT $1::mood::text", "glad") == "glad"
            except asyncpg.PostgresError:
                failures += 1
        assert failures <= 1


@on_both_transports
async def test_a_composite_type_that_changes_is_refused_once_and_read_right_afterwards(
    shared_data: SharedData, transport: Transport
) -> None:
    server = shared_data.server
    server.sql(
        "create type pair as (a int, b text)", "create table pairs(p pair)", "insert into pairs values ((1, 'x'))"
    )
    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:

        async def read() -> tuple[Any, ...]:
            return tuple(await conn.fetchval("SELECT p FROM pairs"))

        assert await read() == (1, "x")
        for change, expected in (
            ("add attribute c int", (1, "x", None)),
            ("drop attribute b", (1, None)),
            ("rename attribute c to d", (1, None)),
        ):
            server.sql(f"alter type pair {change}")
            found: list[tuple[Any, ...]] = []
            for _ in range(2):
                try:
                    found.append(await read())
                except asyncpg.OutdatedSchemaCacheError:
                    assert not found, "once, and the first time"
            assert found
            assert set(found) == {expected}
            assert (await conn.fetchval("SELECT p FROM pairs")).get("d" if "rename" in change else "c") is None
            assert not conn.is_in_transaction()


@on_both_transports
async def test_the_same_text_under_another_search_path_reads_the_other_table(
    shared_data: SharedData, transport: Transport
) -> None:
    server = shared_data.server
    server.sql(
        *(f"drop schema if exists {name} cascade" for name in ("one", "two")),
        *(f"create schema {name}" for name in ("one", "two")),
        "create table one.t as select 1 as a",
        "create table two.t as select 'zwei'::text as a, 2 as b",
    )
    try:
        async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:
            for _ in range(3):
                for name, expected in (("one", (1,)), ("two", ("zwei", 2))):
                    await conn.execute(f"SET search_path = {name}")
                    assert tuple(await conn.fetchrow("SELECT * FROM t")) == expected
                    async with conn.transaction():
                        assert tuple(await conn.fetchrow("SELECT * FROM t")) == expected
            with pytest.raises(asyncpg.InvalidCachedStatementError):
                async with conn.transaction():
                    await conn.execute("SET LOCAL search_path = one")
                    await conn.fetchrow("SELECT * FROM t")
            assert tuple(await conn.fetchrow("SELECT * FROM t")) == ("zwei", 2)
    finally:
        server.sql("drop schema one cascade", "drop schema two cascade")


@on_both_transports
async def test_three_hundred_statements_share_a_cache_of_a_hundred_and_leave_no_more_on_the_server(
    shared_data: SharedData, transport: Transport
) -> None:
    rng = random.Random(300)
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        held = await conn.prepare("SELECT $1::int - 1")
        for turn in range(3):
            for n in rng.sample(range(300), 300):
                if turn == 1 and n % 10 == 0:
                    with trio.move_on_after(rng.uniform(0, 0.002)):
                        await conn.fetchval(f"SELECT $1::int + {n}", turn)
                assert await conn.fetchval(f"SELECT $1::int + {n}", turn) == turn + n
            assert await held.fetchval(turn) == turn - 1, "what somebody holds is not thrown out"
        # The cache's hundred, the one that is held, and what is closed with the next statement.
        assert await conn.fetchval("SELECT count(*) FROM pg_prepared_statements") <= 103
        assert not conn.is_in_transaction()


@on_both_transports
async def test_first_uses_that_are_cancelled_leave_no_statements_on_the_server(
    shared_data: SharedData, transport: Transport
) -> None:
    """Wherever they are cancelled: as they are prepared, as their types are asked for, or as others are closed."""
    shared_data.server.sql("create type mood as enum ('sad', 'happy')")
    rng = random.Random(7)
    options = {"asyncpg_options": {"statement_cache_size": 20}}
    async with open_case(shared_data.server, transport, pool_size=1, **options) as case, case.pool.acquire() as conn:
        for n in range(400):
            with trio.move_on_after(rng.uniform(0, 0.0015)):
                await conn.fetchval(f"SELECT $1::int + {n}, 'sad'::mood", n)
        assert await conn.fetchval("SELECT 1") == 1
        await conn.fetchval("SELECT 2")
        assert await conn.fetchval("SELECT count(*) FROM pg_prepared_statements") <= 24


@on_both_transports
async def test_types_of_ones_own_go_both_ways_on_every_connection_that_replaces_another(
    shared_data: SharedData, transport: Transport
) -> None:
    server = shared_data.server
    server.sql(
        "create type color as enum ('red', 'green')",
        "create domain positive as int check (value > 0)",
        "create type point3 as (x int, y positive, c color)",
        "create type span as range (subtype = timestamptz)",
        "create table shapes(id int, points point3[], life span, grid positive[])",
    )
    start = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)
    life = asyncpg.Range(start, None, lower_inc=False)
    points = [(1, 2, "red"), (None, 3, "green"), (4, 5, None)]

    async def coloured(conn: ysactor.Connection) -> None:
        await conn.set_type_codec(
            "color", format="binary", encoder=lambda c: c[1:].encode(), decoder=lambda c: f"#{bytes(c).decode()}"
        )

    def marked(point: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*point[:2], point[2] and f"#{point[2]}")

    for hook in (None, coloured):
        server.sql("truncate shapes")
        async with open_case(server, transport, pool_size=1, on_connect=hook) as case:
            sent = points if hook is None else [marked(point) for point in points]
            for number in range(3):
                await case.pool.execute(
                    "INSERT INTO shapes VALUES ($1, $2, $3, $4)", number, sent, life, [[1, 2], [3, 4]]
                )
                async with case.pool.acquire() as conn:
                    await conn.copy_records_to_table("shapes", records=[(number + 10, None, life, [[5]])])
                row = await case.pool.fetchrow("SELECT * FROM shapes WHERE id = $1", number)
                assert [tuple(point) for point in row["points"]] == sent
                assert (row["life"], row["grid"]) == (life, [[1, 2], [3, 4]])
                with pytest.raises(asyncpg.CheckViolationError):
                    await case.pool.execute("SELECT $1::positive", -1)
                await case.truth.terminate()
                await until(
                    lambda number=number: sum(case.pool.statistics().connections_closed.values()) > number, "it is gone"
                )
            assert server.value("select count(*), min((points[1]).c) from shapes") == "6"


@on_both_transports
@pytest.mark.parametrize("command", ["DISCARD ALL", "DEALLOCATE ALL"])
async def test_statements_that_are_thrown_away_under_the_cache_are_prepared_again(
    shared_data: SharedData, transport: Transport, command: str
) -> None:
    """One error at most, and none for whoever has the connection next."""
    async with open_case(shared_data.server, transport, pool_size=1) as case:
        for n in range(20):
            assert await case.pool.fetchval(f"SELECT $1::int + {n}", 1) == 1 + n
        await case.pool.execute(command)
        failures = 0
        for n in range(20):
            try:
                assert await case.pool.fetchval(f"SELECT $1::int + {n}", 1) == 1 + n
            except asyncpg.InvalidSQLStatementNameError:
                failures += 1
        assert failures <= 1
