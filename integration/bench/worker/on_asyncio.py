"""The contenders on asyncio: asyncpg and hasql, psycopg and its fork for YugabyteDB."""

from __future__ import annotations

import asyncio
import importlib
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from integration.bench.job import Endpoint
from integration.bench.worker.clients import Pooled


class Asyncio:
    """A `World`."""

    async def gather(self, run: Callable[[], Awaitable[object]], count: int) -> None:
        await asyncio.gather(*[run() for _ in range(count)])

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def cancel(self, run: Callable[[], Awaitable[object]], after: float) -> tuple[float, float]:
        async def running() -> None:
            await run()

        task = asyncio.create_task(running())
        await asyncio.sleep(after)
        cancelled = time.perf_counter()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return cancelled, time.perf_counter()
        raise AssertionError("it was not cancelled")


@dataclass(frozen=True, slots=True)
class Opened:
    """A `Pooled`."""

    fetchval: Callable[[str], Awaitable[Any]]
    acquire: Callable[[], AbstractAsyncContextManager[Any]]
    insert: Callable[[str], Awaitable[object]]
    by_hand: tuple[Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None] | None]] | None = None


def _by_hand(acquire: Callable[[], AbstractAsyncContextManager[Any]]) -> Callable[[str], Awaitable[object]]:
    async def insert(statement: str) -> None:
        async with acquire() as connection, connection.transaction():
            await connection.execute(statement)

    return insert


class Asyncpg:
    """asyncpg; with ``reset`` its pool sends its reset query at every release, as it does by default."""

    def __init__(self, endpoint: Endpoint, *, reset: bool) -> None:
        self._asyncpg: Any = importlib.import_module("asyncpg")
        self._where = {
            "host": endpoint.host,
            "port": endpoint.port,
            "user": endpoint.user,
            "database": endpoint.database,
            "ssl": None if endpoint.authority is None else ssl.create_default_context(cafile=endpoint.authority),
        }
        self._kind = self._asyncpg.Connection if reset else without_reset(self._asyncpg)

    @asynccontextmanager
    async def pool(self, size: int) -> AsyncGenerator[Pooled]:
        async with self._asyncpg.create_pool(
            min_size=size, max_size=size, connection_class=self._kind, **self._where
        ) as pool:
            yield Opened(pool.fetchval, pool.acquire, _by_hand(pool.acquire), (pool.acquire, pool.release))

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Any]:
        connection = await self._asyncpg.connect(**self._where)
        try:
            yield connection
        finally:
            await connection.close()


def without_reset(asyncpg: Any) -> Any:
    """asyncpg's connection, with nothing to send when a pool takes it back."""

    class NoReset(asyncpg.Connection):  # type: ignore[misc]  # Any to the checker: asyncpg ships no types
        def get_reset_query(self) -> str:
            return ""

    return NoReset


class Hasql:
    """hasql over asyncpg, asking for the primary. It keeps one connection for itself, beside those of the pool."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._module: Any = importlib.import_module("hasql.driver.asyncpg")
        self._dsn = f"postgresql://{endpoint.user}@{endpoint.tcp_host}:{endpoint.port}/{endpoint.database}"
        self._context = None if endpoint.authority is None else ssl.create_default_context(cafile=endpoint.authority)

    @asynccontextmanager
    async def pool(self, size: int) -> AsyncGenerator[Pooled]:
        # It adds one to these by itself.
        options = {"min_size": size, "max_size": size, "ssl": self._context}
        manager = self._module.PoolManager(self._dsn, pool_factory_kwargs=options)
        try:
            await manager.ready()

            async def fetchval(query: str) -> Any:
                async with manager.acquire_master() as connection:
                    return await connection.fetchval(query)

            yield Opened(fetchval, manager.acquire_master, _by_hand(manager.acquire_master))
        finally:
            await manager.close()

    def connection(self) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError("hasql is a pool, and its connections are asyncpg's")


class Psycopg:
    """psycopg 3 with its pool: autocommit, statements prepared at once. `smart`: the fork's cluster-aware way."""

    def __init__(self, endpoint: Endpoint, *, smart: bool) -> None:
        self._psycopg: Any = importlib.import_module("psycopg")
        self._pool: Any = importlib.import_module("psycopg_pool")
        self._where: dict[str, Any] = {
            "host": endpoint.tcp_host if smart else endpoint.host,
            "port": endpoint.port,
            "user": endpoint.user,
            "dbname": endpoint.database,
            "autocommit": True,
            "prepare_threshold": 0,
        }
        if smart:
            self._where["load_balance_hosts"] = "true"
        if endpoint.authority is not None:
            self._where |= {"sslmode": "verify-full", "sslrootcert": endpoint.authority}

    @asynccontextmanager
    async def pool(self, size: int) -> AsyncGenerator[Pooled]:
        pool = self._pool.AsyncConnectionPool(kwargs=self._where, min_size=size, max_size=size, open=False)
        async with pool:
            await pool.wait()

            async def fetchval(query: str) -> Any:
                async with pool.connection() as connection:
                    return await _value(connection, query)

            yield Opened(fetchval, pool.connection, _by_hand(pool.connection))

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Any]:
        async with await self._psycopg.AsyncConnection.connect(**self._where) as connection:
            yield _AsAsyncpg(connection)


async def _value(connection: Any, query: str) -> Any:
    cursor = await connection.execute(query, prepare=True)
    return (await cursor.fetchone())[0]


class _AsAsyncpg:
    """The two methods that are measured."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetchval(self, query: str) -> Any:
        return await _value(self._connection, query)

    async def fetch(self, query: str) -> list[Any]:
        cursor = await self._connection.execute(query, prepare=True)
        rows: list[Any] = await cursor.fetchall()
        return rows
