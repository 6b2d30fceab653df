"""What a session keeps of the schema, and what it tells when that turns out to be old."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

QUERY = "SELECT * FROM shape"


@pytest.fixture
def alter(world, implementation):
    """Change the table that `QUERY` reads; the first time, make it."""
    added = 0

    async def altered(session):
        nonlocal added
        added += 1
        if implementation == "fake":
            world.server.answer(QUERY, None)
            world.server.cluster.change_schema()
            return
        what = "CREATE TEMPORARY TABLE shape(a1 int)" if added == 1 else f"ALTER TABLE shape ADD COLUMN a{added} int"
        await session.drive(session.raw.execute(what))

    return altered


@asynccontextmanager
async def outdated(world, alter):
    """A session that keeps a statement from before the schema changed, its owner, and what it tells."""
    told = []
    async with world.session() as (session, events):
        session.on_outdated.append(told.append)
        await alter(session)
        await session.drive(session.raw.fetch(QUERY))
        await alter(session)
        yield session, events, told


async def use_in_transaction(session):
    """Fails, with all that the transaction has done, if the statement is an old one."""
    await session.drive(session.raw.execute("BEGIN"))
    await session.drive(session.raw.fetch(QUERY))
    await session.drive(session.raw.execute("COMMIT"))


async def test_a_statement_from_before_the_schema_changed_is_told_of_also_where_the_caller_does_not_notice(
    world, alter
):
    from asyncpg.exceptions import InvalidCachedStatementError

    told = []
    async with world.session() as (session, events):
        raw = session.raw
        session.on_outdated.append(told.append)
        await alter(session)
        await session.drive(raw.fetch(QUERY))
        assert told == []
        await alter(session)
        await session.drive(raw.fetch(QUERY))
        assert told == [False]
        await alter(session)
        await session.drive(raw.execute("BEGIN"))
        with pytest.raises(InvalidCachedStatementError):
            await session.drive(raw.fetch(QUERY))
        assert told == [False] * 2
        await session.drive(raw.execute("ROLLBACK"))
        await session.drive(raw.execute("BEGIN"))
        await session.drive(raw.fetch(QUERY))
        await session.drive(raw.execute("ROLLBACK"))
        assert told == [False] * 2
        assert (events.losses, events.abandonments) == ([], 0)


@pytest.mark.parametrize("types", [False, True])
async def test_what_it_is_told_to_forget_is_prepared_anew(world, alter, types):
    async with outdated(world, alter) as (session, _, told):
        session.forget_statements(types=types)
        await use_in_transaction(session)
        assert told == []


@pytest.mark.parametrize("left", [False, True])
async def test_in_the_middle_of_a_call_it_forgets_as_the_call_ends_or_is_settled(world, alter, left):
    async with outdated(world, alter) as (session, events, told):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.drive, session.raw.fetch("SELECT pg_sleep(0.2)"))
                await trio.sleep(0.05)
                session.forget_statements(types=True)
                session.forget_statements()
                if left:
                    scope.cancel()
        if left:
            assert events.abandonments == 1
            assert await session.settle(2)
        await use_in_transaction(session)
        assert session.is_clean()
        assert told == []


@pytest.mark.real_drivers
async def test_a_statement_that_was_forgotten_is_closed_on_the_server_as_another_is_prepared(world):
    async with world.session() as (session, _):
        raw = session.raw
        for n in range(5):
            await session.drive(raw.fetch(f"SELECT $1::int + {n}", 1))
        session.forget_statements()
        count = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT $1::int + _'"
        assert await session.drive(raw.fetchval(count)) == 0


@pytest.mark.real_drivers
async def test_a_call_never_has_the_statement_closed_that_it_is_about_to_use(world):
    """While asyncpg closes those that were forgotten, one after the other, the new one is already among those kept."""
    async with world.session() as (session, _):
        raw = session.raw
        for n in range(50):
            await session.drive(raw.fetch(f"SELECT $1::int + {n}", 1))
        session.forget_statements()
        async with trio.open_nursery() as nursery:

            async def forget():
                while True:
                    await trio.lowlevel.checkpoint()
                    session.forget_statements(types=True)

            nursery.start_soon(forget)
            assert await session.drive(raw.fetchval("SELECT $1::text", "new")) == "new"
            nursery.cancel_scope.cancel()


@pytest.mark.real_drivers
async def test_statements_that_are_gone_tell_of_this_session_only_and_a_schema_that_is_to_be_read_anew_of_all(world):
    from asyncpg.exceptions import InvalidSQLStatementNameError

    told = []
    async with world.session() as (session, _):
        raw = session.raw
        session.on_outdated.append(told.append)
        await session.drive(raw.fetch("SELECT 1"))
        await session.drive(raw.execute("DEALLOCATE ALL"))
        with pytest.raises(InvalidSQLStatementNameError):
            await session.drive(raw.fetch("SELECT 1"))
        assert told == []
        await session.drive(raw.reload_schema_state())
        assert told == [True, False]
        assert await session.drive(raw.fetchval("SELECT 1")) == 1


async def test_a_session_that_is_over_forgets_without_a_word(world):
    async with world.session() as (session, _):
        session.terminate("enough")
        session.forget_statements(types=True)
