"""What grows with the cluster: a checkout, a placement and a rebalance tick, on the fake cluster and real time."""

from __future__ import annotations

from random import Random

import trio

from integration.bench.job import Metrics
from integration.bench.worker.measure import Measure
from ysactor.client import open_pool
from ysactor.cluster.messages import Reservation
from ysactor.testing import FakeCluster, FakeDriver

_PATIENCE = 60.0


async def scale(servers: int, connections: int, measure: Measure) -> Metrics:
    """Seconds for one of each, with so many servers and connections.

    A placement and a tick are what the actors do when they are told to: both have no public name, and are called
    directly. A placement is given back, and a tick that finds the pool in balance moves nothing.
    """
    cluster = FakeCluster()
    for number in range(servers):
        cluster.add(f"10.0.0.{number + 1}", zone=f"zone-{number % 3}")
    async with open_pool(
        hosts=[str(cluster.servers[0].at)],
        driver=FakeDriver(cluster),
        rng=Random(1),
        load_balance=True,
        pool_size=connections,
    ) as pool:
        await pool.ready(connections, timeout=_PATIENCE)
        state, rng = pool.cluster._actor.state, Random(1)

        async def checkouts(count: int) -> None:
            for _ in range(count):
                async with pool.acquire():
                    pass

        async def placements(count: int) -> None:
            for _ in range(count):
                reservation, _effects = state.place(frozenset(), trio.current_time(), rng.choice)
                assert isinstance(reservation, Reservation)
                state.gave_up(reservation)

        async def ticks(count: int) -> None:
            for _ in range(count):
                pool._actor._rebalance()

        return {
            "checkout": (await measure(checkouts))["wall"],
            "placement": (await measure(placements))["wall"],
            "tick": (await measure(ticks))["wall"],
        }
