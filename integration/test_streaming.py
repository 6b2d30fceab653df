"""What is too large for memory: COPY, `executemany` and cursors hold a few megabytes, and one side waits for the other.

On a real server, reached directly: a proxy in this process would have buffers of its own. Memory is what Python's own
allocator hands out, asyncpg's buffers included.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
import trio

import ysactor
from integration.scenario import Case, Transport, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import PostgresServer, ThreeZones

pytestmark = watched

MEGABYTE = 1_000_000
CHUNK = b"x" * 65_535 + b"\n"
LARGE = 200 * MEGABYTE // len(CHUNK)
"""So many chunks are 200 MB."""
UNREAD = 32 * MEGABYTE
"""More than the socket buffers of both sides hold."""
AT_ONCE = 0.3
"""Seconds that a cancelled caller may take to be free, on a busy machine."""

SETUP = (
    "create unlogged table streamed (number int, text text)",
    "create function noisy(text) returns int language plpgsql as "
    "$$ begin raise notice '%', repeat('n', 8000); return 1; end $$",
    "create function shout() returns trigger language plpgsql as "
    "$$ begin raise notice '%', repeat('n', 8000); return null; end $$",
    "grant all on streamed to public",
)


@pytest.fixture
def server(three_zones: ThreeZones) -> Iterator[PostgresServer]:
    server = three_zones.servers[0]
    server.sql(*SETUP)
    yield server
    server.thaw()
    server.end_sessions()
    server.sql("drop table streamed", "drop function noisy, shout")


@dataclass
class Peak:
    """Bytes, above what there was before."""

    bytes: int = 0


@contextmanager
def peak_of_memory() -> Generator[Peak]:
    peak = Peak()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield peak
        peak.bytes = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@asynccontextmanager
async def one_connection(server: PostgresServer, transport: Transport) -> AsyncGenerator[tuple[Case, Any]]:
    """Of a pool of one, which at the end is at rest and leaves nothing behind."""
    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        await conn.execute("SET client_min_messages = notice")
        yield case, conn


@dataclass
class Counted:
    """A source of chunks or records, and how many were taken from it."""

    taken: int = 0
    at_first: Callable[[], None] = lambda: None
    """Called as the first one is taken: what has to be prepared for it is prepared."""

    def _each(self, count: int) -> Iterator[int]:
        self.at_first()
        for self.taken in range(1, count + 1):
            yield self.taken

    async def chunks(self, count: int) -> AsyncGenerator[bytes]:
        for _ in self._each(count):
            yield CHUNK

    async def async_records(self, count: int) -> AsyncGenerator[tuple[int, str]]:
        for record in self.records(count):
            yield record

    def records(self, count: int) -> Iterator[tuple[int, str]]:
        for number in self._each(count):
            yield number, "a record"

    def large_records(self, count: int) -> Iterator[tuple[str]]:
        text = "t" * 8000
        for _ in self._each(count):
            yield (text,)

    async def stand_still(self) -> int:
        """Wait until something, and nothing more, was taken; how much it is."""
        seen, since = 0, trio.current_time()
        with trio.fail_after(10):
            while not seen or trio.current_time() - since < 0.3:
                await trio.sleep(0.02)
                if self.taken != seen:
                    seen, since = self.taken, trio.current_time()
        return seen


# --- memory ----------------------------------------------------------------------------------------------------------


@on_both_transports
async def test_a_copy_in_of_200_megabytes_holds_a_few(server: PostgresServer, transport: Transport) -> None:
    source = Counted()
    async with one_connection(server, transport) as (_, conn):
        with peak_of_memory() as peak:
            tag = await conn.copy_to_table("streamed", source=source.chunks(LARGE), columns=["text"], where="false")
        assert (tag, source.taken) == ("COPY 0", LARGE)
    assert peak.bytes < 2 * MEGABYTE


@on_both_transports
async def test_a_copy_out_of_200_megabytes_to_a_slow_sink_holds_a_few(
    server: PostgresServer, transport: Transport
) -> None:
    received = calls = 0

    async def sink(data: bytes) -> None:
        nonlocal received, calls
        received += len(data)
        calls += 1
        await trio.sleep(0.002 if calls % 10 == 0 else 0)

    async with one_connection(server, transport) as (_, conn):
        with peak_of_memory() as peak:
            query = "SELECT repeat('x', 999) FROM generate_series(1, 200000)"
            assert await conn.copy_from_query(query, output=sink) == "COPY 200000"
    assert received == 200 * MEGABYTE
    assert peak.bytes < 4 * MEGABYTE


@on_both_transports
@pytest.mark.parametrize("flavour", ["async", "plain"])
async def test_records_by_the_hundred_thousand_are_copied_in_as_they_are_made(
    server: PostgresServer, transport: Transport, flavour: str
) -> None:
    source, count = Counted(), 500_000 if flavour == "plain" else 200_000 if transport == "native" else 20_000
    records = source.async_records(count) if flavour == "async" else source.records(count)
    async with one_connection(server, transport) as (_, conn):
        with peak_of_memory() as peak:
            assert await conn.copy_records_to_table("streamed", records=records) == f"COPY {count}"
        assert await conn.fetchval("SELECT count(*) FROM streamed") == count
    assert peak.bytes < 4 * MEGABYTE


@on_both_transports
async def test_executemany_of_half_a_million_runs_its_generator_as_it_sends(
    server: PostgresServer, transport: Transport
) -> None:
    source, count = Counted(), 500_000
    async with one_connection(server, transport) as (_, conn):
        with peak_of_memory() as peak:
            await conn.executemany("SELECT $1::int, $2::text", source.records(count))
    assert source.taken == count
    assert peak.bytes < 2 * MEGABYTE


@on_both_transports
async def test_a_cursor_over_a_million_rows_holds_what_it_prefetches(
    server: PostgresServer, transport: Transport
) -> None:
    rows = 1_000_000 if transport == "native" else 50_000
    total = 0
    async with one_connection(server, transport) as (_, conn):
        with peak_of_memory() as peak:
            async with conn.transaction():
                cursor = await conn.cursor(f"SELECT g, 'some text' FROM generate_series(1, {rows}) AS g")
                while batch := await cursor.fetch(1000):
                    total += len(batch)
        assert total == rows
    assert peak.bytes < 2 * MEGABYTE


@on_both_transports
async def test_iterating_over_a_cursor_holds_what_it_prefetches(server: PostgresServer, transport: Transport) -> None:
    rows, total = (50_000 if transport == "native" else 10_000), 0
    async with one_connection(server, transport) as (_, conn):
        with peak_of_memory() as peak:
            async with conn.transaction():
                async for _row in conn.cursor(f"SELECT g FROM generate_series(1, {rows}) AS g", prefetch=500):
                    total += 1
        assert total == rows
    assert peak.bytes < MEGABYTE


# --- who waits for whom ----------------------------------------------------------------------------------------------

Work: TypeAlias = Callable[[Any, Counted], Awaitable[object]]


async def copy_in(conn: Any, source: Counted) -> None:
    async with aclosing(source.chunks(LARGE)) as chunks:
        await conn.copy_to_table("streamed", source=chunks, columns=["text"], where="false")


async def copy_records(conn: Any, source: Counted) -> None:
    rows = source.large_records(10_000)
    await conn.copy_records_to_table("streamed", records=rows, columns=["text"], where="false")


async def many(conn: Any, source: Counted) -> None:
    await conn.executemany("SELECT length($1::text)", source.large_records(10_000))


SIZES: dict[Work, tuple[int, int]] = {copy_in: (len(CHUNK), LARGE), copy_records: (8000, 10_000), many: (8000, 10_000)}
writing = pytest.mark.parametrize("work", list(SIZES))


@on_both_transports
@writing
async def test_a_server_that_does_not_read_stops_the_source_until_it_does(
    server: PostgresServer, transport: Transport, work: Work
) -> None:
    size, count = SIZES[work]
    async with one_connection(server, transport) as (_, conn):
        pid = conn.get_server_pid()
        source = Counted(at_first=lambda: server.freeze_backend(pid))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, conn, source)
            taken = await source.stand_still()
            assert taken * size < UNREAD
            server.thaw_backend(pid)
        assert source.taken == count
        assert await conn.fetchval("SELECT 1") == 1
        assert conn.get_server_pid() == pid


@on_both_transports
@writing
async def test_a_caller_that_waits_for_a_server_that_does_not_read_is_cancelled_at_once(
    server: PostgresServer, transport: Transport, work: Work
) -> None:
    async with one_connection(server, transport) as (_, conn):
        pid = conn.get_server_pid()
        source = Counted(at_first=lambda: server.freeze_backend(pid))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, conn, source)
            taken = await source.stand_still()
            nursery.cancel_scope.cancel()
            cancelled = trio.current_time()
        assert trio.current_time() - cancelled < AT_ONCE
        server.thaw_backend(pid)
        assert source.taken == taken
    # `open_case` asserts that the pool comes to rest with one connection, and that none is left after it.


@on_both_transports
async def test_a_sink_that_waits_stops_the_server_until_it_goes_on(
    server: PostgresServer, transport: Transport
) -> None:
    received, go_on = 0, trio.Event()

    async def sink(data: bytes) -> None:
        nonlocal received
        received += len(data)
        await go_on.wait()

    async with one_connection(server, transport) as (_, conn):
        query = "SELECT repeat('x', 999) FROM generate_series(1, 100000)"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: conn.copy_from_query(query, output=sink))
            await until_it_waits_to_write(server, conn.get_server_pid())
            assert received < MEGABYTE
            go_on.set()
        assert received == 100 * MEGABYTE
        assert await conn.fetchval("SELECT 1") == 1


@on_both_transports
async def test_a_caller_in_a_sink_that_waits_is_cancelled_at_once_and_the_connection_is_used_again(
    server: PostgresServer, transport: Transport
) -> None:
    async with one_connection(server, transport) as (_, conn):
        pid = conn.get_server_pid()
        query = "SELECT repeat('x', 999) FROM generate_series(1, 100000)"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: conn.copy_from_query(query, output=_never))
            await until_it_waits_to_write(server, pid)
            nursery.cancel_scope.cancel()
            cancelled = trio.current_time()
        assert trio.current_time() - cancelled < AT_ONCE
        assert await conn.fetchval("SELECT pg_backend_pid()") == pid


async def _never(_data: bytes) -> None:
    await trio.sleep_forever()


async def until_it_waits_to_write(server: PostgresServer, pid: int) -> None:
    asked = f"select coalesce(wait_event, '') from pg_stat_activity where pid = {pid}"

    async def waits() -> bool:
        return await trio.to_thread.run_sync(server.value, asked) == "ClientWrite"

    await until(waits, "the server waits for its client to read")


@on_both_transports
@pytest.mark.parametrize("method", ["executemany", "fetchmany"])
async def test_both_sides_may_be_full_at_once(server: PostgresServer, transport: Transport, method: str) -> None:
    """Each statement is answered with as much as it says: whoever only wrote would wait for ever."""
    source, count = Counted(), 5_000
    async with one_connection(server, transport) as (_, conn):
        with trio.fail_after(30):
            if method == "executemany":
                await conn.executemany("SELECT noisy($1)", source.large_records(count))
            else:
                answers = await conn.fetchmany("SELECT $1::text", source.large_records(count))
                assert len(answers) == count
        assert source.taken == count


@on_both_transports
async def test_a_copy_in_whose_every_line_is_answered_with_a_notice_does_not_stand_still(
    server: PostgresServer, transport: Transport
) -> None:
    source, count = Counted(), 4_000
    server.sql("create trigger t before insert on streamed for each row execute function shout()")
    async with one_connection(server, transport) as (_, conn):
        with trio.fail_after(30):
            await conn.copy_records_to_table("streamed", records=source.large_records(count), columns=["text"])
        assert source.taken == count


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transport", "pause"),
    [
        ("native", None),
        ("native", 0.0),
        ("native", 3600.0),
        # asyncio's own transport goes on writing to a socket that is gone, for as long as it is given something.
        ("trio_asyncio", 3600.0),
    ],
)
async def test_an_endless_source_ends_with_its_connection(
    server: PostgresServer, transport: Transport, pause: float | None
) -> None:
    taken = 0

    async def endless() -> AsyncGenerator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield CHUNK
            if pause is not None:
                await trio.sleep(pause)

    async def kill() -> None:
        await until(lambda: taken > 0, "the source is asked")
        await trio.to_thread.run_sync(server.sql, f"select pg_terminate_backend({pid})")

    async with open_case(server, transport, pool_size=1) as case:
        with (
            pytest.RaisesGroup(ysactor.ConnectionLost, allow_unwrapped=True, flatten_subgroups=True),
            trio.fail_after(5),
        ):
            async with case.pool.acquire() as conn:
                pid = conn.get_server_pid()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(kill)
                    async with aclosing(endless()) as chunks:
                        await conn.copy_to_table("streamed", source=chunks, columns=["text"], where="false")


@on_both_transports
async def test_a_cursor_on_a_connection_that_has_just_been_lost_says_so(
    server: PostgresServer, transport: Transport
) -> None:
    async with open_case(server, transport, pool_size=1) as case:
        for _ in range(10):
            with pytest.raises(ysactor.ConnectionLost), trio.fail_after(5):
                async with case.pool.acquire() as conn, conn.transaction():
                    await conn.fetchval("SELECT 1")
                    pid = conn.get_server_pid()
                    await trio.to_thread.run_sync(server.sql, f"select pg_terminate_backend({pid})")
                    while True:  # at every turn that there is
                        conn.cursor("SELECT 1")
                        await trio.lowlevel.checkpoint()


async def test_a_source_that_never_waits_lets_the_other_tasks_run(server: PostgresServer) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async def small() -> AsyncGenerator[bytes]:
        for _ in range(10_000):
            yield b"x\n"

    async with one_connection(server, "native") as (_, conn), trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await conn.copy_to_table("streamed", source=small(), columns=["text"], where="false")
        assert turns >= 30
        nursery.cancel_scope.cancel()
