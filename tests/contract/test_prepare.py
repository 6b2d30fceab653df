"""`executemany` without arguments: it prepares a statement where the other calls look for it, and runs nothing."""

from __future__ import annotations

import pytest

from ysactor.testing import error

MISSING = "SELECT * FROM no_such_table"


@pytest.fixture
def missing(world, implementation):
    """A statement that the server refuses to prepare."""
    if implementation == "fake":
        world.server.answer(MISSING, error("42P01", 'relation "no_such_table" does not exist'))
    return MISSING


async def test_a_statement_is_prepared_and_not_run(world):
    async with world.session() as (session, events):
        raw = session.raw
        assert await session.drive(raw.executemany("SELECT pg_sleep(3600)", ())) is None
        assert session.is_clean()
        await session.drive(raw.executemany("SELECT $1::int", []))
        assert await session.drive(raw.fetchval("SELECT $1::int", 5)) == 5
        assert (events.losses, events.abandonments) == ([], 0)


async def test_a_statement_that_is_refused_leaves_the_session_as_it_was(world, missing):
    async with world.session() as (session, events):
        raw = session.raw
        await session.drive(raw.executemany("SELECT $1::int", ()))
        with pytest.raises(Exception, match="no_such_table") as caught:
            await session.drive(raw.executemany(missing, ()))
        assert caught.value.sqlstate == "42P01"
        assert session.is_clean()
        assert await session.drive(raw.fetchval("SELECT $1::int", 5)) == 5
        await session.drive(raw.execute("BEGIN"))
        await session.drive(raw.execute("ROLLBACK"))
        assert session.is_clean()
        assert (events.losses, events.abandonments) == ([], 0)


async def test_in_a_transaction_a_refused_statement_fails_it(world, missing):
    async with world.session() as (session, _):
        await session.drive(session.raw.execute("BEGIN"))
        with pytest.raises(Exception, match="no_such_table"):
            await session.drive(session.raw.executemany(missing, ()))
        assert await session.drive(session.raw.execute("COMMIT")) == "ROLLBACK"


@pytest.mark.real_drivers
async def test_what_is_to_be_kept_ready_is_kept_for_as_long_as_the_session_lives(world):
    """asyncpg's own default is five minutes."""
    async with world.session(prepare_on_connect=("SELECT 1",)) as (session, _):
        assert session.raw._config.max_cached_statement_lifetime == 0
