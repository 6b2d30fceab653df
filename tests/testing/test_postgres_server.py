"""One server, and what can be done to it."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import warnings
from collections.abc import Awaitable, Callable, Iterator

import asyncpg
import pytest

from ysactor.testing.postgres import (
    APPLICATION,
    Access,
    Authority,
    PostgresNotFound,
    PostgresServer,
    Run,
    ServerFailed,
    SqlError,
    create_data,
    find,
)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with Run() as found:
        yield found


@pytest.fixture(scope="module")
def shared(run: Run) -> Iterator[PostgresServer]:
    (address,) = run.addresses(1)
    with PostgresServer(run, "server", address, template=create_data(run, "template")) as found:
        yield found


@pytest.fixture
def server(shared: PostgresServer) -> Iterator[PostgresServer]:
    shared.start()
    yield shared
    shared.close()


async def connect(server: PostgresServer, **options: object) -> asyncpg.Connection:
    return await asyncpg.connect(
        **{
            "host": server.host,
            "port": server.port,
            "user": "yugabyte",
            "password": "yugabyte",
            "database": "yugabyte",
            "timeout": 5,
            "ssl": False,
            **options,
        }
    )


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run it. The driver leaves the socket of a refused login over TLS to the garbage collector: take it out here."""

    async def whole() -> None:
        await scenario()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(whole())
        gc.collect()


def test_a_killed_server_refuses_and_comes_back_with_its_data(server: PostgresServer) -> None:
    server.sql("drop table if exists kept", "create table kept as select 7 as x", "checkpoint")
    server.kill()
    assert not server.is_running
    assert server.ping() == "refused"

    server.start()

    assert server.value("select x from kept") == "7"
    assert "not properly shut down" in server.log_text()


def test_killing_it_breaks_open_sessions(server: PostgresServer) -> None:
    async def scenario() -> None:
        connection = await connect(server)
        server.kill()
        with pytest.raises((asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError, OSError)):
            await connection.fetchval("select 1")
        connection.terminate()

    play(scenario)


def test_a_killed_postmasters_children_do_not_keep_it_from_starting(server: PostgresServer) -> None:
    first = server.pid
    server.kill_postmaster()
    assert not server.is_running

    server.start()

    assert server.pid != first
    assert server.value("select 1") == "1"


def test_a_frozen_server_accepts_in_tcp_and_says_nothing_until_it_thaws(server: PostgresServer) -> None:
    server.freeze()
    socket.create_connection((server.host, server.port), 1).close()
    assert server.ping(timeout=0.2) == "silent"
    assert server.is_running

    server.thaw()

    server.wait_ready()


def test_with_only_the_postmaster_frozen_open_sessions_go_on(server: PostgresServer) -> None:
    async def scenario() -> None:
        connection = await connect(server)
        server.freeze(children_too=False)
        assert await connection.fetchval("select 1", timeout=2) == 1
        assert server.ping(timeout=0.2) == "silent"
        server.thaw()
        await connection.close(timeout=2)

    play(scenario)


def test_one_frozen_backend_hangs_its_own_session_only(server: PostgresServer) -> None:
    async def scenario() -> None:
        connection = await connect(server)
        pid = connection.get_server_pid()
        server.freeze_backend(pid)
        query = asyncio.ensure_future(connection.fetchval("select 1"))
        assert server.value("select 2") == "2"
        assert not (await asyncio.wait([query], timeout=0.2))[0]
        server.thaw_backend(pid)
        assert await asyncio.wait_for(query, 2) == 1
        await connection.close(timeout=2)

    play(scenario)


def test_a_process_that_is_not_the_servers_is_never_signalled(server: PostgresServer) -> None:
    with subprocess.Popen(["sleep", "30"]) as stranger:
        try:
            with pytest.raises(ServerFailed, match="is not one of"):
                server.kill_backend(stranger.pid)
            with pytest.raises(ServerFailed, match="is not one of"):
                server.freeze_backend(os.getpid())
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_killed_backend_makes_the_server_recover(server: PostgresServer) -> None:
    async def scenario() -> None:
        connection = await connect(server)
        server.kill_backend(connection.get_server_pid())
        with pytest.raises((asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError, OSError)):
            await connection.fetchval("select pg_sleep(5)")
        connection.terminate()

    play(scenario)
    server.wait_ready()
    assert server.is_running


def test_a_smart_stop_waits_for_open_sessions_and_refuses_new_ones(server: PostgresServer) -> None:
    async def scenario() -> None:
        connection = await connect(server)
        with pytest.raises(ServerFailed, match="did not stop"):
            server.stop("smart", timeout=0.2)
        assert server.ping() in {"rejecting", "refused"}
        assert await connection.fetchval("select 1") == 1
        await connection.close(timeout=2)
        server.wait_stopped(5)

    play(scenario)
    assert not server.is_running


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_other_stops_end_open_sessions(server: PostgresServer, mode: str) -> None:
    async def scenario() -> None:
        connection = await connect(server)
        server.stop("fast" if mode == "fast" else "immediate", timeout=5)
        connection.terminate()

    play(scenario)
    assert not server.is_running


def test_sessions_are_counted_by_application_and_can_be_ended(server: PostgresServer) -> None:
    async def scenario() -> None:
        connection = await connect(server, server_settings={"application_name": "o'brien"})
        assert server.sessions("o'brien") == 1
        assert server.sessions("other") == 0
        server.end_sessions()
        assert server.sessions("o'brien") == 0
        connection.terminate()

    play(scenario)


def test_passwords_are_checked_where_access_says_so(server: PostgresServer) -> None:
    async def scenario() -> None:
        account = {"user": APPLICATION.name, "password": APPLICATION.password}
        await (await connect(server, **account)).close()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await connect(server, user=APPLICATION.name, password="wrong")

    server.access = Access("scram-sha-256")
    server.restart()
    try:
        play(scenario)
        assert server.value("select 1") == "1", "the bed's own way in does not depend on it"
    finally:
        server.access = Access()


def test_settings_hold_from_the_next_start_and_a_server_that_cannot_start_says_why(server: PostgresServer) -> None:
    server.settings["max_connections"] = "17"
    server.restart()
    assert server.value("show max_connections") == "17"
    server.settings["max_connections"] = "many"
    try:
        with pytest.raises(ServerFailed, match="invalid value for parameter"):
            server.restart()
    finally:
        del server.settings["max_connections"]


def test_an_error_in_sql_comes_with_its_sqlstate(server: PostgresServer) -> None:
    with pytest.raises(SqlError) as caught:
        server.sql("select 1/0")
    assert caught.value.sqlstate == "22012"


def test_values_come_as_text_and_null_as_none(server: PostgresServer) -> None:
    assert server.sql("select 1, null, 'ü' || chr(10)") == [("1", None, "ü\n")]


@pytest.fixture(scope="module")
def tls() -> Iterator[tuple[Run, PostgresServer, Authority]]:
    try:
        binaries = find(require_tls=True)
    except PostgresNotFound as missing:
        pytest.skip(str(missing))
    with Run(binaries) as run:
        (address,) = run.addresses(1)
        with PostgresServer(run, "tls", address, template=create_data(run, "template")) as server:
            yield run, server, Authority(run)


def serve(server: PostgresServer, authority: Authority, *names: str, expired: bool = False) -> None:
    certificate = authority.issue(*names, expired=expired)
    server.settings |= authority.settings(certificate, ask_clients=True)
    server.access = Access(tls_only=True)
    server.restart()


def test_a_tls_server_is_trusted_by_name_and_refuses_plain_sessions(
    tls: tuple[Run, PostgresServer, Authority],
) -> None:
    _, server, authority = tls

    async def scenario() -> None:
        connection = await connect(server, ssl=authority.client_context())
        assert await connection.fetchval("select ssl from pg_stat_ssl where pid = pg_backend_pid()")
        await connection.close()
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await connect(server, ssl=False)

    serve(server, authority, server.host)
    play(scenario)


@pytest.mark.parametrize(
    ("names", "expired", "message"),
    [(("other.test",), False, "mismatch"), (("127.0.0.1",), True, "expired")],
)
def test_a_bad_certificate_is_not_trusted(
    tls: tuple[Run, PostgresServer, Authority], names: tuple[str, ...], expired: bool, message: str
) -> None:
    _, server, authority = tls

    async def scenario() -> None:
        with pytest.raises(OSError, match=message):
            await connect(server, ssl=authority.client_context())

    serve(server, authority, *names, expired=expired)
    play(scenario)


def test_another_authority_is_not_trusted(tls: tuple[Run, PostgresServer, Authority]) -> None:
    run, server, authority = tls

    async def scenario() -> None:
        with pytest.raises(OSError, match="certificate verify failed"):
            await connect(server, ssl=Authority(run).client_context())

    serve(server, authority, server.host)
    play(scenario)


def test_clients_can_be_made_to_show_a_certificate_of_their_own(tls: tuple[Run, PostgresServer, Authority]) -> None:
    _, server, authority = tls
    own = authority.issue(common_name="yugabyte")

    async def scenario() -> None:
        await (await connect(server, ssl=authority.client_context(own))).close()
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await connect(server, ssl=authority.client_context())

    serve(server, authority, server.host)
    server.access = Access("cert", tls_only=True)
    server.restart()
    play(scenario)
