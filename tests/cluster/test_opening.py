"""Opening, where what fails is the user's own: no server is marked, and another one may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ysactor.cluster.attempt import Setup, SetupFailed
from ysactor.config import LoadBalance
from ysactor.driver.protocol import Session
from ysactor.errors import ConnectFailed
from ysactor.secret import Secret
from ysactor.servers import HostPort
from ysactor.testing import FakeCluster

ONE, TWO, THREE = (f"10.0.0.{n}:5433" for n in (1, 2, 3))


def failing(*hosts: str, everywhere: bool = False) -> Setup:
    """A set-up that fails by itself on some servers."""

    async def setup(session: Session) -> None:
        if not hosts or str(session.host) in hosts:
            raise SetupFailed(ConnectFailed(session.host, "rejected", "no extension"), everywhere=everywhere)

    return setup


async def test_a_set_up_that_fails_on_one_server_leaves_the_others_to_take_every_connection(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client() as client:
        for _ in range(6):
            await client.open(failing(THREE))

        assert client.info.counts == {ONE: 3, TWO: 3, THREE: 0}
        assert set(client.info.pending.values()) == {0}
        assert client.info.failed == client.info.rejected == ()
        assert world.servers[2].sessions == ()


@pytest.mark.parametrize("mode", [LoadBalance.ANY, LoadBalance.ONLY_PRIMARY])
async def test_a_set_up_that_fails_everywhere_is_tried_on_each_server_once_and_is_the_reason(
    world: FakeCluster, open_client: Any, mode: LoadBalance
) -> None:
    """Also where no seed is used: a server was there, and fit."""
    async with open_client(load_balance=mode) as client:
        await client.actor.refresh()
        before = len(world.journal.logins())
        with pytest.raises(SetupFailed, match="no extension"):
            await client.open(failing())

        assert len(world.journal.logins()) - before == 3
        assert client.info.failed == client.info.rejected == ()
        assert world.sessions == 0


async def test_a_set_up_that_failed_is_the_reason_though_another_server_is_down(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client() as client:
        world.servers[1].crash()
        world.servers[2].crash()
        with pytest.raises(SetupFailed, match="no extension"):
            await client.open(failing())


async def test_a_set_up_that_would_fail_everywhere_is_tried_once(world: FakeCluster, open_client: Any) -> None:
    async with open_client() as client:
        await client.actor.refresh()
        before = len(world.journal.logins())
        with pytest.raises(SetupFailed):
            await client.open(failing(everywhere=True))

        assert len(world.journal.logins()) - before == 1


async def test_nothing_is_moved_to_where_the_set_up_failed_before_a_connection_opens_there_or_a_refresh(
    world: FakeCluster, open_client: Any
) -> None:
    three = HostPort("10.0.0.3", 5433)
    async with open_client(yb_servers_refresh_interval=60) as client:
        await client.open_many(6)
        await client.close(THREE)
        await client.open(failing(THREE))
        assert client.actor.view().out == {three}
        assert three in client.actor.view().placement

        await client.open()
        assert client.info.counts[THREE] == 1
        assert client.actor.view().out == frozenset()

        await client.close(THREE)
        await client.open(failing(THREE))
        assert client.actor.view().out == {three}
        await trio.sleep(61)
        assert client.actor.view().out == frozenset()


def _refuse() -> str:
    raise ConnectionRefusedError("the token service is down")


async def _hang() -> str:
    await trio.sleep_forever()
    raise AssertionError("unreachable")


async def _hang_in_a_nursery() -> str:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await trio.sleep_forever()
    raise AssertionError("unreachable")


NO_PASSWORD: list[tuple[Callable[[], Any], str]] = [
    (_refuse, "the password function raised ConnectionRefusedError"),
    (lambda: 5, "the password function returned int, not text or bytes"),
    (_hang, "the password function did not return within 10 s"),
    (_hang_in_a_nursery, "the password function did not return within 10 s"),
]


@pytest.mark.parametrize("mode", [LoadBalance.ANY, LoadBalance.ONLY_PRIMARY])
@pytest.mark.parametrize(("function", "why"), NO_PASSWORD)
async def test_c65_without_a_password_the_connection_fails_at_once_and_no_server_is_marked(
    world: FakeCluster, open_client: Any, mode: LoadBalance, function: Callable[[], Any], why: str
) -> None:
    well = True

    def password() -> Any:
        return "" if well else function()

    async with open_client(load_balance=mode, password=Secret(password)) as client:
        await client.open_many(3)
        well = False
        before = len(world.journal.dials())
        with pytest.raises(ConnectFailed) as caught:
            await client.open()

        assert caught.value.kind == "rejected"
        assert why in str(caught.value)
        assert len(world.journal.dials()) - before == 1
        await wait_all_tasks_blocked()
        assert client.info.failed == client.info.rejected == client.info.read_only == ()
        assert set(client.info.pending.values()) == {0}

        well = True
        await client.open_many(3)
        assert set(client.info.counts.values()) == {2}


@pytest.mark.parametrize(("function", "_why"), NO_PASSWORD)
async def test_c65_a_probe_or_a_discovery_without_a_password_marks_no_server_and_heals_none(
    world: FakeCluster, open_client: Any, function: Callable[[], Any], _why: str
) -> None:
    well = True

    def password() -> Any:
        return "" if well else function()

    world.servers[1].reject("57P03")
    async with open_client(
        password=Secret(password), failed_host_reconnect_delay_secs=1, yb_servers_refresh_interval=0
    ) as client:
        await client.open_many(3)
        assert client.hosts("rejected") == [TWO]
        world.servers[1].recover()
        well = False
        await trio.sleep(5)
        await client.actor.refresh()
        assert (client.hosts("rejected"), client.hosts("failed")) == ([TWO], [])

        well = True
        await client.actor.refresh()
        assert client.hosts("rejected") == []


@pytest.mark.parametrize("slow", ["server", "function"])
async def test_c65_time_that_the_server_took_is_the_servers(world: FakeCluster, open_client: Any, slow: str) -> None:
    """The time-out strikes where it strikes."""

    async def password() -> str:
        await trio.sleep(4)
        return ""

    async with open_client(connect_timeout=5, hosts=(world.servers[0].at,), password=Secret(password)) as client:
        await client.actor.refresh()
        assert client.info.discovered
        for server in world.servers:
            server.slow(connect=4 if slow == "function" else 0, query=4 if slow == "server" else 0)
        with pytest.raises(ConnectFailed) as caught:
            await client.open(_ask)

        assert caught.value.kind == ("rejected" if slow == "function" else "unreachable")
        assert bool(client.info.failed) is (slow == "server")


async def _ask(session: Session) -> None:
    await session.drive(session.raw.fetchval("SELECT 1"))
