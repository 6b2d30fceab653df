"""Cancelling a call, settling after it, and the grace that COMMIT gets."""

from __future__ import annotations

import random

import pytest
import trio

from ysactor.driver.protocol import Status
from ysactor.errors import ConnectionLost


async def _leave(world, session, sql="SELECT pg_sleep(10)"):
    """Cancel a call while the server is running it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.drive, session.raw.fetchval(sql))
        await world.until_executing(session)
        nursery.cancel_scope.cancel()


async def test_cancelled_before_it_starts_it_sends_nothing(world):
    async with world.session() as (session, events):
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.drive(session.raw.execute("SET search_path TO touched"))

        assert scope.cancelled_caught
        assert session.is_clean()
        assert events.abandonments == 0
        assert await session.drive(session.raw.fetchval("SHOW search_path")) == '"$user", public'


async def test_cancelled_before_it_starts_even_a_commit_sends_nothing(world):
    async with world.session() as (session, _):
        await session.drive(session.raw.execute("BEGIN"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.drive(session.raw.execute("COMMIT"), grace=5)

        assert session.status is Status.IN_TRANSACTION


async def test_cancelled_in_the_call_it_leaves_at_once_and_tells_its_owner(world):
    async with world.session() as (session, events):
        await _leave(world, session)

        assert session.status is Status.ABANDONED
        assert not session.is_clean()
        assert (events.losses, events.abandonments) == ([], 1)


async def test_cancelled_in_the_call_it_leaves_at_once_even_if_the_server_hangs(world):
    async with world.session() as (session, events):
        with world.frozen(session), trio.move_on_after(0.05) as scope:
            await session.drive(session.raw.fetchval("SELECT 1"))

        assert scope.cancelled_caught
        assert events.abandonments == 1


async def test_cancelled_after_the_call_the_session_is_clean(world):
    async with world.session() as (session, events):
        with trio.CancelScope() as scope:
            assert await session.drive(session.raw.fetchval("SELECT 1")) == 1
            scope.cancel()

        assert session.is_clean()
        assert events.abandonments == 0


async def test_settling_stops_the_statement_on_the_server_and_makes_the_session_usable(world):
    async with world.session() as (session, events):
        await _leave(world, session)

        assert await session.settle(5)
        assert session.is_clean()
        assert world.activity() == {session.pid: "idle"}
        assert await session.drive(session.raw.fetchval("SELECT 1")) == 1
        assert (events.losses, events.abandonments) == ([], 1)


async def test_settling_in_a_transaction_leaves_the_failed_transaction_open(world):
    async with world.session() as (session, _):
        await session.drive(session.raw.execute("BEGIN"))
        await _leave(world, session)

        assert await session.settle(5)
        assert session.status is Status.IN_TRANSACTION
        with pytest.raises(Exception, match="aborted"):
            await session.drive(session.raw.fetchval("SELECT 1"))
        assert await session.drive(session.raw.execute("ROLLBACK")) == "ROLLBACK"


async def test_settling_with_no_time_terminates_at_once(world):
    async with world.session() as (session, events):
        await _leave(world, session)

        assert not await session.settle(0)
        assert session.status is Status.CLOSED
        assert events.losses == []


async def test_settling_a_session_of_a_server_that_hangs_terminates_it_in_time(world):
    async with world.session() as (session, _):
        with world.frozen(session):
            with trio.move_on_after(0.05):
                await session.drive(session.raw.fetchval("SELECT 1"))
            assert not await session.settle(0.1)

        assert session.status is Status.CLOSED
        await world.until(lambda: session.pid not in world.activity())


async def test_settling_a_session_that_died_meanwhile_says_so(world):
    async with world.session() as (session, _):
        await _leave(world, session)
        world.kill(session)

        assert not await session.settle(5)
        assert session.status is Status.CLOSED


async def test_a_call_on_an_abandoned_session_waits_until_it_is_settled(world):
    async with world.session() as (session, _), trio.open_nursery() as nursery:
        await _leave(world, session)
        answers = []

        async def next_call():
            answers.append(await session.drive(session.raw.fetchval("SELECT 9")))

        nursery.start_soon(next_call)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert answers == []
        assert await session.settle(5)
        await world.until(lambda: answers == [9])


async def test_a_call_waiting_for_a_session_to_be_settled_is_lost_with_it(world):
    async with world.session() as (session, _), trio.open_nursery() as nursery:
        await _leave(world, session)
        errors = []

        async def next_call():
            try:
                await session.drive(session.raw.fetchval("SELECT 9"))
            except ConnectionLost as error:
                errors.append(error)

        nursery.start_soon(next_call)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not await session.settle(0)
        await world.until(lambda: len(errors) == 1)


async def test_a_call_waiting_for_a_session_to_be_settled_keeps_its_timeout(world):
    async with world.session() as (session, events):
        await _leave(world, session)

        with pytest.raises(TimeoutError):
            await session.drive(session.raw.fetchval("SELECT 9"), timeout=0.05)
        assert events.abandonments == 1
        assert await session.settle(5)


async def test_no_cancellation_reaches_the_next_statement(world):
    """Sixty calls, each cancelled at a moment of its own, and a statement after each that must not notice."""
    moments = random.Random(20)
    async with world.session() as (session, events):
        for number in range(60):
            with trio.move_on_after(moments.random() * 0.004):
                await session.drive(session.raw.fetchval("SELECT pg_sleep(0.002)"))
            if session.status is Status.ABANDONED:
                assert await session.settle(5)
            assert await session.drive(session.raw.fetchval("SELECT $1::int", number)) == number
        assert events.losses == []


async def test_a_cancellation_is_put_off_for_a_call_with_grace_that_ends_in_time(world):
    async with world.session() as (session, events):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:

                async def cancel_it():
                    await world.until_executing(session)
                    scope.cancel()

                nursery.start_soon(cancel_it)
                answer = await session.drive(session.raw.execute("SELECT pg_sleep(0.2)"), grace=5)
                assert scope.cancel_called
                await trio.sleep_forever()

        assert answer == "SELECT 1"
        assert session.is_clean()
        assert events.abandonments == 0


async def test_an_error_within_the_grace_comes_out(world):
    async with world.session(statement_timeout=0.3) as (session, _):
        with trio.move_on_after(0.1), pytest.raises(Exception, match="statement timeout"):
            await session.drive(session.raw.execute("SELECT pg_sleep(10)"), grace=5)
        assert session.is_clean()


async def test_a_call_that_outlasts_its_grace_is_lost(world):
    async with world.session() as (session, events):
        with trio.move_on_after(0.05), pytest.raises(ConnectionLost) as caught:
            await session.drive(session.raw.execute("SELECT pg_sleep(10)"), grace=0.1)

        assert session.status is Status.CLOSED
        assert (events.losses, events.abandonments) == ([caught.value.reason], 0)


async def test_grace_changes_nothing_for_a_call_that_is_not_cancelled(world):
    async with world.session() as (session, _):
        await session.drive(session.raw.execute("BEGIN"))
        assert await session.drive(session.raw.execute("COMMIT"), grace=0.01) == "COMMIT"
        await trio.sleep(0.05)
        assert session.is_clean()
