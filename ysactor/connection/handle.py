"""What a lease yields: asyncpg's methods in Trio form, good for as long as the lease lasts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import trio

from ..driver.protocol import Preface, Status
from ..errors import ConfigurationError, ConnectionLost, LeaseEnded, PoolClosed, TransactionAborted
from ..servers import Server
from .limits import seconds
from .record import SYNC, is_half_sent
from .statements import CursorFactory, PreparedStatement
from .transaction import Transaction

if TYPE_CHECKING:
    from ..driver.protocol import Session
    from .record import Record

T = TypeVar("T")

Listener: TypeAlias = Callable[["Connection", int, str, str], object]
"""Called with the connection, the notifying process, the channel and the payload."""


class Connection:
    """A connection, for one lease. Not shared between tasks: one call at a time.

    Every method raises `LeaseEnded` once the lease has ended, `ConnectionLost` if the connection ended under it,
    `PoolClosed` if the pool ended it, and the server's own errors as asyncpg's classes. Every `timeout` is seconds for
    the whole call, None for no limit; past it the call raises `TimeoutError`, the server is told to stop, and the
    connection stays usable. A call that is cancelled is left at once, in the same way; one that is cancelled before it
    starts sends nothing.
    """

    __slots__ = (
        *("_begin", "_ears", "_failure", "_half_sent", "_lease", "_listeners", "_live", "_patience", "_record"),
        *("_role_changed", "_savepoints"),
    )

    def __init__(self, record: Record, patience: float) -> None:
        self._record = record
        self._lease = record.lease
        self._live = True
        self._patience = patience
        self._begin: Preface | None = None
        """The BEGIN of a transaction from when it is due until it is known to have been carried out."""
        self._failure: BaseException | None = None
        """The first server error since the transaction began."""
        self._half_sent = False
        """Whether the server may be waiting for more of the last call's statement."""
        self._role_changed = False
        """Whether the next holder would act as somebody else."""
        self._savepoints = 0
        self._listeners: dict[tuple[str, Listener], Any] = {}
        self._ears: list[tuple[str, Any]] = []
        """What the driver may call: also what is left of a LISTEN or UNLISTEN that was cancelled."""

    # --- statements --------------------------------------------------------------------------------------------------

    async def fetch(
        self, query: str, *args: Any, timeout: float | None = None, record_class: type | None = None
    ) -> list[Any]:
        """All rows of one statement, as asyncpg records."""
        return await self._run(self._raw.fetch(query, *args, record_class=record_class), timeout, True)

    async def fetchrow(
        self, query: str, *args: Any, timeout: float | None = None, record_class: type | None = None
    ) -> Any:
        """The first row of one statement, or None."""
        return await self._run(self._raw.fetchrow(query, *args, record_class=record_class), timeout, True)

    async def fetchval(self, query: str, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
        """One column of the first row, or None if there is no row."""
        return await self._run(self._raw.fetchval(query, *args, column=column), timeout, True)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Run a statement (several, separated by semicolons, if there are no arguments); the server's tag of the last.

        A COMMIT sent this way whose answer is lost raises `CommitOutcomeUnknown`. A role that is set this way is reset
        when the lease ends; nothing else that is set is.
        """
        if not _commits(query):
            if changes_role(query):
                self._role_changed = True
            return await self._run(self._raw.execute(query, *args), timeout, True)
        await self._ready()
        try:
            return await self._run(self._raw.execute(query, *args), timeout, True)
        except (ConnectionLost, PoolClosed) as loss:
            raise self._record.commit_lost(getattr(loss, "reason", str(loss))) from loss

    async def executemany(self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Run a statement once for each sequence of arguments, all or nothing. `args` is read as it is sent."""
        await self._run(self._raw.executemany(command, args), timeout)

    async def fetchmany(
        self,
        query: str,
        args: Iterable[Sequence[Any]],
        *,
        timeout: float | None = None,
        record_class: type | None = None,
    ) -> list[Any]:
        """Run a statement once for each sequence of arguments, all or nothing; the rows of all runs together."""
        return await self._run(self._raw.fetchmany(query, args, record_class=record_class), timeout)

    async def prepare(
        self, query: str, *, name: str | None = None, timeout: float | None = None, record_class: type | None = None
    ) -> PreparedStatement:
        """Prepare a statement for use on this connection, within this lease."""
        raw = await self._run(self._raw.prepare(query, name=name, record_class=record_class), timeout)
        self._half_sent = True
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
        """COPY a table's rows out to `output`: a path, a binary file object, or an async function of bytes.

        `options` are asyncpg's (`columns`, `schema_name`, `format`, `delimiter`, …). Slow output slows the server
        down; memory stays bounded. Returns the server's tag.
        """
        raw = self._raw
        return await self._run(raw.copy_from_table(table_name, output=self._sink(output), **options), timeout)

    async def copy_from_query(
        self, query: str, *args: Any, output: Any, timeout: float | None = None, **options: Any
    ) -> str:
        """COPY a query's rows out to `output`, as `copy_from_table` does."""
        raw = self._raw
        return await self._run(raw.copy_from_query(query, *args, output=self._sink(output), **options), timeout)

    async def copy_to_table(self, table_name: str, *, source: Any, timeout: float | None = None, **options: Any) -> str:
        """COPY into a table from `source`: a path, a binary file object, or an async iterable of bytes.

        If the source raises, the COPY is undone and that exception comes out. Returns the server's tag.
        """
        raw = self._raw
        return await self._run(raw.copy_to_table(table_name, source=self._source(source), **options), timeout)

    async def copy_records_to_table(
        self, table_name: str, *, records: Any, timeout: float | None = None, **options: Any
    ) -> str:
        """COPY into a table from `records`: an iterable or async iterable of sequences, read as it is sent."""
        raw = self._raw
        call = raw.copy_records_to_table(table_name, records=self._source(records), **options)
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
        self._listeners[key] = heard
        self._ears.append((channel, heard))
        try:
            await self._run(raw.add_listener(channel, heard), None)
        except BaseException:
            # Cancelled, it may have been carried out: what is added next time must not be heard twice.
            del self._listeners[key]
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
        await self._run(raw.remove_listener(channel, heard), None)
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

    def is_in_transaction(self) -> bool:
        """Whether a transaction, a failed one included, is open, as far as the client has heard; one whose BEGIN waits
        for its first statement counts."""
        return self._begin is not None or bool(self._raw.is_in_transaction())

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
        """Run a coroutine of `raw` to its end, as every method here does."""
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

    # --- for this package --------------------------------------------------------------------------------------------

    def _session(self) -> Session:
        """The session, while this lease has the right to drive it."""
        record = self._record
        if not self._live:
            raise LeaseEnded
        session = record.session
        if record.reason is not None or session is None:
            raise record.loss()
        return session

    @property
    def _raw(self) -> Any:
        return self._session().raw

    def _is_live(self) -> bool:
        session = self._record.session
        return (
            self._live and self._record.reason is None and session is not None and session.status is not Status.CLOSED
        )

    def _is_left(self) -> bool:
        """Whether a call was left before its end, and the actor is at work."""
        return self._record.gate is not None

    async def _ready(self) -> Session:
        """Wait until the actor has put right what this lease left before, if it has to."""
        record = self._record
        while record.gate is not None:
            await record.gate.wait()
        return self._session()

    async def _run(self, call: Coroutine[Any, Any, T], timeout: float | None, writes_first: bool = False) -> T:
        """Run a call. `writes_first`: the first thing it does is to send a statement, so that BEGIN may go with it."""
        record = self._record
        if timeout is not None:
            try:
                timeout = seconds(timeout)
            except BaseException:
                call.close()
                raise
        if record.gate is not None:
            try:
                await self._ready()
            except BaseException:
                call.close()
                raise
        session = record.session
        assert session is not None, "bug: a call on a connection that was never open"
        begin = self._begin
        if begin is not None and (begin.sent or not writes_first):
            begin = None
            try:
                timeout = await self._be_in_transaction(timeout)
            except BaseException:
                call.close()
                raise
        self._half_sent = False
        try:
            if begin is None:
                return await session.drive(call, timeout)
            result = await session.drive_after(begin, call, timeout)
            self._begin = None
            return result
        except ConnectionLost as loss:
            raise record.told(loss) from loss.__cause__
        except Exception as error:
            in_transaction = begin is not None or session.status in (Status.IN_TRANSACTION, Status.ABANDONED)
            if self._failure is None and in_transaction:
                self._failure = error
            self._half_sent = is_half_sent(error)
            raise

    async def _be_in_transaction(self, timeout: float | None = None) -> float | None:
        """Have BEGIN carried out by itself, or see that it has been; what is left of `timeout`.

        Raises `TransactionAborted` if it went with a call and failed, as that did: what is sent now would be carried
        out outside any transaction, and so committed at once.
        """
        begin = self._begin
        if begin is None:
            return timeout
        until = None if timeout is None else trio.current_time() + timeout
        if begin.sent and self._half_sent:
            # BEGIN was answered, in the middle of what asyncpg then gave up: the next answer tells.
            self._begin = None
        elif begin.sent:
            if not self._raw.is_in_transaction():
                raise TransactionAborted from self._failure
            self._begin = None
            return timeout
        await self._command(SYNC, timeout)  # something for it to go with, or to be answered
        return None if until is None else until - trio.current_time()

    def _drop_unsent_begin(self) -> bool:
        """The transaction is over: whether its BEGIN was never sent, so that there is nothing to end."""
        self._session()
        if self._begin is None or self._begin.sent:
            return False
        self._begin = None
        return True

    async def _command(self, sql: str, timeout: float | None = None) -> str:
        return await self._run(self._raw.execute(sql), timeout, True)

    def _owe(self, sql: str) -> None:
        """Leave a statement to the actor; the next call on this connection waits for it. No checkpoint."""
        if self._is_live():
            self._record.owe(sql)

    async def _sync(self) -> None:
        """Have nothing half sent."""
        if self._half_sent and self._is_live():
            await self._command(SYNC)

    def _next_savepoint(self) -> int:
        self._savepoints += 1
        return self._savepoints

    def _sink(self, output: Any) -> Any:
        if not callable(output) or hasattr(output, "write"):
            return output
        return self._session().sink(cast("Callable[[bytes], Awaitable[None]]", output))

    def _source(self, source: Any) -> Any:
        return self._session().source(source) if hasattr(source, "__aiter__") else source

    def _end(self) -> None:
        """The lease is over: nothing made from it may be used."""
        self._live = False

    def _end_clean(self) -> None:
        """The same for a connection that goes on to another holder."""
        if self._half_sent:
            self._record.owe_sync()
        if self._role_changed and self._is_live():
            self._record.owe_role()
        if self._ears and self._is_live():
            self._record.owe_silence(tuple(self._ears))
        self._live = False


_ROLE = re.compile(
    r"\bset\s+(session\s+)?(role|authorization)\b|\bset_config\s*\(\s*'(role|session_authorization)'", re.IGNORECASE
)


def changes_role(query: str) -> bool:
    """Whether a statement, as far as its words tell, makes the session act as somebody else."""
    return _ROLE.search(query) is not None


def _commits(query: str) -> bool:
    """Whether a statement, as far as its first word tells, is a COMMIT."""
    return _COMMIT.match(query) is not None


_COMMIT = re.compile(r"\s*(commit|end)\b", re.IGNORECASE)
