"""A fake cluster, and a client that places connections in it, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing

from ysactor.cluster.actor import ClusterActor
from ysactor.cluster.attempt import Setup
from ysactor.cluster.info import ClusterInfo
from ysactor.cluster.messages import Released, Reservation
from ysactor.cluster.opening import open_session
from ysactor.config import Config, LoadBalance
from ysactor.driver.protocol import Session
from ysactor.testing import FakeCluster, FakeDriver


@dataclass(slots=True)
class Client:
    """One client of the fake cluster: its cluster actor, and the connections it holds."""

    actor: ClusterActor
    driver: FakeDriver
    config: Config
    nursery: trio.Nursery
    held: list[tuple[Reservation, Session]] = field(default_factory=list[tuple[Reservation, Session]])

    async def open(self, setup: Setup | None = None) -> str:
        """Open a connection and hold it; the server it went to."""
        reservation, session = await open_session(self.actor.ref, self.driver, self.config, setup=setup)
        self.held.append((reservation, session))
        return str(reservation.at)

    async def open_many(self, number: int) -> Counter[str]:
        """Open this many at once; how many went where."""
        places = Counter[str]()

        async def one() -> None:
            places[await self.open()] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(number):
                nursery.start_soon(one)
        return places

    async def close(self, at: str | None = None) -> None:
        """End the held connections, all or those on one server."""
        for reservation, session in list(self.held):
            if at is None or str(reservation.at) == at:
                self.held.remove((reservation, session))
                session.terminate("closed")
                self.actor.ref.cast(Released(reservation))
        await trio.testing.wait_all_tasks_blocked()

    @property
    def info(self) -> ClusterInfo:
        """The snapshot."""
        return self.actor.info()

    def hosts(self, what: str) -> list[str]:
        """The servers in one of the snapshot's tuples."""
        return [str(server.at) for server in getattr(self.info, what)]


OpenClient: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(autouse=True)
def clock(autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    """Virtual time: no wait takes any."""
    return autojump_clock


@pytest.fixture
def world() -> FakeCluster:
    """10.0.0.1 to 10.0.0.3, in zone-1 to zone-3."""
    return FakeCluster.of(3)


@pytest.fixture
def open_client(world: FakeCluster) -> OpenClient:
    """A client of the fake cluster: balanced, its first server being the seed, unless told otherwise."""

    @asynccontextmanager
    async def open_one(*, seed: int = 1, **options: Any) -> AsyncIterator[Client]:
        options = {"hosts": (world.servers[0].at,), "load_balance": LoadBalance.ANY, **options}
        config = Config(**options)
        driver = FakeDriver(world)
        with trio.fail_after(100_000):
            async with trio.open_nursery() as drivers:
                await drivers.start(driver.run)
                async with trio.open_nursery() as nursery:
                    actor = ClusterActor(config, driver, Random(seed))
                    await nursery.start(actor.run)
                    yield Client(actor, driver, config, nursery)
                    nursery.cancel_scope.cancel()
                drivers.cancel_scope.cancel()

    return open_one
