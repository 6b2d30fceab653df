"""What a transaction tells: done, not done, or not known (field cases C23 to C31)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Transport, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import SharedData

pytestmark = watched


def rows(bed: SharedData, where: str = "true") -> int:
    return int(bed.server.value(f"select count(*) from notes where {where}") or 0)


@pytest.fixture
def notes(shared_data: SharedData) -> SharedData:
    """A bed with a table, and a function that raises a code for its first n calls."""
    shared_data.server.sql(
        "create table notes(id serial primary key, n int unique deferrable initially immediate)",
        "create sequence calls",
        """create function fail_first(n int, code text) returns int language plpgsql as $$ begin
             if nextval('calls') <= n then raise exception 'not yet' using errcode = code; end if;
             return n; end $$""",
    )
    return shared_data


# --- C23 -------------------------------------------------------------------------------------------------------------


@on_both_transports
async def test_a_function_that_swallows_a_statements_error_is_told_that_nothing_was_committed(
    notes: SharedData, transport: Transport
) -> None:
    """C23: insert, an error that is caught, 'ok': the server turns COMMIT into ROLLBACK."""

    async def fn(conn: ysactor.Connection) -> str:
        await conn.execute("INSERT INTO notes(n) VALUES (1)")
        with pytest.raises(asyncpg.DivisionByZeroError):
            await conn.fetch("SELECT 1/0")
        return "ok"

    async with open_case(notes, transport, pool_size=1) as case:
        with pytest.raises(ysactor.TransactionAborted) as caught:
            await case.pool.transaction(fn)
        assert isinstance(caught.value.__cause__, asyncpg.DivisionByZeroError)
        with pytest.raises(ysactor.TransactionAborted):
            async with case.pool.acquire() as conn, conn.transaction():
                await fn(conn)
        assert rows(notes) == 0
        s = case.pool.statistics()
        assert (s.transactions_committed, s.transactions_retried, s.commits_unknown) == (0, 0, 0)
        # The connection is none the worse for it.
        assert s.connections_closed == {}


@on_both_transports
async def test_an_error_that_is_caught_around_a_savepoint_leaves_the_transaction_whole(
    notes: SharedData, transport: Transport
) -> None:
    """C23, as it should be done."""

    async def fn(conn: ysactor.Connection) -> str:
        await conn.execute("INSERT INTO notes(n) VALUES (1)")
        with pytest.raises(asyncpg.DivisionByZeroError):
            async with conn.transaction():
                await conn.execute("INSERT INTO notes(n) VALUES (2)")
                await conn.fetch("SELECT 1/0")
        return "ok"

    async with open_case(notes, transport, pool_size=1) as case:
        assert await case.pool.transaction(fn) == "ok"
        assert notes.server.sql("select n from notes") == [("1",)]


# --- C25 -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_commit(notes: SharedData) -> SharedData:
    """COMMIT takes as many seconds as `n` is hundredths of one."""
    notes.server.sql(
        """create function slow() returns trigger language plpgsql as $$ begin
             perform pg_sleep(new.n / 100.0); return null; end $$""",
        """create constraint trigger slow after insert on notes deferrable initially deferred
             for each row execute function slow()""",
    )
    return notes


async def _insert(conn: ysactor.Connection, n: int) -> int:
    await conn.execute("INSERT INTO notes(n) VALUES ($1)", n)
    return n


@on_both_transports
async def test_a_cancellation_in_commit_is_put_off_until_its_answer_is_there(
    slow_commit: SharedData, transport: Transport
) -> None:
    """C25 (a): COMMIT takes 0.3 s, and the caller is cancelled after 0.1 s. It is committed, and counted as such."""
    async with open_case(slow_commit, transport, pool_size=1) as case:
        with trio.move_on_after(0.1) as scope:
            assert await case.pool.transaction(_insert, 30) == 30
            assert scope.cancel_called
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert rows(slow_commit) == 1
        s = case.pool.statistics()
        assert (s.transactions_committed, s.commits_unknown) == (1, 0)
        assert s.connections_closed == {}


@on_both_transports
async def test_a_cancellation_just_about_commit_is_before_it_or_after_it(
    slow_commit: SharedData, transport: Transport
) -> None:
    """C25, 200 rounds at random times: what the pool counts as committed is there, and all the rest is not."""
    rng = random.Random(25)
    returned: list[int] = []
    usual = 0.0
    async with open_case(slow_commit, transport, pool_size=4) as case:

        async def client(first: int) -> None:
            for number in range(first, first + 50):
                with trio.move_on_after(rng.uniform(0, 2 * usual)):
                    returned.append(await case.pool.transaction(_note, number))

        async def _note(conn: ysactor.Connection, number: int) -> int:
            await conn.execute("INSERT INTO notes(id, n) VALUES ($1, $2)", number, -number)
            return number

        await case.pool.ready(4)
        started = trio.current_time()
        returned += [await case.pool.transaction(_note, number) for number in range(10)]
        # Four clients on a machine that one client keeps busy.
        usual = 4 * (trio.current_time() - started) / 10
        async with trio.open_nursery() as nursery:
            for index in range(4):
                nursery.start_soon(client, 1000 * (index + 1))
        await case.at_rest()
        there = {int(value or 0) for (value,) in slow_commit.server.sql("select id from notes")}
        assert set(returned) <= there
        assert len(there) == case.pool.statistics().transactions_committed
        assert 10 + 5 < len(there) < 10 + 195, "some were in time and some were not"


@on_both_transports
async def test_a_commit_that_gets_no_answer_within_its_grace_is_reported_as_unknown(
    slow_commit: SharedData, transport: Transport
) -> None:
    """C25 (b): the backend is stopped before COMMIT; the caller gives up; later the backend goes on, and commits."""
    server = slow_commit.server
    async with open_case(slow_commit, transport, pool_size=1, cancel_timeout=0.2) as case:
        pid = await case.pool.fetchval("SELECT pg_backend_pid()")

        async def fn(conn: ysactor.Connection) -> None:
            await _insert(conn, 0)
            server.freeze_backend(pid)

        started = trio.current_time()
        try:
            with pytest.raises(ysactor.CommitOutcomeUnknown) as caught, trio.move_on_after(0.1):
                await case.pool.transaction(fn)
            assert 2.0 <= trio.current_time() - started < 3.5
            assert isinstance(caught.value.__cause__, ysactor.ConnectionLost)
            assert case.pool.statistics().commits_unknown == 1
            # A fresh connection is there although the old session still is.
            assert await case.pool.fetchval("SELECT 'next'") == "next"
        finally:
            server.thaw_backend(pid)
        await until(lambda: rows(slow_commit) == 1, "the commit that nobody heard of is there")


@on_both_transports
async def test_a_commit_past_socket_timeout_is_unknown_and_never_done(
    slow_commit: SharedData, transport: Transport
) -> None:
    """C25, by the pool's own limit: the answer comes too late, and is not believed to be anything."""
    async with open_case(slow_commit, transport, pool_size=1, socket_timeout=0.2) as case:
        with pytest.raises(ysactor.CommitOutcomeUnknown):
            await case.pool.transaction(_insert, 40)
        await case.at_rest()
        assert rows(slow_commit) in (0, 1)
        assert case.pool.statistics().connections_closed == {"socket_timeout": 1}
        assert case.pool.statistics().transactions_retried == 0


# --- C27 -------------------------------------------------------------------------------------------------------------


@on_both_transports
async def test_a_deferred_constraint_that_commit_meets_is_raised_as_it_is(
    notes: SharedData, transport: Transport
) -> None:
    """C27: 23503 and 23505 at COMMIT: rolled back for certain, not run again, not unknown; connection reused."""
    notes.server.sql(
        "create table owners(id int primary key)",
        "create table owned(owner int references owners deferrable initially deferred)",
    )
    runs = 0

    async def orphan(conn: ysactor.Connection) -> None:
        nonlocal runs
        runs += 1
        await conn.execute("INSERT INTO owned VALUES (1)")

    async def twice(conn: ysactor.Connection) -> None:
        nonlocal runs
        runs += 1
        await conn.execute("SET CONSTRAINTS ALL DEFERRED")
        await conn.execute("INSERT INTO notes(n) VALUES (1), (1)")

    async with open_case(notes, transport, pool_size=1) as case:
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await case.pool.transaction(orphan)
        with pytest.raises(asyncpg.UniqueViolationError):
            await case.pool.transaction(twice)
        assert runs == 2
        assert rows(notes) == 0
        s = case.pool.statistics()
        assert (s.transactions_committed, s.transactions_rolled_back, s.commits_unknown) == (0, 2, 0)
        assert s.connections_closed == {}


@on_both_transports
async def test_a_serialization_failure_at_commit_runs_the_whole_again(notes: SharedData, transport: Transport) -> None:
    """C27: two that each read what the other writes, at SERIALIZABLE; the second to commit runs again."""
    notes.server.sql(
        "create table doctors(name text, on_call bool)", "insert into doctors values ('a', true), ('b', true)"
    )
    runs = {"a": 0, "b": 0}
    ready = {"a": trio.Event(), "b": trio.Event()}
    refusals: list[str] = []

    async def leave(conn: ysactor.Connection, name: str, other: str) -> bool:
        runs[name] += 1
        on_call = await conn.fetchval("SELECT count(*) FROM doctors WHERE on_call")
        ready[name].set()
        await ready[other].wait()
        if on_call < 2:
            return False
        await conn.execute("UPDATE doctors SET on_call = false WHERE name = $1", name)
        return True

    left: dict[str, bool] = {}

    async def client(pool: ysactor.Pool, name: str, other: str) -> None:
        left[name] = await pool.transaction(leave, name, other, isolation="serializable")

    async with open_case(notes, transport, pool_size=2) as case, trio.open_nursery() as nursery:
        nursery.start_soon(client, case.pool, "a", "b")
        nursery.start_soon(client, case.pool, "b", "a")
    assert not refusals
    assert sorted(runs.values()) == [1, 2]
    assert sorted(left.values()) == [False, True]
    assert notes.server.value("select count(*) from doctors where on_call") == "1"


@on_both_transports
async def test_a_refusal_by_commit_itself_runs_the_function_again(notes: SharedData, transport: Transport) -> None:
    """C27: 40001 that nothing but COMMIT raises, from a deferred trigger."""
    notes.server.sql(
        """create function refuse() returns trigger language plpgsql as $$ begin
             perform fail_first(2, '40001'); return null; end $$""",
        """create constraint trigger refuse after insert on notes deferrable initially deferred
             for each row execute function refuse()""",
    )
    async with open_case(notes, transport, pool_size=1) as case:
        assert await case.pool.transaction(_insert, 1) == 1
        assert rows(notes) == 1
        s = case.pool.statistics()
        assert (s.transactions_committed, s.transactions_retried) == (1, 2)


# --- C29 -------------------------------------------------------------------------------------------------------------


@on_both_transports
@pytest.mark.parametrize("use", ["block", "by hand", "statement", "function"])
async def test_a_backend_that_dies_between_two_statements_is_always_reported_as_a_lost_connection(
    notes: SharedData, transport: Transport, use: str
) -> None:
    """C29: 50 rounds with 0 to 2 ms between the kill and the next statement; asyncpg has many names for it."""
    rng = random.Random(29)
    runs = 0

    async with open_case(notes, transport, pool_size=2) as case:
        pool = case.pool

        async def kill(conn: ysactor.Connection) -> None:
            notes.server.sql(f"select pg_terminate_backend({conn.get_server_pid()})")
            pause = rng.choice([0, 0, 0.0005, 0.001, 0.002])
            if pause:
                await trio.sleep(pause)

        async def in_block() -> None:
            async with pool.acquire() as conn, conn.transaction():
                await conn.execute("INSERT INTO notes(n) VALUES (1)")
                await kill(conn)
                await conn.execute("INSERT INTO notes(n) VALUES (2)")

        async def by_hand() -> None:
            conn = await pool.checkout()
            try:
                await conn.execute("BEGIN")
                await kill(conn)
                await conn.execute("INSERT INTO notes(n) VALUES (2)")
            finally:
                pool.checkin(conn)

        async def statement() -> None:
            async with pool.acquire() as conn:
                await kill(conn)
                await conn.fetchrow("SELECT $1::text", "x")

        async def function() -> None:
            async def fn(conn: ysactor.Connection) -> None:
                nonlocal runs
                runs += 1
                await conn.execute("INSERT INTO notes(n) VALUES (1)")
                if runs % 2:
                    await kill(conn)
                    await conn.execute("INSERT INTO notes(n) VALUES (2)")
                raise ysactor.Rollback

            await pool.transaction(fn, max_backoff=0.001)

        once: Callable[[], Awaitable[None]] = {
            "block": in_block,
            "by hand": by_hand,
            "statement": statement,
            "function": function,
        }[use]
        for _ in range(50):
            if use == "function":
                await once()
            else:
                with pytest.raises(ysactor.ConnectionLost) as caught:
                    await once()
                assert ysactor.classify(caught.value) == "connection_lost"
            assert await pool.fetchval("SELECT 'unaffected'") == "unaffected"
        assert rows(notes) == 0
        await case.at_rest()
        s = pool.statistics()
        assert s.connections_closed == {"lost": 50}
        if use == "function":
            assert runs == 100
            assert s.transactions_retried == 50


# --- C31 -------------------------------------------------------------------------------------------------------------


@on_both_transports
@pytest.mark.parametrize("failures", range(6))
@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_conflicts_run_the_function_again_up_to_three_times(
    notes: SharedData, transport: Transport, failures: int, code: str
) -> None:
    """C31: the server raises for the first n calls, whatever the transaction they are in."""
    runs = 0

    async def fn(conn: ysactor.Connection) -> int:
        nonlocal runs
        runs += 1
        await conn.execute("INSERT INTO notes(n) VALUES (1)")
        await conn.fetchval("SELECT fail_first($1, $2)", failures, code)
        return runs

    async with open_case(notes, transport, pool_size=1) as case:
        if failures < 3:
            assert await case.pool.transaction(fn, attempts=3, max_backoff=0.01) == failures + 1
        else:
            with pytest.raises(asyncpg.PostgresError) as caught:
                await case.pool.transaction(fn, attempts=3, max_backoff=0.01)
            assert caught.value.sqlstate == code
        assert runs == min(failures + 1, 3)
        assert rows(notes) == (1 if failures < 3 else 0)
        s = case.pool.statistics()
        assert s.transactions_retried == runs - 1
        assert s.connections_closed == {}


async def test_a_cancellation_in_the_pause_is_immediate(notes: SharedData) -> None:
    """C31: between two runs nothing is held, and the caller is free at once."""

    async def fn(conn: ysactor.Connection) -> None:
        await conn.fetchval("SELECT fail_first(1000, '40001')")

    async with open_case(notes, pool_size=1) as case:
        with trio.move_on_after(0.5) as scope:
            await case.pool.transaction(fn, attempts=1000, max_backoff=60)
        assert scope.cancelled_caught
        assert case.pool.statistics().leased == 0


async def test_a_retry_that_gets_no_connection_raises_what_made_it_one(notes: SharedData) -> None:
    """C31: the only connection is somebody else's when the function would be run again."""
    async with open_case(notes, pool_size=1) as case, trio.open_nursery() as nursery:
        pool = case.pool
        release = trio.Event()

        async def hog() -> None:
            async with pool.acquire():
                await release.wait()

        async def fn(conn: ysactor.Connection) -> None:
            nursery.start_soon(hog)
            await until(lambda: pool.statistics().waiting == 1, "the other is in line")
            await conn.fetchval("SELECT fail_first(1000, '40001')")

        with pytest.raises(asyncpg.SerializationError, match="not yet"):
            await pool.transaction(fn, checkout_timeout=0.1, max_backoff=0)
        release.set()
        await until(lambda: pool.statistics().leased == 0, "the other is done")


@on_both_transports
async def test_a_real_deadlock_is_resolved_by_running_one_of_the_two_again(
    notes: SharedData, transport: Transport
) -> None:
    """C31: 40P01 by two transactions that take the same rows in opposite orders."""
    notes.server.sql(
        "insert into notes(n) values (1), (2)", "alter system set deadlock_timeout = '50ms'", "select pg_reload_conf()"
    )
    met = {1: trio.Event(), 2: trio.Event()}

    async def fn(conn: ysactor.Connection, first: int, second: int) -> None:
        await conn.execute("UPDATE notes SET n = n + 10 WHERE id = $1", first)
        met[first].set()
        await met[second].wait()
        await conn.execute("UPDATE notes SET n = n + 10 WHERE id = $1", second)

    async with open_case(notes, transport, pool_size=2) as case, trio.open_nursery() as nursery:
        nursery.start_soon(case.pool.transaction, fn, 1, 2)
        nursery.start_soon(case.pool.transaction, fn, 2, 1)
    assert notes.server.sql("select n from notes order by id") == [("21",), ("22",)]
