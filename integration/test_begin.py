"""BEGIN goes with the first statement: whatever becomes of that statement, nothing is carried out outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Transport, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import Replicated, SharedData

pytestmark = [watched, on_both_transports]


def rows(bed: SharedData) -> int:
    return int(bed.server.value("select count(*) from kept") or 0)


@pytest.fixture
def kept(shared_data: SharedData) -> SharedData:
    shared_data.server.sql("create table kept(n int primary key)")
    return shared_data


async def _copy(conn: ysactor.Connection) -> None:
    await conn.copy_records_to_table("kept", records=[(1,), (2,)])


async def _executemany(conn: ysactor.Connection) -> None:
    await conn.executemany("INSERT INTO kept VALUES ($1)", [(1,), (2,)])


async def _fetchmany(conn: ysactor.Connection) -> None:
    assert len(await conn.fetchmany("INSERT INTO kept VALUES ($1) RETURNING n", [(1,), (2,)])) == 2


async def _prepared(conn: ysactor.Connection) -> None:
    statement = await conn.prepare("INSERT INTO kept VALUES ($1) RETURNING n")
    assert await statement.fetchval(1) == 1


async def _cursor(conn: ysactor.Connection) -> None:
    assert [row[0] async for row in conn.cursor("SELECT 1")] == [1]
    await conn.execute("INSERT INTO kept VALUES (1)")


async def _several(conn: ysactor.Connection) -> None:
    await conn.execute("INSERT INTO kept VALUES (1); INSERT INTO kept VALUES (2)")


async def _raw(conn: ysactor.Connection) -> None:
    await conn.run_raw(conn.raw.execute("INSERT INTO kept VALUES (1)"))


async def _savepoint(conn: ysactor.Connection) -> None:
    async with conn.transaction():
        await conn.execute("INSERT INTO kept VALUES (1)")


async def _with_arguments(conn: ysactor.Connection) -> None:
    await conn.execute("INSERT INTO kept VALUES ($1)", 1)


FIRST = [_copy, _executemany, _fetchmany, _prepared, _cursor, _several, _raw, _savepoint, _with_arguments]


@pytest.mark.parametrize("first", FIRST, ids=lambda fn: fn.__name__.strip("_"))
async def test_whatever_comes_first_is_inside(
    kept: SharedData, transport: Transport, first: Callable[[ysactor.Connection], Awaitable[None]]
) -> None:
    class Undone(Exception):
        pass

    async def failing(conn: ysactor.Connection) -> None:
        await first(conn)
        assert conn.is_in_transaction()
        assert conn.raw.is_in_transaction()
        raise Undone

    async with open_case(kept, transport, pool_size=1) as case:
        with pytest.raises(Undone):
            await case.pool.transaction(failing)
        assert rows(kept) == 0
        await case.pool.transaction(first)
        assert rows(kept) >= 1
        assert case.pool.statistics().connections_closed == {}


async def test_an_argument_that_does_not_fit_leaves_the_transaction_whole(
    kept: SharedData, transport: Transport
) -> None:
    """asyncpg finds it when the statement has been prepared, with BEGIN ahead of it, and nobody has said so yet."""

    async def fn(conn: ysactor.Connection) -> None:
        for _ in range(3):
            with pytest.raises(asyncpg.DataError):
                await conn.execute("INSERT INTO kept VALUES ($1)", "one")
        assert conn.is_in_transaction()

    async def then_more(conn: ysactor.Connection) -> None:
        await fn(conn)
        async with conn.transaction():
            await conn.execute("INSERT INTO kept VALUES ($1)", 7)
        with pytest.raises(asyncpg.DataError):
            await conn.execute("INSERT INTO kept VALUES ($1)", "two")

    async with open_case(kept, transport, pool_size=1) as case:
        await case.pool.transaction(fn)
        await case.pool.transaction(then_more)
        assert kept.server.sql("select n from kept") == [("7",)]
        s = case.pool.statistics()
        assert (s.transactions_committed, s.connections_closed) == (2, {})


async def test_a_first_statement_that_ran_out_of_time_fails_the_transaction(
    kept: SharedData, transport: Transport
) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        with pytest.raises(TimeoutError):
            await conn.execute("SELECT pg_sleep(60)", timeout=0.05)
        with pytest.raises((asyncpg.InFailedSQLTransactionError, ysactor.TransactionAborted)):
            await conn.execute("INSERT INTO kept VALUES (1)")

    async with open_case(kept, transport, pool_size=1) as case:
        with pytest.raises(ysactor.TransactionAborted):
            await case.pool.transaction(fn)
        async with case.pool.acquire() as conn:
            with pytest.raises(ysactor.TransactionAborted):
                async with conn.transaction():
                    await fn(conn)
            # The lease goes on, outside.
            await conn.execute("INSERT INTO kept VALUES (2)")
        assert kept.server.sql("select n from kept") == [("2",)]


async def test_cancelled_in_its_first_statement_it_leaves_nothing(kept: SharedData, transport: Transport) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT INTO kept VALUES (1); SELECT pg_sleep(60)")

    async with open_case(kept, transport, pool_size=1) as case:
        pid = await case.pool.fetchval("SELECT pg_backend_pid()")
        for delay in (0.0, 0.0005, 0.001, 0.002, 0.05):
            with trio.move_on_after(delay):
                await case.pool.transaction(fn)
            assert await case.pool.fetchval("SELECT count(*) FROM kept") == 0
        assert await case.pool.fetchval("SELECT pg_backend_pid()") == pid


async def test_cancelled_between_begin_and_a_call_that_cannot_take_it_along(
    kept: SharedData, transport: Transport
) -> None:
    async def source():  # type: ignore[no-untyped-def]
        yield (1,)
        await trio.sleep_forever()

    async def fn(conn: ysactor.Connection) -> None:
        await conn.copy_records_to_table("kept", records=source())

    async with open_case(kept, transport, pool_size=1) as case:
        for delay in (0.0, 0.0005, 0.001, 0.002, 0.05):
            with trio.move_on_after(delay):
                await case.pool.transaction(fn)
            assert await case.pool.fetchval("SELECT count(*) FROM kept") == 0


async def test_a_connection_that_is_lost_in_the_first_statement_is_tried_again(
    kept: SharedData, transport: Transport
) -> None:
    runs = 0

    async def fn(conn: ysactor.Connection) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        await conn.execute("INSERT INTO kept VALUES ($1)", runs)

    async with open_case(kept, transport, pool_size=1) as case:
        await case.pool.transaction(fn)
        assert kept.server.sql("select n from kept") == [("2",)]


async def test_a_block_may_be_followed_by_another_and_by_statements_of_their_own(
    kept: SharedData, transport: Transport
) -> None:
    async with open_case(kept, transport, pool_size=1) as case, case.pool.acquire() as conn:
        async with conn.transaction():
            pass
        assert not conn.is_in_transaction()
        await conn.execute("INSERT INTO kept VALUES (1)")
        transaction = conn.transaction()
        await transaction.start()
        await transaction.rollback()
        await conn.execute("INSERT INTO kept VALUES (2)")
        assert rows(kept) == 2
        with pytest.raises(KeyError):
            async with conn.transaction():
                raise KeyError
        async with conn.transaction(), conn.transaction(), conn.transaction():
            await conn.execute("INSERT INTO kept VALUES (3)")
        assert rows(kept) == 3


async def test_a_begin_that_the_server_refuses_is_the_first_statements_error(
    replicated: Replicated, transport: Transport
) -> None:
    """A standby refuses `serializable` in BEGIN itself: what would have been sent with it must not run alone."""

    async def fn(conn: ysactor.Connection) -> None:
        with pytest.raises(asyncpg.FeatureNotSupportedError, match="serializable"):
            await conn.fetchval("SELECT pg_advisory_lock(77)")
        with pytest.raises(ysactor.TransactionAborted) as refused:
            await conn.fetchval("SELECT pg_advisory_lock(77)")
        assert isinstance(refused.value.__cause__, asyncpg.FeatureNotSupportedError)

    standby = replicated.servers[1]
    options = {"hosts": [(standby.host, standby.port)], "user": "app", "password": "app", "database": "yugabyte"}
    async with ysactor.open_pool(**options, driver=transport, load_balance=False, pool_size=1) as pool:
        with pytest.raises(ysactor.TransactionAborted):
            await pool.transaction(fn, isolation="serializable")
        with pytest.raises(asyncpg.FeatureNotSupportedError):
            await pool.transaction(lambda conn: conn.execute("SELECT 1"), isolation="serializable")
        # Nothing of it ran: the lock was never taken.
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert await pool.fetchval(locks) == 0
        assert await pool.transaction(lambda conn: conn.fetchval("SELECT 1"), isolation="repeatable_read") == 1
        assert pool.statistics().connections_closed == {}


async def test_a_cancel_request_that_meets_begin_itself_lets_nothing_run_alone(
    kept: SharedData, transport: Transport
) -> None:
    """A time-out at any moment of the first call: what follows in the block is refused, or inside."""

    async with open_case(kept, transport, pool_size=1) as case:
        for attempt in range(40):

            async def fn(conn: ysactor.Connection, limit: float = attempt * 0.00005) -> None:
                try:
                    await conn.execute("INSERT INTO kept VALUES (1)", timeout=limit)
                except TimeoutError:
                    with pytest.raises((asyncpg.InFailedSQLTransactionError, ysactor.TransactionAborted)):
                        await conn.execute("INSERT INTO kept VALUES (2)")
                        # It was not sent, and the transaction goes on: this is inside, and undone as well.
                        raise ysactor.TransactionAborted from None
                raise KeyError("undone")

            with pytest.raises(KeyError):
                await case.pool.transaction(fn)
            assert rows(kept) == 0


# --- what was found by trying to get a statement out of its transaction, or a wrong word about a COMMIT ---------------


@pytest.mark.parametrize("in_transaction", [True, False])
async def test_a_call_that_sends_nothing_does_not_hide_what_the_one_before_left_half_sent(
    kept: SharedData, transport: Transport, in_transaction: bool
) -> None:
    """The next holder's statement was acknowledged inside the transaction of this one, and rolled back with it."""

    async def leave(conn: ysactor.Connection) -> None:
        with pytest.raises(asyncpg.DataError):
            await conn.execute("INSERT INTO kept VALUES ($1)", "one")
        with pytest.raises(TimeoutError):
            await conn.fetch("SELECT 1", timeout=0)

    async with open_case(kept, transport, pool_size=1) as case:
        async with case.pool.acquire() as conn:
            if in_transaction:
                await conn.transaction().start()
            await leave(conn)
        assert await case.pool.execute("INSERT INTO kept VALUES (5)") == "INSERT 0 1"
        assert rows(kept) == 1


async def test_nothing_is_locked_by_a_connection_at_rest(kept: SharedData, transport: Transport) -> None:
    async with open_case(kept, transport, pool_size=1) as case:
        with trio.CancelScope() as scope:
            async with case.pool.acquire() as conn:
                statement = await conn.prepare("SELECT * FROM kept")
                scope.cancel()
                await statement.fetch()
        async with case.pool.acquire() as conn:
            await conn.executemany("INSERT INTO kept VALUES ($1)", [])
        await case.pool.executemany("INSERT INTO kept VALUES ($1)", iter(()))
        locks = "select count(*) from pg_locks where relation = 'kept'::regclass"
        await until(lambda: kept.server.value(locks) == "0", "no lock is held")


async def test_touching_the_raw_connection_tells_nothing_of_begin(kept: SharedData, transport: Transport) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await conn.execute("SELECT 1/0")
        conn.raw.get_server_version()

    async with open_case(kept, transport, pool_size=1) as case, case.pool.acquire() as conn:
        with pytest.raises(ysactor.TransactionAborted):
            async with conn.transaction():
                await fn(conn)
        assert not conn.is_in_transaction()
        assert await conn.fetchval("SELECT 1") == 1


async def test_a_commit_beside_the_first_statement_is_refused(kept: SharedData, transport: Transport) -> None:
    """Two tasks on one connection are a mistake, which must not be answered by `committed`."""
    async with open_case(kept, transport, pool_size=1) as case:
        first = trio.Event()

        async def other(conn: ysactor.Connection) -> None:
            with pytest.raises(ysactor.Error):
                await conn.execute("INSERT INTO kept SELECT 1 FROM pg_sleep(30)")
            first.set()

        async with trio.open_nursery() as nursery:
            with pytest.raises((asyncpg.InterfaceError, ysactor.Error)):
                async with case.pool.acquire() as conn, conn.transaction():
                    nursery.start_soon(other, conn)
                    await until(partial(_some, case.truth.active), "the statement is under way")
            await first.wait()
        assert rows(kept) == 0


async def _some(active: Callable[[str], Awaitable[list[object]]]) -> bool:
    return bool(await active("pg_sleep"))


async def test_a_statement_without_a_name_is_not_replaced_by_begin(kept: SharedData, transport: Transport) -> None:
    async with open_case(kept, transport, pool_size=1) as case, case.pool.acquire() as conn:
        statement = await conn.prepare("INSERT INTO kept VALUES (1) RETURNING 42", name="")
        with pytest.raises(asyncpg.PostgresError):
            async with conn.transaction():
                assert await statement.fetchval() == 42
        assert rows(kept) == 0


async def test_a_commit_past_command_timeout_is_unknown(notes: SharedData, transport: Transport) -> None:
    """asyncpg's own time-out for any call: the server goes on with the COMMIT that it bounds."""

    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT INTO notes VALUES (200)")

    options = {"command_timeout": 0.3}
    async with open_case(notes, transport, pool_size=1, asyncpg_options=options) as case:
        with pytest.raises(ysactor.CommitOutcomeUnknown):
            await case.pool.transaction(fn)
        s = case.pool.statistics()
        assert (s.commits_unknown, s.transactions_rolled_back) == (1, 0)


@pytest.fixture
def notes(shared_data: SharedData) -> SharedData:
    """COMMIT takes as many seconds as `n` is hundredths of one."""
    shared_data.server.sql(
        "create table notes(n int)",
        """create function slow() returns trigger language plpgsql as $$ begin
             perform pg_sleep(new.n / 100.0); return null; end $$""",
        """create constraint trigger slow after insert on notes deferrable initially deferred
             for each row execute function slow()""",
    )
    return shared_data


@pytest.mark.parametrize("own", ["ROLLBACK; BEGIN", "rollback and chain", "COMMIT; BEGIN"])
async def test_a_transaction_that_was_ended_and_begun_anew_is_not_called_committed(
    kept: SharedData, transport: Transport, own: str
) -> None:
    async def fn(conn: ysactor.Connection) -> str:
        await conn.execute("INSERT INTO kept VALUES (1)")
        await conn.execute(own)
        return "value"

    async with open_case(kept, transport, pool_size=1) as case:
        with pytest.raises(ysactor.TransactionEnded):
            await case.pool.transaction(fn)
        assert case.pool.statistics().transactions_committed == 0


async def test_what_was_committed_by_hand_is_neither_called_rolled_back_nor_run_again(
    kept: SharedData, transport: Transport
) -> None:
    runs = 0

    async def rolls_back(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT INTO kept VALUES (1)")
        await conn.execute("COMMIT")
        raise ysactor.Rollback("value")

    async def fails(conn: ysactor.Connection) -> None:
        nonlocal runs
        runs += 1
        await conn.execute("INSERT INTO kept VALUES ($1)", 1 + runs)
        await conn.execute("COMMIT")
        await conn.execute("DO $$ begin raise exception 'again' using errcode = '40001'; end $$")

    async with open_case(kept, transport, pool_size=1) as case:
        for fn in (rolls_back, fails):
            with pytest.raises(ysactor.TransactionEnded):
                await case.pool.transaction(fn)
        assert runs == 1
        assert rows(kept) == 2
        assert case.pool.statistics().transactions_rolled_back == 0


async def test_a_body_of_plpgsql_ends_nothing(kept: SharedData, transport: Transport) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute("DO $$ begin insert into kept values (1); begin null; end; end; $$")
        await conn.execute("SAVEPOINT s; INSERT INTO kept VALUES (2); ROLLBACK TO s")
        await conn.execute("UPDATE kept SET n = CASE WHEN n = 1 THEN 3 ELSE 4 END")

    async with open_case(kept, transport, pool_size=1) as case:
        await case.pool.transaction(fn)
        assert kept.server.sql("select n from kept") == [("3",)]
