"""The actor of one connection. It owns the socket from connect to close; a holder only borrows the right to drive it.

It opens the session, puts right what a cancelled caller left (settling), rolls back what a cancelled block left open,
says goodbye, and reports the connection's death at once, whoever holds it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

import trio

from ..actor import Ended as ActorEnded
from ..cluster.attempt import role
from ..cluster.messages import ClusterMessage, Released, Reservation
from ..cluster.opening import open_session
from ..driver.protocol import Status
from ..errors import ConnectFailed, ConnectionLost, NoNodeAvailable
from ..policy.classify import is_drivers, sqlstate_of
from ..servers import Kind
from .hook import HookFailed
from .messages import (
    Close,
    ConnectionEvent,
    ConnectionMessage,
    Doubted,
    Ended,
    Examine,
    IsReadOnly,
    Lost,
    Opened,
    OpenFailed,
    Settle,
    Settled,
    Undo,
    Unlisten,
    WriteRefused,
)
from .record import ROLE, SYNC
from .wording import unlisten

if TYPE_CHECKING:
    from ..actor import Inbox, Ref
    from ..config import Config
    from ..driver.protocol import Driver, Session
    from .record import Record

FAREWELL = 1.0
"""Seconds a server is given to close its end, or to take a cancel request, before the socket is closed regardless; and
to tidy up after a lease where `cancel_timeout` is 0."""

COMMIT_GRACE = 2.0
"""Seconds a COMMIT may go on after its caller was cancelled, or its pool closed, before its outcome is given up as
unknown."""


_IN_CALL = "another task was in a call on it when its transaction had to be ended"


class _Events:
    """What the session tells; called in the middle of anything, so it only notes and casts."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    def lost(self, reason: str) -> None:
        self._record.end(reason)
        self._record.ref.cast(Lost(reason))

    def abandoned(self) -> None:
        record = self._record
        if record.gate is None:
            record.gate = trio.Event()
        record.ref.cast(Settle())


@trio.lowlevel.enable_ki_protection
async def run_connection(
    record: Record,
    inbox: Inbox[ConnectionMessage],
    pool: Ref[ConnectionEvent],
    cluster: Ref[ClusterMessage],
    driver: Driver,
    config: Config,
    setup: Callable[[Session], Awaitable[None]] | None,
) -> None:
    """The life of one connection. Cancelled, it closes its socket politely, in bounded time."""
    opened: tuple[Reservation, Session] | None = None
    try:
        with record.opening:
            opened = await open_session(cluster, driver, config, setup=setup)
    except (ConnectFailed, NoNodeAvailable, HookFailed) as error:
        inbox.close()
        pool.cast(OpenFailed(record.number, error.failure if isinstance(error, HookFailed) else error))
        return
    except ActorEnded:
        # The cluster has ended, and so will this in a moment: the whole tree is on its way out.
        inbox.close()
        pool.cast(Ended(record.number, "closed"))
        return
    except BaseException:
        inbox.close()
        pool.cast(Ended(record.number, "closed"))
        raise
    if opened is None:
        inbox.close()
        pool.cast(Ended(record.number, "closed"))
        return
    reservation, session = opened
    reason = "closed"
    try:
        record.reservation = reservation
        record.session = session
        session.attach(_Events(record))
        pool.cast(Opened(record.number))
        reason = await _serve(record, session, inbox, pool, config)
    except trio.Cancelled:
        record.pool_closed = True
        reason = "pool_closed"
        raise
    finally:
        record.end("closed")
        _open_gate(record)
        is_executing = False
        try:
            with trio.CancelScope(shield=True):
                if record.commit is not None:
                    # A COMMIT that is on its way is better answered than cut.
                    with trio.move_on_after(COMMIT_GRACE):
                        await record.commit.wait()
                is_executing = (
                    reason == "unsettled"
                    or session.status in (Status.BUSY, Status.ABANDONED)
                    # A COMMIT that was given up goes on: in a trigger, say, or in the wait for a standby that is gone.
                    # Its outcome is unknown either way. For `socket_timeout` nothing is ever sent.
                    or record.unknown not in (None, "socket_timeout")
                )
                if not is_executing:
                    await session.close(FAREWELL)
        finally:
            session.terminate(record.reason or reason)
            inbox.close()
            cluster.cast(Released(reservation))
            pool.cast(Ended(record.number, reason))
            if is_executing:
                # The socket is gone, and its place is free. But a server does not watch the socket of a session that
                # executes: it has to be told to stop.
                with trio.CancelScope(shield=True):
                    await session.interrupt(FAREWELL)


async def _serve(
    record: Record, session: Session, inbox: Inbox[ConnectionMessage], pool: Ref[ConnectionEvent], config: Config
) -> str:
    """Until the connection ends; the word for why."""
    # A `cancel_timeout` of 0 closes what was cancelled, not what was given back in peace.
    tidying = config.cancel_timeout or FAREWELL
    async for message in inbox:
        match message:
            case Settle():
                if not await session.settle(config.cancel_timeout):
                    record.end("its query could not be cancelled in time")
                    return "unsettled"
                _free(record, pool, inbox)
            case Undo(sql):
                is_in_call = session.status is Status.BUSY
                if not await undo(session, sql, tidying if sql in (SYNC, ROLE) else config.cancel_timeout):
                    record.end(_IN_CALL if is_in_call else "its transaction could not be rolled back in time")
                    return "unsettled"
                _free(record, pool, inbox)
            case Unlisten(listeners, channels):
                if not await _unlisten(session, listeners, channels, tidying):
                    record.end("its listeners could not be taken off in time")
                    return "unsettled"
                _free(record, pool, inbox)
            case Examine():
                refusal = await role(session, tidying)
                if refusal is None:
                    _free(record, pool, inbox)
                elif refusal.kind is Kind.READ_ONLY:
                    record.marked = "read_only"
                    pool.cast(IsReadOnly(record.number))
                    _free(record, pool, inbox)
                else:
                    record.end(f"it could not be asked for its role: {refusal.detail}")
                    return "unsettled"
            case WriteRefused():
                pool.cast(Doubted(record.number))
            case Close(reason):
                return reason
            case Lost(reason):
                return "socket_timeout" if reason == "socket_timeout" else "lost"
            case _:
                assert_never(message)
    raise AssertionError("bug: a connection's mailbox never ends")


async def undo(session: Session, sql: str, timeout: float) -> bool:
    """Roll back what a holder left open, within `timeout` seconds. False: the session is not to be used again."""
    if session.status is Status.BUSY:
        # Another task of the holder is in a call on it, which nothing here may disturb or wait for.
        return False
    raw: Any = session.raw
    try:
        tag = await session.drive(raw.execute(sql), timeout)
    except (ConnectionLost, TimeoutError):
        return False
    except Exception as error:
        if not is_drivers(error):
            raise
        if sqlstate_of(error) is None:
            # Somebody awaited a coroutine of `raw` instead of giving it to `run_raw`: what asyncpg makes of it is lost.
            return False
        # A savepoint is missing if the cancellation met SAVEPOINT before the server had carried it out, or RELEASE
        # after. The transaction around it is then failed for certain, which is undone, or found out, at its own end.
        return sql == SYNC or sql.startswith("ROLLBACK TO ")
    # Anything else is the answer to another statement: the driver has lost count.
    return sql != SYNC or tag == "SHOW"


async def _unlisten(
    session: Session, listeners: Iterable[tuple[str, Any]], channels: Iterable[str], timeout: float
) -> bool:
    """Take off what would listen for a holder that is gone. False: the session is not to be used again."""
    raw = session.raw
    # One after the other: each is made as it is its turn.
    calls = (
        *(partial(raw.remove_listener, channel, heard) for channel, heard in listeners),
        *(partial(raw.execute, unlisten(channel)) for channel in channels),
    )
    try:
        for call in calls:
            if session.status is not Status.IDLE:
                # Inside a transaction it is closed as it comes back.
                return session.status is Status.IN_TRANSACTION
            await session.drive(call(), timeout)
    except (ConnectionLost, TimeoutError):
        return False
    except Exception as error:
        if not is_drivers(error):
            raise
        return False
    return True


def _free(record: Record, pool: Ref[ConnectionEvent], inbox: Inbox[ConnectionMessage]) -> None:
    """Give the right to drive back, unless more of what the holder left is waiting to be put right."""
    if inbox.is_empty():
        _open_gate(record)
        pool.cast(Settled(record.number))


def _open_gate(record: Record) -> None:
    gate, record.gate = record.gate, None
    if gate is not None:
        gate.set()
