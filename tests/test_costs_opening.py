"""What a connection costs to open and to keep, and a placement to make: counted, not timed.

On a real server with the native transport. What one connection costs is the difference between a pool of many and a
pool of few, so that nothing of what a pool costs by itself is in it.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Any, TypeAlias

import trio

import ysactor
from ysactor.cluster.messages import Failure, Listing, Reservation
from ysactor.cluster.state import ClusterState
from ysactor.config import Config, LoadBalance
from ysactor.policy.addresses import Choice
from ysactor.servers import HostPort, Kind, Server
from ysactor.testing.postgres import ThreeZones

CountingFrames: TypeAlias = Callable[[], AbstractContextManager[Counter[str]]]

FEW, MANY = 5, 25
SEED = HostPort("10.0.0.1", 5433)


class Work(trio.abc.Instrument):
    """The tasks that are started, and their steps."""

    def __init__(self) -> None:
        self.tasks = 0
        self.steps = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1


async def opened(
    zone: ThreeZones, size: int, meanwhile: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
) -> None:
    async with ysactor.open_pool(zone.dsn(), pool_size=size) as pool:
        await pool.ready(size)
        await meanwhile()


async def test_an_opened_connection_is_one_task_that_runs_four_times(zone):
    seen: list[Work] = []
    await opened(zone, 1)
    for size in (FEW, MANY):
        work = Work()

        async def stop(work: Work = work) -> None:
            trio.lowlevel.remove_instrument(work)

        trio.lowlevel.add_instrument(work)
        await opened(zone, size, stop)
        seen.append(work)
    few, many = seen
    more = MANY - FEW
    assert many.tasks - few.tasks == more
    # It starts, has a place, is logged in, and is told that it counts: four. The others that run are the cluster's
    # actor twice, the pool's, and whoever waits for it. One more is for a server whose answer comes in two pieces.
    assert many.steps - few.steps <= 9 * more


async def test_an_opened_connection_is_three_messages(zone, counting_frames):
    sent: list[int] = []
    await opened(zone, 1)
    for size in (FEW, MANY):
        with counting_frames() as entered:

            async def stop() -> None:
                sys.setprofile(None)

            await opened(zone, size, stop)
        sent.append(entered["ysactor.actor.mailbox.cast"])
    few, many = sent
    assert many - few == 3 * (MANY - FEW)


async def test_an_opened_connection_enters_so_many_functions_and_no_more(zone, counting_frames):
    ours: list[Counter[str]] = []
    everybodys: list[int] = []
    await opened(zone, 1)
    for size in (FEW, MANY):
        with counting_frames() as entered:

            async def stop() -> None:
                sys.setprofile(None)

            await opened(zone, size, stop)
        ours.append(Counter({name: count for name, count in entered.items() if name.startswith("ysactor.")}))
        everybodys.append(sum(entered.values()))
    more = MANY - FEW
    each = {name: count / more for name, count in (ours[1] - ours[0]).items()}
    assert sum(each.values()) <= 172, each
    # Measured: 405, and 440 on a busy machine, where the answers to a login come in more pieces.
    assert (everybodys[1] - everybodys[0]) / more <= 460


async def test_an_idle_connection_takes_sixteen_kilobytes_of_python_at_most(zone):
    held: list[int] = []

    async def measure() -> None:
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])

    await opened(zone, 1)
    for size in (FEW, MANY):
        gc.collect()
        tracemalloc.start()
        try:
            await opened(zone, size, measure)
        finally:
            tracemalloc.stop()
    few, many = held
    assert (many - few) / (MANY - FEW) <= 16 * 1024


async def test_connections_of_one_pool_share_what_their_logins_have_in_common(zone):
    async with ysactor.open_pool(zone.dsn(), pool_size=2) as pool, pool.acquire() as one, pool.acquire() as other:
        shared = [(await one.run_raw(_common(one.raw)), await other.run_raw(_common(other.raw)))]
    async with ysactor.open_pool(zone.dsn(), pool_size=1, application_name="another") as pool, pool.acquire() as third:
        different = await third.run_raw(_common(third.raw))
        assert await third.fetchval("SHOW application_name") == "another"
    ((first, second),) = shared
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert first[0] is not different[0]
    assert first[0].password is None


async def _common(raw: Any) -> tuple[Any, Any]:
    return raw._params, raw._config


def settled(servers: int, connections: int) -> ClusterState:
    """So many servers, with as many connections each."""
    state = ClusterState(Config(hosts=(SEED,), load_balance=LoadBalance.ANY))
    state.start(0)
    listed = tuple(Server(f"10.0.0.{number + 1}", 5433, "c", "r", f"z{number % 3}") for number in range(servers))
    state.discovery_ended(Listing(SEED, listed, Choice()), 0)
    rng = Random(1)
    for _ in range(connections):
        reservation, _ = state.place(frozenset(), 1, rng.choice)
        assert isinstance(reservation, Reservation)
        state.opened(reservation, 1)
    return state


def placements(counting_frames: CountingFrames, state: ClusterState, count: int) -> Counter[str]:
    """The functions of this package that so many placements enter, each given back."""
    rng = Random(1)
    with counting_frames() as entered:
        for _ in range(count):
            reservation, _ = state.place(frozenset(), 1, rng.choice)
            assert isinstance(reservation, Reservation)
            state.gave_up(reservation)
    return Counter({name: count for name, count in entered.items() if name.startswith("ysactor.")})


def test_a_placement_among_two_hundred_servers_is_no_dearer_than_among_three(counting_frames):
    few, many = placements(counting_frames, settled(3, 30), 100), placements(counting_frames, settled(200, 2_000), 100)
    assert few == many
    assert sum(many.values()) <= 100 * 25


def test_a_failure_costs_one_look_at_every_server_and_not_one_for_each_placement(counting_frames):
    state = settled(200, 2_000)
    placements(counting_frames, state, 1)
    reservation, _ = state.place(frozenset(), 1, lambda tied: tied[0])
    assert isinstance(reservation, Reservation)
    state.open_failed(reservation, Failure(Kind.UNREACHABLE, OSError(), "down"), 1)
    first, second = placements(counting_frames, state, 1), placements(counting_frames, state, 1)
    assert sum(first.values()) > 200
    assert sum(second.values()) <= 25
