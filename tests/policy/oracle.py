"""Where a connection may go, told a second time: slowly, step by step, in the order in which the rule is written.

It shares nothing with `ysactor.policy`, neither code nor structure: no tiers, no folded keys, no servers of ours. A
server here is a row of `yb_servers()` as it comes, an address is a pair, a key is the text that the user wrote. It
exists to disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Address: TypeAlias = tuple[str, int]
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class World:
    """All that the answer depends on."""

    hosts: Sequence[Address]
    """The hosts that were configured, in order."""
    mode: str
    """`load_balance`, hyphenated; ``"false"`` and ``"any"`` among them."""
    keys: str = ""
    keys_only: bool = False
    rows: Sequence[Row] = ()
    """What the last discovery that listed anything has listed; empty before that, and where there is no discovery."""
    out: frozenset[Address] = frozenset()
    """The servers that have failed, in whatever way."""
    load: Mapping[Address, int] = field(default_factory=dict[Address, int])
    tried: frozenset[Address] = frozenset()
    """What this very connection has tried."""


@dataclass(frozen=True)
class Refusal:
    """Nothing is left, and the seeds are not for this mode."""

    node_type: str


@dataclass(frozen=True)
class LastError:
    """Everything has been tried: what the last attempt met comes out."""


def may_go(world: World) -> frozenset[Address] | Refusal | LastError:
    """The servers one of which takes the connection: several only if they are tied."""
    accepted = _accepted(world, [row for row in _listed(world) if _address(row) not in world.out | world.tried])
    if accepted:
        fewest = min(world.load.get(_address(row), 0) for row in accepted)
        return frozenset(_address(row) for row in accepted if world.load.get(_address(row), 0) == fewest)
    if (refused := _refused(world)) is not None:
        return Refusal(refused)
    # The first seed that works; if every one has failed, the first regardless. None that was tried.
    for host in world.hosts:
        if host not in world.out and host not in world.tried:
            return frozenset({host})
    for host in world.hosts:
        if host not in world.tried:
            return frozenset({host})
    return LastError()


def placement(world: World) -> frozenset[Address]:
    """Where new connections go now, whatever the load."""
    fresh = replace(world, tried=frozenset())
    accepted = _accepted(fresh, [row for row in _listed(fresh) if _address(row) not in fresh.out])
    if accepted:
        return frozenset(map(_address, accepted))
    seed = may_go(fresh)
    return seed if isinstance(seed, frozenset) else frozenset()


def kept(world: World) -> frozenset[Address]:
    """The servers on which connections stay."""
    listed = _listed(world)
    up = [row for row in listed if _address(row) not in world.out]
    stay = set[Address]()
    # The level that new connections use. With nothing up there is none: it is not "every level".
    if up:
        stay.update(map(_address, _accepted(world, up)))
    # The level that they would use if no server had failed.
    if listed:
        stay.update(map(_address, _accepted(world, listed)))
    # The seeds, while no discovered server is up: the first, and the first that is up. All, while none is.
    if not up and _refused(world) is None:
        working = [host for host in world.hosts if host not in world.out]
        stay.update([world.hosts[0], working[0]] if working else world.hosts)
    return frozenset(stay)


def _listed(world: World) -> Sequence[Row]:
    return () if world.mode == "false" else world.rows


def _address(row: Row) -> Address:
    return row["host"], row["port"]


def _refused(world: World) -> str | None:
    """What is missing when no server is left, in the modes that leave the seeds out once servers are discovered."""
    if not _listed(world):
        return None
    if world.mode == "only-primary":
        return "primary"
    if world.mode == "only-rr":
        return "read_replica"
    if world.mode == "any" and world.keys_only and _keys(world):
        return "cluster"
    return None


def _accepted(world: World, rows: Sequence[Row]) -> Sequence[Row]:
    """Steps 2 and 3, of rows that are not out."""
    primaries = [row for row in rows if row["node_type"] != "read_replica"]
    replicas = [row for row in rows if row["node_type"] == "read_replica"]
    match world.mode:
        case "false":
            return []
        case "any":
            return _by_level(world, rows, otherwise=[] if world.keys_only else rows)
        case "only-primary":
            return _by_level(world, primaries, otherwise=[] if world.keys_only else primaries)
        case "only-rr":
            return _by_level(world, replicas, otherwise=[] if world.keys_only else replicas)
        case "prefer-primary":
            return _by_level(world, primaries, otherwise=primaries) or replicas
        case "prefer-rr":
            return _by_level(world, replicas, otherwise=replicas) or primaries
        case _:
            raise AssertionError(world.mode)


def _by_level(world: World, rows: Sequence[Row], otherwise: Sequence[Row]) -> Sequence[Row]:
    keys = _keys(world)
    if not keys:
        return rows
    for level in range(1, 11):
        in_it = [row for row in rows if any(_matches(key, row) for key, at in keys if at == level)]
        if in_it:
            return in_it
    return otherwise


def _keys(world: World) -> list[tuple[list[str], int]]:
    keys = list[tuple[list[str], int]]()
    for part in world.keys.split(","):
        if part.strip():
            place, _, level = part.partition(":")
            keys.append((place.strip().split("."), int(level or "1")))
    return keys


def _matches(key: Sequence[str], row: Row) -> bool:
    """A name is compared without regard to case; only a zone can be any."""
    cloud, region, zone = key
    return (
        _same(cloud, row["cloud"])
        and _same(region, row["region"])
        and (zone == "*" or _same(zone, row["zone"]))
    )


def _same(name: str, of_row: str | None) -> bool:
    return name.casefold() == (of_row or "").casefold()


def order(world: World, ties: Iterable[int] = ()) -> tuple[list[Address], Refusal | LastError]:
    """The servers that a connection tries when every attempt fails, and how it ends. `ties` settles ties in turn."""
    turns = iter(ties)
    tried = list[Address]()
    while True:
        place = may_go(world)
        if not isinstance(place, frozenset):
            return tried, place
        tied = sorted(place)
        at = tied[next(turns, 0) % len(tied)]
        tried.append(at)
        world = replace(world, out=world.out | {at}, tried=world.tried | {at})
