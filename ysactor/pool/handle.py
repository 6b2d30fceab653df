"""What the application holds: the pool."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled, enable_ki_protection

from ..connection.handle import Connection
from ..connection.limits import seconds
from ..connection.record import Record, at_least_one, is_half_sent
from ..connection.wording import Deed, deed_of
from ..errors import (
    CheckoutTimeout,
    ConfigurationError,
    ConnectionLost,
    Error,
    PoolClosed,
    PoolOverloaded,
)
from .lease import Acquire
from .messages import CloseLeased, Wanted
from .statistics import PoolStatistics, intended, snapshot
from .transactions import Attempts, run

if TYPE_CHECKING:
    from ..client import Cluster
    from .actor import PoolActor

T = TypeVar("T")
P = ParamSpec("P")


class _Default:
    def __repr__(self) -> str:
        return "checkout_timeout"


DEFAULT: Final = _Default()
"""Stands for the pool's own `checkout_timeout`."""

_TURNS = 64
"""A checkout that need not wait is a checkpoint once in so many times: one each time costs 3 µs, more than all else."""


class Pool:
    """Connections to a cluster, spread over its servers and kept open; made by `open_pool`.

    Every method may be called from any task of the same Trio run. A single statement (`fetch` and its like) runs on
    whichever connection is free, as its own transaction; what it changes in the session stays there.
    """

    def __init__(self, actor: PoolActor, cluster: Cluster) -> None:
        self._actor = actor
        self._ledger = actor.ledger
        self._limit = actor.config.checkout_timeout
        self._patience = actor.config.cancel_timeout
        self._cluster = cluster
        # A pool lives in one run of Trio. Measured: asking its clock, not `trio`, saves two calls and 0.15 µs.
        self._now: Callable[[], float] = trio.lowlevel.current_clock().current_time
        self._closing = False
        self._closed = trio.Event()
        self._turns = 0

    # --- single statements -------------------------------------------------------------------------------------------

    async def fetch(
        self, query: str, *args: Any, timeout: float | None = None, record_class: type | None = None
    ) -> list[Any]:
        """All rows of one statement, as asyncpg records.

        `timeout` is seconds for the statement, None for no limit; the wait for a connection is bounded by
        `checkout_timeout`. Cancelled in line, it leaves the line; cancelled in the statement, it is gone at once and
        the server is told to stop. Raises `CheckoutTimeout`, `PoolOverloaded`, `PoolClosed`, `ConnectFailed` or
        `NoNodeAvailable` if nothing ran; `TimeoutError` past `timeout`; `ConnectionLost` if the connection ended, in
        which case the statement may or may not have been carried out; the server's errors, as asyncpg's classes.
        """
        call = methodcaller("fetch", query, *args, record_class=record_class)
        return await self._statement(call, timeout, deed_of(query))

    async def fetchrow(
        self, query: str, *args: Any, timeout: float | None = None, record_class: type | None = None
    ) -> Any:
        """The first row of one statement, or None; otherwise as `fetch`."""
        call = methodcaller("fetchrow", query, *args, record_class=record_class)
        return await self._statement(call, timeout, deed_of(query))

    async def fetchval(self, query: str, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
        """One column of the first row, or None if there is no row; otherwise as `fetch`."""
        return await self._statement(methodcaller("fetchval", query, *args, column=column), timeout, deed_of(query))

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Run one statement (several without arguments); the server's tag of the last; otherwise as `fetch`."""
        return await self._statement(methodcaller("execute", query, *args), timeout, deed_of(query))

    async def fetchmany(
        self,
        query: str,
        args: Iterable[Sequence[Any]],
        *,
        timeout: float | None = None,
        record_class: type | None = None,
    ) -> list[Any]:
        """Run a statement once for each sequence of arguments, all or nothing; the rows of all runs together."""
        rows = at_least_one(args)
        call = methodcaller("fetchmany", query, rows or (), record_class=record_class)
        return await self._statement(call, timeout, deed_of(query), half_sent=rows is None)

    async def executemany(self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Run a statement once for each sequence of arguments, all or nothing; otherwise as `fetch`."""
        rows = at_least_one(args)
        call = methodcaller("executemany", command, rows or ())
        await self._statement(call, timeout, deed_of(command), half_sent=rows is None)

    # --- leases ------------------------------------------------------------------------------------------------------

    def acquire(self, *, timeout: float | _Default | None = DEFAULT) -> Acquire:
        """One connection for several statements, as a block.

        `timeout` is seconds in line instead of `checkout_timeout`; None for no limit, 0 for no waiting at all. Entering
        raises what `fetch` raises when nothing ran. If the connection ends under the block, the block is cancelled and
        raises `ConnectionLost`. A connection left inside a transaction is closed, not handed on.
        """
        return Acquire(self, self._limit if timeout is DEFAULT else self._limit_of(timeout))

    @enable_ki_protection
    async def checkout(self, *, timeout: float | _Default | None = DEFAULT) -> Connection:
        """One connection, to be given back by `checkin` or `discard`; prefer `acquire`.

        The object stands for this one lease. If the connection ends meanwhile, its next call raises `ConnectionLost`.
        """
        return Connection(await self._take(self._limit_of(timeout)), self._patience)

    def checkin(self, conn: Connection) -> None:
        """Give a connection back. Never waits; once its lease has ended, a no-op.

        Raises `Error` for a connection that is not this pool's.
        """
        if conn._live:
            self._check_own(conn)
            self._give_back(conn)

    @enable_ki_protection
    def discard(self, conn: Connection) -> None:
        """Give a connection back to be closed and replaced. Otherwise as `checkin`."""
        if conn._live:
            self._check_own(conn)
            conn._end()
            self._ledger.discard(conn._record, conn._lease)

    async def transaction(
        self,
        fn: Callable[Concatenate[Connection, P], Awaitable[T]],
        *args: Any,
        attempts: int = 3,
        isolation: str | None = None,
        readonly: bool = False,
        deferrable: bool = False,
        checkout_timeout: float | _Default | None = DEFAULT,
        max_backoff: float = 0.5,
    ) -> T:
        """Run ``await fn(conn, *args)`` between BEGIN and COMMIT, and return its value.

        The whole runs again, on a fresh connection, after a serialization failure, a deadlock, or a loss of the
        connection before COMMIT: nothing was committed then. `attempts` is how often it is run at most. So `fn` must
        have no side effects outside the database. Before each new run it waits a random time, up to 20 ms the first
        time, doubling, `max_backoff` seconds at most (0: no wait).

        An exception of `fn` rolls back and comes out; ``raise ysactor.Rollback(value)`` rolls back and `value` is
        returned. Cancelled in `fn`, it is left at once, and the connection's actor rolls back. Cancelled in COMMIT,
        COMMIT's answer is awaited for 2 seconds at most.

        Raises, beside what `fn` raises: `CommitOutcomeUnknown`, `TransactionAborted`, `TransactionEnded`, the error
        that made it run again when `attempts` are used up or no connection can be had for another run, and what
        `acquire` raises when nothing ran at all.
        """
        limit = self._limit_of(checkout_timeout, "checkout_timeout")
        policy = Attempts(attempts, isolation, readonly, deferrable, limit, max_backoff)
        return await run(self, fn, args, policy)

    # --- sight -------------------------------------------------------------------------------------------------------

    async def ready(self, connections: int = 1, timeout: float | None = None) -> None:
        """Wait until that many connections are open. It opens none itself: above `min_size` callers have to.

        Raises `CheckoutTimeout`, which gives the last failure to connect, after `timeout` seconds (None: no limit);
        `PoolClosed`; `ConfigurationError` for more than the pool may have.
        """
        most = self._actor.config.max_size
        if isinstance(connections, bool) or not isinstance(connections, int) or not 1 <= connections <= most:
            raise ConfigurationError([f"connections: must be 1 to {most}, got {connections!r}"])
        limit = self._limit_of(timeout)
        await checkpoint()
        with trio.move_on_after(math.inf if limit is None else limit):
            while self._ledger.idle + self._ledger.leased < connections:
                self._check_open()
                await self._actor.changed.wait()
            return
        last = self._actor.last_failure
        raise CheckoutTimeout(limit or 0, self._situation(), last) from last

    def statistics(self) -> PoolStatistics:
        """A snapshot, without waiting and without asking any server."""
        return snapshot(self._ledger, self._actor.tally, self._actor.config)

    @property
    def cluster(self) -> Cluster:
        """The cluster this pool connects to."""
        return self._cluster

    async def aclose(self) -> None:
        """Close: no new checkouts, `shutdown_timeout` seconds for leases to come back, then their holders are ended.

        Their blocks are cancelled and raise `PoolClosed`. Returns when every socket is closed, whatever the servers
        do. Cancelled, it gives leases no more time. Closing again waits for the first to end. Raises `Error` in the
        pool's own `on_connect`, for whose end it would wait.
        """
        task = trio.lowlevel.current_task()
        if any(record.opener is task for record in self._ledger):
            raise Error("a pool cannot be closed in its own on_connect: it would wait for that to end")
        if self._closing:
            await self._closed.wait()
            return
        self._closing = True
        actor, ledger = self._actor, self._ledger
        grace = actor.config.shutdown_timeout
        actor.begin_close()
        try:
            with trio.move_on_after(math.inf if grace is None else grace):
                await self._until(lambda: ledger.leased - self._settling() == 0)
        finally:
            actor.ref.cast(CloseLeased())
            try:
                with trio.CancelScope(shield=True):
                    # Each connection's farewell is bounded, so this is.
                    await self._until(lambda: ledger.sockets == 0)
            finally:
                # After a KeyboardInterrupt too: whoever closes again must not wait for what nobody does any more.
                self._closed.set()
                actor.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        s = self.statistics()
        state = "closed" if self._closed.is_set() else "closing" if self._closing else "open"
        return (
            f"<ysactor.Pool {state}: {s.size} connections, {s.idle} idle, {s.leased} leased, {s.opening} opening,"
            f" {s.waiting} waiting>"
        )

    # --- for this package --------------------------------------------------------------------------------------------

    @enable_ki_protection
    async def _statement(
        self,
        make: Callable[[Any], Coroutine[Any, Any, T]],
        timeout: float | None,
        deed: Deed | None,
        half_sent: bool = False,
    ) -> T:
        """One statement on whichever connection is free; `make` builds asyncpg's call once there is one.

        `methodcaller`s and not functions of ours: measured, a waiting caller keeps 13 objects fewer, and 10,000 of them
        take 1 to 3 µs less each.
        """
        if timeout is not None:
            timeout = seconds(timeout)
        ledger = self._ledger
        record = ledger.take(self._now()) or await self._wait(self._limit)
        lease, session = record.lease, record.session
        assert session is not None, "bug: a connection was handed out that was never open"
        try:
            return await session.drive(make(session.raw), timeout)
        except ConnectionLost as loss:
            raise record.told(loss) from loss.__cause__
        except Exception as error:
            record.doubt(error)
            if is_half_sent(error):
                record.owe_sync()
            raise
        finally:
            if half_sent:
                record.owe_sync()
            if deed is not None:
                if deed.forgets:
                    session.forget_statements()
                if deed.listens:
                    session.expect_notifications()
                if deed.role:
                    record.owe_role()
            ledger.give_back(record, lease, self._now())

    @enable_ki_protection
    def _give_back(self, conn: Connection) -> None:
        """A connection of this pool's own; once its lease has ended, a no-op."""
        if conn._live:
            conn._end_clean()
            self._ledger.give_back(conn._record, conn._lease, self._now())

    @enable_ki_protection
    async def _take(self, limit: float | None) -> Record:
        """A connection, leased to the caller."""
        self._turns += 1
        # A caller that takes and gives back without ever waiting must let others run all the same.
        if self._turns % _TURNS:
            await checkpoint_if_cancelled()
        else:
            await checkpoint()
        return self._ledger.take(self._now()) or await self._wait(limit)

    @enable_ki_protection
    async def _wait(self, limit: float | None) -> Record:
        """Stand in line. What is received is leased already, so nothing may be awaited between here and its holder."""
        ledger, tally, actor = self._ledger, self._actor.tally, self._actor
        if ledger.is_closed:
            tally.checkouts_refused += 1
            raise PoolClosed
        most = actor.config.max_waiting
        if most is not None and ledger.waiting >= most:
            tally.checkouts_refused += 1
            raise PoolOverloaded(ledger.waiting)
        if ledger.sockets < ledger.max_size:
            actor.ref.cast(Wanted(leaves=limit == 0))
        handed: Record | Exception | None = None
        try:
            if limit is None:
                handed = await ledger.line.wait()
            elif limit == self._limit:
                handed = await ledger.line.wait(self._now() + limit)
            else:
                # The line's own alarm is for the limit that all callers share.
                with trio.move_on_after(limit):
                    handed = await ledger.line.wait()
        except trio.Cancelled:
            tally.checkouts_cancelled += 1
            raise
        if isinstance(handed, Record):
            return handed
        if handed is not None:
            try:
                raise handed
            finally:
                del handed  # its traceback holds this frame
        tally.checkout_timeouts += 1
        last = actor.last_failure
        raise CheckoutTimeout(limit or 0, self._situation(), last) from last

    def _check_open(self) -> None:
        if self._ledger.is_closed:
            raise PoolClosed

    def _check_own(self, conn: Connection) -> None:
        if not self._ledger.has(conn._record):
            raise Error("this connection is not one of this pool's")

    def _limit_of(self, timeout: float | _Default | None, name: str = "timeout") -> float | None:
        if isinstance(timeout, _Default):
            return self._limit
        return seconds(timeout, name)

    def _situation(self) -> str:
        # Not `statistics`, which looks at each connection: thousands of callers may time out at once.
        ledger, config = self._ledger, self._actor.config
        size = intended(ledger, config)
        text = (
            f"{size} connections: {ledger.idle} idle, {ledger.leased} leased, {ledger.opening_count} opening; "
            f"{ledger.waiting} in line"
        )
        return text + self._actor.cluster.waits_for()

    def _settling(self) -> int:
        return sum(record.settling for record in self._ledger)

    async def _until(self, condition: Callable[[], bool]) -> None:
        await checkpoint()
        while not condition():
            await self._actor.changed.wait()
