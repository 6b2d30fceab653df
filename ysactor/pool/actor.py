"""The pool's actor: opens what is missing, recycles what is old, moves what is in the wrong place.

It is not on the way of a query. Callers take and give back through the ledger, in their own tasks; the actor hears of
connections that open, end or have been settled, and of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from random import Random
from typing import TYPE_CHECKING, assert_never, cast

import trio

from ..actor import Ended as ActorEnded
from ..actor import Inbox, Ref, open_mailbox, send_after
from ..connection.actor import run_connection
from ..connection.messages import (
    Close,
    ConnectionEvent,
    ConnectionMessage,
    Doubted,
    Ended,
    IsReadOnly,
    Opened,
    OpenFailed,
    Settled,
)
from ..connection.record import Place, Record
from ..connection.setup import Preparation
from ..errors import Error, PoolClosed
from ..policy.rebalance import Held, plan
from .ledger import Ledger
from .messages import CloseLeased, FoundReadOnly, PoolMessage, RebalanceDue, RefillDue, ShrinkDue, Wanted
from .pause import Pause
from .statistics import Tally

if TYPE_CHECKING:
    from ..cluster.actor import ClusterActor
    from ..config import Config
    from ..driver.protocol import Driver
    from ..servers import HostPort

_RECHECK_REST = 1.0
"""Seconds after which a server that refuses writes is probed once more, if it was found to accept them."""


class PoolActor:
    """One pool. `run` is its loop; everything else is synchronous."""

    def __init__(
        self,
        config: Config,
        cluster: ClusterActor,
        driver: Driver,
        rng: Random,
    ) -> None:
        self.config = config
        self.cluster = cluster
        self.driver = driver
        self.tally = Tally()
        self.ledger = Ledger(
            min_size=config.min_size, max_size=config.max_size, close=self._close, spare=self._look_at_spares
        )
        self.last_failure: Error | None = None
        """The newest failure to open a connection, until one opens."""
        self.changed = trio.Event()
        """Set, and replaced, whenever a connection has opened or gone, and when closing begins."""
        self.ref: Ref[PoolMessage]
        self._inbox: Inbox[PoolMessage]
        self.ref, self._inbox = open_mailbox()
        self._rng = rng
        self._numbers = 0
        self._preparation = Preparation(config)
        self._pause = Pause()
        self._is_paused = False
        self._shrink_due = False
        self._doubted: set[HostPort] = set()
        self._examined: dict[HostPort, float] = {}
        """When the connections to an address were last asked whether they accept writes."""
        self.ledger.line.set_alarm = self._set_alarm

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Until it is cancelled; its connections then close in bounded time."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                self._refill()
                send_after(nursery, self.config.rebalance_interval, self.ref, RebalanceDue())
                task_status.started()
                async for message in self._inbox:
                    self._receive(message)
                    self._refill()
            finally:
                self._refuse(PoolClosed)
                self.ledger.is_closed = True
                # Connections still report while they close, and what they report must still be booked.
                nursery.start_soon(self._book_the_end, name="ysactor.pool.end")
                nursery.cancel_scope.cancel()

    def _set_alarm(self, deadline: float) -> None:
        self._nursery.start_soon(self._ring, deadline, name="ysactor.pool.line")

    @trio.lowlevel.enable_ki_protection
    async def _ring(self, deadline: float) -> None:
        await trio.sleep_until(deadline)
        self.ledger.line.expire(trio.current_time())

    @trio.lowlevel.enable_ki_protection
    async def _book_the_end(self) -> None:
        with trio.CancelScope(shield=True):
            while self.ledger.sockets:
                message = await self._inbox.__anext__()
                self._receive(message)
            self._inbox.close()

    def _receive(self, message: PoolMessage) -> None:
        match message:
            case Opened(number):
                self._opened(number)
            case OpenFailed(number, error):
                self._open_failed(number, error)
            case Settled(number):
                if (record := self.ledger.find(number)) is not None:
                    self.ledger.settled(record, trio.current_time())
            case Ended(number, reason):
                self._ended(number, reason)
            case Wanted(leaves):
                # What follows every message is all there is to do for those who wait.
                if leaves and not (self.ledger.idle or self.ledger.waiting):
                    self._refill(at_least=1)
            case Doubted(number):
                self._doubt(number)
            case IsReadOnly(number):
                self._examine_others(number)
            case FoundReadOnly(at):
                self._retire(at, "read_only")
            case RefillDue():
                self._is_paused = False
            case RebalanceDue():
                self._rebalance()
            case ShrinkDue():
                self._shrink_due = False
            case CloseLeased():
                self._close_leased()
            case _:
                assert_never(message)
        self._shrink()

    # --- opening -----------------------------------------------------------------------------------------------------

    def _refill(self, at_least: int = 0) -> None:
        """Start what is missing: after a failure one attempt at a time, then ever more with each that succeeds."""
        ledger = self.ledger
        if self._is_paused or ledger.is_closed:
            return
        missing = max(ledger.missing(), min(at_least, ledger.max_size - ledger.sockets) - ledger.opening_count)
        if missing > 0:
            for _ in range(self._pause.allows(missing, ledger.opening_count)):
                self._open()

    def _open(self) -> None:
        self._numbers += 1
        number = self._numbers
        ref: Ref[ConnectionMessage]
        inbox: Inbox[ConnectionMessage]
        ref, inbox = open_mailbox()
        record = Record(number, ref)
        record.is_for_writes = self.config.target_session_attrs == "read-write"
        self.ledger.opening(record)
        # The pool's union includes every event of its connections.
        events = cast("Ref[ConnectionEvent]", self.ref)
        self._nursery.start_soon(
            run_connection,
            record,
            inbox,
            events,
            self.cluster.ref,
            self.driver,
            self.config,
            self._preparation.of(record),
            name=f"ysactor.connection[{number}]",
        )

    def _opened(self, number: int) -> None:
        record = self.ledger.find(number)
        if record is None:
            return
        self.tally.connections_opened += 1
        self.last_failure = None
        self._pause.opened()
        config = self.config
        now = trio.current_time()
        if config.max_lifetime is not None:
            record.expires = now + config.max_lifetime + self._rng.random() * config.lifetime_jitter
        self.ledger.opened(record, now)
        self._announce()

    def _open_failed(self, number: int, error: Error) -> None:
        if self.ledger.gone(number) is None:
            return
        self.tally.openings_failed += 1
        self.last_failure = error
        if self._is_paused:
            self._pause.failed_too()
        elif not self.ledger.is_closed:
            self._is_paused = True
            send_after(self._nursery, self._pause.next(self._rng.random()), self.ref, RefillDue())
        ledger = self.ledger
        # With anything idle, out or under way there is still something to wait for.
        if not (ledger.idle or ledger.leased or ledger.opening_count):
            self._refuse(lambda: _copy(error))
        self._announce()

    def _ended(self, number: int, reason: str) -> None:
        record = self.ledger.gone(number)
        if record is None:
            return
        if record.session is not None:
            self.tally.closed[reason] += 1
        self._announce()

    # --- servers that accept no writes any more ----------------------------------------------------------------------

    def _doubt(self, number: int) -> None:
        """Have the server of this connection looked at again: by one probe at a time, and not at once again.

        The connection itself is asked as it comes back: its address may lead to another server by now.
        """
        record = self.ledger.find(number)
        if record is not None and record.at is not None and record.at not in self._doubted:
            self._doubted.add(record.at)
            self._nursery.start_soon(self._recheck, record.at, name=f"ysactor.pool.recheck[{record.at}]")

    def _examine_others(self, number: int) -> None:
        """One has turned out to lead to a server that accepts no writes: so may others to its address.

        Once for all of them: those that are found to be as old ask for no more.
        """
        found, now = self.ledger.find(number), trio.current_time()
        if found is None or found.at is None or now < self._examined.get(found.at, -inf) + _RECHECK_REST:
            return
        self._examined[found.at] = now
        for record in list(self.ledger):
            if record is not found and record.at == found.at:
                self.ledger.examine(record)

    @trio.lowlevel.enable_ki_protection
    async def _recheck(self, at: HostPort) -> None:
        try:
            if await self.cluster.recheck(at):
                self.ref.cast(FoundReadOnly(at))
            await trio.sleep(_RECHECK_REST)
        except ActorEnded:
            return  # the cluster has ended, and so will this in a moment
        finally:
            self._doubted.discard(at)

    def _retire(self, at: HostPort, reason: str) -> None:
        """Close the connections to a server: those that are leased as they come back."""
        for record in list(self.ledger):
            if record.at == at and not self.ledger.close_idle(record.number, reason) and record.marked is None:
                record.marked = reason

    # --- recycling and moving ----------------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        send_after(self._nursery, self.config.rebalance_interval, self.ref, RebalanceDue())
        ledger = self.ledger
        ledger.close_expired(trio.current_time())
        if self._pause.failures:
            # What it closed could not be opened elsewhere; nor could what comes back to be closed.
            self._mark([record.number for record in ledger], False)
            ledger.surplus = {}
            return
        held = [
            Held(number=r.number, at=r.at, leased=r.place is Place.LEASED, marked=r.marked is not None)
            for r in ledger
            if r.at is not None and r.place in (Place.IDLE, Place.LEASED)
        ]
        view = self.cluster.view()
        load = Counter(view.load)
        # The cluster counts these where they are until their sockets are gone; what follows them goes elsewhere.
        load.subtract(r.at for r in ledger if r.place is Place.CLOSING and r.at is not None)
        moves = plan(
            held,
            placement=view.placement,
            kept=view.kept,
            out=view.out,
            batch=self.config.rebalance_batch,
            load=load,
            unplaced=max(0, ledger.min_size - ledger.total, ledger.moving),
        )
        self._mark(moves.unmark, False)
        self._mark(moves.mark, True)
        for number in moves.close:
            ledger.close_idle(number, "rebalanced")
        ledger.surplus = dict(moves.level)

    def _mark(self, numbers: Iterable[int], marked: bool) -> None:
        for number in numbers:
            if (record := self.ledger.find(number)) is not None and record.marked in (None, "rebalanced"):
                record.marked = "rebalanced" if marked else None

    def _shrink(self) -> None:
        config = self.config
        if config.idle_timeout is None or config.min_size == config.max_size or self._shrink_due:
            return
        now = trio.current_time()
        due = self.ledger.shrink(now, config.idle_timeout)
        if due is not None:
            self._shrink_due = True
            send_after(self._nursery, due - now, self.ref, ShrinkDue())

    def _look_at_spares(self) -> None:
        if self.config.idle_timeout is not None and not self._shrink_due:
            self._shrink_due = True
            self.ref.cast(ShrinkDue())

    # --- closing -----------------------------------------------------------------------------------------------------

    def begin_close(self) -> None:
        """No more callers: the line is refused, idle connections close, openings stop."""
        ledger = self.ledger
        ledger.is_closed = True
        self._refuse(PoolClosed)
        for record in list(ledger):
            record.opening.cancel()
            ledger.close_idle(record.number, "pool_closed")
        self._announce()  # whoever waits in `ready` has nothing more to wait for

    def stop(self) -> None:
        """End the actor; every connection is gone by then, or is closed now."""
        self._nursery.cancel_scope.cancel()

    def random(self) -> float:
        """A share in [0, 1) from the pool's one source of chance."""
        return self._rng.random()

    def _close_leased(self) -> None:
        for record in list(self.ledger):
            if record.place is Place.LEASED:
                record.pool_closed = True
                record.end("the pool was closed")
                self._close(record, "pool_closed")

    def _close(self, record: Record, reason: str) -> None:
        record.ref.cast(Close(reason))

    def _refuse(self, error: Callable[[], Exception]) -> None:
        self.tally.checkouts_refused += self.ledger.refuse_line(error)

    def _announce(self) -> None:
        event, self.changed = self.changed, trio.Event()
        event.set()


def _copy(error: Error) -> Exception:
    """The same error for one more caller: tracebacks and contexts are each caller's own."""
    twin = error.__class__.__new__(error.__class__)
    twin.__dict__.update(error.__dict__)
    twin.args = error.args
    twin.__cause__ = error.__cause__
    return twin
