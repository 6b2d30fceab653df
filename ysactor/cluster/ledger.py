"""How many connections this client has on each server: chosen and being opened, or open. Never below zero.

A place is counted when it is chosen, so that thirty openings at once do not all find the same server the quietest,
and given back by its own number, so that nothing that comes late or twice can be counted twice. A server that is no
longer listed keeps its count until its connections have ended: if it comes back, it starts from the truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..servers import Counts, HostPort, Server
from .messages import Reservation
from .quietest import Quietest


class Ledger:
    """The reservations, and their sums by server. Plain data, no clock."""

    __slots__ = ("_last", "_open", "_open_at", "_pending", "_pending_at", "_quietest")

    def __init__(self) -> None:
        self._last = 0
        self._pending: dict[int, tuple[HostPort, float]] = {}
        self._open: dict[int, HostPort] = {}
        self._pending_at = Counter[HostPort]()
        self._open_at = Counter[HostPort]()
        self._quietest = Quietest((), self.load)

    @property
    def last(self) -> int:
        """The number that was given out last."""
        return self._last

    def next_number(self) -> int:
        """A number that orders an attempt among all others, a probe's included."""
        self._last += 1
        return self._last

    def reserve(self, server: Server, now: float) -> Reservation:
        """Count a connection that is about to be opened, from `now` on."""
        number, at = self.next_number(), server.at
        self._pending[number] = at, now
        self._pending_at[at] += 1
        self._quietest.moved(at, 1)
        return Reservation(number, server)

    def opened(self, reservation: Reservation) -> bool:
        """A reserved connection is open. False: it was not reserved any more, and nothing changes."""
        pending = self._pending.pop(reservation.number, None)
        if pending is None:
            return False
        at, _ = pending
        _less(self._pending_at, at)
        self._open[reservation.number] = at
        self._open_at[at] += 1
        return True

    def give_back(self, reservation: Reservation) -> bool:
        """A reserved connection will not be. False: it was not reserved any more."""
        pending = self._pending.pop(reservation.number, None)
        if pending is None:
            return False
        at, _ = pending
        _less(self._pending_at, at)
        self._quietest.moved(at, -1)
        return True

    def released(self, reservation: Reservation) -> bool:
        """An open connection has ended. False: it was not counted any more."""
        at = self._open.pop(reservation.number, None)
        if at is None:
            return False
        _less(self._open_at, at)
        self._quietest.moved(at, -1)
        return True

    def load(self, at: HostPort) -> int:
        """The connections to a server, being opened or open."""
        return self._pending_at[at] + self._open_at[at]

    def quietest(self, servers: tuple[Server, ...]) -> Sequence[Server]:
        """Those of these servers, each there once, with the fewest connections. To be read at once.

        It looks at every server when it is asked about another tuple than the last time, and at none otherwise.
        """
        if self._quietest.of is not servers:
            self._quietest = Quietest(servers, self.load)
        return self._quietest.servers

    def under_way(self) -> dict[HostPort, float]:
        """Since when a connection has been being opened, by server: the oldest of each, the oldest first."""
        since: dict[HostPort, float] = {}
        for at, began in self._pending.values():
            since.setdefault(at, began)
        return since

    def counts(self, servers: tuple[Server, ...]) -> Counts:
        """Open connections by server; these servers are in it even when they have none."""
        return _counts(self._open_at, servers)

    def pending(self, servers: tuple[Server, ...]) -> Counts:
        """Connections being opened by server; these servers are in it even when they have none."""
        return _counts(self._pending_at, servers)


def _less(counter: Counter[HostPort], at: HostPort) -> None:
    counter[at] -= 1
    if not counter[at]:
        del counter[at]


def _counts(counter: Counter[HostPort], servers: tuple[Server, ...]) -> Counts:
    places = sorted({server.at for server in servers} | set(counter))
    return Counts({at: counter[at] for at in places})
