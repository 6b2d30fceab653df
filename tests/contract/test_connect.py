"""Connecting: how far an attempt came, what the server said, and that nothing is left behind."""

from __future__ import annotations

import logging
import math

import pytest
import trio

from ysactor.config import TlsMode
from ysactor.driver.protocol import ConnectFailure, Phase, Status
from ysactor.secret import Secret
from ysactor.servers import HostPort


async def _failure(world, host=None, **changes):
    from dataclasses import replace

    with pytest.raises(ConnectFailure) as caught:
        await world.driver.connect(host or world.host, replace(world.config, **changes))
    return caught.value


async def test_a_session_is_open_and_idle_when_connect_returns(world):
    async with world.session() as (session, events):
        assert session.host == world.host
        assert session.status is Status.IDLE
        assert session.is_clean()
        assert await session.drive(session.raw.fetchval("SELECT pg_backend_pid()")) == session.pid
        assert world.activity() == {session.pid: "idle"}
        assert (events.losses, events.abandonments) == ([], 0)


async def test_a_name_that_does_not_resolve_fails_in_the_look_up(world):
    failure = await _failure(world, world.unresolvable)

    assert (failure.phase, failure.sqlstate) == (Phase.RESOLVE, None)


async def test_a_port_that_refuses_fails_in_the_connect(world):
    failure = await _failure(world, world.refused)

    assert (failure.phase, failure.sqlstate) == (Phase.CONNECT, None)
    assert isinstance(failure.__cause__, OSError)


async def test_a_wrong_password_fails_in_the_login_with_the_servers_code(world):
    failure = await _failure(world, password=Secret("wrong"))

    assert (failure.phase, failure.sqlstate) == (Phase.LOGIN, "28P01")
    assert failure.__cause__.sqlstate == "28P01"


async def test_a_missing_password_fails_in_the_login(world, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "app")  # the options are read elsewhere; the driver must not read them again

    failure = await _failure(world, password=None)

    assert failure.phase is Phase.LOGIN


async def test_a_missing_database_fails_in_the_login_with_the_servers_code(world):
    failure = await _failure(world, database="no_such_database")

    assert (failure.phase, failure.sqlstate) == (Phase.LOGIN, "3D000")


@pytest.mark.parametrize("mode", [TlsMode.REQUIRE, TlsMode.VERIFY_CA, TlsMode.VERIFY_FULL])
async def test_a_server_without_tls_fails_in_the_tls_phase_where_tls_is_required(world, mode):
    world.without_tls()

    failure = await _failure(world, tls=world.tls(mode))

    assert (failure.phase, failure.sqlstate) == (Phase.TLS, None)


async def test_a_server_without_tls_is_taken_as_it_is_where_tls_is_only_preferred(world):
    world.without_tls()

    async with world.session(tls=world.tls(TlsMode.PREFER)) as (session, _):
        assert await session.drive(session.raw.fetchval("SELECT 1")) == 1


@pytest.mark.parametrize("password", ["app", b"app", lambda: "app", lambda: b"app"])
async def test_a_password_is_text_bytes_or_a_function(world, password):
    async with world.session(password=Secret(password)) as (session, _):
        assert session.is_clean()


async def test_a_password_function_is_called_for_each_login_and_may_wait(world):
    calls = []

    async def fetch_token():
        await trio.sleep(0.001)
        calls.append(trio.lowlevel.current_task())
        return "app"

    async with world.session(password=Secret(fetch_token)), world.session(password=Secret(fetch_token)):
        assert calls == [trio.lowlevel.current_task()] * 2


async def test_a_password_function_that_raises_fails_the_login_and_its_error_is_the_cause(world):
    def fetch_token():
        raise KeyError("vault")

    failure = await _failure(world, password=Secret(fetch_token))

    assert (failure.phase, failure.sqlstate, type(failure.__cause__)) == (Phase.LOGIN, None, KeyError)
    assert world.activity() == {}


async def test_no_failure_shows_the_password(world, caplog):
    caplog.set_level(logging.DEBUG)

    for changes in ({"password": Secret("hunter2")}, {"password": Secret(lambda: "hunter2")}):
        failure = await _failure(world, **changes)
        assert "hunter2" not in f"{failure} {failure!r} {failure.__cause__} {failure.__cause__!r}"
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(("seconds", "shown"), [(None, "0"), (0, "0"), (2.5, "2500ms"), (60, "1min")])
async def test_statement_timeout_is_set_on_the_server_in_seconds(world, seconds, shown):
    async with world.session(statement_timeout=seconds) as (session, _):
        assert await session.drive(session.raw.fetchval("SHOW statement_timeout")) == shown


async def test_a_statement_timeout_below_a_millisecond_is_not_taken_for_none(world):
    async with world.session(statement_timeout=0.0001) as (session, _):
        with pytest.raises(Exception, match="statement timeout") as caught:
            await session.drive(session.raw.fetchval("SELECT pg_sleep(10)"))
        assert caught.value.sqlstate == "57014"


async def test_a_statement_that_statement_timeout_ends_is_a_server_error_and_leaves_a_clean_session(world):
    async with world.session(statement_timeout=0.01) as (session, events):
        with pytest.raises(Exception, match="statement timeout") as caught:
            await session.drive(session.raw.fetchval("SELECT pg_sleep(10)"))
        assert caught.value.sqlstate == "57014"
        assert session.is_clean()
        assert events.abandonments == 0


async def test_the_application_name_and_server_settings_are_sent_at_start_up(world):
    async with world.session(server_settings={"search_path": "elsewhere"}) as (session, _):
        assert await session.drive(session.raw.fetchval("SHOW application_name")) == world.config.application_name
        assert await session.drive(session.raw.fetchval("SHOW search_path")) == "elsewhere"
        await session.drive(session.raw.execute("SET search_path TO other"))
        await session.drive(session.raw.execute("RESET search_path"))
        assert await session.drive(session.raw.fetchval("SHOW search_path")) == "elsewhere"


async def test_asyncpg_options_reach_asyncpg(world):
    async with world.session(asyncpg_options={"statement_cache_size": 0}) as (session, _):
        assert await session.drive(session.raw.fetchval("SELECT 1")) == 1


async def test_a_cancelled_connect_leaves_nothing_open(world):
    for delay in (0, 0.0005, 0.001, 0.002, 0.004, 0.008):
        with trio.move_on_after(delay):
            session, _ = await world.connect()
            session.terminate("it was faster")

    await world.until(lambda: world.activity() == {})


async def test_a_cancelled_connect_to_a_server_that_hangs_leaves_nothing_open(world):
    async with world.session() as (session, _):
        with world.frozen(session):
            with trio.move_on_after(0.05) as attempt:
                await world.connect()
            assert attempt.cancelled_caught
        await world.until(lambda: world.activity() == {session.pid: "idle"})
        assert await session.drive(session.raw.fetchval("SELECT 1")) == 1


async def test_resolve_gives_the_address_of_an_address(world):
    assert await world.driver.resolve("127.0.0.1") == "127.0.0.1"
    assert await world.driver.resolve("::ffff:127.0.0.1") == "127.0.0.1"


async def test_resolve_gives_none_for_a_name_that_does_not_resolve(world):
    assert await world.driver.resolve(world.unresolvable.host) is None


async def test_connecting_to_a_name_reaches_the_server_it_stands_for(world):
    if hasattr(world.server, "cluster"):
        world.server.cluster.resolver["localhost"] = world.server.host
    at = HostPort("localhost", world.host.port)

    session = await world.driver.connect(at, world.config)

    assert session.host == at
    assert await session.drive(session.raw.fetchval("SELECT 1")) == 1
    await session.close(math.inf)
