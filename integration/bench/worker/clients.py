"""What the works ask of a contender, and of the library that schedules its tasks.

The callables are the contender's own wherever it has them, so that no layer of the benchmark's stands in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol


class World(Protocol):
    """asyncio or Trio."""

    async def gather(self, run: Callable[[], Awaitable[object]], count: int) -> None:
        """Run that many at once, each in a task, to their end."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def cancel(self, run: Callable[[], Awaitable[object]], after: float) -> tuple[float, float]:
        """Start it in a task and cancel it: when it was cancelled, and when its task was free, by `perf_counter`."""
        ...


class Pooled(Protocol):
    """An open pool."""

    @property
    def fetchval(self) -> Callable[[str], Awaitable[Any]]:
        """One value by one statement, on whichever connection is free."""
        ...

    @property
    def acquire(self) -> Callable[[], AbstractAsyncContextManager[Any]]:
        """One connection, as a block."""
        ...

    @property
    def by_hand(self) -> tuple[Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None] | None]] | None:
        """One connection taken and given back by calls, without a block."""
        ...

    @property
    def insert(self) -> Callable[[str], Awaitable[object]]:
        """The statement in a transaction of its own, the way the library means transactions to be written."""
        ...


class Client(Protocol):
    """A contender."""

    def pool(self, size: int) -> AbstractAsyncContextManager[Pooled]:
        """A pool of so many connections, all of them open."""
        ...

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """One connection with asyncpg's `fetchval`, `fetch`, `copy_from_query` and `copy_to_table`, as far as they
        are measured."""
        ...
