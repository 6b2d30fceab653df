"""`pool.transaction` and `conn.transaction`: what is committed, what is not, and what nobody can know."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest
import trio

import ysactor
from ysactor.testing import FakeCluster, Statement, error

OpenPool = Callable[..., AbstractAsyncContextManager[ysactor.Pool]]


@pytest.fixture
def bank(world: FakeCluster) -> FakeCluster:
    """A world with one key that is written by "INSERT"."""

    def insert(statement: Statement) -> str:
        statement.put("row", statement.get("row", 0) + 1)
        return "INSERT 0 1"

    world.answer("INSERT", insert)
    return world


def rows(world: FakeCluster) -> int:
    return int(world.table.get("row", 0))


async def insert(conn: ysactor.Connection) -> str:
    await conn.execute("INSERT")
    return "done"


async def test_what_is_done_is_returned_and_there(bank: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool() as pool:
        assert await pool.transaction(insert) == "done"
        assert rows(bank) == 1
        s = pool.statistics()
        assert (s.transactions_committed, s.transactions_retried, s.transactions_rolled_back) == (1, 0, 0)


async def test_arguments_are_passed_on_and_options_are_in_begin(bank: FakeCluster, open_pool: OpenPool) -> None:
    async def fn(conn: ysactor.Connection, a: int, b: int) -> int:
        await conn.fetch("SELECT 1")
        return a + b

    async with open_pool() as pool:
        assert await pool.transaction(fn, 2, 3, isolation="repeatable_read", readonly=True, deferrable=True) == 5
        assert "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY DEFERRABLE" in bank.journal.statements()


async def test_a_function_that_sends_nothing_costs_nothing(bank: FakeCluster, open_pool: OpenPool) -> None:
    async def fn(conn: ysactor.Connection) -> str:
        assert conn.is_in_transaction()
        return "nothing"

    async with open_pool() as pool:
        assert await pool.transaction(fn) == "nothing"
        with pytest.raises(KeyError):
            await pool.transaction(failing_before_anything)
        assert not {"BEGIN", "COMMIT", "ROLLBACK"} & set(bank.journal.statements())
        s = pool.statistics()
        assert (s.transactions_committed, s.transactions_rolled_back, dict(s.connections_closed)) == (1, 1, {})


async def failing_before_anything(conn: ysactor.Connection) -> None:
    raise KeyError("nothing was sent")


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"attempts": True}, {"max_backoff": -1}, {"max_backoff": float("nan")}, {"isolation": "best"}],
)
async def test_a_wrong_option_is_refused_before_anything_runs(
    bank: FakeCluster, open_pool: OpenPool, wrong: dict[str, Any]
) -> None:
    async with open_pool() as pool:
        with pytest.raises(ysactor.ConfigurationError, match=next(iter(wrong))):
            await pool.transaction(insert, **wrong)
        assert rows(bank) == 0


async def test_an_exception_rolls_back_and_comes_out(bank: FakeCluster, open_pool: OpenPool) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT")
        raise KeyError("mine")

    async with open_pool() as pool:
        with pytest.raises(KeyError, match="mine"):
            await pool.transaction(fn)
        assert rows(bank) == 0
        assert "ROLLBACK" in bank.journal.statements()
        assert pool.statistics().connections_closed == {}


async def test_a_rollback_on_purpose_returns_its_value(bank: FakeCluster, open_pool: OpenPool) -> None:
    async def fn(conn: ysactor.Connection) -> str:
        await conn.execute("INSERT")
        raise ysactor.Rollback("changed my mind")

    async with open_pool() as pool:
        assert await pool.transaction(fn) == "changed my mind"
        assert rows(bank) == 0


@pytest.mark.parametrize("failures", range(6))
@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
async def test_a_conflict_runs_the_whole_again_as_often_as_allowed(
    bank: FakeCluster, open_pool: OpenPool, failures: int, sqlstate: str
) -> None:
    """C31."""
    runs = 0
    bank.answer("SELECT conflict()", error(sqlstate, "conflict"), times=failures)
    bank.answer("SELECT fine()", None)

    async def fn(conn: ysactor.Connection) -> int:
        nonlocal runs
        runs += 1
        await conn.execute("INSERT")
        await conn.execute("SELECT conflict()" if runs <= failures else "SELECT fine()")
        return runs

    async with open_pool() as pool:
        if failures < 3:
            assert await pool.transaction(fn) == failures + 1
            assert rows(bank) == 1
        else:
            with pytest.raises(Exception, match="conflict") as caught:
                await pool.transaction(fn)
            assert caught.value.sqlstate == sqlstate  # type: ignore[attr-defined]
            assert rows(bank) == 0
        assert runs == min(failures + 1, 3)
        assert pool.statistics().transactions_retried == runs - 1


async def test_a_conflict_in_commit_runs_the_whole_again(bank: FakeCluster, open_pool: OpenPool) -> None:
    """C27, the second half."""
    bank.answer("COMMIT", error("40001", "conflict"), times=1)
    async with open_pool() as pool:
        assert await pool.transaction(insert) == "done"
        assert rows(bank) == 1
        assert pool.statistics().transactions_retried == 1


async def test_another_error_in_commit_is_raised_as_it_is(bank: FakeCluster, open_pool: OpenPool) -> None:
    """C27: a deferred constraint."""
    bank.answer("COMMIT", error("23503", "deferred"), times=1)
    async with open_pool() as pool:
        with pytest.raises(Exception, match="deferred") as caught:
            await pool.transaction(insert)
        assert caught.value.sqlstate == "23503"  # type: ignore[attr-defined]
        assert rows(bank) == 0
        assert pool.statistics().connections_closed == {}, "the connection is as good as before"


async def test_a_loss_before_commit_runs_the_whole_again_on_another_connection(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    pids: list[int] = []

    async def fn(conn: ysactor.Connection) -> str:
        pids.append(conn.get_server_pid())
        await conn.execute("INSERT")
        if len(pids) == 1:
            bank.server(str(conn.server)).kill_sessions()
            await trio.sleep(1)
        await conn.execute("SELECT 1")
        return "done"

    async with open_pool() as pool:
        await pool.ready(3)
        assert await pool.transaction(fn) == "done"
        assert rows(bank) == 1
        assert len(set(pids)) == 2


@pytest.mark.parametrize("before", [True, False])
async def test_a_loss_in_commit_is_unknown_and_never_run_again(
    bank: FakeCluster, open_pool: OpenPool, before: bool
) -> None:
    for server in bank.servers:
        server.cut_at_commit(before=before)
    async with open_pool() as pool:
        with pytest.raises(ysactor.CommitOutcomeUnknown) as caught:
            await pool.transaction(insert)
        assert not isinstance(caught.value, ysactor.ConnectionLost)
        assert isinstance(caught.value.__cause__, ysactor.ConnectionLost)
        assert ysactor.classify(caught.value) == "other"
        assert rows(bank) == (0 if before else 1)
        assert pool.statistics().commits_unknown == 1
        assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("sqlstate", ["57P01", "57P02", "08006"])
async def test_a_server_that_answers_commit_with_its_own_end_leaves_it_unknown(
    bank: FakeCluster, open_pool: OpenPool, sqlstate: str
) -> None:
    bank.answer("COMMIT", error(sqlstate, "going down"))
    async with open_pool() as pool:
        with pytest.raises(ysactor.CommitOutcomeUnknown):
            await pool.transaction(insert)


@pytest.mark.parametrize("words", ["  commit", "COMMIT;", "END", "\nend work", "End Transaction"])
async def test_a_commit_typed_by_hand_that_is_lost_is_unknown_too(
    bank: FakeCluster, open_pool: OpenPool, words: str
) -> None:
    for server in bank.servers:
        server.cut_at_commit(before=False)
    async with open_pool() as pool:
        with pytest.raises(ysactor.CommitOutcomeUnknown):
            async with pool.acquire() as conn:
                await conn.execute("BEGIN")
                await conn.execute("INSERT")
                await conn.execute(words)


async def test_a_failure_that_was_caught_inside_is_never_reported_as_a_commit(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    """C23."""
    bank.answer("SELECT broken()", error("22012", "division by zero"))

    async def fn(conn: ysactor.Connection) -> str:
        await conn.execute("INSERT")
        with pytest.raises(Exception, match="division"):
            await conn.execute("SELECT broken()")
        return "ok"

    async with open_pool() as pool:
        with pytest.raises(ysactor.TransactionAborted) as caught:
            await pool.transaction(fn)
        assert "division" in str(caught.value.__cause__)
        assert rows(bank) == 0
        assert pool.statistics().transactions_committed == 0
        with pytest.raises(ysactor.TransactionAborted):
            async with pool.acquire() as conn, conn.transaction():
                await fn(conn)
        assert rows(bank) == 0


async def test_a_failure_inside_a_savepoint_does_not_fail_the_whole(bank: FakeCluster, open_pool: OpenPool) -> None:
    bank.answer("SELECT broken()", error("22012", "division by zero"))

    async def fn(conn: ysactor.Connection) -> str:
        await conn.execute("INSERT")
        with pytest.raises(Exception, match="division"):
            async with conn.transaction():
                await conn.execute("INSERT")
                await conn.execute("SELECT broken()")
        async with conn.transaction():
            await conn.execute("INSERT")
        return "ok"

    async with open_pool() as pool:
        assert await pool.transaction(fn) == "ok"
        assert rows(bank) == 2


@pytest.mark.parametrize("by_hand", ["ROLLBACK", "COMMIT"])
async def test_a_function_that_ends_its_transaction_itself_is_told_so(
    bank: FakeCluster, open_pool: OpenPool, by_hand: str
) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT")
        await conn.execute(by_hand)

    async with open_pool() as pool:
        with pytest.raises(ysactor.TransactionEnded):
            await pool.transaction(fn)


async def test_cancelled_in_the_function_it_leaves_at_once_and_is_rolled_back(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT")
        await conn.execute("SELECT pg_sleep(100)")

    async with open_pool(pool_size=1) as pool:
        await pool.ready()
        start = trio.current_time()
        with trio.move_on_after(1) as scope:
            await pool.transaction(fn)
        assert scope.cancelled_caught
        assert trio.current_time() - start == pytest.approx(1)
        assert await pool.fetchval("SELECT 1") == 1
        assert rows(bank) == 0
        assert pool.statistics().connections_opened == 1


async def test_cancelled_between_calls_it_is_rolled_back_as_well(bank: FakeCluster, open_pool: OpenPool) -> None:
    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT")
        await trio.sleep(100)

    async with open_pool(pool_size=1) as pool:
        with trio.move_on_after(1) as scope:
            await pool.transaction(fn)
        assert scope.cancelled_caught
        await trio.sleep(0.1)
        assert [view.state for server in bank.servers for view in server.sessions] == ["idle"]
        assert bank.journal.statements()[-1] == "ROLLBACK"


async def test_a_cancellation_during_commit_waits_for_its_answer(bank: FakeCluster, open_pool: OpenPool) -> None:
    """C25 (a)."""

    async def slow(_statement: Statement) -> None:
        await trio.sleep(1)

    async def delay(_server: object, sql: str) -> None:
        if sql == "COMMIT":
            await trio.sleep(1)

    bank.before_statement = delay
    async with open_pool() as pool:
        await pool.ready()
        start = trio.current_time()
        with trio.move_on_after(0.3) as scope:
            result = await pool.transaction(insert)
            assert result == "done", "the outcome is known, and is told"
            assert trio.current_time() - start == pytest.approx(1)
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert rows(bank) == 1


async def test_a_cancelled_commit_that_is_never_answered_is_unknown(bank: FakeCluster, open_pool: OpenPool) -> None:
    """C25 (b)."""

    async def freeze(server: Any, sql: str) -> None:
        if sql == "COMMIT":
            server.hang()

    bank.before_statement = freeze
    async with open_pool(connect_timeout=1) as pool:
        await pool.ready()
        start = trio.current_time()
        with trio.move_on_after(0.3), pytest.raises(ysactor.CommitOutcomeUnknown):
            await pool.transaction(insert)
        assert trio.current_time() - start == pytest.approx(0.3 + 2)
        assert pool.statistics().commits_unknown == 1


async def test_cancelled_before_commit_is_sent_nothing_is_committed(bank: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        with trio.CancelScope() as scope:

            async def fn(conn: ysactor.Connection) -> None:
                await conn.execute("INSERT")
                scope.cancel()

            await pool.transaction(fn)
        assert scope.cancelled_caught
        await trio.sleep(0.1)
        assert rows(bank) == 0
        assert "COMMIT" not in bank.journal.statements()


async def test_socket_timeout_before_commit_runs_again_and_in_commit_is_unknown(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    runs = 0

    async def fn(conn: ysactor.Connection) -> str:
        nonlocal runs
        runs += 1
        await conn.execute("INSERT")
        if runs == 1:
            await conn.execute("SELECT pg_sleep(10)")
        return "done"

    async with open_pool(socket_timeout=2) as pool:
        assert await pool.transaction(fn) == "done"
        assert runs == 2

        async def delay(_server: object, sql: str) -> None:
            if sql == "COMMIT":
                await trio.sleep(10)

        bank.before_statement = delay
        with pytest.raises(ysactor.CommitOutcomeUnknown, match="socket_timeout"):
            await pool.transaction(insert)
        await trio.sleep(1)
        assert pool.statistics().connections_closed == {"socket_timeout": 2}
        assert pool.cluster.info().failed == ()


async def test_a_run_again_that_gets_no_connection_raises_what_made_it_run_again(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    bank.answer("SELECT conflict()", error("40001", "conflict"))
    taken: list[ysactor.Connection] = []

    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute("SELECT conflict()")

    async with open_pool(pool_size=1) as pool:

        async def grab() -> None:
            taken.append(await pool.checkout())

        async with trio.open_nursery() as nursery:
            await pool.ready()

            async def first(conn: ysactor.Connection) -> None:
                nursery.start_soon(grab)
                await trio.sleep(1)
                await fn(conn)

            with pytest.raises(Exception, match="conflict"):
                await pool.transaction(first, checkout_timeout=3)
        pool.checkin(taken[0])


async def test_a_checkout_error_proves_that_the_function_never_ran(bank: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool, pool.acquire():
        with pytest.raises(ysactor.CheckoutTimeout):
            await pool.transaction(insert, checkout_timeout=1)
    with pytest.raises(ysactor.PoolClosed):
        await pool.transaction(insert)


async def test_a_pause_is_left_at_once_and_zero_means_none(bank: FakeCluster, open_pool: OpenPool) -> None:
    bank.answer("SELECT conflict()", error("40001", "conflict"))

    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute("SELECT conflict()")

    async with open_pool() as pool:
        await pool.ready(3)
        start = trio.current_time()
        with pytest.raises(Exception, match="conflict"):
            await pool.transaction(fn, attempts=50, max_backoff=0)
        assert trio.current_time() - start < 0.01
        with pytest.raises(Exception, match="conflict"):
            await pool.transaction(fn, attempts=20, max_backoff=0.05)
        assert trio.current_time() - start < 20 * 0.05
        with trio.move_on_after(5) as scope:
            await pool.transaction(fn, attempts=10**6, max_backoff=1)
        assert scope.cancelled_caught


async def test_children_that_use_the_pool_are_no_part_of_the_transaction(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    """C09: nothing is shared through context variables."""
    async with open_pool() as pool:

        async def fn(_conn: ysactor.Connection) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(1):
                    nursery.start_soon(pool.execute, "INSERT")
            raise KeyError

        with pytest.raises(KeyError):
            await pool.transaction(fn)
        assert rows(bank) == 1


async def test_a_stale_plan_inside_a_transaction_runs_the_whole_again_once(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    """C52."""
    from asyncpg.exceptions import InvalidCachedStatementError

    bank.answer("SELECT stale()", InvalidCachedStatementError("cached plan must not change result type"), times=1)
    bank.answer("SELECT fine()", None)
    runs = 0

    async def fn(conn: ysactor.Connection) -> str:
        nonlocal runs
        runs += 1
        await conn.execute("SELECT stale()" if runs == 1 else "SELECT fine()")
        return "done"

    async with open_pool() as pool:
        assert await pool.transaction(fn) == "done"
        assert runs == 2


@pytest.mark.parametrize("at_once", [1, 20])
@pytest.mark.parametrize("types", [False, True])
async def test_one_connection_that_meets_a_changed_schema_spares_all_others(
    bank: FakeCluster, open_pool: OpenPool, at_once: int, types: bool
) -> None:
    """C52: the one run more would otherwise meet the next connection's plan, which is as old."""
    bank.answer("SELECT shape()", None)

    async def fn(conn: ysactor.Connection) -> None:
        await conn.fetch("SELECT shape()")

    async def all_of_them() -> None:
        limit = trio.CapacityLimiter(at_once)

        async def one() -> None:
            async with limit:
                await pool.transaction(fn)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)

    async with open_pool(pool_size=10) as pool:
        await pool.ready(10)
        for _ in range(10):
            await pool.transaction(fn)
        bank.change_schema(types=types)
        await all_of_them()
        statistics = pool.statistics()
        assert statistics.transactions_committed == 30
        assert 1 <= statistics.transactions_retried <= (1 if at_once == 1 else 10)
        await all_of_them()
        assert pool.statistics().transactions_retried == statistics.transactions_retried


async def test_a_table_and_a_type_that_changed_together_run_a_transaction_again_once_for_each(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    bank.answer("SELECT shape()", None)

    async def fn(conn: ysactor.Connection) -> None:
        await conn.fetch("SELECT shape()")

    async with open_pool(pool_size=3) as pool:
        await pool.ready(3)
        for _ in range(3):
            await pool.transaction(fn)
        bank.change_schema()
        bank.change_schema(types=True)
        for _ in range(6):
            await pool.transaction(fn)
        assert pool.statistics().transactions_retried == 2


async def test_a_changed_type_costs_single_statements_one_error_in_all_and_a_changed_table_none(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    from asyncpg.exceptions import OutdatedSchemaCacheError

    bank.answer("SELECT shape()", None)
    async with open_pool(pool_size=10) as pool, open_pool(pool_size=1) as another:
        await pool.ready(10)

        async def failures(of: ysactor.Pool) -> int:
            failed = 0
            for _ in range(20):
                try:
                    await of.fetch("SELECT shape()")
                except OutdatedSchemaCacheError:
                    failed += 1
            return failed

        assert (await failures(pool), await failures(another)) == (0, 0)
        bank.change_schema()
        assert (await failures(pool), await failures(another)) == (0, 0)
        bank.change_schema(types=True)
        assert (await failures(pool), await failures(another)) == (1, 1), "each pool finds it out by itself"


async def test_a_second_stale_plan_is_not_run_again_even_with_a_serialization_failure_between_the_two(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    from asyncpg.exceptions import InvalidCachedStatementError

    bank.answer("SELECT stale()", InvalidCachedStatementError("cached plan must not change result type"))
    bank.answer("SELECT conflict()", error("40001"))
    runs = 0

    async def fn(conn: ysactor.Connection) -> None:
        nonlocal runs
        runs += 1
        await conn.execute("SELECT conflict()" if runs == 2 else "SELECT stale()")

    async with open_pool() as pool:
        with pytest.raises(InvalidCachedStatementError):
            await pool.transaction(fn, attempts=9)
        assert runs == 3


async def test_an_os_error_of_the_functions_own_is_not_the_databases(bank: FakeCluster, open_pool: OpenPool) -> None:
    runs = 0

    async def fn(_conn: ysactor.Connection) -> None:
        nonlocal runs
        runs += 1
        raise ConnectionResetError("some other service")

    async with open_pool() as pool:
        with pytest.raises(ConnectionResetError):
            await pool.transaction(fn)
        assert runs == 1


async def test_a_cancelled_inner_block_is_rolled_back_and_the_lease_goes_on(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    async with open_pool(pool_size=1) as pool, pool.acquire() as conn:
        async with conn.transaction():
            await conn.execute("INSERT")
            with trio.move_on_after(1):
                async with conn.transaction():
                    await conn.execute("INSERT")
                    await conn.execute("SELECT pg_sleep(100)")
            await conn.execute("SELECT 1")
        assert rows(bank) == 1
        with trio.move_on_after(1):
            async with conn.transaction():
                await conn.execute("INSERT")
                await conn.execute("SELECT pg_sleep(100)")
        assert await conn.fetchval("SELECT 1") == 1
        assert not conn.is_in_transaction()
        assert rows(bank) == 1


async def test_a_transaction_by_hand(bank: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool() as pool, pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute("INSERT")
        await transaction.rollback()
        with pytest.raises(ysactor.Error):
            await transaction.commit()
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute("INSERT")
        await transaction.commit()
    assert rows(bank) == 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("depth", [0, 1])
async def test_a_block_is_not_ended_by_hand_and_stays_a_transaction(
    bank: FakeCluster, open_pool: OpenPool, end: str, depth: int
) -> None:
    """What follows would be committed at once."""
    async with open_pool() as pool, pool.acquire() as conn:
        async with AsyncExitStack() as outer:
            for _ in range(depth):
                await outer.enter_async_context(conn.transaction())
            async with conn.transaction() as transaction:
                await conn.execute("INSERT")
                with pytest.raises(ysactor.Error, match="ends with its block"):
                    await getattr(transaction, end)()
                assert conn.is_in_transaction()
                await conn.execute("INSERT")
                assert rows(bank) == 0
        assert rows(bank) == 2
        with pytest.raises(ysactor.Error, match="has ended"):
            await getattr(transaction, end)()
        with pytest.raises(ysactor.Error, match="ends with its block"):
            async with conn.transaction() as transaction:
                await conn.execute("INSERT")
                await getattr(transaction, end)()
        assert rows(bank) == 2


@pytest.mark.parametrize("options", [{}, {"isolation": "serializable"}])
async def test_the_next_transaction_waits_until_the_last_one_is_rolled_back(
    bank: FakeCluster, open_pool: OpenPool, options: dict[str, str]
) -> None:
    """Until then the session is still inside the last one, and a BEGIN would have become a SAVEPOINT."""
    async with open_pool(pool_size=1) as pool, pool.acquire() as conn:
        for server in bank.servers:
            server.slow(query=0.3)
        with trio.move_on_after(0.5):
            async with conn.transaction():
                await conn.execute("INSERT")
                pytest.fail("there is no time for it")
        async with conn.transaction(**options):
            await conn.execute("INSERT")
        assert rows(bank) == 1


async def test_without_time_to_settle_an_exception_still_only_rolls_back(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    """A `cancel_timeout` of 0 closes what is cancelled. A block that raises is not."""
    async with open_pool(pool_size=1, cancel_timeout=0) as pool:
        async with pool.acquire() as conn:
            with pytest.raises(KeyError):
                async with conn.transaction():
                    await conn.execute("INSERT")
                    raise KeyError
            async with conn.transaction():
                with pytest.raises(KeyError):
                    async with conn.transaction():
                        await conn.execute("INSERT")
                        raise KeyError
            assert await conn.fetchval("SELECT 1") == 1
        assert rows(bank) == 0
        assert pool.statistics().connections_closed == {}


async def test_a_block_that_is_cancelled_while_another_task_is_in_a_call_harms_nobody_else(
    bank: FakeCluster, open_pool: OpenPool
) -> None:
    """The actor can't roll back then; it closes that connection, and the pool goes on."""

    async def another(conn: ysactor.Connection) -> None:
        with pytest.raises(ysactor.ConnectionLost):
            await conn.fetchval("SELECT pg_sleep(100)")

    async with open_pool(pool_size=2) as pool, trio.open_nursery() as nursery:
        conn = await pool.checkout()
        with trio.move_on_after(1):
            async with conn.transaction():
                nursery.start_soon(another, conn)
                await trio.sleep_forever()
        await trio.sleep(1)
        with pytest.raises(ysactor.ConnectionLost):
            await conn.fetchval("SELECT 1")
        pool.checkin(conn)
        assert await pool.fetchval("SELECT 1") == 1
        await pool.ready(2)
        assert pool.statistics().connections_closed == {"unsettled": 1}
