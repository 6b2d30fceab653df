"""The right to drive one connection, for one lease: what all that is made from the lease goes through."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import trio

from ..driver.protocol import Preface, Status
from ..errors import ConnectionLost, LeaseEnded, PoolClosed, TransactionAborted
from .actor import FAREWELL
from .limits import seconds
from .record import SYNC, at_least_one, is_half_sent, is_servers
from .wording import Deed, deed_of

if TYPE_CHECKING:
    from ..driver.protocol import Session
    from .record import Record

T = TypeVar("T")


_PIECE = 64 * 1024
"""Bytes that are read of an async file at a time: its lines, which it can be iterated over as well, may be short."""


class _Pieces:
    """What an async `read` gives, to its end."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[int], Awaitable[Any]]) -> None:
        self._read = read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        piece = await self._read(_PIECE)
        if not piece:
            raise StopAsyncIteration
        return piece


class Holding:
    """A lease's part of a `Connection`: whether it may be used, and in what state it is."""

    __slots__ = (
        *("_begin", "_ears", "_ended_by_hand", "_failure", "_half_sent", "_lease", "_listeners", "_live"),
        *("_patience", "_reads_only", "_record", "_role_changed", "_savepoints", "_unsure"),
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
        self._ended_by_hand = False
        """Whether the holder has sent a COMMIT or ROLLBACK since the transaction began."""
        self._half_sent = False
        """Whether the server may be waiting for more of the last call's statement."""
        self._reads_only = False
        """Whether the holder has asked for the transaction that it is in to be read-only."""
        self._role_changed = False
        """Whether the next holder would act as somebody else."""
        self._savepoints = 0
        self._listeners: dict[tuple[str, Callable[..., object]], Any] = {}
        self._ears: list[tuple[str, Any]] = []
        """What the driver may call: also what is left of a LISTEN or UNLISTEN that was cancelled."""
        self._unsure: set[str] = set()
        """The channels of those."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction, a failed one included, is open, as far as the client has heard; one whose BEGIN waits
        for its first statement counts."""
        return self._begin is not None or bool(self._raw.is_in_transaction())

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

    def _is_idle(self) -> bool:
        """Whether nothing is under way on it, and no transaction is open."""
        session = self._record.session
        return session is not None and session.status is Status.IDLE

    def _is_left(self) -> bool:
        """Whether a call was left before its end, and the actor is at work."""
        return self._record.gate is not None

    async def _ready(self, timeout: float | None = None) -> float | None:
        """Wait until the actor has put right what this lease left before, if it has to; what is left of `timeout`."""
        record = self._record
        until = math.inf if timeout is None else trio.current_time() + timeout
        with trio.CancelScope(deadline=until):
            while record.gate is not None:
                await record.gate.wait()
            self._session()
            return None if timeout is None else max(0.0, until - trio.current_time())
        raise TimeoutError(f"the call did not end within {timeout:g} s")

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
                timeout = await self._ready(timeout)
            except BaseException:
                call.close()
                raise
        session = record.session
        assert session is not None, "bug: a call on a connection that was never open"
        until = None if timeout is None else trio.current_time() + timeout
        begin = self._begin
        if begin is not None and (begin.sent or not writes_first):
            begin = None
            try:
                timeout = await self._be_in_transaction(timeout)
            except BaseException:
                call.close()
                raise
        try:
            if begin is None:
                result = await session.drive(call, timeout)
            else:
                result = await session.drive_after(begin, call, timeout)
                self._begin = None
            if writes_first:
                self._half_sent = False  # other calls may have had nothing to send
            return result
        except ConnectionLost as loss:
            self._note(loss, begin, session)
            raise record.told(loss) from loss.__cause__
        except Exception as error:
            self._note(error, begin, session)
            if is_half_sent(error):
                await self._end_half_sent(until)
            raise

    async def _do(self, deed: Deed, make: Callable[[Any], Coroutine[Any, Any, T]], timeout: float | None) -> T:
        """Run a statement of which more has to be known than its answer."""
        if deed.role:
            self._role_changed = True
        # Before the call: a loss here says nothing of a COMMIT.
        timeout = await self._ready(seconds(timeout))
        if deed.ends:
            # Also where the call fails, or is left: what came before the failure in its text may have been carried out.
            self._ended_by_hand = True
        if deed.listens:
            self._session().expect_notifications()
        try:
            result = await self._run(make(self._raw), timeout, True)
        except (ConnectionLost, PoolClosed) as loss:
            if not deed.commits or self._is_live():
                raise
            raise self._record.commit_lost(getattr(loss, "reason", str(loss))) from loss
        if deed.forgets:
            self._session().forget_statements()
        return result

    async def _run_many(
        self, make: Callable[[Iterable[Any]], Coroutine[Any, Any, T]], args: Iterable[Any], timeout: float | None
    ) -> T:
        """Run a call that takes its arguments from an iterable. With none of them it only prepares its statement."""
        rows = at_least_one(args)
        timeout = seconds(timeout)
        until = None if timeout is None else trio.current_time() + timeout
        result = await self._run(make(rows or ()), timeout)
        if rows is None:
            self._half_sent = True
            await self._end_half_sent(until)
        return result

    def _note(self, error: Exception, begin: Preface | None, session: Session) -> None:
        """What a call that failed says of the connection. One that has sent nothing says nothing."""
        in_transaction = session.status in (Status.IN_TRANSACTION, Status.ABANDONED)
        if self._failure is None and (begin is not None or in_transaction):
            self._failure = error
        if is_half_sent(error):
            self._half_sent = True
            if begin is not None and begin.sent:
                # asyncpg gave up in the middle of the server's answer, of which that to BEGIN is the beginning.
                begin.carried_out = True
        elif is_servers(error):
            if not self._reads_only:
                self._record.doubt(error)
            self._half_sent = False
            if begin is not None and in_transaction:
                self._begin = None

    async def _be_in_transaction(self, timeout: float | None = None) -> float | None:
        """Have BEGIN carried out by itself, or see that it has been; what is left of `timeout`.

        Raises `TransactionAborted` if it went with a call and failed, as that did: what is sent now would be carried
        out outside any transaction, and so committed at once.
        """
        begin, session = self._begin, self._session()
        if begin is None:
            return timeout
        if begin.sent and not begin.carried_out and session.status is not Status.BUSY:
            if not session.raw.is_in_transaction():
                raise TransactionAborted from self._failure
            self._begin = None
            return timeout
        until = None if timeout is None else trio.current_time() + timeout
        # Something for BEGIN to go with, or whose answer tells asyncpg of the transaction. (Or that is refused, while
        # the call that BEGIN went with is under way in another task.)
        call = session.raw.execute(SYNC)
        try:
            await (session.drive(call, timeout) if begin.sent else session.drive_after(begin, call, timeout))
        except ConnectionLost as loss:
            raise self._record.told(loss) from loss.__cause__
        except Exception as error:
            self._note(error, begin, session)
            raise
        self._begin = None
        self._half_sent = False
        return None if until is None else max(0.0, until - trio.current_time())

    def _was_ended(self) -> bool:
        """Whether the holder has ended the transaction that it is in, as far as that can be told."""
        session = self._record.session
        if self._begin is not None or self._record.gate is not None or session is None:
            return self._ended_by_hand
        return self._ended_by_hand or session.status is Status.IDLE

    def _drop_unsent_begin(self) -> bool:
        """The transaction is over: whether its BEGIN was never sent, so that there is nothing to end."""
        self._session()
        if self._begin is None or self._begin.sent:
            return False
        self._begin = None
        return True

    async def _command(self, sql: str, timeout: float | None = None) -> str:
        return await self._run(self._raw.execute(sql), timeout, True)

    def _watch(self, query: str) -> None:
        """For a statement that is not sent through `_do`."""
        if (deed := deed_of(query)) is None:
            return
        if deed.role:
            self._role_changed = True
        if deed.listens:
            self._session().expect_notifications()

    def _owe(self, sql: str) -> None:
        """Leave a statement to the actor; the next call on this connection waits for it. No checkpoint."""
        if self._is_live():
            self._record.owe(sql)

    async def _sync(self) -> None:
        """Have nothing half sent."""
        if self._half_sent and self._is_live():
            await self._command(SYNC)

    async def _end_half_sent(self, until: float | None) -> None:
        """The same after a call that failed, or had nothing to send: at once, since the server holds locks meanwhile,
        and counts the time until the next statement as that statement's. What goes wrong, the next call will meet.

        `until` is when the call's own time is over; one without a limit has as long as a cancelled one's.
        """
        try:
            session = self._session()
            if session.status is Status.ABANDONED:
                return  # it is the actor's turn, and the lease's end will see to it
            now = trio.current_time()
            limit = self._patience or FAREWELL if until is None else max(0.0, until - now)
            left = await self._be_in_transaction(limit)
            if self._half_sent and self._is_live():
                await session.drive(session.raw.execute(SYNC), left)
                self._half_sent = False
        except ConnectionLost as loss:
            self._record.told(loss)
        except Exception:
            self._half_sent = True

    def _next_savepoint(self) -> int:
        self._savepoints += 1
        return self._savepoints

    async def _for_copy(self, timeout: float | None) -> tuple[Any, float | None]:
        """asyncpg's connection, ready for a call that has the user's own code in it, and what is left of `timeout`."""
        timeout = await self._be_in_transaction(await self._ready(seconds(timeout)))
        return self._raw, timeout

    def _sink(self, output: Any) -> Any:
        write = getattr(output, "write", None)
        if inspect.iscoroutinefunction(write):
            return self._session().sink(write)  # asyncpg would call it in a thread, and await nothing
        if not callable(output) or write is not None:
            return output
        return self._session().sink(cast("Callable[[bytes], Awaitable[None]]", output))

    def _source(self, source: Any) -> Any:
        read = getattr(source, "read", None)
        return self._rows(_Pieces(read) if inspect.iscoroutinefunction(read) else source)

    def _rows(self, rows: Any) -> Any:
        return self._session().source(rows) if hasattr(rows, "__aiter__") else rows

    def _end(self) -> None:
        """The lease is over: nothing made from it may be used."""
        self._live = False
        self._failure = None  # its traceback holds this

    def _end_clean(self) -> None:
        """The same for a connection that goes on to another holder."""
        if self._half_sent:
            self._record.owe_sync()
        if self._role_changed and self._is_live():
            self._record.owe_role()
        if self._ears and self._is_live():
            self._record.owe_silence(self._ears, self._unsure)
        self._live = False
        self._failure = None  # its traceback holds this
