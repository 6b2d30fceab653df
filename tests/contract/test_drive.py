"""Driving a call: results, errors, and every bound on its time."""

from __future__ import annotations

import math

import pytest
import trio

from ysactor.driver.protocol import Preface, Status
from ysactor.errors import ConnectionLost


async def test_a_call_returns_what_asyncpg_returns(world):
    async with world.session() as (session, _):
        raw = session.raw
        assert await session.drive(raw.fetchval("SELECT $1::int", 42)) == 42
        row = await session.drive(raw.fetchrow("SELECT 7 AS seven"))
        assert (row["seven"], row[0], len(row), list(row.keys())) == (7, 7, 1, ["seven"])
        rows = await session.drive(raw.fetch("SELECT i FROM generate_series(1, 3) AS i"))
        assert [each["i"] for each in rows] == [1, 2, 3]
        assert await session.drive(raw.fetchrow("SELECT i FROM generate_series(1, 0) AS i")) is None
        assert await session.drive(raw.fetchval("SELECT i FROM generate_series(1, 0) AS i")) is None
        assert await session.drive(raw.execute("SET search_path TO public")) == "SET"


async def test_a_coroutine_of_several_calls_is_one_call(world):
    async with world.session() as (session, _):

        async def both():
            return await session.raw.fetchval("SELECT 1"), await session.raw.fetchval("SELECT 2")

        assert await session.drive(both()) == (1, 2)
        assert session.is_clean()


async def test_a_call_may_come_from_any_task(world):
    results = []

    async def ask(session):
        results.append(await session.drive(session.raw.fetchval("SELECT 5")))

    async with trio.open_nursery() as nursery:
        start = trio.Event()
        late = {}

        async def waiting_since_before():
            await start.wait()
            await ask(late["session"])

        nursery.start_soon(waiting_since_before)
        async with world.session() as (session, _):
            late["session"] = session
            start.set()
            await world.until(lambda: results == [5])


async def test_a_servers_error_comes_out_unchanged_and_the_session_stays_usable(world):
    async with world.session() as (session, events):
        with pytest.raises(Exception, match="division by zero") as caught:
            await session.drive(session.raw.fetchval("SELECT 1/0"))

        assert type(caught.value).__name__ == "DivisionByZeroError"
        assert caught.value.sqlstate == "22012"
        assert session.is_clean()
        assert await session.drive(session.raw.fetchval("SELECT 1")) == 1
        assert (events.losses, events.abandonments) == ([], 0)


async def test_the_status_follows_the_transaction_without_asking(world):
    async with world.session() as (session, _):
        seen = []
        for sql in ("BEGIN", "SELECT 1", "SAVEPOINT a", "SELECT 1/0", "SELECT 1", "ROLLBACK TO a", "COMMIT"):
            try:
                await session.drive(session.raw.execute(sql))
            except Exception as error:
                seen.append((sql, error.sqlstate, session.status, session.is_clean()))
            else:
                seen.append((sql, "", session.status, session.is_clean()))

        inside = (Status.IN_TRANSACTION, False)
        assert seen == [
            ("BEGIN", "", *inside),
            ("SELECT 1", "", *inside),
            ("SAVEPOINT a", "", *inside),
            ("SELECT 1/0", "22012", *inside),
            ("SELECT 1", "25P02", *inside),
            ("ROLLBACK TO a", "", *inside),
            ("COMMIT", "", Status.IDLE, True),
        ]


async def test_committing_a_failed_transaction_answers_rollback(world):
    async with world.session() as (session, _):
        await session.drive(session.raw.execute("BEGIN"))
        with pytest.raises(Exception, match="division"):
            await session.drive(session.raw.execute("SELECT 1/0"))

        assert await session.drive(session.raw.execute("COMMIT")) == "ROLLBACK"


async def test_a_call_that_is_running_makes_the_session_busy(world):
    async with world.session() as (session, _), trio.open_nursery() as nursery:
        nursery.start_soon(session.drive, session.raw.fetchval("SELECT pg_sleep(5)"))
        await world.until_executing(session)

        assert session.status is Status.BUSY
        assert not session.is_clean()
        nursery.cancel_scope.cancel()


async def test_a_second_call_is_refused_and_leaves_the_first_alone(world):
    async with world.session() as (session, events), trio.open_nursery() as nursery:
        answers = []

        async def first():
            answers.append(await session.drive(session.raw.fetchval("SELECT pg_sleep(0.2)")))

        nursery.start_soon(first)
        await world.until_executing(session)
        for _ in range(3):
            with pytest.raises(Exception, match="operation") as caught:
                await session.drive(session.raw.fetchval("SELECT 2"))
            assert type(caught.value).__name__ == "InterfaceError"
        await world.until(lambda: answers != [])

        assert session.is_clean()
        assert await session.drive(session.raw.fetchval("SELECT 3")) == 3
        assert events.abandonments == 0


async def test_a_call_past_its_timeout_raises_and_is_left(world):
    async with world.session() as (session, events):
        with pytest.raises(TimeoutError):
            await session.drive(session.raw.fetchval("SELECT pg_sleep(10)"), timeout=0.05)

        assert (session.status, events.abandonments) == (Status.ABANDONED, 1)
        assert await session.settle(5)
        assert session.is_clean()


async def test_a_call_within_its_timeout_leaves_nothing_armed(world):
    async with world.session(socket_timeout=0.3) as (session, events):
        assert await session.drive(session.raw.fetchval("SELECT 1"), timeout=0.3) == 1
        await trio.sleep(0.4)

        assert session.is_clean()
        assert await session.drive(session.raw.fetchval("SELECT 2")) == 2
        assert (events.losses, events.abandonments) == ([], 0)


@pytest.mark.parametrize("timeout", [0, -1, 0.0])
async def test_a_timeout_of_zero_or_less_sends_nothing(world, timeout):
    async with world.session() as (session, events):
        with pytest.raises(TimeoutError):
            await session.drive(session.raw.execute("SET search_path TO touched"), timeout=timeout)

        assert session.is_clean()
        assert await session.drive(session.raw.fetchval("SHOW search_path")) == '"$user", public'
        assert events.abandonments == 0


async def test_past_socket_timeout_the_socket_is_closed_and_the_call_says_so(world):
    async with world.session(socket_timeout=0.1) as (session, events):
        with pytest.raises(ConnectionLost) as caught:
            await session.drive(session.raw.fetchval("SELECT pg_sleep(10)"))

        assert (caught.value.reason, caught.value.server) == ("socket_timeout", world.host)
        assert session.status is Status.CLOSED
        assert (events.losses, events.abandonments) == (["socket_timeout"], 0)
        with pytest.raises(ConnectionLost):
            await session.drive(session.raw.fetchval("SELECT 1"))


@pytest.mark.parametrize(
    "limits", [{"socket_timeout": 0.05}, {"asyncpg_options": {"command_timeout": 0.05}}], ids=["socket", "command"]
)
async def test_no_limit_of_its_own_bounds_a_session_that_has_no_owner_yet(world, limits):
    session = await world.unowned(**limits)
    await session.drive(session.raw.execute("SELECT pg_sleep(0.2)"))
    session.terminate("the case has ended")


async def test_command_timeout_is_the_timeout_of_a_call_that_has_none(world):
    async with world.session(asyncpg_options={"command_timeout": 0.05}) as (session, events):
        with pytest.raises(TimeoutError):
            await session.drive(session.raw.execute("SELECT pg_sleep(10)"))
        assert await session.settle(5)
        with pytest.raises(TimeoutError):
            await session.drive_after(Preface("BEGIN"), session.raw.execute("SELECT pg_sleep(10)"))
        assert await session.settle(5)
        await session.drive(session.raw.execute("ROLLBACK"))
        await session.drive(session.raw.execute("SELECT pg_sleep(0.1)"), timeout=10)
        assert (events.losses, events.abandonments) == ([], 2)


async def test_socket_timeout_counts_the_whole_call(world):
    async with world.session(socket_timeout=0.3) as (session, _):

        async def slow_but_steady():
            for _ in range(8):
                await session.raw.fetchval("SELECT pg_sleep(0.1)")

        with pytest.raises(ConnectionLost) as caught:
            await session.drive(slow_but_steady())
        assert caught.value.reason == "socket_timeout"


async def test_an_earlier_timeout_leaves_the_socket_open(world):
    async with world.session(socket_timeout=2) as (session, _):
        with pytest.raises(TimeoutError):
            await session.drive(session.raw.fetchval("SELECT pg_sleep(10)"), timeout=0.05)

        assert await session.settle(2)


async def test_a_cursor_gives_rows_in_portions_inside_a_transaction(world):
    async with world.session() as (session, _):
        await session.drive(session.raw.execute("BEGIN"))

        async def opened():
            return await session.raw.cursor("SELECT i FROM generate_series(1, 5) AS i")

        cursor = await session.drive(opened())
        portions = [[row["i"] for row in await session.drive(cursor.fetch(2))] for _ in range(4)]
        iterated = []
        iterator = aiter(session.raw.cursor("SELECT i FROM generate_series(1, 3) AS i", prefetch=2))

        async def following():
            return await anext(iterator, None)

        while (row := await session.drive(following())) is not None:
            iterated.append(row["i"])

        assert portions == [[1, 2], [3, 4], [5], []]
        assert iterated == [1, 2, 3]
        assert await session.drive(session.raw.execute("COMMIT")) == "COMMIT"


async def test_a_prepared_statement_runs_again_and_again(world):
    async with world.session() as (session, _):
        statement = await session.drive(session.raw.prepare("SELECT $1::int"))

        assert [await session.drive(statement.fetchval(number)) for number in (1, 2, 3)] == [1, 2, 3]
        assert statement.get_query() == "SELECT $1::int"


async def test_executemany_runs_a_statement_for_each_of_its_arguments(world):
    async with world.session() as (session, _):
        await session.drive(session.raw.executemany("SELECT $1::int", [(number,) for number in range(100)]))

        assert session.is_clean()


async def test_notifications_reach_a_session_that_listens_while_it_is_idle(world):
    async with world.session() as (listening, _), world.session() as (other, _):
        heard = []

        def note(connection, pid, channel, payload):
            heard.append((connection is listening.raw, pid, channel, payload))

        await listening.drive(listening.raw.add_listener("news", note))
        await other.drive(other.raw.execute("NOTIFY news, 'first'"))
        await other.drive(other.raw.execute("SELECT pg_notify('news', 'second')"))
        await world.until(lambda: len(heard) == 2)
        await listening.drive(listening.raw.remove_listener("news", note))
        await other.drive(other.raw.execute("NOTIFY news, 'third'"))
        await listening.drive(listening.raw.fetchval("SELECT 1"))

        assert heard == [(True, other.pid, "news", "first"), (True, other.pid, "news", "second")]


async def test_what_is_known_without_asking(world):
    async with world.session() as (session, _):
        raw = session.raw
        assert raw.get_server_pid() == session.pid
        assert raw.get_server_version().major >= 13
        assert raw.get_settings().application_name == world.config.application_name
        assert (raw.is_closed(), raw.is_in_transaction()) == (False, False)
        await session.close(math.inf)
        assert raw.is_closed()
