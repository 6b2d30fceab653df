"""What asyncpg's own tests are hardest on, on both transports: COPY, notifications and notices that go wrong."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, nullcontext
from typing import Any

import asyncpg
import pytest
import trio

import ysactor
from integration.conftest import TlsServer
from integration.scenario import Case, Transport, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import PostgresServer, SharedData

pytestmark = watched


async def gives_its_own_answers(conn: ysactor.Connection) -> None:
    for n in range(3):
        assert await conn.fetchval("SELECT $1::int", n) == n


# --- COPY ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(shared_data: SharedData) -> Callable[[], str | None]:
    """A table with a key and a check, and what it holds."""
    shared_data.server.sql(
        "create table things(id int primary key, name text check (name <> 'bad'),"
        " k int unique deferrable initially deferred)"
    )
    return lambda: shared_data.server.value("select count(*) from things")


def rows(count: int, *more: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield from ((n, "x" * 100, n) for n in range(count))
    yield from more
    yield from ((n, "y" * 100, n) for n in range(count, 2 * count))


def lines(count: int, bad: bytes) -> bytes:
    whole = b"".join(b"%d\tname\t%d\n" % (n, n) for n in range(count))
    return whole + bad + b"".join(b"%d\tname\t%d\n" % (n, n) for n in range(count, 2 * count))


@on_both_transports
async def test_what_the_server_refuses_in_the_middle_or_at_the_end_of_a_copy_is_raised_and_no_row_kept(
    shared_data: SharedData, transport: Transport, table: Callable[[], str | None]
) -> None:
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        pid = conn.get_server_pid()
        for bad, error in (
            (b"word\tname\t1\n", asyncpg.InvalidTextRepresentationError),
            (b"99999\n", asyncpg.BadCopyFileFormatError),
            (b"99999\t\xff\xfe\t1\n", asyncpg.CharacterNotInRepertoireError),
            (b"5\tname\t1\n", asyncpg.UniqueViolationError),
            (b"99999\tbad\t1\n", asyncpg.CheckViolationError),
            (b"\\N\tname\t1\n", asyncpg.NotNullViolationError),
        ):
            for count in (1, 20_000):
                with pytest.raises(error):
                    await conn.copy_to_table("things", source=io.BytesIO(lines(max(count, 6), bad)))
                await gives_its_own_answers(conn)
                with pytest.raises(error):
                    async with conn.transaction():
                        await conn.copy_to_table("things", source=io.BytesIO(lines(max(count, 6), bad)))
                assert table() == "0"
        # Deferred: the COPY ends well, and then its transaction does not.
        with pytest.raises(asyncpg.UniqueViolationError):
            await conn.copy_records_to_table("things", records=[(1, "a", 7), (2, "b", 7)])
        with pytest.raises(asyncpg.UniqueViolationError):
            async with conn.transaction():
                assert await conn.copy_records_to_table("things", records=[(1, "a", 7), (2, "b", 7)]) == "COPY 2"
        assert table() == "0"
        assert await conn.copy_records_to_table("things", records=rows(10)) == "COPY 20"
        assert (table(), conn.get_server_pid()) == ("20", pid)


@on_both_transports
async def test_what_the_client_refuses_in_the_middle_of_a_copy_is_raised_and_no_row_kept(
    shared_data: SharedData, transport: Transport, table: Callable[[], str | None]
) -> None:
    class Own(Exception):
        pass

    def raising() -> Iterator[tuple[Any, ...]]:
        yield from rows(20_000)
        raise Own

    async def raising_later() -> AsyncIterator[tuple[Any, ...]]:
        for row in rows(10_000):
            yield row
        await trio.lowlevel.checkpoint()
        raise Own

    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        pid = conn.get_server_pid()
        for records, columns, error in (
            (rows(5000, (99_999, 5, 1)), None, (asyncpg.DataError, TypeError)),
            (rows(5000, (2**40, "x", 1)), None, (asyncpg.DataError, OverflowError)),
            (rows(5000, (99_999, "x")), None, IndexError),
            (rows(5), ["id", "nowhere", "k"], asyncpg.UndefinedColumnError),
            (raising(), None, Own),
            (raising_later(), None, Own),
        ):
            with pytest.raises(error):
                await conn.copy_records_to_table("things", records=records, columns=columns)
            await gives_its_own_answers(conn)
            assert not conn.is_in_transaction()
            assert table() == "0"
        with pytest.raises(asyncpg.UndefinedTableError):
            await conn.copy_to_table("nowhere", source=io.BytesIO(b"1\n"))
        await gives_its_own_answers(conn)
        assert conn.get_server_pid() == pid


@on_both_transports
@pytest.mark.parametrize("inside", [False, True], ids=["by itself", "in a transaction"])
async def test_a_sink_that_raises_in_the_middle_has_its_error_raised_and_the_rest_read(
    shared_data: SharedData, transport: Transport, inside: bool
) -> None:
    class Own(Exception):
        pass

    calls = 0

    async def sink(data: bytes) -> None:
        nonlocal calls
        calls += 1
        await trio.lowlevel.checkpoint()
        if calls == 3:
            raise Own("x" * 10_000)

    asked = "SELECT n, repeat('x', 1000) FROM generate_series(1, 5000) n"
    async with open_case(shared_data.server, transport, pool_size=1) as case:
        for _ in range(5):
            calls = 0
            with pytest.raises(Own):
                async with case.pool.acquire() as conn:
                    if inside:
                        async with conn.transaction():
                            await conn.copy_from_query(asked, output=sink)
                    else:
                        await conn.copy_from_query(asked, output=sink)
            assert calls == 3
            async with case.pool.acquire() as conn:
                assert not conn.is_in_transaction()
                await gives_its_own_answers(conn)
        assert await case.pool.execute("SELECT 1") == "SELECT 1"
        assert case.pool.statistics().connections_closed == {}


@on_both_transports
@pytest.mark.parametrize("how", ["raises", "is cancelled", "is cancelled in a file"])
async def test_a_copy_whose_last_piece_is_not_taken_keeps_its_connection(
    shared_data: SharedData, transport: Transport, how: str
) -> None:
    """By then the server has answered in full, and there is nothing that a cancel request would stop."""

    class Own(Exception):
        pass

    class File(io.BytesIO):
        def write(self, data: Any, /) -> int:
            trio.from_thread.run_sync(scope.cancel)
            return super().write(data)

    async def sink(data: bytes) -> None:
        if how == "raises":
            raise Own
        scope.cancel()
        await trio.lowlevel.checkpoint()

    output = File() if how == "is cancelled in a file" else sink
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        pid = conn.get_server_pid()
        for _ in range(5):
            with trio.CancelScope() as scope, pytest.raises(Own) if how == "raises" else nullcontext():
                await conn.copy_from_query("SELECT 1", output=output)
            await gives_its_own_answers(conn)
        assert conn.get_server_pid() == pid


@on_both_transports
@pytest.mark.parametrize("kind", ["chunks", "records", "plain records", "file", "sink"])
async def test_a_time_out_of_the_users_own_inside_a_copy_comes_out_as_it_is(
    shared_data: SharedData, transport: Transport, table: Callable[[], str | None], kind: str
) -> None:
    """The usual one: the source wants a connection of its own, and the pool has no other."""
    late = TimeoutError("the user's own")

    class File(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if data := super().read(size):
                return data
            raise late

    def plain() -> Iterator[tuple[Any, ...]]:
        yield from rows(5)
        raise late

    async with open_case(shared_data.server, transport, pool_size=1, checkout_timeout=0.1) as case:

        async def chunks() -> AsyncGenerator[bytes]:
            yield b"1\tname\t1\n"
            await case.pool.fetchval("SELECT 1")

        async def records() -> AsyncGenerator[tuple[Any, ...]]:
            yield 1, "name", 1
            await case.pool.fetchval("SELECT 1")

        async def sink(data: bytes) -> None:
            await case.pool.fetchval("SELECT 1")

        async def copy() -> None:
            match kind:
                case "chunks":
                    await conn.copy_to_table("things", source=chunks())
                case "records":
                    await conn.copy_records_to_table("things", records=records())
                case "plain records":
                    await conn.copy_records_to_table("things", records=plain())
                case "file":
                    await conn.copy_to_table("things", source=File(b"1\tname\t1\n"))
                case _:
                    await conn.copy_from_query("SELECT 1", output=sink)

        async with case.pool.acquire() as conn:
            pid = conn.get_server_pid()
            for _ in range(3):
                with pytest.raises(TimeoutError) as caught:
                    await copy()
                assert caught.value is late or isinstance(caught.value, ysactor.CheckoutTimeout)
                await gives_its_own_answers(conn)
            with pytest.raises(TimeoutError) as caught:
                async with conn.transaction():
                    await copy()
            assert caught.value is late or isinstance(caught.value, ysactor.CheckoutTimeout)
            await gives_its_own_answers(conn)
            assert (table(), conn.get_server_pid()) == ("0", pid)


@on_both_transports
@pytest.mark.parametrize("by", ["timeout", "command_timeout"])
async def test_a_copy_that_takes_too_long_is_left_wherever_it_waits(
    shared_data: SharedData, transport: Transport, table: Callable[[], str | None], by: str
) -> None:
    class Slow:
        def read(self, size: int) -> bytes:
            time.sleep(0.02)
            return b"1\tname\t1\n"

    async def chunks() -> AsyncGenerator[bytes]:
        yield b"1\tname\t1\n"
        await trio.sleep_forever()

    async def sink(data: bytes) -> None:
        await trio.sleep_forever()

    options = {"asyncpg_options": {"command_timeout": 0.2}} if by == "command_timeout" else {}
    own = {"timeout": 0.2} if by == "timeout" else {}
    async with open_case(shared_data.server, transport, pool_size=1, **options) as case, case.pool.acquire() as conn:
        pid = conn.get_server_pid()
        for copy in (
            lambda: conn.copy_to_table("things", source=chunks(), **own),
            lambda: conn.copy_to_table("things", source=Slow(), **own),
            lambda: conn.copy_from_query("SELECT 1", output=sink, **own),
        ):
            started = trio.current_time()
            with pytest.raises(TimeoutError):
                await copy()
            assert trio.current_time() - started < 5
            await gives_its_own_answers(conn)
        assert (table(), conn.get_server_pid()) == ("0", pid)


@on_both_transports
async def test_a_copy_whose_process_is_killed_is_a_lost_connection_that_is_replaced(
    shared_data: SharedData, transport: Transport, table: Callable[[], str | None]
) -> None:
    server = shared_data.server

    async def kill(pid: int) -> None:
        await trio.to_thread.run_sync(server.sql, f"select pg_terminate_backend({pid}, 5000)")

    async with open_case(server, transport, pool_size=1) as case:

        async def source(pid: int) -> AsyncGenerator[tuple[Any, ...]]:
            for n, row in enumerate(rows(3000)):
                if n == 2000:
                    await kill(pid)
                yield row

        async def copy_in(conn: ysactor.Connection) -> None:
            async with aclosing(source(conn.get_server_pid())) as records:
                await conn.copy_records_to_table("things", records=records)

        async def copy_in_and_wait(conn: ysactor.Connection) -> None:
            async def waiting() -> AsyncGenerator[tuple[Any, ...]]:
                yield (1, "one", 1)
                await kill(conn.get_server_pid())
                await trio.sleep_forever()

            async with aclosing(waiting()) as records:
                await conn.copy_records_to_table("things", records=records)

        async def copy_out(conn: ysactor.Connection) -> None:
            async def sink(data: bytes) -> None:
                await kill(conn.get_server_pid())

            await conn.copy_from_query("SELECT repeat('x', 1000) FROM generate_series(1, 100000)", output=sink)

        for copy in (copy_in, copy_in_and_wait, copy_out):
            with pytest.raises(ysactor.ConnectionLost) as caught:
                async with case.pool.acquire() as conn:
                    await copy(conn)
            assert caught.value.server == (server.host, server.port)
            await gives_its_own_answers_by_the_pool(case)
            assert table() == "0"
        assert case.pool.statistics().connections_closed == {"lost": 3}


async def gives_its_own_answers_by_the_pool(case: Case) -> None:
    async with case.pool.acquire() as conn:
        await gives_its_own_answers(conn)


# --- NOTIFY and notices ----------------------------------------------------------------------------------------------


@on_both_transports
async def test_ten_thousand_notifications_of_one_transaction_all_come_in_their_order(
    shared_data: SharedData, transport: Transport
) -> None:
    server = shared_data.server
    heard: list[str] = []

    def hear(by: ysactor.Connection, pid: int, channel: str, payload: str) -> None:
        heard.append(payload)

    many = "select pg_notify('news', n::text) from generate_series({}, {}) n"
    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        await conn.add_listener("news", hear)
        # Leased and idle: more than a socket's buffers hold, and nobody calls.
        await trio.to_thread.run_sync(server.sql, many.format(1, 10_000))
        await until(lambda: len(heard) == 10_000, lambda: f"all are heard, not {len(heard)}")
        # To itself, with the answer of the statement among them; and while statements are running.
        await conn.execute(many.format(10_001, 20_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, server.sql, many.format(20_001, 30_000))
            while nursery.child_tasks:
                await gives_its_own_answers(conn)
        await until(lambda: len(heard) == 30_000, lambda: f"all are heard, not {len(heard)}")
        assert heard == [str(n) for n in range(1, 30_001)]
        heard.clear()
        await conn.execute("SELECT pg_notify('news', repeat('é', 3999) || 'e')")
        assert heard == ["é" * 3999 + "e"]
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await conn.execute("SELECT pg_notify('news', repeat('x', 8000))")
        async with conn.transaction():
            await conn.execute("NOTIFY news, 'one'")
            await conn.execute("NOTIFY news, 'one'")
            assert len(heard) == 1, "not before COMMIT"
        await until(lambda: heard[1:] == ["one"], "the same within one transaction is told once")
        await conn.remove_listener("news", hear)


@on_both_transports
async def test_notifications_that_come_in_a_query_or_a_copy_wait_for_its_end_and_disturb_nothing(
    shared_data: SharedData, transport: Transport
) -> None:
    server = shared_data.server
    server.sql("create table things(id int, name text)")
    heard: list[str] = []

    def hear(by: ysactor.Connection, pid: int, channel: str, payload: str) -> None:
        heard.append(payload)

    async def notify(payload: str) -> None:
        await trio.to_thread.run_sync(server.sql, f"notify news, '{payload}'")

    async with open_case(server, transport, pool_size=2) as case, case.pool.acquire() as conn:
        await conn.add_listener("news", hear)

        async def source() -> AsyncGenerator[tuple[Any, ...]]:
            for n in range(5000):
                if n % 1000 == 0:
                    await notify(f"in {n}")
                yield n, "x" * 100

        assert await conn.copy_records_to_table("things", records=source()) == "COPY 5000"
        await until(lambda: len(heard) == 5, lambda: f"what came in the copy is heard after it: {heard}")
        got = bytearray()

        async def sink(data: bytes) -> None:
            if not got:
                await notify("out")
            got.extend(data)

        assert await conn.copy_from_query("SELECT * FROM things ORDER BY id", output=sink) == "COPY 5000"
        assert got == b"".join(b"%d\t%s\n" % (n, b"x" * 100) for n in range(5000))
        await until(lambda: heard[5:] == ["out"], lambda: f"what came in the copy is heard after it: {heard}")
        async with conn.transaction():
            async for row in conn.cursor("SELECT id FROM things ORDER BY id LIMIT 100", prefetch=10):
                if row[0] == 50:
                    await notify("cursor")
            assert "cursor" not in heard
        await until(lambda: heard[6:] == ["cursor"], lambda: f"what came in the transaction is heard after it: {heard}")
        # Between queries, of a session that is leased and idle: by another task's connection of the same pool.
        await case.pool.execute("NOTIFY news, 'idle'")
        await until(lambda: heard[7:] == ["idle"], lambda: f"it is heard without a call: {heard}")
        await conn.remove_listener("news", hear)


@on_both_transports
async def test_a_listener_that_raises_takes_nothing_from_the_other_or_from_the_query(
    shared_data: SharedData, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def bad(by: ysactor.Connection, pid: int, channel: str, payload: str) -> None:
        raise RuntimeError(f"bad {payload}")

    def good(by: ysactor.Connection, pid: int, channel: str, payload: str) -> None:
        heard.append(payload)

    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        for listener in (bad, good):
            await conn.add_listener("news", listener)
        with caplog.at_level(logging.ERROR):
            for n in range(5):
                sent = f"SELECT $1::int FROM (SELECT pg_notify('news', '{n}')) x"
                assert await conn.fetchval(sent, n) == n
                shared_data.server.sql(f"notify news, 'other {n}'")
            await until(lambda: len(heard) == 10, lambda: f"the other one hears all: {heard}")
        assert sum("raised" in record.message or "xception" in record.message for record in caplog.records) >= 10
        await gives_its_own_answers(conn)
        for listener in (bad, good):
            await conn.remove_listener("news", listener)


LOUD = (
    "create function loud(n int) returns int language plpgsql as $$ begin"
    " raise notice 'notice % %', n, repeat('x', 2000); raise warning 'warning %', n; return n; end $$"
)


@on_both_transports
async def test_notices_in_the_middle_of_rows_come_in_order_and_spoil_no_row(
    shared_data: SharedData, transport: Transport
) -> None:
    server: PostgresServer = shared_data.server
    server.sql(LOUD)
    said: list[str] = []

    def hear(by: object, message: Any) -> None:
        said.append(f"{message.severity} {message.message.split(' x')[0]}")

    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        conn.raw.add_log_listener(hear)
        expected = [f"{kind} {kind.lower()} {n}" for n in range(1, 501) for kind in ("NOTICE", "WARNING")]
        found = await conn.fetch("SELECT loud(n), repeat('y', 300) FROM generate_series(1, 500) n")
        assert [tuple(row) for row in found] == [(n, "y" * 300) for n in range(1, 501)]
        await until(lambda: said == expected, lambda: f"all is said once, in order: {said[-3:]}")
        said.clear()
        with trio.move_on_after(0.02):
            await conn.fetch("SELECT loud(n) FROM generate_series(1, 1000000) n")
        await gives_its_own_answers(conn)
        conn.raw.remove_log_listener(hear)


@on_both_transports
async def test_notices_in_the_middle_of_a_copy_out_spoil_no_row(shared_data: SharedData, transport: Transport) -> None:
    shared_data.server.sql(LOUD)
    out = io.BytesIO()
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        tag = await conn.copy_from_query("SELECT loud(n) FROM generate_series(1, 500) n", output=out)
        assert tag == "COPY 500"
        assert out.getvalue().split() == [b"%d" % n for n in range(1, 501)]


@on_both_transports
async def test_notices_in_the_middle_of_a_copy_out_over_tls_spoil_no_row(
    tls_server: TlsServer, transport: Transport
) -> None:
    server = tls_server.server
    server.sql(LOUD)
    got = bytearray()

    async def sink(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        got.extend(data)

    secure = {"ssl": "verify-full", "ssl_root_cert": str(tls_server.authority.root)}
    async with open_case(server, transport, pool_size=1, **secure) as case, case.pool.acquire() as conn:
        for count in (1, 2, 500):
            got.clear()
            tag = await conn.copy_from_query("SELECT loud(n) FROM generate_series(1, $1::int) n", count, output=sink)
            assert tag == f"COPY {count}"
            assert got.split() == [b"%d" % n for n in range(1, count + 1)]
            # Left in the middle, with something left over.
            with trio.move_on_after(0.02):
                await conn.copy_from_query("SELECT loud(n) FROM generate_series(1, 1000000) n", output=sink)
            await gives_its_own_answers(conn)
