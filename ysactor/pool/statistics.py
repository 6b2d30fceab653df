"""What `pool.statistics()` shows: gauges of this moment, and counters since the pool was opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..connection.record import Place

if TYPE_CHECKING:
    from ..config import Config
    from .ledger import Ledger


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot. At rest ``idle + leased + opening == size``; while servers cannot be reached the sum is smaller."""

    size: int
    """How many connections the pool means to have: `pool_size`, or, where it is elastic, as many as it has, from
    `min_size` to `max_size`."""
    idle: int
    leased: int
    """Held by a caller, or being put right after one (`settling`)."""
    opening: int
    waiting: int
    """Callers in line."""
    draining: int
    """Leased ones that will be closed when they come back, because their server is no longer kept."""
    settling: int
    """Those of `leased` that no caller holds any more: the server is being told to stop what a cancelled one left."""
    closing: int
    """Given up, their sockets not yet gone."""
    by_host: Mapping[str, int]
    """Open connections (idle and leased) per server, keyed ``"host:port"``."""

    checkouts: int
    """Connections handed to a caller, single statements included."""
    checkout_timeouts: int
    """Callers that left the line because `checkout_timeout` ran out."""
    checkouts_cancelled: int
    """Callers that were cancelled in line."""
    checkouts_refused: int
    """Callers that were refused: overload, a failed opening with nothing else to wait for, or the pool's end."""
    connections_opened: int
    openings_failed: int
    connections_closed: Mapping[str, int]
    """By reason: ``lost`` (the server ended it), ``socket_timeout``, ``expired`` (`max_lifetime`), ``idle``
    (`idle_timeout`), ``rebalanced``, ``read_only`` (its server accepts no writes any more), ``in_transaction`` (given
    back inside one), ``busy`` (given back in a call), ``unsettled`` (not usable within `cancel_timeout`),
    ``discarded``, ``pool_closed``."""
    transactions_committed: int
    """Of `pool.transaction`, as the three after it; blocks of `conn.transaction()` are not counted."""
    transactions_rolled_back: int
    transactions_retried: int
    """Runs of a transaction's function after the first."""
    commits_unknown: int
    """COMMITs whose answer was lost."""


@dataclass(slots=True)
class Tally:
    """The counters while they run. Each is raised by whoever sees the event, in the same step as the event."""

    checkout_timeouts: int = 0
    checkouts_cancelled: int = 0
    checkouts_refused: int = 0
    connections_opened: int = 0
    openings_failed: int = 0
    transactions_committed: int = 0
    transactions_rolled_back: int = 0
    transactions_retried: int = 0
    commits_unknown: int = 0
    closed: Counter[str] = field(default_factory=Counter[str])


def intended(ledger: Ledger, config: Config) -> int:
    """`PoolStatistics.size`."""
    return min(max(config.min_size, ledger.total), config.max_size)


def snapshot(ledger: Ledger, tally: Tally, config: Config) -> PoolStatistics:
    """What they say now."""
    by_host: Counter[str] = Counter()
    draining = settling = 0
    for record in ledger:
        if record.place is Place.IDLE or record.place is Place.LEASED:
            by_host[str(record.at)] += 1
            draining += record.marked == "rebalanced" and record.place is Place.LEASED
            settling += record.settling
    return PoolStatistics(
        size=intended(ledger, config),
        idle=ledger.idle,
        leased=ledger.leased,
        opening=ledger.opening_count,
        waiting=ledger.waiting,
        draining=draining,
        settling=settling,
        closing=ledger.closing,
        by_host=dict(by_host),
        checkouts=ledger.leases,
        checkout_timeouts=tally.checkout_timeouts,
        checkouts_cancelled=tally.checkouts_cancelled,
        checkouts_refused=tally.checkouts_refused,
        connections_opened=tally.connections_opened,
        openings_failed=tally.openings_failed,
        connections_closed=dict(tally.closed),
        transactions_committed=tally.transactions_committed,
        transactions_rolled_back=tally.transactions_rolled_back,
        transactions_retried=tally.transactions_retried,
        commits_unknown=tally.commits_unknown,
    )
