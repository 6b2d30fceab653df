"""Calls on a session of the native driver, against a real server."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import asyncpg
import pytest
import trio
import trio.lowlevel

from ysactor.config import TlsMode
from ysactor.driver.protocol import Status
from ysactor.errors import ConnectionLost

pytestmark = pytest.mark.trio


@pytest.fixture(params=["tcp", "unix", "tls"])
def way(request: pytest.FixtureRequest, bed: Any) -> dict[str, Any]:
    """How the session is connected: arguments of `Client.open`."""
    match request.param:
        case "unix":
            return {"host": bed.unix}
        case "tls":
            return {"host": bed.tcp, "tls": bed.tls(TlsMode.VERIFY_FULL)}
        case _:
            return {"host": bed.tcp}


async def test_a_query_gives_its_answer_and_leaves_the_session_idle(bed: Any, way: dict[str, Any]) -> None:
    async with bed.client() as client:
        session = await client.open(**way)
        assert await client.ask(session, "select 41 + 1") == 42
        assert await client.ask(session, "select pg_backend_pid()") == session.pid
        assert session.status is Status.IDLE
        assert session.is_clean()
        encrypted = await client.ask(session, "select ssl from pg_stat_ssl where pid = pg_backend_pid()")
        assert encrypted is ("tls" in way)


async def test_a_servers_error_comes_out_unchanged_and_the_session_lives_on(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        with pytest.raises(asyncpg.DivisionByZeroError) as caught:
            await client.ask(session, "select 1/0")
        assert caught.value.sqlstate == "22012"
        assert session.is_clean()
        assert await client.ask(session, "select 1") == 1


async def test_a_transaction_shows_in_the_status_without_a_round_trip(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        outer = session.raw.transaction()
        await session.drive(outer.start())
        assert session.status is Status.IN_TRANSACTION
        assert not session.is_clean()
        await session.drive(session.raw.execute("create temp table t (a int)"))
        inner = session.raw.transaction()
        await session.drive(inner.start())
        await session.drive(session.raw.execute("insert into t values (1)"))
        await session.drive(inner.rollback())
        assert await client.ask(session, "select count(*) from t") == 0
        await session.drive(outer.commit())
        assert session.is_clean()
        with pytest.raises(asyncpg.DivisionByZeroError):
            await session.drive(session.raw.execute("begin; select 1/0"))
        assert session.status is Status.IN_TRANSACTION


async def test_a_transaction_object_left_open_makes_the_session_unclean_although_the_server_is_idle(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.transaction().start())
        await session.drive(session.raw.execute("rollback"))
        assert session.status is Status.IDLE
        assert not session.is_clean()


async def test_cursors_and_prepared_statements_work(bed: Any) -> None:
    async def opened(cursor: Any) -> Any:
        return await cursor

    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.transaction().start())
        cursor = await session.drive(opened(session.raw.cursor("select * from generate_series(1, 100) g")))
        assert [row[0] for row in await session.drive(cursor.fetch(3))] == [1, 2, 3]
        assert await session.drive(cursor.forward(10)) == 10
        assert (await session.drive(cursor.fetchrow()))[0] == 14
        statement = await session.drive(session.raw.prepare("select $1::int * 2"))
        assert await session.drive(statement.fetchval(21)) == 42
        iterator = aiter(statement.cursor(4, prefetch=1))
        assert (await session.drive(iterator.__anext__()))[0] == 8
        with pytest.raises(StopAsyncIteration):
            await session.drive(iterator.__anext__())


@pytest.mark.parametrize("rows", [0, 1, 20_000])
async def test_executemany_survives_full_buffers_on_both_sides(bed: Any, way: dict[str, Any], rows: int) -> None:
    async with bed.client() as client:
        session = await client.open(**way)
        await session.drive(session.raw.execute("create temp table t (a int, b text)"))
        data = [(number, "x" * 200) for number in range(rows)]
        with trio.fail_after(20):
            await session.drive(session.raw.executemany("insert into t values ($1, $2)", data))
        assert await client.ask(session, "select count(*) from t") == rows
        assert session.is_clean()


async def test_executemany_with_answers_larger_than_the_questions_does_not_stand_still(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        query = "select repeat('y', 1000) || $1"
        with trio.fail_after(20):
            await session.drive(session.raw.executemany(query, [("x" * 500,) for _ in range(20_000)]))
        assert session.is_clean()


async def test_executemany_stops_at_a_bad_row_and_keeps_nothing(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("create temp table t (a int primary key)"))
        with pytest.raises(asyncpg.UniqueViolationError), trio.fail_after(20):
            rows = ((number % 50_000,) for number in range(99_999))
            await session.drive(session.raw.executemany("insert into t values ($1)", rows))
        assert session.is_clean()
        assert await client.ask(session, "select count(*) from t") == 0
        with pytest.raises(asyncpg.DataError):
            await session.drive(session.raw.executemany("insert into t values ($1)", [(1,), ("no number",)]))
        assert session.is_clean()
        assert await client.ask(session, "select count(*) from t") == 0


async def test_twenty_megabytes_travel_both_ways(bed: Any, way: dict[str, Any]) -> None:
    async with bed.client() as client:
        session = await client.open(**way)
        big = "yz" * (10 * 1024 * 1024)
        with trio.fail_after(30):
            assert await client.ask(session, "select length($1::text)", big) == len(big)
            assert await client.ask(session, "select repeat('z', 20000000)") == "z" * 20_000_000
            assert await client.ask(session, "select $1::text", big) == big


async def test_a_time_out_leaves_the_call_and_the_session_is_usable_once_settled(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        started = trio.current_time()
        with pytest.raises(TimeoutError):
            await client.ask(session, "select pg_sleep(5)", timeout=0.1)
        assert trio.current_time() - started < 1
        assert session.status is Status.ABANDONED
        assert client.told(session).abandonments == 1
        assert await session.settle(2)
        assert session.is_clean()
        assert await client.ask(session, "select 3") == 3
        assert client.told(session).losses == []


async def test_asyncpgs_own_time_out_does_the_same(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        with pytest.raises(TimeoutError):
            await session.drive(session.raw.fetchval("select pg_sleep(5)", timeout=0.1))
        assert session.status is Status.ABANDONED
        assert client.told(session).abandonments == 1
        assert await session.settle(2)
        assert await client.ask(session, "select 3") == 3
        assert await session.drive(session.raw.fetchval("select 4", timeout=5)) == 4
        assert session.is_clean()


async def test_command_timeout_is_the_default_time_out(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open(asyncpg_options={"command_timeout": 0.1})
        with pytest.raises(TimeoutError):
            await client.ask(session, "select pg_sleep(5)")
        assert await session.settle(2)
        assert await client.ask(session, "select 1 + length(pg_sleep(0.3)::text)", timeout=5) == 1


@pytest.mark.parametrize("timeout", [0, -1])
async def test_no_time_sends_nothing_and_leaves_the_session_alone(bed: Any, timeout: float) -> None:
    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("create temp table t (a int)"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(TimeoutError):
                await session.drive(session.raw.execute("insert into t values (1)"), timeout=timeout)
            gc.collect()
        assert session.is_clean()
        assert client.told(session).abandonments == 0
        assert await client.ask(session, "select count(*) from t") == 0


async def test_a_second_call_is_refused_and_the_first_goes_on(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        answers: list[Any] = []

        async def first() -> None:
            answers.append(await client.ask(session, "select 7 + length(pg_sleep(0.2)::text)"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.sleep(0.05)
            assert session.status is Status.BUSY
            with pytest.raises(asyncpg.InterfaceError, match="another operation is in progress"):
                await client.ask(session, "select 8")
        assert answers == [7]
        assert session.is_clean()


async def test_misuse_of_a_live_session_keeps_its_own_error(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        with pytest.raises(asyncpg.InterfaceError, match="expects 1 argument"):
            await client.ask(session, "select $1::int")
        assert session.is_clean()


async def test_codecs_that_raise_do_not_break_the_session(bed: Any) -> None:
    def raising(value: Any) -> Any:
        raise LookupError("a codec of the user's")

    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.set_type_codec("json", schema="pg_catalog", encoder=raising, decoder=raising))
        with pytest.raises(LookupError):
            await client.ask(session, "select '{}'::json")
        with pytest.raises(asyncpg.DataError):
            await client.ask(session, "select $1::json", {})
        assert session.is_clean()
        assert await client.ask(session, "select 5") == 5


async def test_reset_and_close_of_the_raw_connection_work(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("set work_mem = '5MB'"))
        await session.drive(session.raw.reset(timeout=5))
        assert await client.ask(session, "show work_mem") != "5MB"
        await session.drive(session.raw.close())
        assert session.status is Status.CLOSED
        assert session.raw.is_closed()
        with pytest.raises(ConnectionLost):
            await client.ask(session, "select 1")


async def test_statements_are_dropped_when_they_are_old_and_no_timer_is_kept(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open(asyncpg_options={"max_cached_statement_lifetime": 0.2})
        count = "select count(*) from pg_prepared_statements where statement like '%forgotten%'"
        await client.ask(session, "select 1 as forgotten")
        assert await session.drive(session.raw.fetchval(count)) == 2
        await trio.sleep(0.25)
        await client.ask(session, "select 2 as something_else")
        assert await session.drive(session.raw.fetchval(count)) == 1


async def test_query_loggers_and_log_listeners_are_called_and_may_raise(bed: Any) -> None:
    seen: list[Any] = []

    def raising(*args: Any) -> None:
        seen.append(args)
        raise LookupError("a listener of the user's")

    async with bed.client() as client:
        session = await client.open()
        session.raw.add_query_logger(raising)
        session.raw.add_log_listener(raising)
        assert await client.ask(session, "select 1") == 1
        await session.drive(session.raw.execute("do $$ begin raise notice 'hello'; end $$"))
        assert len(seen) == 3
        assert session.is_clean()
        assert "password=None" in repr(seen[0][0].conn_params)


async def test_async_callbacks_run_under_trio(bed: Any) -> None:
    seen = trio.Event()

    async def on_query(record: Any) -> None:
        await trio.lowlevel.checkpoint()
        seen.set()

    async with bed.client() as client:
        session = await client.open()
        session.raw.add_query_logger(on_query)
        await client.ask(session, "select 1")
        with trio.fail_after(2):
            await seen.wait()


async def test_a_call_is_one_pass_of_the_scheduler(bed: Any) -> None:
    class Passes(trio.abc.Instrument):
        count = 0

        def before_io_wait(self, timeout: float) -> None:
            self.count += 1

    async with bed.client() as client:
        session = await client.open()
        await client.ask(session, "select 1")
        passes = Passes()
        trio.lowlevel.add_instrument(passes)
        for _ in range(100):
            await client.ask(session, "select 1")
        trio.lowlevel.remove_instrument(passes)
        assert passes.count <= 105


async def test_a_session_that_was_forgotten_makes_no_noise(bed: Any, recwarn: Any) -> None:
    async with bed.client() as client:
        await client.driver.connect(bed.tcp, bed.config())
        gc.collect()
    gc.collect()
    assert [str(warning.message) for warning in recwarn if warning.category is ResourceWarning] == []
