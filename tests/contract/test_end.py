"""The end of a session: by its owner, by its server, idle or in a call, and what each is told."""

from __future__ import annotations

import math

import pytest
import trio

from ysactor.driver.protocol import Status
from ysactor.errors import ConnectionLost


async def test_a_loss_while_idle_is_told_once(world):
    async with world.session() as (session, events):
        world.kill(session)
        await world.until(lambda: events.losses != [])
        await trio.sleep(0.02)

        [reason] = events.losses
        assert reason.startswith("closed by the server")
        assert session.status is Status.CLOSED
        assert not session.is_clean()


async def test_a_loss_in_a_transaction_between_its_statements_is_told(world):
    async with world.session() as (session, events):
        await session.drive(session.raw.execute("BEGIN"))
        world.kill(session)
        await world.until(lambda: events.losses != [])

        assert session.status is Status.CLOSED


async def test_a_loss_seen_before_the_owner_is_named_is_told_to_it_at_once(world):
    session, first = await world.connect()
    bare = await world.driver.connect(world.host, world.config)
    world.kill(bare)
    await world.until(lambda: bare.pid not in world.activity())
    await trio.sleep(0.05)

    bare.attach(first)
    await world.until(lambda: first.losses != [])

    [reason] = first.losses
    assert reason.startswith("closed by the server")
    session.terminate("done")


async def test_a_loss_in_a_call_is_its_error_and_is_told_when_the_call_is_over(world):
    async with world.session() as (session, events), trio.open_nursery() as nursery:
        caught = []

        async def call():
            try:
                await session.drive(session.raw.fetchval("SELECT pg_sleep(10)"))
            except ConnectionLost as error:
                caught.append(error)
                assert events.losses == [error.reason]

        nursery.start_soon(call)
        await world.until_executing(session)
        world.kill(session)
        await world.until(lambda: caught != [])

        assert caught[0].server == world.host
        assert type(caught[0].__cause__).__name__ == "ConnectionDoesNotExistError"
        assert session.status is Status.CLOSED
        await trio.sleep(0.02)
        assert len(events.losses) == 1


@pytest.mark.parametrize("delay", [0, 0.001, 0.02])
async def test_a_call_on_a_session_that_has_just_died_is_lost_whatever_the_driver_calls_it(world, delay):
    async with world.session() as (session, _):
        world.kill(session)
        await trio.sleep(delay)

        with pytest.raises(ConnectionLost):
            await session.drive(session.raw.fetchval("SELECT pg_sleep(1)"))
        assert session.status is Status.CLOSED
        with pytest.raises(ConnectionLost):
            await session.drive(session.raw.fetchval("SELECT 1"))


async def test_terminating_ends_the_call_that_is_running_with_the_reason(world):
    async with world.session() as (session, events), trio.open_nursery() as nursery:
        caught = []

        async def call():
            try:
                await session.drive(session.raw.fetchval("SELECT pg_sleep(10)"))
            except ConnectionLost as error:
                caught.append(error.reason)

        nursery.start_soon(call)
        await world.until_executing(session)
        session.terminate("fenced off")
        session.terminate("again")
        await world.until(lambda: caught != [])

        assert caught == ["fenced off"]
        assert session.status is Status.CLOSED
        assert (events.losses, events.abandonments) == ([], 0)


async def test_terminating_an_idle_session_closes_its_socket_and_is_not_told(world):
    session, events = await world.connect()

    session.terminate("not needed")

    assert session.status is Status.CLOSED
    await world.until(lambda: world.activity() == {})
    assert events.losses == []
    with pytest.raises(ConnectionLost) as caught:
        await session.drive(session.raw.fetchval("SELECT 1"))
    assert caught.value.reason == "not needed"


async def test_terminating_needs_no_checkpoint_and_works_in_a_cancelled_task(world):
    session, _ = await world.connect()

    with trio.CancelScope() as scope:
        try:
            scope.cancel()
            await trio.sleep_forever()
        finally:
            session.terminate("cancelled")

    await world.until(lambda: world.activity() == {})


async def test_terminating_in_the_middle_of_a_statement_leaves_the_server_to_finish_it(world):
    session, _ = await world.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_swallow, session)
        await world.until_executing(session)
        session.terminate("gone")
    assert world.activity() == {session.pid: "active"}

    await session.interrupt(5)

    await world.until(lambda: world.activity() == {})


async def _swallow(session):
    with pytest.raises(ConnectionLost):
        await session.drive(session.raw.fetchval("SELECT pg_sleep(15)"))


async def test_interrupting_a_server_that_hangs_is_bounded(world):
    async with world.session() as (session, _), trio.open_nursery() as nursery:
        nursery.start_soon(_swallow, session)
        await world.until_executing(session)
        with world.frozen(session):
            started = trio.current_time()
            await session.interrupt(0.1)
            assert trio.current_time() - started < 5
        session.terminate("done")


async def test_closing_waits_until_the_server_has_closed(world):
    session, events = await world.connect()

    await session.close(math.inf)

    assert session.status is Status.CLOSED
    await world.until(lambda: world.activity() == {})
    assert events.losses == []
    await session.close(math.inf)
    with pytest.raises(ConnectionLost):
        await session.drive(session.raw.fetchval("SELECT 1"))


async def test_closing_rolls_an_open_transaction_back(world):
    session, _ = await world.connect()
    await session.drive(session.raw.execute("BEGIN"))

    await session.close(math.inf)

    await world.until(lambda: world.activity() == {})


@pytest.mark.parametrize("timeout", [0, 0.1])
async def test_closing_a_session_of_a_server_that_hangs_is_bounded(world, timeout):
    session, _ = await world.connect()

    with world.frozen(session):
        started = trio.current_time()
        await session.close(timeout)
        assert trio.current_time() - started < 5

    assert session.status is Status.CLOSED
    await world.until(lambda: world.activity() == {})


async def test_a_cancelled_close_closes_the_socket_all_the_same(world):
    session, _ = await world.connect()

    with world.frozen(session), trio.move_on_after(0.05) as scope:
        await session.close(3)

    assert scope.cancelled_caught
    assert session.status is Status.CLOSED
    await world.until(lambda: world.activity() == {})


async def test_closing_a_session_that_its_server_has_closed_does_not_raise(world):
    session, _ = await world.connect()
    world.kill(session)

    await session.close(5)

    assert session.status is Status.CLOSED
