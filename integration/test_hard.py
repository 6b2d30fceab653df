"""What asyncpg's own tests are hardest on, on both transports: cancellations in everything, 20 MB values.

Each test ends with the same question: does the connection give its own answers afterwards, and is nothing left on the
server? `open_case` asks the second one at its end.
"""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Transport, on_both_transports, open_case, until, watched
from ysactor.testing.breaking import Side
from ysactor.testing.postgres import SharedData
from ysactor.testing.proxy import FaultProxy

pytestmark = watched

BIG = 20_000_000


async def gives_its_own_answers(conn: ysactor.Connection) -> None:
    for n in random.sample(range(10**6), 3):
        assert await conn.fetchval("SELECT $1::int", n) == n


# --- giving up -------------------------------------------------------------------------------------------------------

Ask = Callable[[ysactor.Connection, int, float, float | None], Awaitable[object]]


async def _known(conn: ysactor.Connection, n: int, pause: float, limit: float | None) -> object:
    return await conn.fetchval("SELECT $1::int FROM pg_sleep($2)", n, pause, timeout=limit)


async def _new(conn: ysactor.Connection, n: int, pause: float, limit: float | None) -> object:
    return await conn.fetchval(f"SELECT {n} FROM pg_sleep({pause})", timeout=limit)


async def _simple(conn: ysactor.Connection, n: int, pause: float, limit: float | None) -> object:
    asked = f"SELECT pg_sleep({pause}); SELECT FROM generate_series(1, {n})"
    return int((await conn.execute(asked, timeout=limit)).removeprefix("SELECT "))


async def _many(conn: ysactor.Connection, n: int, pause: float, limit: float | None) -> object:
    asked = "SELECT $1::int FROM pg_sleep($2)"
    (first,), (last,) = await conn.fetchmany(asked, [(n, pause), (n, 0.0)], timeout=limit)
    assert first == last
    return first


async def _by_cursor(conn: ysactor.Connection, n: int, pause: float, limit: float | None) -> object:
    async with conn.transaction():
        asked = "SELECT $1::int FROM generate_series(1, 30), pg_sleep($2)"
        found = {row[0] async for row in conn.cursor(asked, n, pause, prefetch=7, timeout=limit)}
    assert len(found) == 1
    return found.pop()


@on_both_transports
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_two_hundred_calls_given_up_at_random_moments_give_nobody_anothers_result(
    shared_data: SharedData, transport: Transport, how: str
) -> None:
    rng = random.Random(200)
    asks: list[Ask] = [_known, _new, _simple, _many, _by_cursor]
    ended = left = 0
    usual = 0.0025  # Follows the machine, so that about half of them are given up.
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        pid = conn.get_server_pid()
        for n, ask in zip(range(1, 201), itertools.cycle(asks), strict=False):
            limit = rng.uniform(0, 2 * usual)
            result = None
            with trio.move_on_after(limit if how == "cancelled" else 10) as scope:
                try:
                    result = await ask(conn, n, rng.uniform(0, 0.002), None if how == "cancelled" else limit)
                except TimeoutError:
                    assert how == "timed out"
            if result is None:
                assert scope.cancelled_caught == (how == "cancelled")
                left += 1
                usual *= 1.1
            else:
                assert result == n
                ended += 1
                usual /= 1.1
            assert await conn.fetchval("SELECT $1::int", -n) == -n
            assert not conn.is_in_transaction()
        assert min(ended, left) >= 20
        assert conn.get_server_pid() == pid
        assert case.pool.statistics().connections_closed == {}


@on_both_transports
async def test_an_answer_that_lies_unread_as_its_caller_is_cancelled_is_nobody_elses(
    shared_data: SharedData, transport: Transport
) -> None:
    """The cancel request then meets an idle server, or the next statement if it were not waited for."""
    server = shared_data.server
    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        pid = conn.get_server_pid()
        state = f"select state || query from pg_stat_activity where pid = {pid}"
        for n in range(25):
            asked = f"SELECT {n}"
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def cancel_when_answered(asked: str = asked, scope: trio.CancelScope = scope) -> None:
                        await trio.lowlevel.checkpoint()
                        # The answer is in the socket then, and nobody has had a turn to read it.
                        while server.value(state) != f"idle{asked}":
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel_when_answered)
                    assert await conn.fetchval(asked) == n
            assert await conn.fetchval("SELECT -$1::int", n) == -n
        assert conn.get_server_pid() == pid


async def _prepare(conn: ysactor.Connection) -> None:
    await conn.prepare("SELECT name FROM things")


async def _executemany(conn: ysactor.Connection) -> None:
    await conn.executemany("INSERT INTO things(id) VALUES ($1)", [(n,) for n in range(1000)])


async def _fetch_of_a_cursor(conn: ysactor.Connection) -> None:
    async with conn.transaction():
        # Parsed by now: it is its fetch that meets the lock.
        cursor = await conn.cursor("SELECT locked(g) FROM generate_series(1, 10) g")
        await cursor.fetch(5)


async def _copy_in(conn: ysactor.Connection) -> None:
    await conn.copy_to_table("things", source=io.BytesIO(b"1\tone\n" * 100_000))


async def _copy_out(conn: ysactor.Connection) -> None:
    await conn.copy_from_table("things", output=io.BytesIO())


async def _commit_by_hand(conn: ysactor.Connection) -> None:
    await conn.execute("BEGIN")
    await conn.execute("INSERT INTO deferred VALUES (1)")
    await conn.execute("COMMIT")


@on_both_transports
@pytest.mark.parametrize(
    "ask",
    [_prepare, _executemany, _fetch_of_a_cursor, _copy_in, _copy_out, _commit_by_hand],
    ids=lambda ask: ask.__name__,
)
async def test_a_call_of_any_kind_that_waits_for_a_lock_lets_go_of_it_when_cancelled(
    shared_data: SharedData, transport: Transport, ask: Callable[[ysactor.Connection], Awaitable[None]]
) -> None:
    server = shared_data.server
    server.sql(
        "create table things(id int, name text)",
        "create table deferred(id int)",
        "create function locked(n int) returns int language plpgsql as"
        " $$ begin if n > 3 then perform pg_advisory_xact_lock(7); end if; return n; end $$",
        "create function later() returns trigger language plpgsql as $$ begin perform locked(9); return null; end $$",
        "create constraint trigger later after insert on deferred initially deferred for each row"
        " execute function later()",
    )

    async def waiting() -> bool:
        return server.value("select count(*) from pg_locks where not granted") == "1"

    async with open_case(server, transport, pool_size=2) as case, case.pool.acquire() as conn:
        pid = conn.get_server_pid()
        async with case.pool.acquire() as other, other.transaction():
            await other.execute("LOCK TABLE things")
            await other.execute("SELECT pg_advisory_xact_lock(7)")
            for _ in range(2):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask, conn)
                    await until(waiting, "it waits for the lock")
                    nursery.cancel_scope.cancel()
                await gives_its_own_answers(conn)
                assert server.value("select count(*) from pg_locks where not granted") == "0"
                await conn.execute("ROLLBACK")
                assert server.value(f"select state from pg_stat_activity where pid = {pid}") == "idle"
        assert conn.get_server_pid() == pid
        await ask(conn)
        assert server.value("select count(*) from things where name is null") in {"0", "1000"}


MOMENTS: list[tuple[Side, bytes, int]] = [
    ("request", b"B", 0),
    ("request", b"B", 7),
    ("answer", b"2", 0),
    ("answer", b"C", 3),
    ("answer", b"Z", 1),
]
"""Where LISTEN and UNLISTEN are stopped on their way, by message and byte."""


async def _cancel_at(proxy: FaultProxy, moment: tuple[Side, bytes, int], call: Callable[[], Awaitable[None]]) -> None:
    side, kind, at = moment
    before = proxy.messages_broken
    proxy.break_next(side, kind, at=at, then="hold")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await until(lambda: proxy.messages_broken > before, "it is on its way")
        nursery.cancel_scope.cancel()
    proxy.resume()


@on_both_transports
async def test_a_listen_that_is_cancelled_at_any_moment_can_be_asked_for_again(
    shared_data: SharedData, transport: Transport
) -> None:
    heard: list[str] = []
    async with open_case(shared_data, transport, pool_size=1) as case, case.pool.acquire() as conn:

        def hear(by: ysactor.Connection, pid: int, channel: str, payload: str) -> None:
            heard.append(payload)

        for n, moment in enumerate(MOMENTS):
            await _cancel_at(shared_data.proxies[0], moment, lambda: conn.add_listener("news", hear))
            await conn.add_listener("news", hear)
            shared_data.server.sql(f"notify news, '{n}'")
            expected = [str(number) for number in range(n + 1)]
            await until(lambda expected=expected: heard == expected, lambda: f"each is heard once: {heard}", limit=2)
            await conn.remove_listener("news", hear)
        assert case.pool.statistics().connections_closed == {}


@on_both_transports
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
async def test_a_listener_whose_removal_was_cancelled_can_be_added_again(
    shared_data: SharedData, transport: Transport, moment: tuple[Side, bytes, int]
) -> None:
    heard: list[str] = []
    async with open_case(shared_data, transport, pool_size=1) as case, case.pool.acquire() as conn:

        def hear(by: ysactor.Connection, pid: int, channel: str, payload: str) -> None:
            heard.append(payload)

        await conn.add_listener("news", hear)
        await _cancel_at(shared_data.proxies[0], moment, lambda: conn.remove_listener("news", hear))
        await conn.add_listener("news", hear)
        shared_data.server.sql("notify news, 'once'")
        await until(lambda: heard == ["once"], lambda: f"it is heard once: {heard}", limit=0.5)


# --- big ones --------------------------------------------------------------------------------------------------------


@on_both_transports
async def test_values_of_twenty_megabytes_travel_in_every_way_there_is(
    shared_data: SharedData, transport: Transport
) -> None:
    shared_data.server.sql("create table big(id int, t text, b bytea)")
    binary = random.Random(3).randbytes(1000) * (BIG // 1000)
    text = "é" * (BIG // 2)
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        assert await conn.fetchval("SELECT $1::bytea", binary) == binary
        assert await conn.fetchval("SELECT $1::text", text) == text
        await conn.executemany("INSERT INTO big VALUES ($1, $2, $3)", [(1, "x", binary), (2, text, b""), (3, "", b"y")])
        found = await conn.fetch("SELECT id, length(t), length(b) FROM big ORDER BY id")
        assert [tuple(row) for row in found] == [(1, 1, BIG), (2, BIG // 2, 0), (3, 0, 1)]

        chunks: list[int] = []

        async def sink(data: bytes) -> None:
            await trio.lowlevel.checkpoint()
            chunks.append(len(data))

        assert await conn.copy_from_query("SELECT t FROM big WHERE id = 2", output=sink) == "COPY 1"
        assert sum(chunks) == BIG + 1

        async def one_chunk() -> AsyncGenerator[bytes]:
            yield b"4\t" + text.encode() + b"\t\\\\x00\n"

        assert await conn.copy_to_table("big", source=one_chunk()) == "COPY 1"
        assert await conn.copy_records_to_table("big", records=[(5, None, binary)]) == "COPY 1"
        assert await conn.fetchval("SELECT b FROM big WHERE id = 5") == binary
        assert await conn.fetchval("SELECT sum(length(t)) FROM big WHERE id = 4") == BIG // 2


@on_both_transports
async def test_a_call_is_given_up_in_the_middle_of_twenty_megabytes_in_either_direction(
    shared_data: SharedData, transport: Transport
) -> None:
    """The rest of a statement that is half sent has to be sent, and the rest of an answer to be read, first."""
    rng = random.Random(20)
    value = bytes(BIG)
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        pid = conn.get_server_pid()
        left = 0
        for asked, args in [
            ("SELECT length($1::bytea)", [value]),
            ("SELECT repeat('x', $1)", [BIG]),
            ("SELECT n, repeat('x', 1000) FROM generate_series(1, $1::int) n", [20_000]),
        ] * 4:
            with trio.move_on_after(rng.uniform(0.001, 0.02)) as scope:
                await conn.fetch(asked, *args)
            left += scope.cancelled_caught
            await gives_its_own_answers(conn)
        assert left >= 6
        assert conn.get_server_pid() == pid


@on_both_transports
async def test_statements_of_every_length_and_number_of_arguments_and_rows(
    shared_data: SharedData, transport: Transport
) -> None:
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        for empty in ("", " ", ";", "-- nothing"):
            assert await conn.fetch(empty) == []
            assert await conn.fetchval(empty) is None
            await gives_its_own_answers(conn)
        for count in (1000, 32_767):
            asked = "SELECT " + " + ".join(f"${n}::int" for n in range(1, count + 1))
            if count == 1000:
                assert await conn.fetchval(asked, *range(count)) == sum(range(count))
            else:
                array = f"SELECT sum(x) FROM unnest(ARRAY[{', '.join(f'${n}::int' for n in range(1, count + 1))}]) x"
                assert await conn.fetchval(array, *range(count)) == sum(range(count))
        with pytest.raises(asyncpg.InterfaceError, match="32767"):
            await conn.fetch("SELECT 1", *range(40_000))
        assert await conn.fetchval(f"SELECT length('{'x' * 5_000_000}') -- {'y' * 1_000_000}") == 5_000_000
        rows = await conn.fetch("SELECT n, -n FROM generate_series(1, 100000) n")
        assert len(rows) == 100_000
        assert all(row[0] == n == -row[1] for n, row in enumerate(rows, 1))
        assert len(await conn.fetchrow("SELECT " + ", ".join(map(str, range(1600))))) == 1600
