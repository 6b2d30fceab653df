"""What asyncpg's own tests are hardest on, on both transports: killed processes and broken messages.

Messages are broken at an exact byte by the proxy before the server, and delivered byte by byte.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
import trio
import trio.testing

import ysactor
from integration.scenario import Case, Transport, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import PostgresServer, SharedData

pytestmark = watched

KILLED = "terminating connection due to administrator command"


async def answers(case: Case) -> None:
    for n in range(3):
        assert await case.pool.fetchval("SELECT $1::int", n) == n


async def kill(server: PostgresServer, *pids: int) -> None:
    """Returns when they are gone."""
    asked = f"select pg_terminate_backend(pid, 5000) from unnest('{{{','.join(map(str, pids))}}}'::int[]) pid"
    await trio.to_thread.run_sync(server.sql, asked)


# --- killed processes ------------------------------------------------------------------------------------------------


@on_both_transports
async def test_processes_killed_at_random_moments_cost_a_call_or_nothing_and_never_give_a_wrong_answer(
    shared_data: SharedData, transport: Transport
) -> None:
    server, rng = shared_data.server, random.Random(9)
    outcomes: Counter[str] = Counter()
    async with open_case(server, transport, pool_size=3) as case:
        pool = case.pool
        done = trio.Event()

        one = (
            f"select pg_terminate_backend(pid) from pg_stat_activity where application_name = '{case.truth.name}'"
            " order by random() limit 1"
        )

        async def executioner() -> None:
            while not done.is_set():
                await trio.to_thread.run_sync(server.sql, one)
                await trio.sleep(rng.uniform(0, 0.004))

        async def caller(n: int) -> None:
            while min(outcomes["answered"], outcomes["lost"]) < 30:
                n += 1
                try:
                    assert await pool.fetchval("SELECT $1::int FROM pg_sleep($2)", n, rng.uniform(0, 0.004)) == n
                    outcomes["answered"] += 1
                except ysactor.ConnectionLost as loss:
                    assert loss.server == (server.host, server.port)
                    assert KILLED in str(loss)
                    outcomes["lost"] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(executioner)
            async with trio.open_nursery() as callers:
                for start in (0, 1_000_000, 2_000_000):
                    callers.start_soon(caller, start)
            done.set()


async def _in_a_query(conn: ysactor.Connection, die: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(die)
        await conn.execute("SELECT pg_sleep(30)")


async def _between_two_statements(conn: ysactor.Connection, die: Callable[[], Awaitable[None]]) -> None:
    async with conn.transaction():
        await conn.execute("INSERT INTO notes VALUES (1)")
        await die()
        await conn.execute("INSERT INTO notes VALUES (2)")


async def _as_it_idles_in_a_transaction(conn: ysactor.Connection, die: Callable[[], Awaitable[None]]) -> None:
    async with conn.transaction():
        await conn.execute("INSERT INTO notes VALUES (1)")
        await die()
        await trio.sleep_forever()


async def _as_it_idles(conn: ysactor.Connection, die: Callable[[], Awaitable[None]]) -> None:
    await die()
    await trio.sleep_forever()


async def _in_a_cursor(conn: ysactor.Connection, die: Callable[[], Awaitable[None]]) -> None:
    async with conn.transaction():
        async for row in conn.cursor("SELECT generate_series(1, 1000)", prefetch=10):
            if row[0] == 500:
                await die()


@on_both_transports
@pytest.mark.parametrize(
    "hold",
    [_in_a_query, _between_two_statements, _as_it_idles_in_a_transaction, _as_it_idles, _in_a_cursor],
    ids=lambda hold: hold.__name__,
)
async def test_a_lease_whose_process_is_killed_ends_with_the_servers_name_and_words(
    shared_data: SharedData, transport: Transport, hold: Callable[..., Awaitable[None]]
) -> None:
    server = shared_data.server
    server.sql("create table notes(id int)")
    async with open_case(server, transport, pool_size=2) as case:
        with pytest.RaisesGroup(ysactor.ConnectionLost, allow_unwrapped=True, flatten_subgroups=True) as caught:
            async with case.pool.acquire() as conn:
                pid = conn.get_server_pid()

                async def die() -> None:
                    if hold is _in_a_query:
                        await case.truth.until_active("pg_sleep")
                    await kill(server, pid)

                await hold(conn, die)
        error: Any = caught.value
        loss = error if isinstance(error, ysactor.ConnectionLost) else error.exceptions[0]
        assert loss.server == (server.host, server.port)
        assert str(loss) == f"the connection to {server.host}:{server.port} was lost: closed by the server: {KILLED}"
        await answers(case)
        assert server.value("select count(*) from notes") == "0"
        assert case.pool.statistics().connections_closed == {"lost": 1}


@on_both_transports
async def test_all_processes_killed_at_once_cost_each_holder_its_own_connection(
    shared_data: SharedData, transport: Transport
) -> None:
    server = shared_data.server
    lost: list[str] = []
    async with open_case(server, transport, pool_size=5) as case:

        async def holder(number: int) -> None:
            try:
                async with case.pool.acquire() as conn:
                    if number % 2:
                        await conn.execute("SELECT pg_sleep(30)")
                    await trio.sleep_forever()
            except ysactor.ConnectionLost as loss:
                lost.append(str(loss))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(holder, number)
            await case.truth.until_active("pg_sleep", 2)
            await until(lambda: case.pool.statistics().leased == 5, "all are leased")
            await kill(server, *[seen.pid for seen in await case.truth.sessions()])
        assert len(lost) == 5
        assert all(KILLED in text for text in lost)
        await answers(case)
        assert case.pool.statistics().connections_closed == {"lost": 5}


@on_both_transports
async def test_a_process_that_crashes_takes_all_others_with_it_and_the_pool_comes_back_with_the_server(
    shared_data: SharedData, transport: Transport
) -> None:
    """``kill -9``: the postmaster ends every session and recovers, and turns logins away meanwhile."""
    server = shared_data.server
    server.sql("create table notes(id int)")
    outcomes: list[str] = []
    async with open_case(server, transport, pool_size=3, rest=False, failed_host_reconnect_delay_secs=0) as case:

        async def holder() -> None:
            try:
                async with case.pool.acquire() as conn, conn.transaction():
                    await conn.execute("INSERT INTO notes VALUES (1)")
                    await conn.execute("SELECT pg_sleep(30)")
            except ysactor.ConnectionLost as loss:
                assert loss.server == (server.host, server.port)
                outcomes.append(loss.reason)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(holder)
            victim, *_ = await case.truth.until_active("pg_sleep", 3)
            server.kill_backend(victim.pid)
        assert len(outcomes) == 3
        assert all(reason.startswith("closed by the server") or "reset" in reason for reason in outcomes), outcomes

        async def back() -> bool:
            try:
                return bool(await case.pool.fetchval("SELECT count(*) FROM notes", timeout=5) == 0)
            except ysactor.Error:
                return False

        await until(back, "the pool answers again, and nothing of it was kept")
        server.wait_ready()


@on_both_transports
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("idle_in_transaction_session_timeout", "terminating connection due to idle-in-transaction timeout"),
        ("transaction_timeout", "terminating connection due to transaction timeout"),
        ("idle_session_timeout", "terminating connection due to idle-session timeout"),
    ],
)
async def test_a_session_that_the_server_ends_for_its_idleness_says_which(
    shared_data: SharedData, transport: Transport, setting: str, words: str
) -> None:
    server = shared_data.server
    if not server.sql(f"select 1 from pg_settings where name = '{setting}'"):
        pytest.skip(f"this server has no {setting}")
    async with open_case(server, transport, pool_size=1) as case:
        with pytest.raises(ysactor.ConnectionLost, match=words):
            async with case.pool.acquire() as conn:
                await conn.execute(f"SET {setting} = '30ms'")
                if setting != "idle_session_timeout":
                    await conn.execute("BEGIN")
                await trio.sleep_forever()
        await answers(case)


# --- broken messages -------------------------------------------------------------------------------------------------


@on_both_transports
async def test_answers_of_every_kind_that_come_byte_by_byte_are_the_same_answers(
    shared_data: SharedData, transport: Transport
) -> None:
    proxy = shared_data.proxies[0]
    proxy.piece = 1
    shared_data.server.sql("create table things(id int primary key, name text)")
    heard: list[str] = []
    async with open_case(shared_data, transport, pool_size=1) as case, case.pool.acquire() as conn:
        assert [tuple(row) for row in await conn.fetch("SELECT n, 'é' FROM generate_series(1, $1::int) n", 9)] == [
            (n, "é") for n in range(1, 10)
        ]
        with pytest.raises(asyncpg.DivisionByZeroError, match="division by zero"):
            await conn.execute("SELECT 1/0")
        with pytest.raises(asyncpg.UniqueViolationError) as caught:
            await conn.executemany("INSERT INTO things VALUES ($1, 'x')", [(1,), (2,), (1,)])
        assert caught.value.constraint_name == "things_pkey"
        assert await conn.copy_records_to_table("things", records=[(n, str(n)) for n in range(50)]) == "COPY 50"
        out = io.BytesIO()
        assert await conn.copy_from_query("SELECT id FROM things ORDER BY id", output=out) == "COPY 50"
        assert out.getvalue() == b"".join(b"%d\n" % n for n in range(50))
        async with conn.transaction():
            assert [row[0] async for row in conn.cursor("SELECT id FROM things ORDER BY id", prefetch=7)] == [
                *range(50)
            ]
        await conn.add_listener("news", lambda by, pid, channel, payload: heard.append(payload))
        await conn.execute("NOTIFY news, 'one'")
        shared_data.server.sql("notify news, 'two'")
        await until(lambda: heard == ["one", "two"], lambda: f"both are heard: {heard}")
        with pytest.raises(TimeoutError):
            await conn.execute("SELECT pg_sleep(10)", timeout=0.05)
        assert await conn.fetchval("SELECT 'own'") == "own"
        assert case.pool.statistics().connections_closed == {}


ANSWERS = {b"1": 5, b"t": 12, b"T": 20, b"2": 5, b"D": 12, b"C": 14, b"Z": 6}
"""The messages that answer a new statement, and a byte that every one of them has."""


@on_both_transports
@pytest.mark.parametrize("then", ["reset", "close"])
async def test_an_answer_that_is_cut_anywhere_is_a_lost_connection_and_never_a_result(
    shared_data: SharedData, transport: Transport, then: Any
) -> None:
    proxy = shared_data.proxies[0]
    losses = 0
    async with open_case(shared_data, transport, pool_size=1) as case:
        await case.pool.ready()
        for kind, size in ANSWERS.items():
            for at in {0, 1, 4, size - 1}:
                proxy.break_next("answer", kind, at=at, then=then)
                with pytest.raises(ysactor.ConnectionLost) as caught:
                    await case.pool.fetch("SELECT $1::int + 1", 41)
                assert caught.value.server == proxy.address
                losses += 1
                assert await case.pool.fetchval("SELECT $1::int", 7) == 7
        # Cut behind its last byte it is a result, and the loss is noticed after it.
        proxy.break_next("answer", b"Z", at=6, then=then)
        assert [row[0] for row in await case.pool.fetch("SELECT 'whole'")] == ["whole"]
        lost = {"lost": losses + 1}
        await until(lambda: case.pool.statistics().connections_closed == lost, "the loss is noticed")
        await answers(case)
        assert proxy.messages_broken == losses + 1


@on_both_transports
@pytest.mark.parametrize(
    ("kind", "begins"), [(b"C", b"COMMIT"), (b"Z", b"I")], ids=["CommandComplete", "ReadyForQuery"]
)
async def test_a_commit_whose_answer_is_cut_in_a_message_is_unknown_and_was_done(
    shared_data: SharedData, transport: Transport, kind: bytes, begins: bytes
) -> None:
    shared_data.server.sql("create table notes(id int)")
    proxy = shared_data.proxies[0]
    async with open_case(shared_data, transport, pool_size=1) as case:
        for n, at in enumerate([0, 1, 5] if kind == b"Z" else [0, 1, 4, 5, 8, 11], 1):
            with pytest.raises(ysactor.CommitOutcomeUnknown) as caught:
                async with case.pool.acquire() as conn, conn.transaction():
                    await conn.execute("INSERT INTO notes VALUES ($1)", n)
                    proxy.break_next("answer", kind, at=at, begins=begins)
            assert caught.value.server == proxy.address
            assert not isinstance(caught.value, ysactor.ConnectionLost)
            assert shared_data.server.value("select max(id) from notes") == str(n)
            await answers(case)


@on_both_transports
async def test_a_request_that_is_cut_anywhere_is_not_carried_out_and_the_caller_is_told(
    shared_data: SharedData, transport: Transport
) -> None:
    server, proxy = shared_data.server, shared_data.proxies[0]
    server.sql("create table notes(id int, b bytea)")
    value = bytes(1_000_000)

    async def insert(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT INTO notes VALUES ($1, $2)", 1, value)

    async def insert_many(conn: ysactor.Connection) -> None:
        await conn.executemany("INSERT INTO notes VALUES ($1, $2)", [(n, value[:1000]) for n in range(1000)])

    async def copy(conn: ysactor.Connection) -> None:
        await conn.copy_records_to_table("notes", records=[(n, value[:1000]) for n in range(2000)])

    async def simple(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT INTO notes VALUES (1), (2)")

    async with open_case(shared_data, transport, pool_size=1) as case:
        await case.pool.ready()
        for ask, kind, places in (
            (insert, b"P", (0, 3, 20)),
            (insert, b"B", (1, 5, 60, 500_000, 1_000_000)),
            (insert, b"E", (1, 7)),
            (insert_many, b"B", (5, 600)),
            (copy, b"d", (1, 5, 300_000)),
            (copy, b"c", (2,)),
            (simple, b"Q", (1, 10)),
        ):
            for at in places:
                proxy.break_next("request", kind, at=at)
                with pytest.raises(ysactor.ConnectionLost) as caught:
                    async with case.pool.acquire() as conn:
                        await ask(conn)
                assert caught.value.server == proxy.address
                await answers(case)
                assert server.value("select count(*) from notes") == "0"
        for at in (0, 1, 6, 11):
            with pytest.raises(ysactor.CommitOutcomeUnknown):
                async with case.pool.acquire() as conn, conn.transaction():
                    await conn.execute("INSERT INTO notes VALUES (1)")
                    proxy.break_next("request", b"Q", at=at, begins=b"COMMIT")
            await answers(case)
            assert server.value("select count(*) from notes") == "0"


@on_both_transports
async def test_a_caller_cancelled_as_a_message_stalls_in_its_middle_is_free_and_the_rest_is_nobody_elses(
    shared_data: SharedData, transport: Transport
) -> None:
    proxy = shared_data.proxies[0]
    async with open_case(shared_data, transport, pool_size=1, cancel_timeout=5) as case:
        pid = await case.pool.fetchval("SELECT pg_backend_pid()")
        for kind, size in ANSWERS.items():
            for at in {1, size - 1}:
                broken = proxy.messages_broken
                proxy.break_next("answer", kind, at=at, then="hold")
                asked = f"SELECT $1::int + {at} + {kind[0]}"
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(case.pool.fetch, asked, 1)
                    await until(lambda broken=broken: proxy.messages_broken > broken, "half of it has come")
                    nursery.cancel_scope.cancel()
                async with trio.open_nursery() as nursery:
                    # In line: it gets the connection in the moment in which that may be used again.
                    nursery.start_soon(answers, case)
                    await until(lambda: case.pool.statistics().settling == 1, "what was left is being settled")
                    proxy.resume()
                assert await case.pool.fetchval(asked, 1) == 1 + at + kind[0]
        assert await case.pool.fetchval("SELECT pg_backend_pid()") == pid
        assert case.pool.statistics().connections_closed == {}


@on_both_transports
async def test_a_caller_cancelled_as_a_message_stalls_for_ever_is_free_at_once_and_its_connection_replaced(
    shared_data: SharedData, transport: Transport
) -> None:
    proxy = shared_data.proxies[0]
    async with open_case(shared_data, transport, pool_size=1, cancel_timeout=0.1) as case:
        await case.pool.ready()
        proxy.break_next("answer", b"D", at=100_000, then="hold")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(case.pool.fetchval, "SELECT repeat('x', 10000000)")
            await until(lambda: proxy.messages_broken == 1, "half of it has come")
            started = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - started < 0.1
        await answers(case)
        assert case.pool.statistics().connections_closed == {"unsettled": 1}


@on_both_transports
async def test_a_backend_that_is_killed_amid_rows_and_notices_is_a_lost_connection(
    shared_data: SharedData, transport: Transport
) -> None:
    """What was read before and is still to be passed on must not keep the end from being seen."""
    server = shared_data.server
    server.sql(
        "create function loud(n int) returns int language plpgsql as $$ begin raise notice '%', n; return n; end $$"
    )
    async with open_case(server, transport, pool_size=1) as case:
        for pieces in (1, 40):
            came: list[bytes] = []
            with pytest.raises(ysactor.ConnectionLost):
                async with case.pool.acquire() as conn:

                    async def sink(
                        data: bytes, came: list[bytes] = came, pieces: int = pieces, pid: int = conn.get_server_pid()
                    ) -> None:
                        came.append(data)
                        if len(came) == pieces:
                            await kill(server, pid)

                    await conn.copy_from_query("SELECT loud(n) FROM generate_series(1, 10000000) n", output=sink)
            assert await case.pool.fetchval("SELECT 1") == 1


@on_both_transports
async def test_a_backend_that_is_killed_between_the_statements_of_one_call_is_a_lost_connection(
    shared_data: SharedData, transport: Transport
) -> None:
    """`copy_records_to_table` asks for the columns first; asyncpg then loses track, and says so in words of its own."""
    server = shared_data.server
    server.sql("create table records(n int)")
    rng = random.Random(7)
    lost = 0
    async with open_case(server, transport, pool_size=1) as case:
        for _ in range(60):
            try:
                async with case.pool.acquire() as conn, trio.open_nursery() as nursery:
                    kill = f"select pg_terminate_backend({conn.get_server_pid()})"
                    nursery.start_soon(trio.to_thread.run_sync, server.sql, kill)
                    await trio.sleep(rng.uniform(0, 0.006))
                    for _ in range(3):
                        await conn.copy_records_to_table("records", records=[(1,), (2,)])
            except* ysactor.ConnectionLost:
                lost += 1
            with suppress(ysactor.ConnectionLost):  # killed as it came back
                assert await case.pool.fetchval("SELECT 1") == 1
        assert lost
        assert set(case.pool.statistics().connections_closed) <= {"lost"}
