"""What a program opens: a cluster, a pool over it, or one connection in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from .actor import Ended, open_tree
from .cluster.actor import ClusterActor
from .cluster.info import ClusterInfo
from .config import Config
from .connection.setup import Preparation
from .connection.single import open_single
from .driver.choose import choose
from .errors import ConfigurationError, PoolClosed
from .options.readers import shown
from .pool.actor import PoolActor
from .pool.handle import Pool

if TYPE_CHECKING:
    from .connection.handle import Connection
    from .driver.choose import Transport
    from .driver.protocol import Driver


class Cluster:
    """The servers of one cluster, and what this client knows of them; made by `open_cluster`."""

    def __init__(self, nursery: trio.Nursery, actor: ClusterActor, driver: Driver, config: Config) -> None:
        self._nursery = nursery
        self._is_closed = False
        self._actor = actor
        self._driver = driver
        self._config = config
        self._preparation = Preparation(config)
        self._numbers = 0

    def info(self) -> ClusterInfo:
        """A snapshot of the servers, their states and where connections go, without waiting."""
        return self._actor.info()

    async def refresh(self) -> None:
        """Ask for a refresh now: discovery, and a probe of every failed server that is due; returns when it has ended.

        It returns the same whether it succeeded or not; `info` says what is known afterwards. Cancelled, the refresh
        goes on without this caller. Raises `PoolClosed` once the cluster has been closed.
        """
        try:
            await self._actor.refresh()
        except Ended:
            raise PoolClosed("the cluster is closed") from None

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Connection]:
        """One connection of its own for the length of a block, placed as a pool would place it; then closed.

        Waits for the first discovery. Raises `ConnectFailed` or `NoNodeAvailable` if no server took it. If the
        connection ends under the block, the block is cancelled and raises `ConnectionLost`. Raises `PoolClosed` once
        the cluster has been closed, as does a block that is still open then.
        """
        if self._is_closed:
            raise PoolClosed("the cluster is closed")
        self._numbers += 1
        number, preparation = self._numbers, self._preparation
        async with open_single(self._nursery, self._actor, self._driver, self._config, number, preparation) as conn:
            yield conn


def _chance(rng: object) -> Random:
    """Where all chance comes from. Raises `ConfigurationError` for what is no `random.Random`."""
    if rng is None:
        return Random()
    if not isinstance(rng, Random):
        raise ConfigurationError([f"rng: expected a random.Random, not {shown(rng)}"])
    return rng


@asynccontextmanager
async def open_cluster(
    dsn: str | None = None,
    *,
    driver: Driver | Transport | None = None,
    rng: Random | None = None,
    **options: Any,
) -> AsyncGenerator[Cluster]:
    """A cluster for the length of a block: ``async with ysactor.open_cluster(dsn, **options) as cluster``.

    Enters at once; the first discovery runs in the background. Takes the options of `open_pool`; those of the pool
    itself have no effect. Raises `ConfigurationError`, before anything is opened.
    """
    try:
        config = Config.of(dsn, options)
    finally:
        del dsn, options  # they may hold a password, and a traceback may print this frame's variables
    async with open_cluster_of(config, driver, _chance(rng)) as cluster:
        yield cluster


@asynccontextmanager
async def open_cluster_of(config: Config, driver: Driver | Transport | None, rng: Random) -> AsyncGenerator[Cluster]:
    """The same for options that were read already."""
    chosen = choose(driver)
    shelter = trio.CancelScope()

    async def run_driver(*, task_status: trio.TaskStatus[None]) -> None:
        with shelter:
            await chosen.run(task_status=task_status)

    async with open_tree() as tree:
        try:
            await tree.start(run_driver, name="ysactor.driver")
            # A cancellation from outside reaches every task at once; the driver goes on while connections say goodbye.
            shelter.shield = True
            async with open_tree() as inner:
                actor = ClusterActor(config, chosen, rng)
                await inner.start(actor.run, name="ysactor.cluster")
                cluster = Cluster(inner, actor, chosen, config)
                try:
                    yield cluster
                finally:
                    cluster._is_closed = True
        finally:
            shelter.cancel()


@asynccontextmanager
async def open_pool(
    dsn: str | None = None,
    *,
    driver: Driver | Transport | None = None,
    rng: Random | None = None,
    **options: Any,
) -> AsyncGenerator[Pool]:
    """A pool for the length of a block: ``async with ysactor.open_pool(dsn, **options) as pool``.

    Enters at once; connections open in the background, and callers wait for them (`pool.ready` waits for them too).
    Leaving closes it as `Pool.aclose` does, and leaves no task, socket or server session behind; left by a
    cancellation, leases get no more time. An exception of the block comes out as it is.

    `options` are those of the options page. `driver` (default: asyncpg on Trio's own sockets) is ``"native"``,
    ``"trio_asyncio"``, or a driver such as `ysactor.testing.FakeDriver`; `rng` is where all chance comes from.

    Raises `ConfigurationError`, before anything is opened, for options or a DSN that can't be used.
    """
    try:
        config = Config.of(dsn, options)
    finally:
        del dsn, options  # they may hold a password, and a traceback may print this frame's variables
    chance = _chance(rng)
    async with open_cluster_of(config, driver, chance) as cluster, open_pool_over(cluster, config, chance) as pool:
        yield pool


@asynccontextmanager
async def open_pool_over(cluster: Cluster, config: Config, rng: Random) -> AsyncGenerator[Pool]:
    """A pool over a cluster that is open."""
    actor = PoolActor(config, cluster._actor, cluster._driver, rng)
    async with open_tree() as nursery:
        await nursery.start(actor.run, name="ysactor.pool")
        pool = Pool(actor, cluster)
        try:
            yield pool
        finally:
            await pool.aclose()


async def run_pool(
    dsn: str | None = None,
    *,
    driver: Driver | Transport | None = None,
    rng: Random | None = None,
    task_status: trio.TaskStatus[Pool] = trio.TASK_STATUS_IGNORED,
    **options: Any,
) -> None:
    """A pool under the caller's own nursery: ``pool = await nursery.start(ysactor.run_pool, dsn)``.

    Options go through `functools.partial`. It ends when it is cancelled, or when `pool.aclose()` has ended; otherwise
    as `open_pool`.
    """
    opening = open_pool(dsn, driver=driver, rng=rng, **options)
    del dsn, options  # as above
    async with opening as pool:
        task_status.started(pool)
        await pool._closed.wait()
