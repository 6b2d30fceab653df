"""Dialling from this side: what is an address, what is a name, and a queue that is full."""

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
from ysactor.driver.native.dialling import Peer, dial, redial
from ysactor.driver.protocol import ConnectFailure, Phase
from ysactor.servers import HostPort


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
        sock = await dial(HostPort(host, server.getsockname()[1]))
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
        closing(await dial(HostPort("localhost", server.getsockname()[1]))) as sock,
    ):
        assert sock.getpeername() == server.getsockname()
        assert not sock.getblocking()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_an_address_where_nobody_listens_refuses_in_the_systems_words() -> None:
    with closing(listening(socket.AF_INET, ("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectFailure, match=f"^{os.strerror(111)}$" if sys.platform == "linux" else "refused") as told:
        await dial(HostPort("127.0.0.1", port))
    assert told.value.phase is Phase.CONNECT
    assert isinstance(told.value.__cause__, ConnectionRefusedError)
    with pytest.raises(ConnectFailure, match="refused") as told:
        await redial(Peer(socket.AF_INET, ("127.0.0.1", port), Tls()))
    assert told.value.phase is Phase.CONNECT


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses, or the kernel waits")
async def test_a_unix_socket_whose_queue_is_full_is_knocked_at_again_until_there_is_room(tmp_path: Path) -> None:
    host = HostPort(str(tmp_path), 5433)
    with closing(listening(socket.AF_UNIX, host.unix_path, queue=0)) as server, closing(await dial(host)):
        got: list[socket.socket] = []

        async def wait_for_room() -> None:
            got.append(await dial(host))

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
    with closing(listening(socket.AF_UNIX, host.unix_path, queue=0)), closing(await dial(host)) as first:
        with trio.move_on_after(1) as scope:
            await dial(host)
        assert scope.cancelled_caught
        # The number that the next socket gets is the one that was given back.
        with closing(socket.socket(socket.AF_UNIX)) as next_one:
            assert next_one.fileno() == first.fileno() + 1
