"""A statement sent ahead of a call: both are carried out, or what could go wrong is told for what it is."""

from __future__ import annotations

import pytest
import trio

from ysactor.driver.protocol import Preface, Status

BEGIN = "BEGIN"


async def test_both_are_carried_out_in_their_order(world):
    async with world.session() as (session, _):
        begin = Preface(BEGIN)
        assert not begin.sent
        assert await session.drive_after(begin, session.raw.fetchval("SELECT $1::int", 42)) == 42
        assert begin.sent
        assert session.status is Status.IN_TRANSACTION
        assert await session.drive(session.raw.execute("ROLLBACK")) == "ROLLBACK"
        assert session.is_clean()


async def test_the_call_fails_inside_the_transaction(world):
    async with world.session() as (session, events):
        begin = Preface(BEGIN)
        with pytest.raises(Exception, match="division by zero"):
            await session.drive_after(begin, session.raw.fetch("SELECT 1/0"))
        assert begin.sent
        assert session.status is Status.IN_TRANSACTION
        with pytest.raises(Exception, match="current transaction is aborted"):
            await session.drive(session.raw.fetch("SELECT 1"))
        assert events.abandonments == 0


@pytest.mark.real_drivers
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("args", [(), (1,)])
async def test_what_goes_after_a_failed_statement_is_not_carried_out(world, known, args):
    async with world.session() as (session, _):
        raw = session.raw
        insert = f"INSERT INTO kept VALUES ({'$1' if args else '1'})"
        await session.drive(raw.execute("CREATE TEMP TABLE kept(n int)"))
        if known:
            await session.drive(raw.execute(insert, *args))
            await session.drive(raw.execute("DELETE FROM kept"))
        refused = Preface("BEGIN NONSENSE")
        with pytest.raises(Exception, match="NONSENSE") as caught:
            await session.drive_after(refused, raw.execute(insert, *args))
        assert caught.value.sqlstate == "42601"
        assert refused.sent
        assert session.is_clean()
        assert await session.drive(raw.fetchval("SELECT count(*) FROM kept")) == 0


@pytest.mark.real_drivers
async def test_a_call_that_sends_nothing_takes_nothing_with_it(world):
    async with world.session() as (session, _):

        async def refusing():
            raise ValueError("before anything was sent")

        begin = Preface(BEGIN)
        with pytest.raises(ValueError, match="before anything"):
            await session.drive_after(begin, refusing())
        if begin.sent:  # a transport that needs a round trip for it has made it
            await session.drive(session.raw.execute("ROLLBACK"))
        assert await session.drive(session.raw.fetchval("SELECT 1")) == 1
        assert session.is_clean()


async def test_cancelled_before_it_starts_it_sends_nothing(world):
    async with world.session() as (session, events):
        begin = Preface(BEGIN)
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.drive_after(begin, session.raw.fetchval("SELECT 1"))
        assert scope.cancelled_caught
        assert (begin.sent, events.abandonments, session.status) == (False, 0, Status.IDLE)
        # And what comes next has nothing ahead of it.
        assert await session.drive(session.raw.fetchval("SELECT 5")) == 5
        assert session.is_clean()


async def test_cancelled_in_the_call_the_transaction_is_open_and_settled(world):
    async with world.session() as (session, events):
        begin = Preface(BEGIN)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.drive_after, begin, session.raw.execute("SELECT pg_sleep(60)"))
            await world.until_executing(session)
            nursery.cancel_scope.cancel()
        assert (begin.sent, events.abandonments, session.status) == (True, 1, Status.ABANDONED)
        assert await session.settle(5)
        assert session.status is Status.IN_TRANSACTION
        assert await session.drive(session.raw.execute("ROLLBACK")) == "ROLLBACK"
        assert await session.drive(session.raw.fetchval("SELECT 6")) == 6
        assert session.is_clean()


async def test_its_time_out_is_for_both_together(world):
    async with world.session() as (session, events):
        begin = Preface(BEGIN)
        with pytest.raises(TimeoutError):
            await session.drive_after(begin, session.raw.execute("SELECT pg_sleep(60)"), 0.1)
        assert (begin.sent, events.abandonments) == (True, 1)
        assert await session.settle(5)
        with pytest.raises(TimeoutError):
            await session.drive_after(Preface(BEGIN), session.raw.execute("SELECT 1"), 0)


async def test_it_waits_until_what_was_left_is_settled(world):
    async with world.session() as (session, _):
        with pytest.raises(TimeoutError):
            await session.drive(session.raw.execute("SELECT pg_sleep(60)"), 0.05)
        answers = []

        async def next_call():
            answers.append(await session.drive_after(Preface(BEGIN), session.raw.fetchval("SELECT 7")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(next_call)
            await trio.testing.wait_all_tasks_blocked()
            assert answers == []
            assert await session.settle(5)
        assert answers == [7]
        assert session.status is Status.IN_TRANSACTION


async def test_on_a_session_in_use_it_is_refused_and_goes_into_nobody_elses_call(world):
    async with world.session() as (session, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.drive, session.raw.execute("SELECT pg_sleep(0.2)"))
            await world.until_executing(session)
            begin = Preface(BEGIN)
            with pytest.raises(Exception, match="another operation is in progress"):
                await session.drive_after(begin, session.raw.fetchval("SELECT 1"))
            assert not begin.sent
        assert await session.drive(session.raw.fetchval("SELECT 8")) == 8
        assert session.is_clean()


@pytest.mark.real_drivers
@pytest.mark.parametrize("passes", range(1, 5))
async def test_what_is_not_sent_when_its_caller_leaves_is_not_sent_later(world, passes):
    """Its caller goes by that: what it takes for unsent is not rolled back.

    Beside others, so that what is begun is not carried out at once, and thirty times.
    """
    async with world.session() as (session, _), world.session() as (another, _), trio.open_nursery() as others:

        async def busy():
            while True:
                await another.drive(another.raw.fetchval("SELECT 3"))

        others.start_soon(busy)
        for _ in range(30):
            begin = Preface(BEGIN)
            told = []

            async def caller(begin=begin, told=told):
                try:
                    await session.drive_after(begin, session.raw.fetchval("SELECT 1"))
                finally:
                    told.append(begin.sent)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(caller)
                for _ in range(passes):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            [sent] = told or [False]
            assert await session.settle(5)
            if sent:
                await session.drive(session.raw.execute("ROLLBACK"))
            assert await session.drive(session.raw.fetchval("SELECT 2")) == 2
            assert session.is_clean()
        others.cancel_scope.cancel()
