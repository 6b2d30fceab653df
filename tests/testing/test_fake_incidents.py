"""What may happen to a fake server, and what its clients see of it."""

from __future__ import annotations

import pytest
import trio

from ysactor.config import Config
from ysactor.driver.protocol import ConnectFailure, Phase, Status
from ysactor.errors import ConnectionLost
from ysactor.servers import HostPort
from ysactor.testing import Condition, FakeDriver, error


async def _failure(connect, server, **options):
    with pytest.raises(ConnectFailure) as caught:
        await connect(server, **options)
    return caught.value


async def test_a_crash_ends_every_session_and_refuses_dials(cluster, connect):
    first, second, _ = cluster.servers
    idle = await connect(first)
    elsewhere = await connect(second)
    async with trio.open_nursery() as nursery:
        caught = []

        async def call(session):
            with pytest.raises(ConnectionLost) as lost:
                await session.drive(session.raw.fetchval("SELECT pg_sleep(60)"))
            caught.append((trio.current_time(), type(lost.value.__cause__).__name__))

        nursery.start_soon(call, await connect(first))
        await trio.sleep(5)
        first.crash()

    assert caught == [(5, "ConnectionDoesNotExistError")]
    assert (idle.status, elsewhere.status) == (Status.CLOSED, Status.IDLE)
    assert (first.sessions, len(second.sessions)) == ((), 1)
    assert (await _failure(connect, first)).phase is Phase.CONNECT


async def test_a_crash_in_the_login_is_a_closed_connection(cluster, connect):
    first = cluster.servers[0]
    first.slow(connect=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0)
        failures = []

        async def attempt():
            failures.append(await _failure(connect, first))

        nursery.start_soon(attempt)
        await trio.sleep(3)
        first.crash()

    assert [(f.phase, f.sqlstate, type(f.__cause__)) for f in failures] == [(Phase.LOGIN, None, ConnectionResetError)]
    assert trio.current_time() == 3


async def test_a_server_that_hangs_answers_when_it_recovers(cluster, connect):
    first = cluster.servers[0]
    session = await connect(first)
    answers = []

    async def ask():
        answers.append((await session.drive(session.raw.fetchval("SELECT 1")), trio.current_time()))

    async def log_in():
        await connect(first)
        answers.append(("login", trio.current_time()))

    async with trio.open_nursery() as nursery:
        first.hang()
        nursery.start_soon(ask)
        nursery.start_soon(log_in)
        await trio.sleep(30)
        assert answers == []
        assert len(cluster.journal.dials(first)) == 2
        assert len(cluster.journal.logins(first)) == 1
        first.recover()

    assert sorted(answers, key=str) == [("login", 30), (1, 30)]


async def test_a_statement_that_was_running_when_its_server_hung_is_answered_after_it_recovers(cluster, connect):
    first = cluster.servers[0]
    session = await connect(first)
    async with trio.open_nursery() as nursery:
        answers = []

        async def ask():
            await session.drive(session.raw.fetchval("SELECT pg_sleep(2)"))
            answers.append(trio.current_time())

        nursery.start_soon(ask)
        await trio.sleep(1)
        first.hang()
        await trio.sleep(9)
        first.recover()

    assert answers == [10]


async def test_a_machine_that_vanishes_says_nothing_and_resets_its_old_connections_when_it_is_back(cluster, connect):
    first = cluster.servers[0]
    idle, waiting = await connect(first), await connect(first)
    caught = []

    async def ask():
        with pytest.raises(ConnectionLost) as lost:
            await waiting.drive(waiting.raw.fetchval("SELECT pg_sleep(1)"))
        caught.append((lost.value.reason, trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.5)
        first.vanish()
        with trio.move_on_after(20) as dial:
            await connect(first)
        assert dial.cancelled_caught
        assert (idle.status, caught, first.sessions) == (Status.IDLE, [], ())
        first.recover()

    assert caught == [("reset by the server", 20.5)]
    assert idle.status is Status.IDLE, "it has sent nothing yet"
    with pytest.raises(ConnectionLost):
        await idle.drive(idle.raw.fetchval("SELECT 1"))
    assert (await connect(first)).is_clean()


async def test_refusing_concerns_dials_only(cluster, connect):
    first = cluster.servers[0]
    session = await connect(first)
    first.refuse()

    failure = await _failure(connect, first)

    assert (failure.phase, type(failure.__cause__)) == (Phase.CONNECT, ConnectionRefusedError)
    assert await session.drive(session.raw.fetchval("SELECT 1")) == 1
    assert first.condition is Condition.REFUSING


async def test_rejecting_turns_logins_away_with_the_servers_error(cluster, connect):
    first = cluster.servers[0]
    first.reject("57P03", "the database system is starting up")

    failure = await _failure(connect, first)

    assert (failure.phase, failure.sqlstate) == (Phase.LOGIN, "57P03")
    assert type(failure.__cause__).__name__ == "CannotConnectNowError"
    first.recover()
    assert (await connect(first)).is_clean()


async def test_too_many_sessions_are_turned_away(cluster, connect):
    first = cluster.servers[0]
    first.max_connections = 1
    session = await connect(first)

    assert (await _failure(connect, first)).sqlstate == "53300"

    await session.close(1)
    await connect(first)


async def test_a_standby_refuses_writes_until_it_is_promoted(cluster, connect):
    first = cluster.servers[0]
    cluster.answer("INSERT INTO t VALUES (1)", None)
    cluster.answer("SELECT sneak()", lambda statement: statement.put("key", 1))
    session = await connect(first)
    first.demote()

    assert await session.drive(session.raw.fetchval("SELECT pg_catalog.pg_is_in_recovery()")) is True
    assert await session.drive(session.raw.fetchval("SHOW transaction_read_only")) == "on"
    for sql in ("INSERT INTO t VALUES (1)", "SELECT sneak()"):
        with pytest.raises(Exception, match="during recovery") as caught:
            await session.drive(session.raw.execute(sql))
        assert caught.value.sqlstate == "25006"

    first.promote()
    assert await session.drive(session.raw.execute("INSERT INTO t VALUES (1)")) == "INSERT 0 1"
    assert await session.drive(session.raw.fetchval("SHOW transaction_read_only")) == "off"


async def test_a_server_that_is_closed_to_writes_refuses_them_but_where_a_transaction_says_otherwise(cluster, connect):
    first = cluster.servers[0]
    cluster.answer("INSERT INTO t VALUES (1)", None)
    session = await connect(first)

    async def run(sql):
        return await session.drive(session.raw.execute(sql))

    async def refused():
        with pytest.raises(Exception, match="in a read-only transaction") as caught:
            await run("INSERT INTO t VALUES (1)")
        assert caught.value.sqlstate == "25006"

    first.close_to_writes()

    for name in ("transaction_read_only", "default_transaction_read_only"):
        assert await session.drive(session.raw.fetchval(f"SHOW {name}")) == "on"
    assert await session.drive(session.raw.fetchval("SELECT pg_catalog.pg_is_in_recovery()")) is False
    await refused()
    await run("BEGIN ISOLATION LEVEL READ COMMITTED")
    await refused()
    await run("ROLLBACK")
    await run("BEGIN READ WRITE")
    assert await run("INSERT INTO t VALUES (1)") == "INSERT 0 1"
    await run("COMMIT")

    first.open_to_writes()
    assert await run("INSERT INTO t VALUES (1)") == "INSERT 0 1"
    await run("SET default_transaction_read_only = on")
    await refused()
    started = await connect(first, server_settings={"default_transaction_read_only": "off"})
    first.close_to_writes()
    assert await started.drive(started.raw.execute("INSERT INTO t VALUES (1)")) == "INSERT 0 1"


async def test_being_slow_takes_virtual_time(cluster, connect):
    first = cluster.servers[0]
    first.slow(connect=2, query=3)

    session = await connect(first)
    assert trio.current_time() == 2
    await session.drive(session.raw.execute("BEGIN"))
    assert trio.current_time() == 5
    first.slow(query=0)
    await session.drive(session.raw.execute("COMMIT"))
    assert trio.current_time() == 5


async def test_killing_takes_the_sessions_that_are_chosen(cluster, connect):
    first = cluster.servers[0]
    keep = await connect(first, application_name="keep")
    gone = await connect(first, application_name="kill")

    assert first.kill_sessions(lambda view: view.application_name == "kill") == 1

    assert (keep.status, gone.status) == (Status.IDLE, Status.CLOSED)


@pytest.mark.parametrize(("before", "committed"), [(True, None), (False, "v")])
async def test_a_cut_at_commit_loses_the_answer_before_or_after_it_took_effect(cluster, connect, before, committed):
    first = cluster.servers[0]
    cluster.answer("INSERT", lambda statement: statement.put("k", "v"))
    session = await connect(first)
    first.cut_at_commit(before=before)
    await session.drive(session.raw.execute("BEGIN"))
    await session.drive(session.raw.execute("INSERT"))

    with pytest.raises(ConnectionLost):
        await session.drive(session.raw.execute("COMMIT"), grace=2)

    assert cluster.table.get("k") == committed
    again = await connect(first)
    await again.drive(again.raw.execute("BEGIN"))
    assert await again.drive(again.raw.execute("COMMIT")) == "COMMIT", "only one COMMIT was to be cut"


async def test_a_statement_goes_on_after_its_client_has_hung_up(cluster, connect):
    first = cluster.servers[0]
    cluster.answer("SELECT slow_write()", _write_after_five_seconds)
    session = await connect(first)
    async with trio.open_nursery() as nursery:

        async def ask():
            with pytest.raises(ConnectionLost):
                await session.drive(session.raw.execute("SELECT slow_write()"))

        nursery.start_soon(ask)
        await trio.sleep(1)
        session.terminate("impatient")

    assert (len(first.sessions), [view.pid for view in first.orphans]) == (0, [session.pid])
    await trio.sleep(5)
    assert (first.orphans, cluster.table.get("written")) == ((), True)


async def _write_after_five_seconds(statement):
    await trio.sleep(5)
    statement.put("written", True)


async def test_a_crash_undoes_what_an_orphan_was_doing(cluster, connect):
    first = cluster.servers[0]
    cluster.answer("SELECT slow_write()", _write_after_five_seconds)
    session = await connect(first)
    with trio.move_on_after(1):
        await session.drive(session.raw.execute("SELECT slow_write()"))
    session.terminate("impatient")
    first.crash()
    await trio.sleep(10)

    assert cluster.table.get("written") is None


async def test_a_cancel_request_that_comes_late_hits_what_runs_then(cluster, connect):
    """Which is why `settle` waits for the request's own connection: here nobody does."""
    first = cluster.servers[0]
    session = await connect(first)
    async with trio.open_nursery() as nursery:
        first.slow(cancel=3)
        nursery.start_soon(session.interrupt, 10)
        await trio.sleep(1)

        with pytest.raises(Exception, match="user request") as caught:
            await session.drive(session.raw.fetchval("SELECT pg_sleep(60)"))

    assert (caught.value.sqlstate, trio.current_time()) == ("57014", 3)


async def test_settling_waits_for_a_cancel_request_that_is_held_back(cluster, connect):
    first = cluster.servers[0]
    session = await connect(first)
    release = trio.Event()
    held = []

    async def hold(server, pid):
        held.append((server, pid))
        await release.wait()

    cluster.before_cancel = hold
    with trio.move_on_after(1):
        await session.drive(session.raw.fetchval("SELECT pg_sleep(2)"))
    async with trio.open_nursery() as nursery:
        settled = []

        async def settle():
            settled.append((await session.settle(60), trio.current_time()))

        nursery.start_soon(settle)
        await trio.sleep(20)
        assert (held, settled) == ([(first, session.pid)], [])
        release.set()

    assert settled == [(True, 21)]
    assert await session.drive(session.raw.fetchval("SELECT 1")) == 1


async def test_settling_fails_when_the_cancel_request_is_refused(cluster, connect):
    first = cluster.servers[0]
    session = await connect(first)
    with trio.move_on_after(1):
        await session.drive(session.raw.fetchval("SELECT pg_sleep(60)"))
    first.refuse()

    assert not await session.settle(30)
    assert (session.status, trio.current_time()) == (Status.CLOSED, 1)


async def test_hooks_may_be_swapped_and_hold_what_they_are_for(cluster, connect):
    first, second, _ = cluster.servers
    seen = []

    async def at_connect(host):
        seen.append(("connect", host))
        await trio.sleep(1)

    async def at_statement(server, sql):
        seen.append((str(server), sql))
        await trio.sleep(2)

    cluster.before_connect = at_connect
    session = await connect(second)
    cluster.before_connect, cluster.before_statement = None, at_statement
    await connect(first)
    await session.drive(session.raw.execute("SELECT 1"))

    assert seen == [("connect", second.at), ("10.0.0.2:5433", "SELECT 1")]
    assert trio.current_time() == 3


async def test_a_driver_that_does_not_run_says_so(cluster):
    with pytest.raises(RuntimeError, match="run"):
        await FakeDriver(cluster).connect(cluster.servers[0].at, Config())


async def test_a_coroutine_of_raw_that_is_awaited_by_itself_says_so(cluster, connect):
    session = await connect(cluster.servers[0])

    with pytest.raises(RuntimeError, match="drive"):
        await session.raw.fetchval("SELECT 1")


async def test_names_resolve_as_the_table_says(cluster, driver):
    named = cluster.add("db.example", public_ip="198.51.100.7")
    cluster.resolver["alias.example"] = cluster.resolver["db.example"]
    cluster.resolver["nowhere.example"] = None
    cluster.stuck_names.add("stuck.example")

    assert await driver.resolve("db.example") == await driver.resolve("alias.example") is not None
    assert await driver.resolve("nowhere.example") is None
    with trio.move_on_after(60) as waiting:
        await driver.resolve("stuck.example")
    assert waiting.cancelled_caught
    session = await driver.connect(HostPort("alias.example", 5433), Config())
    assert (session.host.host, len(named.sessions)) == ("alias.example", 1)
    [dialled] = cluster.journal.dials(named)
    assert (dialled.server, dialled.dialled) == (named.at, HostPort("alias.example", 5433))


async def test_from_outside_only_public_addresses_are_reached(cluster, driver):
    server = cluster.add("db.example", public_ip="198.51.100.7")
    cluster.outside = True

    with pytest.raises(ConnectFailure) as caught:
        await driver.connect(server.at, Config())
    session = await driver.connect(HostPort("198.51.100.7", 5433), Config())

    assert caught.value.phase is Phase.CONNECT
    assert (session.is_clean(), len(server.sessions)) == (True, 1)


async def test_the_end_of_the_driver_ends_its_sessions_work(cluster):
    async with trio.open_nursery() as nursery:
        driver = FakeDriver(cluster)
        await nursery.start(driver.run)
        session = await driver.connect(cluster.servers[0].at, Config())
        with trio.move_on_after(1):
            await session.drive(session.raw.fetchval("SELECT pg_sleep(600)"))
        nursery.cancel_scope.cancel()

    with pytest.raises(RuntimeError, match="run"):
        await driver.connect(cluster.servers[0].at, Config())


async def test_the_errors_are_asyncpgs_own_classes():
    import asyncpg

    assert isinstance(error("40001"), asyncpg.SerializationError)
    assert isinstance(error("23505", "duplicate"), asyncpg.UniqueViolationError)
    assert str(error("23505", "duplicate")) == "duplicate"
    assert error("YB001").sqlstate == "YB001"
