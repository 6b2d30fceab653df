"""What one call, lease or lost answer must not do to the next holder, nor to the transaction around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Case, Transport, on_both_transports, open_case, until, watched
from ysactor.driver.protocol import Status
from ysactor.testing.postgres import PostgresServer, SharedData, ThreeZones

pytestmark = [watched, on_both_transports]


def rows(server: PostgresServer) -> int:
    return int(server.value("select count(*) from kept") or 0)


@pytest.fixture
def server(shared_data: SharedData) -> PostgresServer:
    shared_data.server.sql("create table kept(n int primary key deferrable initially immediate)")
    return shared_data.server


async def kill(server: PostgresServer, conn: ysactor.Connection) -> None:
    await trio.to_thread.run_sync(server.sql, f"select pg_terminate_backend({conn.get_server_pid()}, 5000)")


# --- the loss of another connection ----------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["source", "sink"])
async def test_another_connections_loss_in_a_copy_says_nothing_of_the_copys_own(
    server: PostgresServer, transport: Transport, way: str
) -> None:
    async with open_case(server, transport, pool_size=2) as case:
        pool = case.pool

        async def lose_another() -> None:
            other = await pool.checkout()
            try:
                await kill(server, other)
                await other.fetchval("SELECT 1")
            finally:
                pool.checkin(other)

        async def source() -> AsyncIterator[tuple[int]]:
            yield (1,)
            await lose_another()

        async def sink(_: bytes) -> None:
            await lose_another()

        async with pool.acquire() as conn:
            pid = conn.get_server_pid()
            with pytest.raises(ysactor.ConnectionLost):
                if way == "source":
                    await conn.copy_records_to_table("kept", records=source())
                else:
                    await conn.copy_from_query("SELECT 1", output=sink)
            assert await conn.fetchval("SELECT 2") == 2
        await pool.ready(2)
        for _ in range(10):
            async with pool.acquire() as one, pool.acquire() as two:
                assert pid in (one.get_server_pid(), two.get_server_pid())
                assert await one.fetchval("SELECT 3") == await two.fetchval("SELECT 3") == 3


# --- COMMITs whose answer is lost, or means nothing


async def lose_a_commit(case: Case) -> None:
    """Its holder is told that nobody knows; the next ones hear nothing of it."""
    with pytest.raises(ysactor.CommitOutcomeUnknown):
        async with case.pool.acquire() as conn, conn.transaction():
            await conn.execute("INSERT INTO kept VALUES (1)")
    for _ in range(5):
        async with case.pool.acquire() as conn:
            assert await conn.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("sqlstate", ["08006", "08007", "40003"])
async def test_a_commit_of_unknown_outcome_is_nobody_elses(
    server: PostgresServer, transport: Transport, sqlstate: str
) -> None:
    """The server answers COMMIT by an error that says so, and the session goes on."""
    server.sql(
        f"create function unsure() returns trigger as $$ begin raise exception 'unsure' using errcode = '{sqlstate}';"
        " end $$ language plpgsql",
        "create constraint trigger unsure after insert on kept deferrable initially deferred for each row"
        " execute function unsure()",
    )
    async with open_case(server, transport, pool_size=1) as case:
        await lose_a_commit(case)


async def test_a_commit_past_asyncpgs_own_time_out_is_nobody_elses(
    server: PostgresServer, transport: Transport
) -> None:
    server.sql(
        "create function slow() returns trigger as $$ begin perform pg_sleep(3); return null; end $$ language plpgsql",
        "create constraint trigger slow after insert on kept deferrable initially deferred for each row"
        " execute function slow()",
    )
    async with open_case(server, transport, pool_size=1, asyncpg_options={"command_timeout": 0.3}) as case:
        await lose_a_commit(case)


@pytest.mark.parametrize("how", ["execute", "fetch", "in one text", "after a comment"])
async def test_a_function_that_committed_by_hand_and_lost_its_connection_is_not_run_again(
    server: PostgresServer, transport: Transport, how: str
) -> None:
    runs = 0

    async def fn(conn: ysactor.Connection) -> None:
        nonlocal runs
        runs += 1
        if how == "in one text":
            await conn.execute("INSERT INTO kept VALUES (1); COMMIT")
        else:
            await conn.execute("INSERT INTO kept VALUES (1)")
            commit = {"execute": "COMMIT", "fetch": "COMMIT", "after a comment": "/* so */ COMMIT"}[how]
            await (conn.fetch if how == "fetch" else conn.execute)(commit)
        await kill(server, conn)
        await conn.execute("SELECT 1")

    async with open_case(server, transport, pool_size=1) as case:
        with pytest.raises(ysactor.TransactionEnded):
            await case.pool.transaction(fn)
        assert runs == 1
        assert rows(server) == 1


@pytest.mark.parametrize(
    "text",
    ["INSERT INTO kept VALUES (1), (2); SELECT 1; COMMIT; SELECT pg_sleep(30)", "/* c */ COMMIT; SELECT pg_sleep(30)"],
)
async def test_a_lost_answer_to_a_text_with_a_commit_in_it_is_of_unknown_outcome(
    server: PostgresServer, transport: Transport, text: str
) -> None:
    runs = 0

    async def fn(conn: ysactor.Connection) -> None:
        nonlocal runs
        runs += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(killer, conn)
            await conn.execute(text)

    async def killer(conn: ysactor.Connection) -> None:
        waits = (
            f"select count(*) = 1 from pg_stat_activity where pid = {conn.get_server_pid()} and wait_event = 'PgSleep'"
        )
        await until(lambda: server.value(waits) == "t", "the server to sleep")
        await kill(server, conn)

    async with open_case(server, transport, pool_size=1) as case:
        with pytest.RaisesGroup(ysactor.CommitOutcomeUnknown, allow_unwrapped=True, flatten_subgroups=True):
            await case.pool.transaction(fn)
        assert runs == 1


@pytest.mark.parametrize(
    "text", ["INSERT INTO texts VALUES ('begin; commit; done')", "INSERT INTO texts VALUES ('x') -- ; rollback"]
)
async def test_what_is_quoted_ends_no_transaction(server: PostgresServer, transport: Transport, text: str) -> None:
    server.sql("create table texts(t text)")

    async def fn(conn: ysactor.Connection) -> None:
        await conn.execute(text)

    async with open_case(server, transport, pool_size=1) as case:
        await case.pool.transaction(fn)
        assert server.value("select count(*) from texts") == "1"


# --- ends of transactions that fail ----------------------------------------------------------------------------------
@pytest.mark.parametrize("fails", [False, True])
async def test_a_block_that_could_not_be_ended_is_not_left_open(
    server: PostgresServer, transport: Transport, fails: bool
) -> None:
    """Another task is in a call as the block ends. What came after it would be inside of it, and be lost with it."""
    reported = 0

    async def other(conn: ysactor.Connection) -> None:
        with suppress(ysactor.ConnectionLost):
            await conn.execute("SELECT pg_sleep(0.3)")

    async def holder(case: Case) -> None:
        nonlocal reported
        async with case.pool.acquire() as conn, trio.open_nursery() as nursery:
            with pytest.raises((asyncpg.InterfaceError, KeyError)):
                async with conn.transaction():
                    await conn.execute("INSERT INTO kept VALUES (1)")
                    nursery.start_soon(other, conn)
                    await until(lambda: conn._session().status is Status.BUSY, "the other task is in its call")
                    if fails:
                        raise KeyError
            await until(lambda: not conn._is_live() or conn._session().status is not Status.BUSY, "it is not any more")
            for n in (2, 3):
                async with conn.transaction():
                    await conn.execute("INSERT INTO kept VALUES ($1)", n)
                reported += 1

    async with open_case(server, transport, pool_size=1) as case:
        with suppress(ysactor.ConnectionLost), collapsed():
            await holder(case)
        await case.pool.ready(1)
        assert rows(server) == reported


@contextmanager
def collapsed() -> Iterator[None]:
    """The one error that a nursery has put into a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        errors = [error for error in group.exceptions if not isinstance(error, trio.Cancelled)]
        raise errors[0] from None


async def test_a_savepoint_whose_release_took_too_long_is_not_committed(
    server: PostgresServer, transport: Transport
) -> None:
    """The server is stopped while RELEASE is sent. It is undone, or, if RELEASE was carried out, all is."""
    async with open_case(server, transport, pool_size=1, asyncpg_options={"command_timeout": 0.5}) as case:
        with suppress(ysactor.TransactionAborted):
            async with case.pool.acquire() as conn, conn.transaction():
                await conn.execute("INSERT INTO kept VALUES (1)")
                try:
                    with pytest.raises(TimeoutError):
                        async with conn.transaction():
                            await conn.execute("INSERT INTO kept VALUES (2)")
                            server.freeze()
                finally:
                    server.thaw()
        assert server.value("select count(*) from kept where n = 2") == "0"


async def test_savepoints_that_were_rolled_back_do_not_pile_up(server: PostgresServer, transport: Transport) -> None:
    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn, conn.transaction():
        await conn.execute("INSERT INTO kept VALUES (1)")
        used = "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts"

        async def fail(times: int) -> int:
            for _ in range(times):
                with pytest.raises(asyncpg.UniqueViolationError):
                    async with conn.transaction():
                        await conn.execute("INSERT INTO kept VALUES (1)")
            return int(await conn.fetchval(used))

        before = await fail(100)
        assert await fail(300) - before < 300 * 1024, "each one kept is 8 KB and more"


# --- what was only prepared, or failed on this side ------------------------------------------------------------------
async def _prepared(conn: ysactor.Connection) -> None:
    await conn.prepare("SELECT count(*) FROM kept")


async def _wrong_argument(conn: ysactor.Connection) -> None:
    with pytest.raises(asyncpg.DataError):
        await conn.fetchval("SELECT count(*) FROM kept WHERE n = $1", "no number")


async def _nothing_to_execute(conn: ysactor.Connection) -> None:
    await conn.executemany("INSERT INTO kept VALUES ($1)", [])


@pytest.mark.parametrize("leave", [_prepared, _wrong_argument, _nothing_to_execute])
@pytest.mark.parametrize("inside", [False, True])
async def test_a_statement_that_was_only_prepared_has_no_part_in_what_comes_next(
    server: PostgresServer, transport: Transport, leave: Callable[[ysactor.Connection], Awaitable[None]], inside: bool
) -> None:
    settings = {"statement_timeout": "400ms"}
    opening = open_case(server, transport, pool_size=1, server_settings=settings)
    async with opening as case, case.pool.acquire() as conn:
        if inside:
            async with conn.transaction():
                await leave(conn)
                await trio.sleep(0.6)  # longer than the server's limit for one statement
                assert await conn.fetchval("SELECT 1") == 1
            return
        await leave(conn)
        held = f"select count(*) from pg_locks where pid = {conn.get_server_pid()} and relation = 'kept'::regclass"
        assert server.value(held) == "0"
        left_at = server.value("select clock_timestamp()")
        await trio.sleep(0.6)
        async with conn.transaction(isolation="serializable"):
            assert await conn.fetchval("SELECT now() > $1::text::timestamptz + '0.3 s'", left_at)


# --- roles -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def tenants(server: PostgresServer) -> Iterator[PostgresServer]:
    server.sql("create role restricted", "create role tenant", "grant restricted, tenant to app")
    yield server
    server.sql("drop role restricted, tenant")


WHO = "SELECT current_user || ',' || session_user"

SET_ROLE: list[tuple[str, Callable[[Any], Awaitable[Any]]]] = [
    ("execute", lambda on: on.execute("SET ROLE tenant")),
    ("comment", lambda on: on.execute("SET /* as */ ROLE tenant")),
    ("quotes", lambda on: on.execute('SET "role" TO tenant')),
    ("fetch", lambda on: on.fetch("SET ROLE tenant")),
    ("fetchval", lambda on: on.fetchval("SELECT set_config('role', 'tenant', false)")),
    ("fetchrow", lambda on: on.fetchrow("SELECT set_config($1, $2, false)", "role", "tenant")),
    ("executemany", lambda on: on.executemany("SELECT set_config($1, $2, false)", [("role", "tenant")])),
    ("fetchmany", lambda on: on.fetchmany("SELECT set_config($1, $2, false)", [("role", "tenant")])),
]


@pytest.mark.parametrize(("name", "call"), SET_ROLE, ids=[name for name, _ in SET_ROLE])
@pytest.mark.parametrize("through", ["lease", "pool"])
@pytest.mark.parametrize("cancel_timeout", [5, 0])
async def test_a_role_is_never_the_next_holders_however_it_was_set(
    tenants: PostgresServer,
    transport: Transport,
    name: str,
    call: Callable[[Any], Awaitable[Any]],
    through: str,
    cancel_timeout: float,
) -> None:
    """C56."""
    async with open_case(tenants, transport, pool_size=1, cancel_timeout=cancel_timeout) as case:
        pool = case.pool
        before = await pool.fetchval(WHO)
        if through == "pool":
            await call(pool)
        else:
            async with pool.acquire() as conn:
                await call(conn)
                assert (await conn.fetchval(WHO)).startswith("tenant")
        assert await pool.fetchval(WHO) == before
        assert pool.statistics().connections_opened == 1


@pytest.mark.parametrize("sql", ["SET ROLE tenant", "RESET ROLE", "DISCARD ALL", "RESET SESSION AUTHORIZATION"])
@pytest.mark.parametrize("through", ["lease", "pool"])
async def test_the_role_that_on_connect_chose_is_every_holders(
    tenants: PostgresServer, transport: Transport, sql: str, through: str
) -> None:
    async def restrict(conn: ysactor.Connection) -> None:
        await conn.execute("SET ROLE restricted")

    async with open_case(tenants, transport, pool_size=1, on_connect=restrict) as case:
        pool = case.pool
        for _ in range(2):
            assert (await pool.fetchval(WHO)).startswith("restricted,")
            if through == "pool":
                await pool.execute(sql)
            else:
                async with pool.acquire() as conn:
                    await conn.execute(sql)
        assert (await pool.fetchval(WHO)).startswith("restricted,")
        opened = pool.statistics().connections_opened
        await pool.execute("CREATE TEMPORARY TABLE users(role text)")
        await pool.execute("UPDATE users SET role = 'tenant'")
        assert (await pool.fetchval(WHO)).startswith("restricted,")
        assert pool.statistics().connections_opened == opened, "what changes no role costs nothing"


@pytest.mark.parametrize("how", ["block", "by hand"])
async def test_a_role_is_never_the_next_holders_where_a_roll_back_is_owed(
    tenants: PostgresServer, transport: Transport, how: str
) -> None:
    """It was set before the transaction, so the actor's ROLLBACK does not undo it."""
    async with open_case(tenants, transport, pool_size=1) as case:
        before = await case.pool.fetchval(WHO)
        with trio.CancelScope() as scope:
            async with case.pool.acquire() as conn:
                await conn.execute("SET ROLE tenant")
                transaction = conn.transaction()
                if how == "block":
                    async with transaction:
                        await conn.fetchval("SELECT 1")
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
                await transaction.start()
                await conn.fetchval("SELECT 1")
                scope.cancel()
                await transaction.rollback()
        assert await case.pool.fetchval(WHO) == before


@pytest.mark.parametrize("sql", ["DISCARD ALL", "DEALLOCATE ALL"])
@pytest.mark.parametrize("through", ["lease", "pool"])
async def test_statements_that_one_holder_threw_away_are_prepared_anew_for_the_next(
    server: PostgresServer, transport: Transport, sql: str, through: str
) -> None:
    async with open_case(server, transport, pool_size=1) as case:
        pool = case.pool
        for n in range(3):
            assert await pool.fetchval("SELECT $1::int", n) == n
            if through == "pool":
                await pool.execute(sql)
            else:
                async with pool.acquire() as conn:
                    await conn.execute(sql)
                    assert await conn.fetchval("SELECT $1::int", n) == n
        assert pool.statistics().connections_opened == 1


# --- time-outs -------------------------------------------------------------------------------------------------------
async def test_a_time_out_bounds_the_wait_for_what_was_left_before(
    server: PostgresServer, transport: Transport
) -> None:
    async with open_case(server, transport, pool_size=1, cancel_timeout=20) as case, case.pool.acquire() as conn:
        with trio.move_on_after(0.05):
            await conn.fetchval("SELECT pg_sleep(0.1)")
        server.freeze()
        try:
            with trio.fail_after(5), pytest.raises(TimeoutError):
                await conn.fetchval("SELECT 1", timeout=0.1)
        finally:
            server.thaw()
        assert await conn.fetchval("SELECT 2") == 2


async def test_a_copys_time_out_that_begin_has_used_up_is_a_time_out(
    server: PostgresServer, transport: Transport
) -> None:
    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        for timeout in (1e-6, 1e-5, 1e-4, 3e-4, 1e-3):
            for _ in range(5):
                try:
                    async with conn.transaction():
                        await conn.copy_records_to_table("kept", records=[(1,)], timeout=timeout)
                        raise KeyError
                except (TimeoutError, KeyError):
                    pass


# --- listeners -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("undone", ["LISTEN", "UNLISTEN"])
async def test_a_listen_that_was_cancelled_does_not_stay_on_the_server(
    server: PostgresServer, transport: Transport, undone: str
) -> None:
    """Wherever it is cancelled. A server keeps what nobody reads, until its queue is full and every NOTIFY fails."""
    async with open_case(server, transport, pool_size=1) as case:
        for n in range(60):
            channel = f'channel "{n}"'
            async with case.pool.acquire() as conn:
                if undone == "UNLISTEN":
                    await conn.add_listener(channel, _hear)
                with trio.move_on_after(n % 12 / 10_000):
                    await (conn.add_listener if undone == "LISTEN" else conn.remove_listener)(channel, _hear)
        assert await case.pool.fetch("SELECT pg_listening_channels()") == []
        assert case.pool.statistics().connections_opened == 1


async def test_a_listener_is_added_again_after_its_transaction_was_rolled_back(
    server: PostgresServer, transport: Transport
) -> None:
    heard: list[str] = []

    def hear(_conn: ysactor.Connection, _pid: int, _channel: str, payload: str) -> None:
        heard.append(payload)

    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        with suppress(KeyError):
            async with conn.transaction():
                await conn.add_listener("news", _hear)
                raise KeyError
        await conn.add_listener("news", hear)
        server.sql("notify news, 'one'")
        await until(lambda: heard == ["one"], "it is heard")


def _hear(_conn: ysactor.Connection, _pid: int, _channel: str, _payload: str) -> None:
    pass


# --- on_connect ------------------------------------------------------------------------------------------------------
async def test_a_copy_that_fails_in_on_connect_is_over_at_once(server: PostgresServer, transport: Transport) -> None:
    async def broken() -> AsyncIterator[tuple[int]]:
        yield (1,)
        raise KeyError

    async def prepare(conn: ysactor.Connection) -> None:
        with pytest.raises(KeyError):
            await conn.copy_records_to_table("kept", records=broken())

    async with open_case(server, transport, pool_size=1, on_connect=prepare, connect_timeout=30) as case:
        with trio.fail_after(10):
            assert await case.pool.fetchval("SELECT 1") == 1
        assert rows(server) == 0


async def test_a_connection_that_is_lost_in_on_connect_is_opened_elsewhere(
    three_zones: ThreeZones, transport: Transport
) -> None:
    bed = three_zones
    first, second = bed.servers[:2]

    async def prepare(conn: ysactor.Connection) -> None:
        if conn.server.port == first.port and conn.server.host == first.host:
            await kill(first, conn)
        await conn.fetchval("SELECT 1")

    options = {"dsn": bed.dsn(0, 1), "load_balance": False, "rest": False}
    async with open_case(bed, transport, pool_size=1, on_connect=prepare, **options) as case:
        assert await case.pool.fetchval("SELECT 1") == 1
        assert list(case.pool.statistics().by_host) == [f"{second.host}:{second.port}"]


async def test_a_listener_that_on_connect_could_not_take_off_is_taken_off(
    server: PostgresServer, transport: Transport
) -> None:
    async def prepare(conn: ysactor.Connection) -> None:
        await conn.add_listener("news", _hear)
        with suppress(asyncpg.InFailedSQLTransactionError):
            async with conn.transaction():
                with pytest.raises(asyncpg.DivisionByZeroError):
                    await conn.fetchval("SELECT 1 / 0")
                await conn.remove_listener("news", _hear)

    async with open_case(server, transport, pool_size=1, on_connect=prepare) as case:
        assert await case.pool.fetch("SELECT pg_listening_channels()") == []


# --- and more of what was half sent, or ended by hand ----------------------------------------------------------------
async def test_what_follows_an_error_of_this_side_is_bounded_by_the_calls_time_out(
    server: PostgresServer, transport: Transport
) -> None:
    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:

        def broken(_: object) -> str:
            server.freeze()
            raise ValueError

        await conn.set_type_codec("json", schema="pg_catalog", encoder=broken, decoder=str)
        try:
            with trio.fail_after(3), pytest.raises(asyncpg.DataError):
                await conn.fetchval("SELECT $1::json", {}, timeout=0.5)
        finally:
            server.thaw()
        assert await conn.fetchval("SELECT 1") == 1


async def test_a_statement_may_be_prepared_without_a_name(server: PostgresServer, transport: Transport) -> None:
    async with open_case(server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        statement = await conn.prepare("SELECT 42", name="")
        assert await statement.fetchval() == 42
        transaction = conn.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.DivisionByZeroError):
            await conn.fetchval("SELECT 1 / 0")
        end = await conn.prepare("ROLLBACK")
        await end.fetch()
        with pytest.raises(ysactor.TransactionEnded):
            await transaction.commit()


async def test_a_text_that_commits_and_then_fails_is_not_run_again(
    server: PostgresServer, transport: Transport
) -> None:
    runs = 0
    fails = "DO $$ BEGIN RAISE EXCEPTION 'again' USING errcode = '40001'; END $$"

    async def fn(conn: ysactor.Connection) -> None:
        nonlocal runs
        runs += 1
        await conn.execute("INSERT INTO kept VALUES ($1)", runs)
        await conn.execute(f"COMMIT; BEGIN; {fails}")

    async with open_case(server, transport, pool_size=1) as case:
        with pytest.raises(ysactor.TransactionEnded):
            await case.pool.transaction(fn)
        assert (runs, rows(server)) == (1, 1)
