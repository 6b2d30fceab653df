"""BEGIN goes with the first statement: whatever becomes of that statement, nothing is carried out outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Transport, on_both_transports, open_case, watched
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
