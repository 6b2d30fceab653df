"""The ledger: every connection in exactly one place, and the line of those who wait. No I/O, no clock.

Rules, each tested by a state machine:

1. A connection is opening, idle, leased or closing, and in one of these only. Opening and closing ones count against
   the maximum until they are really gone.
2. Nobody waits in line while a connection that would serve them is idle.
3. A lease ends exactly once. What comes late names an older lease, and is ignored.
4. The idle one that was used last is taken first where the size is elastic, so that the others may shrink away; where
   it is fixed, the one that has rested longest, so that all stay in use.

Taking and giving back are synchronous, in the caller's own task: there Ctrl-C, which strikes anywhere, is kept out of
the middle. Everything else is moved by the pool's actor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from trio.lowlevel import enable_ki_protection

from ..connection.record import Place, Record
from ..driver.protocol import Status
from .line import Line

if TYPE_CHECKING:
    from ..driver.protocol import Session
    from ..servers import HostPort

Handed: TypeAlias = "Record | Exception"
"""What somebody in line receives: a connection, already leased to them, or the reason why there is none."""


class Closer(Protocol):
    """How the ledger has a connection closed: told to the connection's actor, without a checkpoint."""

    def __call__(self, record: Record, reason: str, /) -> None: ...


class Ledger:
    """Who has what. `close` is told of every connection that the ledger gives up, and `spare` each time that one comes
    to rest while there are more than the minimum."""

    def __init__(
        self, *, min_size: int, max_size: int, close: Closer, spare: Callable[[], None] = lambda: None
    ) -> None:
        self.min_size = min_size
        self.max_size = max_size
        self._lifo = min_size != max_size
        self._close = close
        self._spare = spare
        self._records: dict[int, Record] = {}
        self._idle: OrderedDict[int, Record] = OrderedDict()
        self.line: Line[Handed] = Line()
        self._opening = 0
        self._leased = 0
        self._closing = 0
        self.leases = 0
        """Leases given so far."""
        self.surplus: dict[HostPort, int] = {}
        """How many connections to a server the last rebalance would have moved, had any of them been idle. In a pool
        with more callers than connections none ever is; one that is handed from holder to holder then stands for it."""
        self.moving = 0
        """Connections closed to have others on another server, and not opened anew yet."""
        self._born_before: set[int] = set()
        """Those whose opening had begun when the schema was last found changed."""
        self.is_closed = False
        """Whether the pool takes no more callers; what comes back is then closed."""

    # --- what the caller's own task does -----------------------------------------------------------------------------

    @enable_ki_protection
    def take(self, now: float) -> Record | None:
        """Lease an idle connection, or None. One whose lifetime has ended is closed when it is met here."""
        idle = self._idle
        while idle:
            record = idle.popitem(last=self._lifo)[1]
            if record.expires is not None and record.expires <= now:
                self._give_up(record, "expired")
                continue
            session = record.session
            if session is None or not session.is_clean():
                # It died and its actor has not been heard yet.
                self._give_up(record, "lost")
                continue
            record.place = Place.LEASED
            record.lease += 1
            self._leased += 1
            self.leases += 1
            return record
        return None

    @enable_ki_protection
    def give_back(self, record: Record, lease: int, now: float) -> None:
        """The holder of this lease is done. Never waits; late or repeated, it does nothing."""
        if record.lease != lease or record.place is not Place.LEASED or record.settling:
            return
        record.scope = None
        if record.suspect:
            self._have_asked(record)
        session = record.session
        # The reason: one that has ended for its holder has for all others, whatever its session says.
        if (
            session is not None
            and session.is_clean()
            and not self.is_closed
            and record.gate is None
            and record.reason is None
        ):
            if record.marked is not None:
                self._give_up(record, record.marked)
            elif record.expires is not None and record.expires <= now:
                self._give_up(record, "expired")
            else:
                self._offer(record, now)
            return
        self._put_aside(record)

    @enable_ki_protection
    def discard(self, record: Record, lease: int, reason: str = "discarded") -> None:
        """The holder of this lease wants the connection closed. Never waits; late or repeated, it does nothing."""
        if record.lease != lease or record.place is not Place.LEASED or record.settling:
            return
        record.scope = None
        self._give_up(record, reason)

    @enable_ki_protection
    def outdated(self, record: Record, types: bool) -> None:
        """A call on this connection has met a statement from before the schema changed, or (`types`) a type: what the
        others keep is as old, and no holder is to meet it. Never waits; so that no query pays for it, it is done here
        and now, and by each session."""
        for other in self._records.values():
            if other.session is None:
                self._born_before.add(other.number)  # it may have prepared what every connection keeps ready
            elif other is not record:
                other.session.forget_statements(types=types)

    def _put_aside(self, record: Record) -> None:
        """It can't be handed on as it is."""
        if record.gate is not None and not self.is_closed:
            # The actor is already putting right what the holder left, and tells when it has.
            record.settling = True
            return
        session = record.session
        if session is None or record.reason is not None:
            reason = "socket_timeout" if record.reason == "socket_timeout" else "lost"
        elif self.is_closed and session.is_clean():
            reason = "pool_closed"
        else:
            reason = _unclean(session)
        self._give_up(record, reason)

    # --- what the pool's actor does ----------------------------------------------------------------------------------

    def opening(self, record: Record) -> None:
        """A connection is being opened."""
        self._records[record.number] = record
        self._opening += 1
        self.moving = max(0, self.moving - 1)

    def opened(self, record: Record, now: float) -> None:
        """It is open, and goes to whoever waits."""
        if record.place is not Place.OPENING:
            return
        self._opening -= 1
        record.place = Place.LEASED
        self._leased += 1
        session = record.session
        if self.is_closed:
            self._give_up(record, "pool_closed")
        elif record.reason is not None or session is None:
            self._give_up(record, "lost")  # it ended before anybody heard that it was open
        else:
            session.on_outdated.append(partial(self.outdated, record))
            if record.number in self._born_before:
                self._born_before.remove(record.number)
                session.forget_statements(types=True)
            self._offer(record, now)

    def settled(self, record: Record, now: float) -> None:
        """Its actor has put right what the last holder left."""
        if record.place is not Place.LEASED or not record.settling or record.gate is not None:
            return
        record.settling = False
        self.give_back(record, record.lease, now)

    def examine(self, record: Record) -> None:
        """Have it asked whether it accepts writes: at once if it is idle, else when it comes back."""
        record.suspect = True
        if record.place is Place.IDLE:
            del self._idle[record.number]
            record.place = Place.LEASED
            record.lease += 1
            self._leased += 1
            self.give_back(record, record.lease, record.idle_since)

    def _have_asked(self, record: Record) -> None:
        record.suspect = False
        session = record.session
        if session is not None and session.is_clean() and not self.is_closed and record.marked is None:
            record.owe_examination()

    def gone(self, number: int) -> Record | None:
        """Its socket is gone, or it never had one."""
        record = self._records.pop(number, None)
        if record is None:
            return None
        self._born_before.discard(number)
        match record.place:
            case Place.OPENING:
                self._opening -= 1
            case Place.IDLE:
                del self._idle[number]
            case Place.LEASED:
                self._leased -= 1
            case Place.CLOSING:
                self._closing -= 1
            case Place.GONE:
                raise AssertionError("bug: a connection that is gone was still in the ledger")
        record.place = Place.GONE
        record.settling = False
        return record

    def close_idle(self, number: int, reason: str) -> bool:
        """Close one that is idle; False if it no longer is."""
        record = self._idle.pop(number, None)
        if record is None:
            return False
        self._give_up(record, reason)
        return True

    def close_expired(self, now: float) -> None:
        """Close every idle connection whose lifetime has ended."""
        for record in [r for r in self._idle.values() if r.expires is not None and r.expires <= now]:
            self.close_idle(record.number, "expired")

    def shrink(self, now: float, idle_timeout: float) -> float | None:
        """Close what has been idle for too long, down to the minimum; when the next one will have been, or None."""
        while self._idle and self.total > self.min_size:
            record = next(iter(self._idle.values()))
            due = record.idle_since + idle_timeout
            if due > now:
                return due
            self.close_idle(record.number, "idle")
        return None

    def refuse_line(self, error: Callable[[], Exception]) -> int:
        """Everybody in line gets an error; how many that were."""
        refused = 0
        while True:
            if not self.line.hand(error()):
                return refused
            refused += 1

    # --- what everybody may ask --------------------------------------------------------------------------------------

    def find(self, number: int) -> Record | None:
        return self._records.get(number)

    def has(self, record: Record) -> bool:
        """Whether it is one of this ledger's; one that is gone may have been anybody's."""
        return record.place is Place.GONE or self._records.get(record.number) is record

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    @property
    def waiting(self) -> int:
        return len(self.line)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def leased(self) -> int:
        """Held by a caller, or being put right after one."""
        return self._leased

    @property
    def opening_count(self) -> int:
        return self._opening

    @property
    def closing(self) -> int:
        return self._closing

    @property
    def total(self) -> int:
        """All that count towards the size the pool keeps: idle, leased and opening."""
        return len(self._idle) + self._leased + self._opening

    @property
    def sockets(self) -> int:
        """All that count against the maximum: those on their way out as well."""
        return len(self._records)

    def missing(self) -> int:
        """How many to open now: up to the minimum, one for each caller in line, and one for each that is to move, as
        far as the maximum allows."""
        wanted = max(self.min_size - self.total, self.waiting - self._opening, self.moving)
        return max(0, min(wanted, self.max_size - self.sockets))

    # --- moves -------------------------------------------------------------------------------------------------------

    def _offer(self, record: Record, now: float) -> None:
        """From LEASED: to the next in line, as a new lease, or to the idle ones."""
        if self.surplus and self._is_surplus(record):
            self._give_up(record, "rebalanced")
            return
        record.lease += 1
        if self.line.hand(record):
            self.leases += 1
            return
        record.place = Place.IDLE
        record.idle_since = now
        self._leased -= 1
        self._idle[record.number] = record
        if self._lifo and self.total > self.min_size:
            self._spare()

    def _is_surplus(self, record: Record) -> bool:
        at = record.at
        left = self.surplus.get(at, 0) if at is not None else 0
        if at is None or not left or not self.waiting:
            return False
        self.surplus[at] = left - 1
        return True

    def _give_up(self, record: Record, reason: str) -> None:
        """From LEASED, or just taken out of the idle ones: to be closed."""
        if record.place is Place.LEASED:
            self._leased -= 1
        record.place = Place.CLOSING
        record.settling = False
        self._closing += 1
        if reason == "rebalanced":
            self.moving += 1
        self._close(record, reason)


def _unclean(session: Session) -> str:
    """Why a session that came back can't be handed on, as `connections_closed` counts it."""
    return _UNCLEAN[session.status]


_UNCLEAN = {
    Status.CLOSED: "lost",
    Status.IN_TRANSACTION: "in_transaction",
    Status.BUSY: "busy",
    Status.ABANDONED: "busy",
    Status.IDLE: "discarded",
}
