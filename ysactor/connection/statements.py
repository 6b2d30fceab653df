"""Prepared statements and cursors: asyncpg's, usable only within the lease they were made in."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .record import SYNC

if TYPE_CHECKING:
    from .holding import Holding


class PreparedStatement:
    """A statement that the server has parsed. Use it within the lease it was made in; it needs no closing."""

    __slots__ = ("_conn", "_named", "_raw")

    def __init__(self, conn: Holding, raw: Any) -> None:
        self._conn = conn
        self._raw = raw
        # BEGIN is prepared without a name as it goes ahead of a statement, in the place of any other.
        self._named = bool(raw.get_name())

    async def fetch(self, *args: Any, timeout: float | None = None) -> list[Any]:
        """All rows."""
        return await self._conn._run(self._live().fetch(*args), timeout, self._named)

    async def fetchrow(self, *args: Any, timeout: float | None = None) -> Any:
        """The first row, or None."""
        return await self._conn._run(self._live().fetchrow(*args), timeout, self._named)

    async def fetchval(self, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
        """One column of the first row, or None."""
        return await self._conn._run(self._live().fetchval(*args, column=column), timeout, self._named)

    async def executemany(self, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Run it once for each sequence of arguments; see `Connection.executemany`."""
        await self._conn._run_many(self._live().executemany, args, timeout)

    async def fetchmany(self, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> list[Any]:
        """Run it once for each sequence of arguments, as `executemany` does; the rows of all runs together."""
        return await self._conn._run_many(self._live().fetchmany, args, timeout)

    async def explain(self, *args: Any, analyze: bool = False) -> Any:
        """The server's plan, as JSON. With `analyze`, which runs it and rolls back, not inside a transaction."""
        return await self._conn._run(self._live().explain(*args, analyze=analyze), None)

    def cursor(self, *args: Any, prefetch: int | None = None, timeout: float | None = None) -> CursorFactory:
        """A cursor over its rows; see `Connection.cursor`."""
        return CursorFactory(self._conn, self._live().cursor(*args, prefetch=prefetch), timeout, prefetch)

    def get_query(self) -> str:
        """The statement's text."""
        query: str = self._live().get_query()
        return query

    def get_name(self) -> str:
        """The statement's name on the server."""
        name: str = self._live().get_name()
        return name

    def get_statusmsg(self) -> str | None:
        """The server's tag of the last run."""
        tag: str | None = self._live().get_statusmsg()
        return tag

    def get_parameters(self) -> Any:
        """The types of its parameters."""
        return self._live().get_parameters()

    def get_attributes(self) -> Any:
        """The columns of its rows."""
        return self._live().get_attributes()

    def _live(self) -> Any:
        self._conn._session()
        return self._raw


class CursorFactory:
    """What `cursor` returns: ``async for`` over its rows, or ``await`` it for a `Cursor`."""

    __slots__ = ("_conn", "_prefetch", "_raw", "_timeout")

    def __init__(self, conn: Holding, raw: Any, timeout: float | None, prefetch: int | None) -> None:
        self._conn = conn
        self._raw = raw
        self._timeout = timeout
        self._prefetch = _PREFETCH if prefetch is None else prefetch

    def __aiter__(self) -> CursorIterator:
        self._conn._session()
        return CursorIterator(self._conn, self._raw.__aiter__(), self._timeout, self._prefetch)

    def __await__(self) -> Generator[Any, Any, Cursor]:
        return self._open().__await__()

    async def _open(self) -> Cursor:
        self._conn._session()
        raw = await self._conn._run(_awaited(self._raw), self._timeout)
        return Cursor(self._conn, raw)


class CursorIterator(AsyncIterator[Any]):
    """Row after row, `prefetch` of them read at a time. It may be left early. Nothing is read after
    its transaction, but what was read ahead is still given out.

    What was read before is given out without a checkpoint. (Measured: a call on the connection for each row cost 7 µs,
    ten times what asyncpg takes; one for each `prefetch` rows makes it 0.8.)
    """

    __slots__ = ("_conn", "_prefetch", "_raw", "_rows", "_timeout")

    def __init__(self, conn: Holding, raw: Any, timeout: float | None, prefetch: int) -> None:
        self._conn = conn
        self._raw = raw
        self._timeout = timeout
        self._prefetch = prefetch
        self._rows: deque[Any] = deque()

    async def __anext__(self) -> Any:
        self._conn._session()
        rows = self._rows
        if not rows:
            rows.extend(await self._conn._run(_next(self._raw, self._prefetch), self._timeout))
            if not rows:
                raise StopAsyncIteration
        return rows.popleft()


class Cursor:
    """A cursor that is moved by hand, within its transaction and lease."""

    __slots__ = ("_conn", "_raw")

    def __init__(self, conn: Holding, raw: Any) -> None:
        self._conn = conn
        self._raw = raw

    async def fetch(self, n: int, *, timeout: float | None = None) -> list[Any]:
        """The next `n` rows, fewer at the end."""
        return await self._conn._run(self._live().fetch(n), timeout)

    async def fetchrow(self, *, timeout: float | None = None) -> Any:
        """The next row, or None at the end."""
        return await self._conn._run(self._live().fetchrow(), timeout)

    async def forward(self, n: int, *, timeout: float | None = None) -> int:
        """Skip `n` rows; how many there were to skip."""
        return await self._conn._run(self._live().forward(n), timeout)

    def _live(self) -> Any:
        self._conn._session()
        return self._raw


_IN_FAILED_TRANSACTION = "25P02"
"""The answer to any statement but a ROLLBACK, which may be prepared there; it ends what is half sent as well."""


async def prepared(raw: Any, query: str, name: str | None, record_class: type | None) -> Any:
    """A prepared statement, with nothing half sent: asyncpg leaves that to the first statement that is run, and until
    then the server holds locks, keeps its snapshot, and counts the time as that statement's."""
    statement = await raw.prepare(query, name=name, record_class=record_class)
    if name == "":
        return statement  # the next statement of any kind takes its place, this one too
    try:
        await raw.execute(SYNC)
    except Exception as error:
        if getattr(error, "sqlstate", None) != _IN_FAILED_TRANSACTION:
            raise
    return statement


async def _awaited(factory: Any) -> Any:
    return await factory


async def _next(iterator: Any, most: int) -> list[Any]:
    """The rows that asyncpg reads at a time: it waits for the first of them only. None at the end."""
    rows: list[Any] = []
    try:
        while len(rows) < most:
            rows.append(await iterator.__anext__())
    except StopAsyncIteration:
        pass  # it may not leave a coroutine that something else drives
    return rows


_PREFETCH = 50
"""asyncpg's own."""
