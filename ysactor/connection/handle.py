"""What a lease yields: asyncpg's methods in Trio form, good for as long as the lease lasts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from ..errors import ConfigurationError
from ..servers import Server
from .holding import Holding
from .statements import CursorFactory, PreparedStatement, prepared
from .transaction import Transaction
from .wording import deed_of, listen

T = TypeVar("T")

Listener: TypeAlias = Callable[["Connection", int, str, str], object]
"""Called with the connection, the notifying process, the channel and the payload."""


class Connection(Holding):
    """A connection, for one lease. Not shared between tasks: one call at a time.

    Every method raises `LeaseEnded` once the lease has ended, `ConnectionLost` if the connection ended under it,
    `PoolClosed` if the pool ended it, and the server's own errors as asyncpg's classes. Every `timeout` is seconds for
    the whole call, None for no limit; past it the call raises `TimeoutError`, the server is told to stop, and the
    connection stays usable. A call that is cancelled is left at once, in the same way; one that is cancelled before it
    starts sends nothing.
    """

    __slots__ = ()

    # --- statements --------------------------------------------------------------------------------------------------

    async def fetch(
        self, query: str, *args: Any, timeout: float | None = None, record_class: type | None = None
    ) -> list[Any]:
        """All rows of one statement, as asyncpg records."""
        if (deed := deed_of(query)) is not None:
            return await self._do(deed, lambda raw: raw.fetch(query, *args, record_class=record_class), timeout)
        return await self._run(self._raw.fetch(query, *args, record_class=record_class), timeout, True)

    async def fetchrow(
        self, query: str, *args: Any, timeout: float | None = None, record_class: type | None = None
    ) -> Any:
        """The first row of one statement, or None."""
        if (deed := deed_of(query)) is not None:
            return await self._do(deed, lambda raw: raw.fetchrow(query, *args, record_class=record_class), timeout)
        return await self._run(self._raw.fetchrow(query, *args, record_class=record_class), timeout, True)

    async def fetchval(self, query: str, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
        """One column of the first row, or None if there is no row."""
        if (deed := deed_of(query)) is not None:
            return await self._do(deed, lambda raw: raw.fetchval(query, *args, column=column), timeout)
        return await self._run(self._raw.fetchval(query, *args, column=column), timeout, True)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Run a statement (several, separated by semicolons, if there are no arguments); the server's tag of the last.

        A COMMIT whose answer is lost raises `CommitOutcomeUnknown`, sent this way or by `fetch` and its like. A role
        that is set is reset when the lease ends; nothing else that is set is.
        """
        if (deed := deed_of(query)) is not None:
            return await self._do(deed, lambda raw: raw.execute(query, *args), timeout)
        return await self._run(self._raw.execute(query, *args), timeout, True)

    async def executemany(self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Run a statement once for each sequence of arguments. `args` is read as it is sent.

        All or nothing where no transaction is open. Inside one, a failure in the middle (of `args` itself, say) may
        leave what was sent before: use a savepoint, or let the transaction fail.
        """
        raw = self._raw
        self._watch(command)
        await self._run_many(lambda rows: raw.executemany(command, rows), args, timeout)

    async def fetchmany(
        self,
        query: str,
        args: Iterable[Sequence[Any]],
        *,
        timeout: float | None = None,
        record_class: type | None = None,
    ) -> list[Any]:
        """Run a statement once for each sequence of arguments, as `executemany` does; the rows of all runs together."""
        raw = self._raw
        self._watch(query)
        return await self._run_many(lambda rows: raw.fetchmany(query, rows, record_class=record_class), args, timeout)

    async def prepare(
        self, query: str, *, name: str | None = None, timeout: float | None = None, record_class: type | None = None
    ) -> PreparedStatement:
        """Prepare a statement for use on this connection, within this lease."""
        self._watch(query)
        raw = await self._run(prepared(self._raw, query, name, record_class), timeout)
        if name == "":
            self._half_sent = True
        self._session()  # it may have ended with its answer, and asyncpg's statement is of no use then
        return PreparedStatement(self, raw)

    def cursor(
        self,
        query: str,
        *args: Any,
        prefetch: int | None = None,
        timeout: float | None = None,
        record_class: type | None = None,
    ) -> CursorFactory:
        """A cursor over a statement's rows: iterate over it, or await it for one that is moved by hand.

        It needs an open transaction, as asyncpg's does, and ends with it. `prefetch` rows (50) are read at a time.
        """
        self._watch(query)
        raw = self._raw.cursor(query, *args, prefetch=prefetch, record_class=record_class)
        return CursorFactory(self, raw, timeout, prefetch)

    def transaction(
        self, *, isolation: str | None = None, readonly: bool = False, deferrable: bool = False
    ) -> Transaction:
        """A transaction as a block; inside another, a savepoint. `isolation` is PostgreSQL's name of a level."""
        self._session()
        return Transaction(self, isolation, readonly, deferrable)

    # --- COPY --------------------------------------------------------------------------------------------------------

    async def copy_from_table(
        self, table_name: str, *, output: Any, timeout: float | None = None, **options: Any
    ) -> str:
        """COPY a table's rows out to `output`: a path, a binary file object (Trio's too, or whatever has an async
        `write`), or an async function of bytes.

        `options` are asyncpg's (`columns`, `schema_name`, `format`, `delimiter`, …). Slow output slows the server
        down; memory stays bounded. Returns the server's tag.
        """
        raw, timeout = await self._for_copy(timeout)
        return await self._run(raw.copy_from_table(table_name, output=self._sink(output), **options), timeout)

    async def copy_from_query(
        self, query: str, *args: Any, output: Any, timeout: float | None = None, **options: Any
    ) -> str:
        """COPY a query's rows out to `output`, as `copy_from_table` does."""
        self._watch(query)
        raw, timeout = await self._for_copy(timeout)
        return await self._run(raw.copy_from_query(query, *args, output=self._sink(output), **options), timeout)

    async def copy_to_table(self, table_name: str, *, source: Any, timeout: float | None = None, **options: Any) -> str:
        """COPY into a table from `source`: a path, a binary file object (Trio's too, or whatever has an async `read`,
        which is read 64 KiB at a time), or an async iterable of bytes.

        If the source raises, the COPY is undone and that exception comes out. Returns the server's tag.
        """
        raw, timeout = await self._for_copy(timeout)
        return await self._run(raw.copy_to_table(table_name, source=self._source(source), **options), timeout)

    async def copy_records_to_table(
        self, table_name: str, *, records: Any, timeout: float | None = None, **options: Any
    ) -> str:
        """COPY into a table from `records`: an iterable or async iterable of sequences, read as it is sent."""
        raw, timeout = await self._for_copy(timeout)
        call = raw.copy_records_to_table(table_name, records=self._rows(records), **options)
        return await self._run(call, timeout)

    # --- session -----------------------------------------------------------------------------------------------------

    async def add_listener(self, channel: str, callback: Listener) -> None:
        """LISTEN on a channel for this lease. The callback runs in the middle of reading: it must not block.

        What it raises is logged. Listeners end with the lease.
        """

        key = (channel, callback)

        def heard(_raw: object, pid: int, channel: str, payload: str) -> None:
            if self._live and self._listeners.get(key) is heard:
                callback(self, pid, channel, payload)

        if inspect.iscoroutinefunction(callback):
            raise ConfigurationError(["callback: must be a plain function, which runs while the socket is read"])
        if key in self._listeners:
            return
        raw = self._raw
        is_known = any(known == channel for known, _ in self._ears)
        self._listeners[key] = heard
        self._ears.append((channel, heard))
        try:
            await self._run(raw.add_listener(channel, heard), None)
            if is_known:
                # asyncpg sends LISTEN once for each channel. That one may have been rolled back, or cancelled.
                await self._command(listen(channel))
        except BaseException:
            # Cancelled, it may have been carried out: what is added next time must not be heard twice.
            del self._listeners[key]
            self._unsure.add(channel)
            raise

    async def remove_listener(self, channel: str, callback: Listener) -> None:
        """Undo `add_listener`; nothing if there was none."""
        heard = self._listeners.get((channel, callback))
        if heard is None:
            self._session()
            return
        raw = self._raw
        # Before UNLISTEN, which may be cancelled: from here on it is to be heard no more, and may be added anew.
        del self._listeners[channel, callback]
        try:
            await self._run(raw.remove_listener(channel, heard), None)
        except BaseException:
            self._unsure.add(channel)
            raise
        self._ears.remove((channel, heard))

    async def set_type_codec(self, typename: str, **options: Any) -> None:
        """Set an encoder and decoder for a type, with asyncpg's options. It stays on the connection after the lease."""
        await self._run(self._raw.set_type_codec(typename, **options), None)

    async def set_builtin_type_codec(self, typename: str, **options: Any) -> None:
        """Use one of asyncpg's codecs for a type. It stays on the connection after the lease."""
        await self._run(self._raw.set_builtin_type_codec(typename, **options), None)

    async def reset_type_codec(self, typename: str, *, schema: str = "public") -> None:
        """Undo `set_type_codec`."""
        await self._run(self._raw.reset_type_codec(typename, schema=schema), None)

    def is_closed(self) -> bool:
        """Whether the connection is of no more use: its lease has ended, or it has itself."""
        return not self._is_live()

    def get_server_pid(self) -> int:
        """The process that serves this connection, as the server reported it."""
        return self._session().pid

    def get_server_version(self) -> Any:
        """asyncpg's `ServerVersion`."""
        return self._raw.get_server_version()

    def get_settings(self) -> Any:
        """asyncpg's `ConnectionSettings`: what the server has reported."""
        return self._raw.get_settings()

    @property
    def server(self) -> Server:
        """The server this is connected to, with its placement."""
        reservation = self._record.reservation
        # In `on_connect` the connection has no place among its server's connections yet.
        return reservation.server if reservation is not None else Server(*self._session().host)

    @property
    def raw(self) -> Any:
        """The asyncpg connection itself, for what is missing here.

        Under the native transport its coroutines belong to no asyncio loop: give them to `run_raw`.
        """
        self._session()
        # What is awaited without `run_raw` leaves asyncpg in the middle of it: the actor looks when the lease ends.
        self._half_sent = True
        return self._raw

    async def run_raw(self, call: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Run a coroutine of `raw` to its end, as every method here does. Raises `TypeError` for anything else."""
        if not isinstance(call, Coroutine):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"run_raw takes a coroutine, not {type(call).__name__}")
        try:
            self._session()
        except BaseException:
            call.close()
            raise
        result = await self._run(call, timeout)
        self._half_sent = True
        return result

    def __repr__(self) -> str:
        record = self._record
        state = "ended" if not self._live else "lost" if record.reason is not None else "leased"
        return f"<ysactor.Connection {record.number} to {record.at}: {state}>"
