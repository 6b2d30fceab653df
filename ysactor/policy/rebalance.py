"""Which connections a rebalance moves: off servers that are not kept, or else from the busiest to the quietest.

Moving is closing: the pool opens another connection, and that one goes where placement says. The two steps differ.
Draining takes idle connections first, then marks leased ones to close when they come back, the batch counting both.
Levelling happens only when nothing has to be drained, and takes idle ones only. It goes by the counts that placement
goes by, which are the client's, and by what is yet to be placed: a connection is moved only if that puts it on another
server and makes the spread better. By the pool's own counts it would close, for ever, what placement opens on the same
server again, as soon as the client has other connections somewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..servers import HostPort


@dataclass(frozen=True, slots=True)
class Held:
    """One open connection of the pool."""

    number: int
    at: HostPort
    leased: bool
    marked: bool = False
    """Whether it is marked to close when it comes back."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, by connection number: close at once, mark, drop the mark."""

    close: tuple[int, ...] = ()
    mark: tuple[int, ...] = ()
    unmark: tuple[int, ...] = ()
    level: Mapping[HostPort, int] = field(default_factory=dict[HostPort, int])
    """How many more of a server's connections levelling would have closed, had they been idle."""


def plan(
    held: Sequence[Held],
    *,
    placement: Collection[HostPort],
    kept: Collection[HostPort],
    out: Collection[HostPort],
    batch: int,
    load: Mapping[HostPort, int],
    unplaced: int,
) -> Plan:
    """One rebalance. `load` is how many connections the client has on each server, of whatever kind: those in `held`,
    those that are being opened, those that are not the pool's; but not those that the pool is closing. `unplaced` is
    how many the pool is about to open, in the place of these and others.

    It does nothing at all when no server is kept. When new connections have no server to go to that is up it moves
    nothing, as what it closed would have nowhere to be opened again; marks lapse all the same.
    """
    # Marks are recomputed, not remembered: whoever is on a server that is kept again may stay.
    unmark = tuple(one.number for one in held if one.marked and one.at in kept)
    usable = frozenset(placement).difference(out)
    if not kept or not usable:
        return Plan(unmark=unmark)
    strays = [one for one in held if one.at not in kept]
    if not strays:
        close, level = _level(held, usable, batch, load, unplaced)
        return Plan(close=close, unmark=unmark, level=level)
    idle = [one.number for one in strays if not one.leased]
    leased = [one.number for one in strays if one.leased and not one.marked]
    close = tuple(idle[:batch])
    return Plan(close=close, mark=tuple(leased[: batch - len(close)]), unmark=unmark)


def _level(
    held: Sequence[Held], usable: frozenset[HostPort], batch: int, load: Mapping[HostPort, int], unplaced: int
) -> tuple[tuple[int, ...], dict[HostPort, int]]:
    """The idle connections to close on the busiest server that the pool has any on, when that server holds two or more
    above the quietest.

    Leased ones count and are not moved. Connections that are being opened count as well, and those yet to be placed
    where placement will put them: a pool that is just filling up is not out of balance.

    Half the gap is enough, since each one that moves narrows it by two. With no more than that, the server that gives
    stays above the quietest until all have been placed, so that none comes back to it; and what has been placed is on a
    server that is at most one above the quietest, so that it is not moved again.
    """
    loads = {at: load.get(at, 0) for at in usable}
    idle: dict[HostPort, list[int]] = {}
    for one in held:
        if one.at in usable:
            numbers = idle.setdefault(one.at, [])
            if not one.leased:
                numbers.append(one.number)
    least = _lowest(loads.values(), unplaced)
    most = max((loads[at] for at in idle), default=least)
    if most - least < 2:
        return (), {}
    # Of several that are equally busy, the one with the most to give; the lowest address where that ties as well.
    at = min((each for each in idle if loads[each] == most), key=lambda each: (-len(idle[each]), each))
    wanted = min(batch, (most - least) // 2, sum(one.at == at for one in held))
    close = tuple(sorted(idle[at])[:wanted])
    return close, {at: wanted - len(close)} if len(close) < wanted else {}


def _lowest(loads: Iterable[int], more: int) -> int:
    """The fewest connections on any server once so many more have been placed, each where there are the fewest."""
    ascending = sorted(loads)
    for servers, (low, high) in enumerate(pairwise(ascending), 1):
        room = servers * (high - low)
        if more < room:
            return low + more // servers
        more -= room
    return ascending[-1] + more // len(ascending)
