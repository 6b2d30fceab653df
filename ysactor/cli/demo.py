"""``ysactor demo``: a three-zone cluster on this machine, a load, a server that fails and comes back, and the proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from ..actor import open_tree
from ..client import open_pool
from ..config import Config
from .bank import Holdings, Outcome, audit
from .course import GRACE, Schedule
from .ending import FAILED, Refusal
from .events import listening
from .load import Load
from .report import Failover, Result
from .stage import Stage
from .teller import Bank, holdings
from .view import View, look

if TYPE_CHECKING:
    from ..pool.handle import Pool
    from ..testing.postgres import Member, ThreeZones

SIZE = 8
"""Connections, and workers."""
SCHEMA = "ysactor_demo"
TITLE = "ysactor demo: bank transfers over three zones"
READY = 20.0
"""Seconds that the pool is given to open its connections."""

# A commit that was reported must survive `kill -9`: it is then in the operating system's hands, if not on a disk.
# Whole pages in the log, because a process that is killed may leave half of one in a file.
SETTINGS = {"synchronous_commit": "on", "full_page_writes": "on"}

STANDS_FOR = (
    "Three PostgreSQL servers on this machine stand in for a YugabyteDB cluster of three zones: a table behind "
    "yb_servers() says where each one is.",
    "Unlike YugabyteDB's, they share no data. Each keeps accounts and a journal of its own, and a transfer stays on "
    "the server that its connection is on.",
)


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays what, by the seed."""

    preferred: int
    """The server at level 1, which is killed. By its number in the bed."""
    order: tuple[int, ...]
    """All servers, most preferred first."""

    @classmethod
    def drawn(cls, count: int, seed: int) -> Cast:
        """The same for the same seed."""
        order = list(range(count))
        Random(seed).shuffle(order)
        return cls(order[0], tuple(order))

    def topology_keys(self, members: tuple[Member, ...]) -> list[tuple[str, str, str, int]]:
        """Every zone at a level of its own, so that each step down and up is seen."""
        places = [members[index].placement for index in self.order]
        return [(place.cloud, place.region, place.zone, level) for level, place in enumerate(places, 1)]


async def demo(stage: Stage, seconds: float, seed: int) -> Result:
    """All of it. Cancelled, it stops its servers and leaves nothing behind.

    Raises `Refusal` where there are no PostgreSQL programs, or they can't be started.
    """
    from ..testing.postgres import PostgresNotFound, ServerFailed, find, open_three_zones
    from ..testing.postgres.process import ToolFailed
    from ..testing.postgres.run import PortsExhausted

    try:
        binaries = find()
    except PostgresNotFound as missing:
        raise Refusal(f"the demo needs PostgreSQL's programs: {missing}") from None
    for line in STANDS_FOR:
        stage.events.say(line)
    stage.events.say(f"starting three servers of PostgreSQL {binaries.version} ({binaries.origin}); seed {seed}")
    started = False
    try:
        async with open_three_zones(settings=SETTINGS, binaries=binaries) as bed:
            started = True
            return await _with_servers(stage, bed, seconds, seed)
    except (ServerFailed, ToolFailed, PortsExhausted, OSError) as error:
        first, *_ = str(error).splitlines() or [repr(error)]
        raise Refusal(f"the demo's servers do not work: {first}", FAILED) from error
    finally:
        stage.events.clock = None
        if started:
            stage.events.say("the servers are stopped, and their files removed")


async def _with_servers(stage: Stage, bed: ThreeZones, seconds: float, seed: int) -> Result:
    bank = Bank(SCHEMA)
    for server in bed.servers:
        await trio.to_thread.run_sync(partial(server.sql, *bank.create()))
    cast = Cast.drawn(len(bed.members), seed)
    schedule = Schedule.over(seconds)
    # One host is enough, and it is not the one that is killed: the others are discovered.
    dsn = bed.dsn(cast.order[-1])
    options: dict[str, Any] = {
        "load_balance": True,
        "topology_keys": cast.topology_keys(bed.members),
        "pool_size": SIZE,
        "connect_timeout": 2,
        "checkout_timeout": 10,
        # Short, so that a server's return is seen within the demo. The defaults are 300, 5 and 30 seconds.
        "yb_servers_refresh_interval": 1,
        "failed_host_reconnect_delay_secs": 1,
        "rebalance_interval": schedule.rebalance_interval,
        "rebalance_batch": 1,
    }
    victim = bed.members[cast.preferred]
    stage.events.say(
        f"one host is configured, {bed.members[cast.order[-1]]}; {victim.placement.zone} is preferred, and its "
        "server is the one that will fail"
    )
    with listening(stage.events):
        async with open_pool(dsn, rng=Random(seed), **options) as pool:
            await pool.ready(SIZE, timeout=READY)
            load = Load(pool, bank, seed=seed, seconds=seconds)
            stage.events.clock = lambda: load.now
            view = viewing(TITLE, stage, seconds, Config.of(dsn, options), load, pool)
            async with stage.showing(view), open_tree() as tree:
                held = pool.statistics().by_host.get(str(victim), 0)
                stage.events.say(f"{held} of {SIZE} connections are on {victim} ({victim.placement.zone})")
                tree.start_soon(load.run, SIZE)
                await _play(stage, bed, cast.preferred, schedule, load, pool)
                await load.finish()
            retried = pool.statistics().transactions_retried
    stage.events.clock = None
    stage.events.say("the load has ended; reading back what is on the servers")
    found = [await _read(bed, index, bank) for index in range(len(bed.members))]
    course, books = load.course, load.books
    return Result(
        seconds=course.ended or seconds,
        seed=seed,
        audit=audit(books, found, apart=True),
        failed=books.total(Outcome.FAILED),
        declined=books.total(Outcome.DECLINED),
        retried=retried,
        by_server={str(member): load.committed[str(member)] for member in bed.members},
        errors=dict(load.errors),
        failover=Failover(
            victim=str(victim),
            zone=victim.placement.zone,
            elsewhere=course.elsewhere(str(victim)),
            longest_gap=course.longest_gap(),
            seconds_back=course.seconds_back(),
        ),
        events=tuple(stage.events.lines),
    )


def viewing(title: str, stage: Stage, seconds: float, config: Config, load: Load, pool: Pool) -> Callable[[], View]:
    """A function that makes the view of the moment it is called."""
    return lambda: look(title, seconds, config, load, pool.statistics(), pool.cluster.info(), stage.events.lines)


async def _play(stage: Stage, bed: ThreeZones, index: int, schedule: Schedule, load: Load, pool: Pool) -> None:
    """The fault, and what is to be seen after it."""
    victim, course, events = str(bed.members[index]), load.course, stage.events
    zone = bed.members[index].placement.zone
    await load.sleep_until(schedule.kill)
    course.killed = load.now
    events.say(f"kill -9 for every process of {victim} ({zone})", "bad")
    await bed.kill(index)
    if await _seen(lambda: course.elsewhere(victim) > 0, load, schedule.restart):
        other = next(server for server in course.between(course.killed, load.now + 1) if server != victim)
        events.say(f"transfers are committed on {other} instead", "good")
    await load.sleep_until(schedule.restart)
    await bed.start(index)
    course.restarted = load.now
    events.say(f"{victim} ({zone}) is started again", "good")

    def is_back() -> bool:
        return pool.statistics().by_host == {victim: SIZE}

    if await _seen(is_back, load, schedule.end + GRACE):
        course.back = load.now
        events.say(f"all {SIZE} connections are on {victim} ({zone}) again", "good")
    else:
        events.say(f"not all connections came back to {victim} ({zone})", "bad")
    await load.sleep_until(schedule.end)


async def _seen(what: Callable[[], bool], load: Load, until: float) -> bool:
    """Wait for it until so many seconds since the load began; whether it came."""
    while not what():
        if load.now >= until:
            return False
        await trio.sleep(0.05)
    return True


async def _read(bed: ThreeZones, index: int, bank: Bank) -> Holdings:
    """What one server holds, read by the bed's own client: ysactor is not its own witness."""
    read = bed.servers[index].sql
    accounts = await trio.to_thread.run_sync(read, bank.accounts)
    journal = await trio.to_thread.run_sync(read, bank.journal)
    return holdings(str(bed.members[index]), accounts, journal)
