"""The connection object of a fake session: asyncpg's methods, asked of a fake server.

As on every driver, the coroutines are run by `Session.drive`; awaiting one by itself is an error here.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from . import copying
from .cursors import FakeCursorFactory, FakePrepared
from .pgerrors import error
from .plans import Plans
from .rows import Result, Row
from .sql import tidy

if TYPE_CHECKING:
    from .cluster import FakeCluster
    from .executor import Executor, Work
    from .session import FakeSession

Listener = Callable[["FakeConnection", int, str, str], None]


class ServerVersion(NamedTuple):
    """asyncpg's record of the same name."""

    major: int
    minor: int
    micro: int
    releaselevel: str
    serial: int


class FakeConnection:
    """What `raw` is. Rows are `ysactor.testing.Row`s."""

    def __init__(self, session: FakeSession, cluster: FakeCluster) -> None:
        self._session = session
        self.plans = Plans(cluster)
        self._listeners: dict[str, list[Listener]] = {}
        self.codecs: dict[str, Any] = {}
        """The type codecs that were set, by type name. Values of the fake are Python's already, so none is applied."""

    # Queries.

    async def fetch(self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None) -> list[Row]:
        """The rows of a statement."""
        return list((await self._ask_by_plan(query, args, timeout)).rows)

    async def fetchrow(
        self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None
    ) -> Row | None:
        """The first row, or None."""
        rows = (await self._ask_by_plan(query, args, timeout)).rows
        return rows[0] if rows else None

    async def fetchval(self, query: str, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
        """One value of the first row, or None."""
        rows = (await self._ask_by_plan(query, args, timeout)).rows
        return rows[0][column] if rows else None

    async def fetchmany(
        self, query: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None, record_class: Any = None
    ) -> list[Row]:
        """The rows of a statement run with each of these arguments, in one transaction."""
        return list((await self._ask_many(query, args, timeout)).rows)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Run one statement, or without arguments several, and return the (last) command tag."""
        # Without arguments asyncpg prepares nothing.
        return (await (self._ask_by_plan if args else self.ask)(query, args, timeout)).tag

    async def executemany(self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Run a statement with each of these arguments, in one transaction. With none of them it is only prepared."""
        each = tuple(args)
        if each:
            await self._ask_many(command, each, timeout)
        else:
            await self._prepare(command, timeout)
            self.plans.keep(command)

    async def prepare(
        self, query: str, *, name: str | None = None, timeout: float | None = None, record_class: Any = None
    ) -> FakePrepared:
        """A prepared statement."""
        await self._prepare(query, timeout)
        return FakePrepared(self, query, name or f"__fake_{id(query):x}__")

    def cursor(
        self,
        query: str,
        *args: Any,
        prefetch: int | None = None,
        timeout: float | None = None,
        record_class: Any = None,
    ) -> FakeCursorFactory:
        """A cursor, in a transaction: `await` it for a `FakeCursor`, or iterate over it."""
        return FakeCursorFactory(self._session, query, args, prefetch)

    # COPY.

    async def copy_from_query(
        self, query: str, *args: Any, output: Any, timeout: float | None = None, **options: Any
    ) -> str:
        """Write a query's rows to a path, a file object or an async function, as COPY's text."""
        result = await self.ask(query, args, timeout)
        return await copying.write(output, (copying.line(row) for row in result.rows))

    async def copy_from_table(
        self,
        table_name: str,
        *,
        output: Any,
        schema_name: str | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> str:
        """Write what was copied to the table to a path, a file object or an async function."""
        key = copying.key(table_name, schema_name)

        async def read(executor: Executor) -> Result:
            return Result.of([{"line": line} for line in executor.changes.get(key, ())])

        result = await self._session.exchange(f"COPY {table_name} TO STDOUT", work=read, timeout=timeout)
        return await copying.write(output, (row[0] for row in result.rows))

    async def copy_to_table(
        self,
        table_name: str,
        *,
        source: Any,
        schema_name: str | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> str:
        """Copy lines of text from a path, a file object or an async iterable of bytes."""
        return await self._copy_in(table_name, schema_name, copying.read(source), timeout)

    async def copy_records_to_table(
        self,
        table_name: str,
        *,
        records: Iterable[Sequence[Any]] | AsyncIterable[Sequence[Any]],
        columns: Sequence[str] | None = None,
        schema_name: str | None = None,
        timeout: float | None = None,
        where: str | None = None,
    ) -> str:
        """Copy records, from an iterable or an async iterable."""
        return await self._copy_in(table_name, schema_name, copying.lines(records), timeout)

    async def _copy_in(
        self, table_name: str, schema_name: str | None, source: AsyncIterator[bytes], timeout: float | None
    ) -> str:
        key = copying.key(table_name, schema_name)

        async def begin(executor: Executor) -> Result:
            executor.check_writable("copy from")
            executor.copying = True
            return Result()

        await self._session.exchange(f"COPY {table_name} FROM STDIN", work=begin, timeout=timeout)
        failure: Exception | None = None
        data = b""
        try:
            async for chunk in source:
                data += chunk
        except Exception as raised:
            failure = raised
        copied = tuple(data.splitlines(keepends=True))

        async def end(executor: Executor) -> Result:
            if not executor.copying:
                raise error("57014", "canceling statement due to user request")
            executor.copying = False
            if failure is not None:
                raise error("57014", "COPY from stdin failed")
            executor.changes.put(key, (*executor.changes.get(key, ()), *copied))
            return Result(tag=f"COPY {len(copied)}")

        try:
            return (await self._session.exchange("COPY", work=end, timeout=timeout, record=False)).tag
        except Exception:
            if failure is not None:
                raise failure from None
            raise

    # Notifications, types, and what is known without asking.

    async def add_listener(self, channel: str, callback: Listener) -> None:
        """Call `callback(connection, pid, channel, payload)` for each notification."""
        if channel not in self._listeners:
            await self._session.exchange(f'LISTEN "{channel}"')
            self._listeners[channel] = []
        else:
            self._session.check_driven()
        self._listeners[channel].append(callback)

    async def remove_listener(self, channel: str, callback: Listener) -> None:
        """Stop calling it."""
        self._session.check_driven()
        callbacks = self._listeners.get(channel, [])
        if callback in callbacks:
            callbacks.remove(callback)
            if not callbacks:
                del self._listeners[channel]
                await self._session.exchange(f'UNLISTEN "{channel}"')

    async def set_type_codec(
        self,
        typename: str,
        *,
        schema: str = "public",
        encoder: Any = None,
        decoder: Any = None,
        format: str = "text",  # noqa: A002  asyncpg's name
    ) -> None:
        """Note a codec in `codecs`."""
        self._session.check_driven()
        self.codecs[typename] = (encoder, decoder, format)

    async def set_builtin_type_codec(
        self,
        typename: str,
        *,
        schema: str = "public",
        codec_name: str,
        format: str | None = None,  # noqa: A002  asyncpg's name
    ) -> None:
        """Note a codec in `codecs`."""
        self._session.check_driven()
        self.codecs[typename] = codec_name

    async def reset_type_codec(self, typename: str, *, schema: str = "public") -> None:
        """Forget a codec."""
        self._session.check_driven()
        self.codecs.pop(typename, None)

    def get_reset_query(self) -> str:
        """What asyncpg's `reset` sends."""
        return "SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;"

    async def reset(self, *, timeout: float | None = None) -> None:
        """Roll back, and bring the session back to its first state."""
        self._listeners.clear()
        if self.is_in_transaction():
            await self.execute("ROLLBACK", timeout=timeout)
        await self.execute(self.get_reset_query(), timeout=timeout)

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open, a failed one included."""
        return self._session.backend.executor.rest_state != "idle"

    def get_server_pid(self) -> int:
        """The server's process."""
        return self._session.pid

    def get_server_version(self) -> ServerVersion:
        """The server's version."""
        major, _, minor = self._session.backend.server.cluster.server_version.partition(".")
        return ServerVersion(int(major), 0, int(minor or 0), "final", 0)

    def get_settings(self) -> Any:
        """The session's settings, as attributes."""
        return SimpleNamespace(**self._session.backend.executor.settings.all())

    def is_closed(self) -> bool:
        """Whether the connection is over."""
        return self._session.status.value == "closed"

    def terminate(self) -> None:
        """Close the socket now."""
        self._session.terminate("terminated by its holder")

    # For the rest of the fake.

    def notified(self, pid: int, channel: str, payload: str) -> None:
        """A notification has arrived."""
        for callback in tuple(self._listeners.get(channel, ())):
            callback(self, pid, channel, payload)

    async def ask(self, query: str, args: tuple[Any, ...], timeout: float | None) -> Result:
        """One statement, and all it came to."""
        return await self._session.exchange(query, args, timeout=timeout)

    async def _ask_by_plan(
        self, query: str, args: tuple[Any, ...], timeout: float | None, work: Work | None = None
    ) -> Result:
        """One statement that is kept prepared."""
        exchange = partial(self._session.exchange, query, args, timeout=timeout)
        return await self.plans.run(query, partial(exchange, work), exchange, self.is_in_transaction())

    async def _prepare(self, query: str, timeout: float | None) -> None:
        async def parse(executor: Executor) -> Result:
            executor.prepare(tidy(query))
            return Result(tag="PREPARE")

        await self._session.exchange(f"PREPARE {tidy(query)}", work=parse, timeout=timeout)

    async def _ask_many(self, query: str, args: Iterable[Sequence[Any]], timeout: float | None) -> Result:
        each = tuple(tuple(one) for one in args)

        async def run_all(executor: Executor) -> Result:
            rows: list[Row] = []
            for one in each:
                rows.extend((await executor.run_statement(tidy(query), one)).rows)
            return Result(tuple(rows))

        return await self._ask_by_plan(query, each, timeout, run_all)
