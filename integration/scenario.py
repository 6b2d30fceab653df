"""What the scenarios share: a pool under test, what the servers themselves say of it, and that nothing is left behind.

The pool's own figures are what is under test, so every count that matters is taken from the servers, in sessions of
the bed's own.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pytest
import trio

import ysactor
from ysactor.testing.postgres import PostgresServer, Replicated, SharedData, ThreeZones
from ysactor.testing.proxy import FaultProxy

LIMIT = 45.0
"""Seconds after which a test has hung."""
PATIENCE = 10.0
"""Seconds that any one condition is waited for."""

Transport: TypeAlias = Literal["native", "trio_asyncio"]
AnyBed: TypeAlias = ThreeZones | SharedData | Replicated

on_both_transports = pytest.mark.parametrize("transport", ["native", "trio_asyncio"])
NATIVE: Transport = "native"

_names = itertools.count(1)


def _run_bounded(main: Callable[[], Awaitable[None]], *, clock: object = None, instruments: Any = ()) -> None:
    async def bounded() -> None:
        with trio.fail_after(LIMIT):
            await main()

    trio.run(bounded, instruments=instruments)


watched = pytest.mark.trio(run=_run_bounded)
"""For `pytestmark` of every module here: a test that hangs fails."""


async def until(
    condition: Callable[[], bool | Awaitable[bool]], what: str | Callable[[], str], *, limit: float = PATIENCE
) -> None:
    """Wait until the condition holds, and fail with `what` if it does not."""
    pause = 0.002
    with trio.move_on_after(limit):
        while True:
            met = condition()
            if not isinstance(met, bool):
                met = await met
            if met:
                return
            await trio.sleep(pause)
            pause = min(pause * 1.5, 0.05)
    pytest.fail(f"not within {limit:g} s: {what if isinstance(what, str) else what()}")


@dataclass(frozen=True, slots=True)
class Seen:
    """One session as its server sees it."""

    server: int
    pid: int
    state: str
    query: str


class Truth:
    """The servers' own view of the sessions of one application."""

    def __init__(self, servers: Sequence[PostgresServer], name: str, *, proxied: bool = False) -> None:
        self.servers = list(servers)
        self.name = name
        self.proxied = proxied
        """Whether proxies of this process stand before the servers, with sockets of their own."""

    async def sessions(self) -> list[Seen]:
        """All of them, on the servers that can be asked."""
        asked = (
            "select pid, coalesce(state, 'starting'), query from pg_stat_activity"
            f" where application_name = '{self.name}' and backend_type = 'client backend'"
        )

        def look() -> list[Seen]:
            found: list[Seen] = []
            for number, server in enumerate(self.servers):
                if server.is_running and not server.is_frozen:
                    rows = server.sql(asked)
                    found += [Seen(number, int(pid or 0), state or "", query or "") for pid, state, query in rows]
            return found

        return await trio.to_thread.run_sync(look)

    async def count(self) -> int:
        return len(await self.sessions())

    async def active(self, text: str = "") -> list[Seen]:
        """Those that execute a statement with this text in it."""
        return [seen for seen in await self.sessions() if seen.state == "active" and text in seen.query]

    async def until_active(self, text: str, number: int = 1) -> list[Seen]:
        """Wait until so many execute such a statement, and return them."""
        found: list[Seen] = []

        async def there() -> bool:
            nonlocal found
            found = await self.active(text)
            return len(found) >= number

        await until(there, f"{number} sessions that execute {text!r}")
        return found

    async def terminate(self, *, pids: Sequence[int] | None = None) -> int:
        """End those with these process numbers, or all; how many were asked to end."""
        which = "" if pids is None else f" and pid in ({', '.join(map(str, pids)) or 'null'})"
        asked = f"select pg_terminate_backend(pid) from pg_stat_activity where application_name = '{self.name}'{which}"

        def end() -> int:
            return sum(len(server.sql(asked)) for server in self.servers if server.is_running)

        return await trio.to_thread.run_sync(end)

    async def until_none(self) -> None:
        last: list[Seen] = []

        async def none() -> bool:
            nonlocal last
            last = await self.sessions()
            return not last

        await until(none, lambda: f"no session of {self.name} is left: {last}")


class Case:
    """A pool under test."""

    def __init__(self, pool: ysactor.Pool, truth: Truth) -> None:
        self.pool = pool
        self.truth = truth

    async def at_rest(self) -> None:
        """Wait until nothing is under way any more; then everything has to add up, here and on the servers."""
        pool = self.pool

        def resting() -> bool:
            s = pool.statistics()
            return not (s.leased or s.opening or s.waiting or s.settling or s.closing) and s.idle == s.size

        await until(resting, lambda: f"the pool is at rest: {pool.statistics()}")
        seen: list[Seen] = []

        async def agreed() -> bool:
            nonlocal seen
            before = pool.statistics()
            seen = await self.truth.sessions()
            s = pool.statistics()
            # A rebalance may just have moved one.
            return s == before and resting() and self._adds_up(s, seen)

        await until(agreed, lambda: f"the servers agree with {pool.statistics()}: {seen}")
        assert await pool.fetchval("SELECT 1") == 1

    def _adds_up(self, s: ysactor.PoolStatistics, seen: list[Seen]) -> bool:
        """Whether the pool's figures are those of the cluster and of the servers, and no session does anything."""
        servers = self.truth.servers
        by_server = Counter(f"{servers[one.server].host}:{servers[one.server].port}" for one in seen)
        return (
            s.idle + s.leased + s.opening == s.size
            and s.connections_opened == sum(s.connections_closed.values()) + s.idle + s.leased
            and sum(s.by_host.values()) == s.idle + s.leased == len(seen)
            and +Counter(dict(self.pool.cluster.info().counts)) == +Counter(s.by_host)
            and (self.truth.proxied or by_server == Counter(s.by_host))
            and all(one.state == "idle" for one in seen)
        )


def servers_of(bed: AnyBed) -> list[PostgresServer]:
    return [bed.server] if isinstance(bed, SharedData) else list(bed.servers)


@asynccontextmanager
async def open_case(
    bed: AnyBed | PostgresServer,
    transport: Transport = NATIVE,
    *,
    dsn: str | None = None,
    rest: bool = True,
    **options: Any,
) -> AsyncGenerator[Case]:
    """A pool on the bed, with an application name of its own.

    As the block ends the pool has to come to rest, if `rest`, and after it nothing may be left: no task, no socket, no
    child process, no session on a server.
    """
    servers = [bed] if isinstance(bed, PostgresServer) else servers_of(bed)
    if dsn is None:
        dsn = f"postgresql://yugabyte@{bed.host}:{bed.port}/yugabyte" if isinstance(bed, PostgresServer) else bed.dsn()
    name = options.setdefault("application_name", f"scenario-{next(_names)}")
    truth = Truth(servers, name, proxied=isinstance(bed, SharedData))
    async with nothing_is_left(truth), ysactor.open_pool(dsn, driver=transport, **options) as pool:
        case = Case(pool, truth)
        yield case
        if rest:
            await case.at_rest()


def sockets() -> set[str]:
    """This process's sockets, by the kernel's numbers."""
    found: set[str] = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def tasks() -> list[str]:
    """The tasks below this one, and Trio's system tasks; not what the bed's proxies do for a moment longer."""
    found: list[str] = []
    here = trio.lowlevel.current_task()
    way = [here]
    while (nursery := way[-1].parent_nursery) is not None:
        way.append(nursery.parent_task)
    waiting = [here, *(task for nursery in way[-1].child_nurseries for task in nursery.child_tasks if task not in way)]
    while waiting:
        task = waiting.pop()
        if not task.name.startswith(FaultProxy.__module__):
            found.append(task.name)
            waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return sorted(found)


def child_processes() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as listed:
        return set(listed.read().split())


@asynccontextmanager
async def nothing_is_left(truth: Truth) -> AsyncGenerator[None]:
    """After the block there are the same tasks, sockets and child processes as before, and no session of `truth`'s."""
    tasks_before, children_before, sockets_before = tasks(), child_processes(), sockets()
    yield
    assert tasks() == tasks_before
    if truth.proxied:
        # A proxy may have another listening socket by now.
        enough = len(sockets_before)
        await until(lambda: len(sockets()) <= enough, "the proxies close what they have open to the server")
    else:
        assert sockets() <= sockets_before
    assert child_processes() <= children_before
    await truth.until_none()


def level(bed: AnyBed, pool: ysactor.Pool, *indexes: int) -> bool:
    """Whether the pool's connections are spread evenly over these servers of the bed, or over all, and only those."""
    chosen = [str(bed.members[index]) for index in indexes or range(len(bed.members))]
    by_host = pool.statistics().by_host
    counts = [by_host.get(host, 0) for host in chosen]
    return sum(counts) == sum(by_host.values()) == pool.statistics().size and max(counts) - min(counts) <= 1
