"""Dialling from this side: what is an address, what is a name and stands for several, and a queue that is full."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ysactor.config import Tls
from ysactor.driver.native.dialling import Peer, redial
from ysactor.driver.native.reaching import HEAD_START, address_of, dial, reach
from ysactor.driver.protocol import ConnectFailure, Phase
from ysactor.servers import HostPort


async def open_to(host: HostPort, timeout: float = 10) -> socket.socket:
    """Connect, and take that for a login."""

    async def log_in(sock: socket.socket, _: trio.CancelScope) -> socket.socket:
        return sock

    address = address_of(host)
    return await (reach(host, timeout, log_in) if address is None else dial(address))


class Names(trio.abc.HostnameResolver):
    """One name, `db.test`, that stands for the addresses of these sockets, in this order."""

    def __init__(self, *addresses: tuple[int, Any]) -> None:
        self.addresses = addresses
        trio.socket.set_custom_hostname_resolver(self)

    async def getaddrinfo(self, host: Any, port: Any, *_: Any, **__: Any) -> Any:
        if host != b"db.test":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, socket.SOCK_STREAM, 6, "", address) for family, address in self.addresses]

    async def getnameinfo(self, *_: Any) -> Any:
        raise NotImplementedError


NAME = HostPort("db.test", 5433)


class Spawned(trio.abc.Instrument):
    """The tasks that are started by one task, as children or system tasks."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._mine = trio.lowlevel.current_task()

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        if task.parent_nursery is None or task.parent_nursery.parent_task is self._mine:
            self.names.append(task.name)


def listening(family: int, address: Any, queue: int = 8) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind(address)
        sock.listen(queue)
    except BaseException:
        sock.close()
        raise
    return sock


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_an_address_is_dialled_without_a_task_or_a_look_up(family: int, host: str) -> None:
    try:
        server = listening(family, (host, 0))
    except OSError:
        pytest.skip("this machine has no such address")
    with closing(server):
        spawned = Spawned()
        trio.lowlevel.add_instrument(spawned)
        sock = await open_to(HostPort(host, server.getsockname()[1]))
        trio.lowlevel.remove_instrument(spawned)
        with closing(sock):
            assert sock.getpeername()[:2] == server.getsockname()[:2]
            assert not sock.getblocking()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert spawned.names == []


async def test_a_name_is_looked_up_and_dialled() -> None:
    with (
        closing(listening(socket.AF_INET, ("127.0.0.1", 0))) as server,
        closing(await open_to(HostPort("localhost", server.getsockname()[1]))) as sock,
    ):
        assert sock.getpeername() == server.getsockname()
        assert not sock.getblocking()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_an_address_where_nobody_listens_refuses_in_the_systems_words() -> None:
    with closing(listening(socket.AF_INET, ("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectFailure, match=f"^{os.strerror(111)}$" if sys.platform == "linux" else "refused") as told:
        await open_to(HostPort("127.0.0.1", port))
    assert told.value.phase is Phase.CONNECT
    assert isinstance(told.value.__cause__, ConnectionRefusedError)
    with pytest.raises(ConnectFailure, match="refused") as told:
        await redial(Peer(socket.AF_INET, ("127.0.0.1", port), Tls()))
    assert told.value.phase is Phase.CONNECT


def here(sock: socket.socket) -> tuple[int, Any]:
    return sock.family, sock.getsockname()


@pytest.fixture
def closed() -> tuple[int, Any]:
    """An address where nobody listens."""
    with closing(listening(socket.AF_INET, ("127.0.0.1", 0))) as server:
        return here(server)


async def test_an_address_of_a_name_that_refuses_costs_nothing(autojump_clock: Any, closed: tuple[int, Any]) -> None:
    with closing(listening(socket.AF_INET, ("127.0.0.1", 0))) as server:
        Names(closed, here(server))
        with closing(await open_to(NAME)) as sock:
            assert sock.getpeername() == server.getsockname()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert trio.current_time() == 0


async def test_when_every_address_refuses_each_is_named(closed: tuple[int, Any]) -> None:
    Names((socket.AF_INET, ("127.0.0.2", closed[1][1])), closed)
    with pytest.raises(ConnectFailure, match=r"^127\.0\.0\.2: .*refused; 127\.0\.0\.1: .*refused$") as told:
        await open_to(NAME)
    assert told.value.phase is Phase.CONNECT
    assert isinstance(told.value.__cause__, ConnectionRefusedError)


async def test_an_address_of_a_name_that_takes_the_connection_and_is_silent_leaves_time_for_the_next(
    autojump_clock: Any, closed: tuple[int, Any]
) -> None:
    """C16: that it accepts says nothing yet."""
    ends: list[socket.socket] = []

    async def log_in(sock: socket.socket, _: trio.CancelScope) -> Any:
        ends.append(sock)
        if sock.getpeername() == silent.getsockname():
            await trio.sleep_forever()
        return sock.getpeername()

    with (
        closing(listening(socket.AF_INET, ("127.0.0.1", 0))) as silent,
        closing(listening(socket.AF_INET, ("127.0.0.1", 0))) as good,
    ):
        Names(here(silent), closed, here(good))
        assert await reach(NAME, 3, log_in) == good.getsockname()
        # It was not known yet that another one refuses.
        assert trio.current_time() == pytest.approx(0.99)

        Names(here(silent), here(silent))  # twice the same is one, and has the caller's own time
        with trio.move_on_after(5) as scope:
            await reach(NAME, 1, log_in)
        assert scope.cancelled_caught

        with pytest.raises(ConnectFailure, match=r"^127\.0\.0\.1: no answer within 0\.495 s; 127\.0\.0\.1: .*refused$"):
            Names(here(silent), closed)
            await reach(NAME, 1, log_in)
    for sock in ends:
        sock.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses, or the kernel waits")
async def test_an_address_of_a_name_that_does_not_even_accept_costs_a_head_start(autojump_clock: Any) -> None:
    with (
        closing(listening(socket.AF_INET, ("127.0.0.1", 0), queue=0)) as full,
        closing(socket.create_connection(full.getsockname())),
        closing(listening(socket.AF_INET, ("127.0.0.1", 0))) as good,
    ):
        Names(here(full), here(good))
        with closing(await open_to(NAME)) as sock:
            assert sock.getpeername() == good.getsockname()
        assert trio.current_time() == pytest.approx(HEAD_START)

        Names(here(full), (socket.AF_INET, ("127.0.0.2", full.getsockname()[1])))
        with pytest.raises(
            ConnectFailure, match=r"^127\.0\.0\.2: .*refused; 127\.0\.0\.1: no answer within 1\.98 s$"
        ) as told:
            await open_to(NAME, timeout=2)
        assert isinstance(told.value.__cause__, TimeoutError)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses, or the kernel waits")
async def test_the_second_address_that_is_dialled_is_of_the_other_family(autojump_clock: Any) -> None:
    """Of many addresses that lead nowhere in one family, only the first is waited for."""
    with closing(listening(socket.AF_INET, ("127.0.0.1", 0), queue=0)) as full:
        try:
            good = listening(socket.AF_INET6, ("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        with closing(socket.create_connection(full.getsockname())), closing(good):
            also_full = [(socket.AF_INET, (f"127.0.0.{number}", full.getsockname()[1])) for number in (1, 2)]
            Names(*also_full, here(good))
            with closing(await open_to(NAME)) as sock:
                assert sock.getpeername() == good.getsockname()
            assert trio.current_time() == pytest.approx(HEAD_START)


@pytest.mark.parametrize("after", [0, 0.1, 0.3, 0.6])
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses, or the kernel waits")
async def test_who_is_cancelled_while_the_addresses_of_a_name_are_dialled_leaves_no_socket_open(
    autojump_clock: Any, closed: tuple[int, Any], after: float
) -> None:
    with (
        closing(listening(socket.AF_INET, ("127.0.0.1", 0), queue=0)) as full,
        closing(socket.create_connection(full.getsockname())),
        closing(socket.socket()) as first,
    ):
        Names(here(full), closed)
        number = first.fileno()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_to, NAME)
            await trio.sleep(after)
            nursery.cancel_scope.cancel()
        with closing(socket.socket()) as next_one:
            assert next_one.fileno() == number + 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses, or the kernel waits")
async def test_a_unix_socket_whose_queue_is_full_is_knocked_at_again_until_there_is_room(tmp_path: Path) -> None:
    host = HostPort(str(tmp_path), 5433)
    with closing(listening(socket.AF_UNIX, host.unix_path, queue=0)) as server, closing(await open_to(host)):
        got: list[socket.socket] = []

        async def wait_for_room() -> None:
            got.append(await open_to(host))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_room)
            await wait_all_tasks_blocked()
            assert not got
            first, _ = server.accept()
        second, _ = server.accept()
        with closing(first), closing(second), closing(got[0]):
            got[0].sendall(b"here")
            assert second.recv(4) == b"here"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses, or the kernel waits")
async def test_who_is_cancelled_while_the_queue_is_full_leaves_no_socket_open(tmp_path: Path) -> None:
    host = HostPort(str(tmp_path), 5433)
    with closing(listening(socket.AF_UNIX, host.unix_path, queue=0)), closing(await open_to(host)) as first:
        with trio.move_on_after(1) as scope:
            await open_to(host)
        assert scope.cancelled_caught
        # The number that the next socket gets is the one that was given back.
        with closing(socket.socket(socket.AF_UNIX)) as next_one:
            assert next_one.fileno() == first.fileno() + 1
