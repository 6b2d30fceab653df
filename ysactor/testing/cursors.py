"""Prepared statements and cursors of a fake connection, with asyncpg's methods."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .pgerrors import error, interface_error
from .rows import Result, Row

if TYPE_CHECKING:
    from .executor import Executor
    from .raw import FakeConnection
    from .session import FakeSession


class FakePrepared:
    """A prepared statement."""

    def __init__(self, connection: FakeConnection, query: str, name: str) -> None:
        self._connection = connection
        self._query = query
        self._name = name
        self._tag = ""

    async def fetch(self, *args: Any, timeout: float | None = None, record_class: Any = None) -> list[Row]:
        """The rows."""
        return list((await self._run(args, timeout)).rows)

    async def fetchrow(self, *args: Any, timeout: float | None = None, record_class: Any = None) -> Row | None:
        """The first row, or None."""
        rows = (await self._run(args, timeout)).rows
        return rows[0] if rows else None

    async def fetchval(self, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
        """One value of the first row, or None."""
        rows = (await self._run(args, timeout)).rows
        return rows[0][column] if rows else None

    async def fetchmany(self, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> list[Row]:
        """The rows for each of these arguments, in one transaction."""
        return await self._connection.fetchmany(self._query, args, timeout=timeout)

    async def executemany(self, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Run with each of these arguments, in one transaction."""
        await self._connection.executemany(self._query, args, timeout=timeout)

    def cursor(self, *args: Any, prefetch: int | None = None, timeout: float | None = None) -> FakeCursorFactory:
        """A cursor over it."""
        return self._connection.cursor(self._query, *args, prefetch=prefetch, timeout=timeout)

    def get_name(self) -> str:
        """Its name on the server."""
        return self._name

    def get_query(self) -> str:
        """Its text."""
        return self._query

    def get_statusmsg(self) -> str:
        """The command tag of its last run."""
        return self._tag

    async def _run(self, args: tuple[Any, ...], timeout: float | None) -> Result:
        result = await self._connection.ask(self._query, args, timeout)
        self._tag = result.tag
        return result


class FakeCursorFactory:
    """`await` it for a cursor to fetch from, or iterate over the rows."""

    def __init__(self, session: FakeSession, query: str, args: tuple[Any, ...], prefetch: int | None) -> None:
        self._session = session
        self._query = query
        self._args = args
        self._prefetch = prefetch

    def __await__(self) -> Generator[Any, Any, FakeCursor]:
        if self._prefetch is not None:
            raise interface_error("prefetch argument can only be specified for iterable cursor")
        return self._open().__await__()

    async def _open(self) -> FakeCursor:
        cursor = FakeCursor(self._session, self._query, self._args)
        await cursor.bind()
        return cursor

    def __aiter__(self) -> FakeCursorIterator:
        prefetch = 50 if self._prefetch is None else self._prefetch
        return FakeCursorIterator(FakeCursor(self._session, self._query, self._args), prefetch)


class FakeCursor:
    """An open portal: rows in portions."""

    def __init__(self, session: FakeSession, query: str, args: tuple[Any, ...]) -> None:
        self._session = session
        self._query = query
        self._args = args
        self._rows: list[Row] | None = None

    async def bind(self) -> None:
        """Run the query on the server; rows come with `fetch`."""
        self._check()
        self._rows = list((await self._session.exchange(self._query, self._args)).rows)

    async def fetch(self, n: int, *, timeout: float | None = None) -> list[Row]:
        """The next rows, at most `n`; none at the end."""
        self._check()
        if self._rows is None:
            await self.bind()
        rows = self._rows or []

        async def portion(_session: Executor) -> Result:
            return Result(tuple(rows[:n]))

        taken = list((await self._session.exchange(f"FETCH {n}", work=portion, timeout=timeout, record=False)).rows)
        del rows[:n]
        return taken

    async def fetchrow(self, *, timeout: float | None = None) -> Row | None:
        """The next row, or None."""
        rows = await self.fetch(1, timeout=timeout)
        return rows[0] if rows else None

    async def forward(self, n: int, *, timeout: float | None = None) -> int:
        """Skip rows; how many were skipped."""
        return len(await self.fetch(n, timeout=timeout))

    def _check(self) -> None:
        self._session.check_driven()
        if self._session.backend.executor.rest_state == "idle":
            raise error("25P01", "cursor cannot be created outside of a transaction")


class FakeCursorIterator:
    """Rows one by one, fetched in portions."""

    def __init__(self, cursor: FakeCursor, prefetch: int) -> None:
        self._cursor = cursor
        self._prefetch = prefetch
        self._buffer: list[Row] = []

    def __aiter__(self) -> FakeCursorIterator:
        return self

    async def __anext__(self) -> Row:
        if not self._buffer:
            self._buffer = await self._cursor.fetch(self._prefetch)
        if not self._buffer:
            raise StopAsyncIteration
        return self._buffer.pop(0)
