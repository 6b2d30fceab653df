"""What a fake connection keeps of the schema, as asyncpg does: its statements' plans, and the types in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from .pgerrors import outdated_type, stale_plan

if TYPE_CHECKING:
    from .cluster import FakeCluster
    from .executor import Executor
    from .rows import Result


class Plans:
    """The texts that one connection has prepared, each with the schema of that time."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._tables: dict[str, int] = {}
        self._types: int | None = None
        self.on_outdated: list[Callable[[bool], None]] = []
        """Called when what is kept is old; True: of the types too."""

    def forget(self, types: bool) -> None:
        """Keep no statement, and with `types` no type, any more."""
        self._tables.clear()
        if types:
            self._types = None

    def keep(self, query: str) -> None:
        """It has been prepared."""
        self._tables.setdefault(query, self._cluster.tables_version)
        if self._types is None:
            self._types = self._cluster.types_version

    def _outdated(self, types: bool) -> None:
        self.forget(types)
        for tell in self.on_outdated:
            tell(types)

    async def run(
        self,
        query: str,
        ask: Callable[[], Awaitable[Result]],
        fail: Callable[[Callable[[Executor], Awaitable[Result]]], Awaitable[Result]],
        in_transaction: bool,
    ) -> Result:
        """Run a statement by what is kept of it: `ask` runs it, `fail` has the server refuse it."""
        self.keep(query)
        if self._tables[query] != self._cluster.tables_version:
            try:
                if in_transaction:
                    await fail(_refuse)
            finally:
                self._outdated(False)
            self.keep(query)
        result = await ask()
        if self._types != self._cluster.types_version:
            self._outdated(True)
            raise outdated_type()
        return result


async def _refuse(executor: Executor) -> Result:
    raise stale_plan()
