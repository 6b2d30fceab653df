"""One connection, as its actor, the pool's ledger and its holder share it.

Everything runs in one thread, and no field changes across a checkpoint in the middle of a rule, so the record needs no
lock. Who may write what is said at each field.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ..driver.protocol import Status
from ..errors import CommitOutcomeUnknown, ConnectionLost, Error, PoolClosed
from .messages import Examine, Lost, Undo, Unlisten, WriteRefused

if TYPE_CHECKING:
    from ..actor import Ref
    from ..cluster.messages import Reservation
    from ..driver.protocol import Session
    from ..servers import HostPort
    from .messages import ConnectionMessage


T = TypeVar("T")

SYNC = "SHOW transaction_read_only"
"""Ends what a statement that was only prepared has begun on the server; it takes no snapshot and no lock."""

ROLE = "RESET SESSION AUTHORIZATION; RESET ROLE"
"""Makes the session act as the user that logged in."""


READ_ONLY = "25006"
"""The transaction is read-only: the SQLSTATE of every write on a standby, for example."""


class Place(Enum):
    """Where a connection is. It is always in exactly one place; only the ledger moves it."""

    OPENING = "opening"
    """Being opened; it has no session yet."""
    IDLE = "idle"
    LEASED = "leased"
    """Somebody holds it, or, as `settling`, its actor puts right what the last holder left."""
    CLOSING = "closing"
    """Given up; its socket may still be open, and counts until it is gone."""
    GONE = "gone"


def is_half_sent(error: Exception) -> bool:
    """Whether a call failed on this side, after its statement may have been sent to be prepared.

    asyncpg prepares a statement, and only then finds that an argument does not fit its type. For the server the
    statement is then still under way: until it hears more of it, it stays in a transaction and keeps the locks on the
    tables. asyncpg's own pool ends that by the query that it sends as a connection comes back.
    """
    return not isinstance(error, Error | TimeoutError) and not is_servers(error)


def is_servers(error: Exception) -> bool:
    """Whether it is the server's own answer: it waits for nothing more of the call."""
    return "sqlstate" in vars(error)


def at_least_one(rows: Iterable[T]) -> Iterable[T] | None:
    """The same rows, or None if there is none: asyncpg then only prepares a statement, which leaves it half sent."""
    iterator = iter(rows)
    for first in iterator:
        return chain((first,), iterator)
    return None


class Record:
    """A connection from the decision to open it until its socket is gone."""

    __slots__ = (
        "commit",
        "expires",
        "gate",
        "idle_since",
        "is_for_writes",
        "lease",
        "marked",
        "number",
        "opener",
        "opening",
        "place",
        "pool_closed",
        "reason",
        "ref",
        "reservation",
        "role_is_hooks",
        "scope",
        "session",
        "settling",
        "suspect",
        "unknown",
    )

    def __init__(self, number: int, ref: Ref[ConnectionMessage]) -> None:
        self.number = number
        """Never used again."""
        self.ref = ref
        """Its actor's mailbox."""
        self.opening = trio.CancelScope()
        """Around the opening alone, and there before the actor runs: a pool that closes stops it before it has begun.
        An opening that it comes too late for is over, and the connection is closed as one that is open."""
        self.opener: trio.lowlevel.Task | None = None
        """The task that is in `on_connect`. (actor)"""
        self.session: Session | None = None
        """Set by the actor, once."""
        self.reservation: Reservation | None = None
        """Its place among the server's connections. Set by the actor, once."""
        self.place = Place.OPENING
        self.lease = 0
        """The number of the lease under way, or of the last one. What names an older one came late. (ledger)"""
        self.settling = False
        """LEASED, but no longer by a caller: the last holder left work for the actor. (ledger)"""
        self.marked: str | None = None
        """To be closed when it comes back, and the word for why: its server is no longer kept (pool), or it cannot be
        made fit for another holder (holder)."""
        self.is_for_writes = False
        """Whether the pool asked for a server that accepts writes. (pool)"""
        self.suspect = False
        """To be asked, when it comes back, whether it accepts writes. (holder, ledger)"""
        self.role_is_hooks = False
        """Whether `on_connect` made it act as somebody else than who logged in. (hook)"""
        self.expires: float | None = None
        """When its lifetime ends, decided at its birth. (ledger)"""
        self.idle_since = 0.0
        self.scope: trio.CancelScope | None = None
        """The block of the holder, if it has one. (holder)"""
        self.gate: trio.Event | None = None
        """While it is set, the actor has the right to drive; the holder's next call waits for it. (actor)"""
        self.reason: str | None = None
        """Why the connection ended under its holder. (actor)"""
        self.commit: trio.Event | None = None
        """Set while COMMIT is under way; an end that can wait for it does. (holder)"""
        self.unknown: str | None = None
        """Why a COMMIT's answer was lost: whatever ends the holder's block says that, and nothing milder. (holder)"""
        self.pool_closed = False
        """Whether the end was the pool's doing. (pool)"""

    @property
    def at(self) -> HostPort | None:
        """The server it is connected to."""
        return self.reservation.at if self.reservation is not None else None

    def end(self, reason: str) -> None:
        """The holder's block, if there is one, is over: it will raise what `loss` says. No checkpoint; idempotent."""
        if self.reason is None:
            self.reason = reason
        if self.scope is not None:
            self.scope.cancel()

    def owe(self, sql: str) -> None:
        """Leave a statement to the actor; the connection's next call, or holder, waits for it. No checkpoint."""
        self._leave(Undo(sql))

    def owe_silence(self, listeners: Iterable[tuple[str, Any]], channels: Iterable[str]) -> None:
        """Leave it to the actor to take these listeners off, and to have the server leave these channels. No
        checkpoint."""
        self._leave(Unlisten(tuple(listeners), tuple(channels)))

    def owe_examination(self) -> None:
        """Leave it to the actor to ask whether it accepts writes. No checkpoint."""
        self._leave(Examine())

    def _leave(self, work: Undo | Unlisten | Examine) -> None:
        if self.gate is None:
            self.gate = trio.Event()
        self.ref.cast(work)

    def doubt(self, error: Exception) -> None:
        """To be called with an error of a call that did not ask for a read-only transaction. No checkpoint."""
        if self.is_for_writes and getattr(error, "sqlstate", None) == READ_ONLY:
            self.suspect = True
            self.ref.cast(WriteRefused())

    def owe_role(self) -> None:
        """To be called at the end of a lease that changed the role: no later holder acts as somebody else."""
        if self.role_is_hooks:
            # What the hook chose, only the hook can bring back; the user that logged in may be allowed more.
            self.marked = "discarded"
        elif self.session is not None and (self.gate is not None or self.session.status is not Status.IN_TRANSACTION):
            # Inside a transaction it is closed as it comes back, unless a ROLLBACK is owed already: that does not undo
            # a role that was set before it began.
            self.owe(ROLE)

    def owe_sync(self) -> None:
        """To be called at the end of a lease whose last call `is_half_sent`, or may be."""
        if self.gate is None and self.session is not None and self.session.status is Status.IDLE:
            self.owe(SYNC)

    def commit_lost(self, reason: str) -> CommitOutcomeUnknown:
        """COMMIT was sent on this connection, and its answer will not come, or means nothing. The connection is closed:
        what it would say to its next holder is about this COMMIT."""
        self.unknown = reason
        self.end(reason)
        session = self.session
        if session is not None and session.status is not Status.CLOSED:
            session.terminate(reason)
            self.ref.cast(Lost(reason))
        return CommitOutcomeUnknown(reason, self.at)

    def told(self, loss: ConnectionLost) -> Exception:
        """What a caller is told whose call met this loss; the holder's block, if there is one, is over with it.

        The loss of another connection, in code of the user's that ran inside the call, says nothing of this one.
        """
        if self.session is not None and self.session.status is not Status.CLOSED:
            return loss
        self.end(loss.reason)
        return self.loss() if self.pool_closed else loss

    def loss(self) -> ConnectionLost | PoolClosed | CommitOutcomeUnknown:
        """What a holder is told whose connection ended under it."""
        if self.unknown is not None:
            return CommitOutcomeUnknown(self.unknown, self.at)
        if self.pool_closed:
            return PoolClosed("the pool was closed while this connection was in use")
        return ConnectionLost(self.reason or "closed", self.at)
