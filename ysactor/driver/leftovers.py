"""Prepared statements that are nobody's any more: asyncpg forgets some of them, and they stay on the server.

Each first use of a text prepares a statement under a new name. Cancelled on its way, it may be there, and no cache
knows it: a service with texts of many kinds and short time-outs would collect them while its connections live. So
would one that prepares a text for each lease which it has also run without.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from asyncio import CancelledError
from typing import Any


def tidied(base: Any, protocol: Any) -> Any:
    """asyncpg's connection class, closing such statements together with those that fall out of its cache: all with its
    next first use of a text.

    `protocol` is its module of that name.
    """

    def get_unique_id(self: Any, prefix: str) -> str:
        name: str = base._get_unique_id(self, prefix)
        self.begun = name
        return name

    async def get_statement(self: Any, query: str, timeout: float | None, **options: Any) -> Any:
        outer, self.begun = self.begun, None  # asyncpg's questions about types are statements of their own
        try:
            return await base._get_statement(self, query, timeout, **options)
        except (CancelledError, TimeoutError):
            self.close_later(query, options.get("record_class"), options.get("ignore_custom_codec", False))
            raise
        finally:
            self.begun = outer

    def close_later(self: Any, query: str, record_class: type | None, ignore_custom_codec: bool) -> None:
        kind = self._protocol.get_record_class() if record_class is None else record_class
        if self.begun is None or self._stmt_cache.has((query, kind, ignore_custom_codec)):
            return
        lost = protocol.PreparedStatementState(self.begun, query, self._protocol, kind, ignore_custom_codec)
        lost.mark_closed()
        self._stmts_to_close.add(lost)

    async def clean_up(self: Any) -> None:
        # As asyncpg's own, but what a cancellation leaves undone is done the next time.
        waiting = self._stmts_to_close
        while waiting:
            one = next(iter(waiting))
            try:
                await self._protocol.close_statement(one, protocol.NO_TIMEOUT)
            except (CancelledError, TimeoutError):
                raise
            except BaseException:
                waiting.discard(one)
                raise
            waiting.discard(one)

    def maybe_gc_stmt(self: Any, statement: Any) -> None:
        # As asyncpg's own, which looks whether the cache has the same text: one that `prepare` made is another
        # statement than the cache's, and stayed for good.
        key = (statement.query, statement.record_class, statement.ignore_custom_codec)
        if not statement.refs and statement.name and self._stmt_cache.get(key, promote=False) is not statement:
            statement.mark_closed()
            self._stmts_to_close.add(statement)

    def init(self: Any, *args: Any) -> None:
        self.begun = None
        base.__init__(self, *args)

    members = {
        "__slots__": ("begun",),
        "__init__": init,
        "close_later": close_later,
        "_get_unique_id": get_unique_id,
        "_get_statement": get_statement,
        "_cleanup_stmts": clean_up,
        "_maybe_gc_stmt": maybe_gc_stmt,
    }
    return type(base)("Connection", (base,), members)
