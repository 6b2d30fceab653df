"""What the application holds of a cluster: placement and failover, with or without a pool."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from ..actor import open_tree
from ..config import Config
from ..driver.choose import choose
from .actor import ClusterActor
from .info import ClusterInfo

if TYPE_CHECKING:
    from ..connection.handle import Connection
    from ..driver.choose import Transport
    from ..driver.protocol import Driver


class Cluster:
    """The servers of one cluster, and what this client knows of them; made by `open_cluster`."""

    def __init__(self, actor: ClusterActor, driver: Driver, config: Config) -> None:
        self._actor = actor
        self._driver = driver
        self._config = config
        self._numbers = 0

    def info(self) -> ClusterInfo:
        """A snapshot of the servers, their states and where connections go, without waiting."""
        return self._actor.info()

    async def refresh(self) -> None:
        """Ask for a refresh now: discovery, and a probe of every failed server that is due; returns when it has ended.

        It returns the same whether it succeeded or not; `info` says what is known afterwards. Cancelled, the refresh
        goes on without this caller.
        """
        await self._actor.refresh()

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Connection]:
        """One connection of its own for the length of a block, placed as a pool would place it; then closed.

        Waits for the first discovery. Raises `ConnectFailed` or `NoNodeAvailable` if no server took it. If the
        connection ends under the block, the block is cancelled and raises `ConnectionLost`.
        """
        from ..connection.single import open_single

        self._numbers += 1
        async with open_single(self._actor, self._driver, self._config, self._numbers) as conn:
            yield conn

    def _tree(self) -> AbstractAsyncContextManager[trio.Nursery]:
        return open_tree()


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
    config = Config.of(dsn, options)
    del dsn, options  # they may hold a password, and a traceback may print this frame's variables
    async with open_cluster_of(config, driver, rng if rng is not None else Random()) as cluster:
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
                yield Cluster(actor, chosen, config)
        finally:
            shelter.cancel()
