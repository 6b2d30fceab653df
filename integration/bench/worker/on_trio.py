"""The contenders on Trio: ysactor with either transport, and triopg."""

from __future__ import annotations

import importlib
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import trio

from integration.bench.job import Endpoint
from integration.bench.worker.clients import Pooled


class Trio:
    """A `World`."""

    async def gather(self, run: Callable[[], Awaitable[object]], count: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(run)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def cancel(self, run: Callable[[], Awaitable[object]], after: float) -> tuple[float, float]:
        free: list[float] = []

        async def running() -> None:
            with scope:
                await run()
            free.append(time.perf_counter())

        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running)
            await trio.sleep(after)
            cancelled = time.perf_counter()
            scope.cancel()
        if not scope.cancelled_caught:
            raise AssertionError("it was not cancelled")
        return cancelled, free[0]


@dataclass(frozen=True, slots=True)
class Opened:
    """A `Pooled`."""

    fetchval: Callable[[str], Awaitable[Any]]
    acquire: Callable[[], AbstractAsyncContextManager[Any]]
    insert: Callable[[str], Awaitable[object]]
    by_hand: tuple[Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None] | None]] | None = None


class Ysactor:
    """ysactor with everything at its defaults but the pool's size."""

    def __init__(self, endpoint: Endpoint, driver: Literal["native", "trio_asyncio"]) -> None:
        self._ysactor: Any = importlib.import_module("ysactor")
        self._options: dict[str, Any] = {
            "hosts": [(endpoint.host, endpoint.port)],
            "user": endpoint.user,
            "database": endpoint.database,
            "driver": driver,
            "ssl": False if endpoint.authority is None else ssl.create_default_context(cafile=endpoint.authority),
        }

    @asynccontextmanager
    async def pool(self, size: int) -> AsyncGenerator[Pooled]:
        async with self._ysactor.open_pool(pool_size=size, **self._options) as pool:
            await pool.ready(size)

            async def execute(connection: Any, statement: str) -> None:
                await connection.execute(statement)

            async def insert(statement: str) -> None:
                await pool.transaction(execute, statement)

            yield Opened(pool.fetchval, pool.acquire, insert, (pool.checkout, pool.checkin))

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Any]:
        async with self._ysactor.open_pool(pool_size=1, **self._options) as pool, pool.acquire() as connection:
            yield connection


class Triopg:
    """triopg; with ``reset`` asyncpg's pool below it sends its reset query at every release."""

    def __init__(self, endpoint: Endpoint, *, reset: bool) -> None:
        asyncpg: Any = importlib.import_module("asyncpg")
        self._triopg: Any = importlib.import_module("triopg")
        self._where = {
            "host": endpoint.host,
            "port": endpoint.port,
            "user": endpoint.user,
            "database": endpoint.database,
            "ssl": None if endpoint.authority is None else ssl.create_default_context(cafile=endpoint.authority),
        }
        self._kind = asyncpg.Connection
        if not reset:
            self._kind = importlib.import_module("integration.bench.worker.on_asyncio").without_reset(asyncpg)

    @asynccontextmanager
    async def pool(self, size: int) -> AsyncGenerator[Pooled]:
        async with self._triopg.create_pool(
            min_size=size, max_size=size, connection_class=self._kind, **self._where
        ) as pool:

            async def insert(statement: str) -> None:
                async with pool.acquire() as connection, connection.transaction():
                    await connection.execute(statement)

            yield Opened(pool.fetchval, pool.acquire, insert)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Any]:
        async with self._triopg.connect(**self._where) as connection:
            yield connection
