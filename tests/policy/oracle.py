"""Where a connection may go, told a second time: slowly, step by step, in the order in which the rule is written.

It shares nothing with `ysactor.policy`, neither code nor structure: no tiers, no folded keys, no servers of ours. A
server here is a row of `yb_servers()` as it comes, an address is a pair, a key is the text that the user wrote. It
exists to disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
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
    # The level that new connections use, with those of it that have failed: a failure moves nothing. While nothing is
    # up there is no such level: it is not "every level".
    if _accepted(world, up):
        stay.update(map(_address, _members(world, listed, _level(world, up))))
    # The level that they would use if no server had failed.
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


def _accepted(world: World, up: Sequence[Row]) -> Sequence[Row]:
    """Steps 2 and 3: the servers of the level that has one up."""
    return _members(world, up, _level(world, up))


Level: TypeAlias = tuple[str, int]
"""Which node type, or ``"any"``; and which preference level, or 0 for anywhere in the cluster."""


def _level(world: World, up: Sequence[Row]) -> Level | None:
    """The level that new connections use while these servers are up; none, if they may go to none of them."""
    anywhere_too = not (world.keys_only and _keys(world))
    match world.mode:
        case "any":
            return _lowest(world, up, "any", anywhere_too)
        case "only-primary":
            return _lowest(world, up, "primary", anywhere_too)
        case "only-rr":
            return _lowest(world, up, "read_replica", anywhere_too)
        case "prefer-primary":
            return _lowest(world, up, "primary", True) or ("read_replica", 0)
        case "prefer-rr":
            return _lowest(world, up, "read_replica", True) or ("primary", 0)
        case _:
            return None


def _lowest(world: World, up: Sequence[Row], node_type: str, anywhere_too: bool) -> Level | None:
    named = {level for _, level in _keys(world)}
    for level in range(1, 11):
        if level in named and _members(world, up, (node_type, level)):
            return node_type, level
    if anywhere_too and _members(world, up, (node_type, 0)):
        return node_type, 0
    return None


def _members(world: World, rows: Sequence[Row], level: Level | None) -> Sequence[Row]:
    if level is None:
        return []
    node_type, number = level
    if node_type == "primary":
        rows = [row for row in rows if row["node_type"] != "read_replica"]
    if node_type == "read_replica":
        rows = [row for row in rows if row["node_type"] == "read_replica"]
    if number == 0:
        return rows
    keys = [key for key, at in _keys(world) if at == number]
    return [row for row in rows if any(_matches(key, row) for key in keys)]


def _keys(world: World) -> Sequence[tuple[Sequence[str], int]]:
    return _read(world.keys)


@cache
def _read(text: str) -> Sequence[tuple[Sequence[str], int]]:
    keys = list[tuple[Sequence[str], int]]()
    for part in text.split(","):
        if part.strip():
            place, _, level = part.partition(":")
            keys.append((place.strip().split("."), int(level or "1")))
    return keys


def _matches(key: Sequence[str], row: Row) -> bool:
    """A name is compared without regard to case; only a zone can be any."""
    cloud, region, zone = key
    return _same(cloud, row["cloud"]) and _same(region, row["region"]) and (zone == "*" or _same(zone, row["zone"]))


def _same(name: str, of_row: str | None) -> bool:
    return name.casefold() == (of_row or "").casefold()
