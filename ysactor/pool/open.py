"""How a pool comes to be: `open_pool` as a block, `run_pool` under the caller's own nursery."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from ..cluster.handle import Cluster, open_cluster_of
from ..config import Config
from .actor import PoolActor
from .handle import Pool

if TYPE_CHECKING:
    from ..driver.choose import Transport
    from ..driver.protocol import Driver


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
    config = Config.of(dsn, options)
    del dsn, options  # they may hold a password, and a traceback may print this frame's variables
    chance = rng if rng is not None else Random()
    async with open_cluster_of(config, driver, chance) as cluster, open_pool_over(cluster, config, chance) as pool:
        yield pool


@asynccontextmanager
async def open_pool_over(cluster: Cluster, config: Config, rng: Random) -> AsyncGenerator[Pool]:
    """A pool over a cluster that is open."""
    actor = PoolActor(config, cluster._actor, cluster._driver, rng)
    async with cluster._tree() as nursery:
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
    async with open_pool(dsn, driver=driver, rng=rng, **options) as pool:
        task_status.started(pool)
        await pool._closed.wait()
