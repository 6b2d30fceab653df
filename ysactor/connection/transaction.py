"""A transaction, or a savepoint inside one, as a block on a connection.

Its own, not asyncpg's: asyncpg's reports success for a transaction that the server had failed, and its clean-up needs
awaits that a cancelled task cannot make. Here only COMMIT's own answer is a commit, and a block that is cancelled
leaves the ROLLBACK to the connection's actor.

BEGIN goes with the first statement, in one round trip, so a transaction that sends nothing costs nothing. COMMIT can't
go with the last one: only the block knows which is the last, when it has seen its answer.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import trio

from ..driver.protocol import Preface
from ..errors import ConnectionLost, Error, TransactionAborted, TransactionEnded
from ..policy.classify import UNKNOWN, classify, sqlstate_of
from .actor import COMMIT_GRACE

if TYPE_CHECKING:
    from .holding import Holding

_ISOLATION = {
    "read_uncommitted": "READ UNCOMMITTED",
    "read_committed": "READ COMMITTED",
    "repeatable_read": "REPEATABLE READ",
    "serializable": "SERIALIZABLE",
}


def begin_statement(isolation: str | None, readonly: bool, deferrable: bool) -> str:
    """The BEGIN for these wishes. Raises ValueError for an isolation level that does not exist."""
    if isolation is None and not readonly and not deferrable:
        return "BEGIN"
    words = ["BEGIN"]
    if isolation is not None:
        level = _ISOLATION.get(str(isolation).strip().lower().replace(" ", "_").replace("-", "_"))
        if level is None:
            raise ValueError(f"isolation is one of {', '.join(_ISOLATION)}; got {isolation!r}")
        words.append(f"ISOLATION LEVEL {level}")
    if readonly:
        words.append("READ ONLY")
    if deferrable:
        words.append("DEFERRABLE")
    return " ".join(words)


class Transaction:
    """What `conn.transaction()` returns: use it as a block, or call `start`, then `commit` or `rollback`.

    Inside another transaction it is a savepoint. A block that ends normally commits (or releases its savepoint); one
    that raises rolls back, and its exception goes on. A block that is cancelled is left at once: the connection's
    actor rolls back, and the connection's next call waits for that.
    """

    __slots__ = ("_begin", "_conn", "_is_block", "_reads_only", "_savepoint", "_state", "was_ended")

    def __init__(self, conn: Holding, isolation: str | None, readonly: bool, deferrable: bool) -> None:
        self._conn = conn
        self._begin = begin_statement(isolation, readonly, deferrable)
        self._reads_only = readonly
        self._savepoint: str | None = None
        self._state: Literal["new", "started", "ended"] = "new"
        self._is_block = False
        self.was_ended = False
        """Whether, when it was to be ended, it had been: by a COMMIT or ROLLBACK sent as a statement."""

    async def start(self) -> None:
        """BEGIN, or inside a transaction SAVEPOINT.

        BEGIN is sent with the first statement, and what the server has against it is that statement's error.
        Raises `ConnectionLost`, `LeaseEnded`, `Error` if it was started before or asks for options inside a
        transaction, and for a savepoint the server's errors.
        """
        if self._state != "new":
            raise Error("this transaction was started before")
        conn = self._conn
        # What was left on this lease may still be rolled back, and only then is it known what this one is inside of.
        await conn._ready()
        if conn.is_in_transaction():
            if self._begin != "BEGIN":
                raise Error("a transaction inside another takes no options of its own: it is a savepoint")
            self._savepoint = f"ysactor_{conn._next_savepoint()}"
        else:
            # What is half sent would begin the transaction: before BEGIN, with another snapshot and another `now()`.
            await conn._sync()
            await trio.lowlevel.checkpoint_if_cancelled()
            conn._failure = None
            conn._ended_by_hand = False
            conn._reads_only = self._reads_only
            conn._begin = Preface(self._begin)
        self._state = "started"
        if self._savepoint is None:
            return
        try:
            await conn._command(f"SAVEPOINT {self._savepoint}")
        except BaseException:
            self._state = "ended"
            if conn._is_left():
                # Cancelled on its way, it may have been carried out.
                conn._owe(self._undo)
            raise

    async def commit(self) -> None:
        """COMMIT, or RELEASE SAVEPOINT.

        Cancelled before COMMIT is sent, nothing is sent and the transaction is rolled back. Once it is sent, a
        cancellation is put off until its answer is there, for `COMMIT_GRACE` (2) seconds at most.

        Raises `CommitOutcomeUnknown` if the answer was lost; `TransactionAborted` if the server had failed the
        transaction, so that nothing was committed; `TransactionEnded` if the transaction was ended by hand; the
        server's error (a deferred constraint, a serialization failure) if COMMIT was refused and nothing was
        committed; `ConnectionLost` if the connection was lost before COMMIT was sent; `Error` inside the block that it
        is used as. A transaction without a statement sends nothing.
        """
        self._refuse_in_block()
        await self._commit()

    async def _commit(self) -> None:
        self._end()
        conn = self._conn
        if self._savepoint is not None:
            await self._or_owe(f"RELEASE SAVEPOINT {self._savepoint}")
            return
        if conn._drop_unsent_begin():
            await trio.lowlevel.checkpoint()
            return
        try:
            await conn._ready()
            await conn._be_in_transaction()
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException as error:
            if isinstance(error, trio.Cancelled):
                conn._owe(self._undo)
            else:
                self._owe_if_open()
            raise
        finally:
            conn._begin = None
        if conn._ended_by_hand or not conn.is_in_transaction():
            self.was_ended = True
            self._owe_if_open()
            raise TransactionEnded
        await self._send_commit()

    async def _send_commit(self) -> None:
        conn = self._conn
        record, session = conn._record, conn._session()
        answered = record.commit = trio.Event()
        try:
            tag = await session.drive(session.raw.execute("COMMIT"), grace=COMMIT_GRACE)
        except ConnectionLost as loss:
            raise record.commit_lost(loss.reason) from loss
        except TimeoutError as late:
            # asyncpg's own `command_timeout`, which knows nothing of COMMIT: the server may be carrying it out.
            raise record.commit_lost(str(late) or "command_timeout") from late
        except Exception as error:
            if classify(error) == "connection_lost" or sqlstate_of(error) in UNKNOWN:
                raise record.commit_lost(str(error)) from error
            # Not carried out, and perhaps not rolled back: it was cancelled on the server, or another task of the
            # holder's is in a call. What came next would be inside of it, and be told that it was committed.
            self._owe_if_open()
            raise
        finally:
            record.commit = None
            answered.set()
        if tag != "COMMIT":
            raise TransactionAborted from conn._failure

    async def rollback(self) -> None:
        """ROLLBACK, or ROLLBACK TO SAVEPOINT. Cancelled, it is done by the connection's actor.

        Raises `ConnectionLost` if the connection is gone; the server has then rolled back. `Error` inside the block
        that it is used as.
        """
        self._refuse_in_block()
        self._end()
        conn = self._conn
        if self._savepoint is None:
            if conn._drop_unsent_begin():
                await trio.lowlevel.checkpoint()
                return
            conn._begin = None
        await self._or_owe(self._undo)

    async def __aenter__(self) -> Self:
        await self.start()
        self._is_block = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._commit()
            return
        self._end()
        conn = self._conn
        if not conn._is_live():
            self.was_ended = self._savepoint is None and conn._ended_by_hand
            return
        if self._savepoint is None:
            if conn._drop_unsent_begin():
                return
            self.was_ended = conn._was_ended()
            conn._begin = None
        try:
            # A `cancel_timeout` of 0 is about cancelled calls, and this is none.
            await conn._command(self._undo, timeout=conn._patience or None)
        except (trio.Cancelled, TimeoutError):
            # The block's own exception goes on; a cancellation is met again at the next checkpoint.
            conn._owe(self._undo)
        except Error:
            pass  # the connection is gone: the server rolls back
        except Exception as failed:
            error.add_note(f"{self._undo} failed as well: {failed}")
            self._owe_if_open()

    @property
    def _undo(self) -> str:
        # Released as well: one that is kept costs the server memory until the transaction ends.
        name = self._savepoint
        return "ROLLBACK" if name is None else f"ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}"

    def _refuse_in_block(self) -> None:
        """What follows in the block would be outside any transaction, and so committed at once. asyncpg refuses too."""
        if self._is_block and self._state == "started":
            raise Error("a transaction used as a block ends with its block; raise an exception in it to roll back")

    def _end(self) -> None:
        if self._state != "started":
            raise Error("this transaction is not started" if self._state == "new" else "this transaction has ended")
        self._state = "ended"
        if self._savepoint is None:
            self._conn._reads_only = False

    async def _or_owe(self, sql: str) -> None:
        try:
            await self._conn._command(sql)
        except (trio.Cancelled, TimeoutError):
            self._conn._owe(self._undo)
            raise
        except Exception:
            self._owe_if_open()
            raise

    def _owe_if_open(self) -> None:
        """Its end has failed: what is still open must not go on unnoticed."""
        if not self._conn._is_idle():
            self._conn._owe(self._undo)
