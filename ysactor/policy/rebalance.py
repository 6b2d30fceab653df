"""Which connections a rebalance moves: off servers that are not kept, or else from the busiest to the quietest.

Moving is closing: the pool opens another connection, and that one goes where placement says. The two steps differ.
Draining takes idle connections first, then marks leased ones to close when they come back, the batch counting both.
Levelling happens only when nothing has to be drained, and takes idle ones only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
    opening: Mapping[HostPort, int] | None = None,
) -> Plan:
    """One rebalance. `opening` is how many connections are just being opened to each server.

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
        close, level = _level(held, usable, batch, opening or {})
        return Plan(close=close, unmark=unmark, level=level)
    idle = [one.number for one in strays if not one.leased]
    leased = [one.number for one in strays if one.leased and not one.marked]
    close = tuple(idle[:batch])
    return Plan(close=close, mark=tuple(leased[: batch - len(close)]), unmark=unmark)


def _level(
    held: Iterable[Held], usable: frozenset[HostPort], batch: int, opening: Mapping[HostPort, int]
) -> tuple[tuple[int, ...], dict[HostPort, int]]:
    """The idle connections to close on the busiest server, when it holds two or more above the quietest.

    Leased ones count and are not moved. Connections that are being opened count as well: a pool that is just filling
    up is not out of balance. Half the gap is enough, since each one that moves narrows it by two.
    """
    movable = [one for one in held if one.at in usable]
    loads = Counter({at: opening.get(at, 0) for at in usable})
    loads.update(one.at for one in movable)
    most, least = max(loads.values()), min(loads.values())
    if most - least < 2:
        return (), {}
    idle: dict[HostPort, list[int]] = {at: [] for at in usable if loads[at] == most}
    for one in movable:
        if not one.leased and one.at in idle:
            idle[one.at].append(one.number)
    # Of several that are equally busy, the one with the most to give; the lowest address where that ties as well.
    at = min(idle, key=lambda each: (-len(idle[each]), each))
    wanted = min(batch, (most - least) // 2)
    close = tuple(sorted(idle[at])[:wanted])
    return close, {at: wanted - len(close)} if len(close) < wanted else {}
