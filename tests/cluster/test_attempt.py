"""One attempt to connect: what its failure says, and that it never leaves a session behind."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
import trio
import trio.testing

from ysactor.cluster.attempt import ROLE, attempt
from ysactor.cluster.messages import Failure
from ysactor.config import Config, Tls, TlsMode
from ysactor.driver.protocol import ConnectFailure, NoPassword, Phase, Session
from ysactor.errors import ConnectionLost
from ysactor.secret import Secret
from ysactor.servers import HostPort, Kind
from ysactor.testing import FakeCluster, FakeDriver, FakeServer

AT = HostPort("10.0.0.1", 5433)


async def tried(world: FakeCluster, config: Config, **options: Any) -> Session | Failure:
    """One attempt on the first server."""
    driver = FakeDriver(world)
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        try:
            return await attempt(driver, config, AT, check_role=True, **options)
        finally:
            nursery.cancel_scope.cancel()
    raise AssertionError("unreachable")


@pytest.mark.parametrize(
    ("incident", "config", "kind"),
    [
        (FakeServer.crash, Config(), Kind.UNREACHABLE),
        (FakeServer.refuse, Config(), Kind.UNREACHABLE),
        (FakeServer.hang, Config(), Kind.UNREACHABLE),
        (FakeServer.vanish, Config(), Kind.UNREACHABLE),
        (lambda server: server.reject("57P03"), Config(), Kind.REJECTED),
        (lambda server: server.reject("53300"), Config(), Kind.REJECTED),
        (lambda server: server.reject("28P01"), Config(), Kind.REJECTED),
        (lambda server: server.reject("08006"), Config(), Kind.REJECTED),
        (lambda server: server.reject("08001"), Config(), Kind.UNREACHABLE),
        (FakeServer.break_tls, Config(tls=Tls(TlsMode.REQUIRE)), Kind.REJECTED),
        (FakeServer.without_tls, Config(tls=Tls(TlsMode.REQUIRE)), Kind.REJECTED),
        (FakeServer.demote, Config(target_session_attrs="read-write"), Kind.READ_ONLY),
        (FakeServer.close_to_writes, Config(target_session_attrs="read-write"), Kind.READ_ONLY),
    ],
)
async def test_trap_14_what_an_incident_makes_of_its_server(
    autojump_clock: trio.testing.MockClock, incident: Callable[[FakeServer], None], config: Config, kind: Kind
) -> None:
    world = FakeCluster.of(1)
    incident(world.servers[0])

    result = await tried(world, config)

    assert isinstance(result, Failure)
    assert result.kind is kind
    assert world.sessions == 0


async def test_trap_14_a_server_that_dies_during_the_role_check_is_unreachable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = FakeCluster.of(1)
    world.servers[0].slow(query=2)

    async with trio.open_nursery() as nursery:

        async def crash() -> None:
            await trio.sleep(1)
            world.servers[0].crash()

        nursery.start_soon(crash)
        result = await tried(world, Config(target_session_attrs="read-write"))

    assert isinstance(result, Failure)
    assert result.kind is Kind.UNREACHABLE


async def test_a_standby_is_taken_where_any_server_will_do(autojump_clock: trio.testing.MockClock) -> None:
    world = FakeCluster.of(1)
    world.servers[0].demote()
    world.servers[0].close_to_writes()

    assert not isinstance(await tried(world, Config()), Failure)
    assert world.journal.statements() == ()


@pytest.mark.parametrize(
    ("settings", "detail"),
    [
        ({"default_transaction_read_only": "on"}, "default_transaction_read_only is on"),
        ({"default_transaction_read_only": "off"}, None),
        ({}, None),
    ],
)
async def test_c32_read_write_asks_whether_the_very_session_accepts_writes(
    autojump_clock: trio.testing.MockClock, settings: dict[str, str], detail: str | None
) -> None:
    world = FakeCluster.of(1)

    result = await tried(world, Config(target_session_attrs="read-write", server_settings=settings))

    assert (result.detail if isinstance(result, Failure) else None) == detail
    assert len(world.journal.statements()) == 1


@pytest.mark.parametrize(
    ("phase", "cause", "sqlstate", "kind"),
    [
        (Phase.TLS, ssl.SSLCertVerificationError("self-signed"), None, Kind.REJECTED),
        (Phase.TLS, ConnectionError("rejected SSL upgrade"), None, Kind.REJECTED),
        (Phase.TLS, ConnectionResetError(), None, Kind.REJECTED),
        (Phase.LOGIN, ConnectionResetError(), None, Kind.UNREACHABLE),
        (Phase.LOGIN, ConnectionLost("closed by the server"), None, Kind.UNREACHABLE),
        (Phase.LOGIN, EOFError(), None, Kind.UNREACHABLE),
        (Phase.LOGIN, asyncpg.ConnectionDoesNotExistError("hung up"), None, Kind.UNREACHABLE),
        (Phase.LOGIN, asyncpg.InterfaceError("unexpected authentication method"), None, Kind.REJECTED),
        (Phase.RESOLVE, UnicodeError("this is no host name"), None, Kind.UNREACHABLE),
        (Phase.LOGIN, None, None, Kind.UNREACHABLE),
        (Phase.LOGIN, NotImplementedError("unsupported login method"), None, Kind.REJECTED),
        (Phase.SETUP, ConnectionLost("closed by the server"), None, Kind.UNREACHABLE),
    ],
)
async def test_trap_14_what_the_drivers_report_makes_of_its_server(
    phase: Phase, cause: BaseException | None, sqlstate: str | None, kind: Kind
) -> None:
    class Failing(FakeDriver):
        async def connect(self, host: HostPort, config: Config) -> Any:
            raise ConnectFailure(phase, "why", sqlstate=sqlstate) from cause

    result = await attempt(Failing(FakeCluster.of(1)), Config(), AT, check_role=True)

    assert isinstance(result, Failure)
    assert (result.kind, result.detail, result.tells) == (kind, "why", True)
    assert result.error is cause or cause is None


async def _refuse() -> str:
    raise ConnectionRefusedError("the vault is down")


@pytest.mark.parametrize(
    ("function", "detail"),
    [
        (lambda: None, "the password function returned NoneType, not text or bytes"),
        (lambda: ["s3cret"], "the password function returned list, not text or bytes"),
        (lambda: len(None), "the password function raised TypeError"),  # type: ignore[arg-type]
        (_refuse, "the password function raised ConnectionRefusedError"),
    ],
)
async def test_c65_without_a_password_the_login_is_rejected_and_no_server_is_down(
    autojump_clock: trio.testing.MockClock, function: Any, detail: str
) -> None:
    world = FakeCluster.of(1, password="s3cret")

    result = await tried(world, Config(password=Secret(function)))

    assert isinstance(result, Failure)
    assert (result.kind, result.detail, result.tells) == (Kind.REJECTED, detail, False)
    assert "s3cret" not in repr(result)
    assert world.sessions == 0


@pytest.mark.parametrize("cause", [None, ConnectionRefusedError("the vault is down"), EOFError()])
async def test_c65_whatever_the_cause_that_there_is_no_password_is_not_the_servers_doing(
    cause: BaseException | None,
) -> None:
    class Failing(FakeDriver):
        async def connect(self, host: HostPort, config: Config) -> Any:
            raise NoPassword(Phase.LOGIN, "why") from cause

    result = await attempt(Failing(FakeCluster.of(1)), Config(), AT, check_role=True)

    assert isinstance(result, Failure)
    assert (result.kind, result.detail, result.tells) == (Kind.REJECTED, "why", False)


async def test_a_bug_in_the_driver_propagates() -> None:
    class Broken(FakeDriver):
        async def connect(self, host: HostPort, config: Config) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await attempt(Broken(FakeCluster.of(1)), Config(), AT, check_role=True)


async def test_the_limit_is_for_the_whole_attempt_set_up_included(autojump_clock: trio.testing.MockClock) -> None:
    world = FakeCluster.of(1)
    world.servers[0].slow(connect=3, query=3)

    result = await tried(world, Config(connect_timeout=5, target_session_attrs="read-write"))

    assert isinstance(result, Failure)
    assert (result.kind, result.detail, result.tells) == (Kind.UNREACHABLE, "no answer within 5 s", True)
    assert trio.current_time() == pytest.approx(5)
    assert world.sessions == 0


@pytest.mark.parametrize("after", [0, 0.5, 1.5, 2.5])
async def test_a_cancelled_attempt_leaves_nothing_open(autojump_clock: trio.testing.MockClock, after: float) -> None:
    world = FakeCluster.of(1)
    world.servers[0].slow(connect=1, query=1)

    async def setup(session: Session) -> None:
        await trio.sleep(1)

    with trio.move_on_after(after) as scope:
        await tried(world, Config(target_session_attrs="read-write"), setup=setup)

    assert scope.cancelled_caught
    assert world.sessions == 0


async def test_the_set_up_runs_after_the_role_check_on_the_open_session(autojump_clock: trio.testing.MockClock) -> None:
    world = FakeCluster.of(1)
    seen: list[tuple[HostPort, tuple[str, ...]]] = []

    async def setup(session: Session) -> None:
        seen.append((session.host, world.journal.statements()))

    await tried(world, Config(target_session_attrs="read-write"), setup=setup)

    assert seen == [(AT, (ROLE,))]
