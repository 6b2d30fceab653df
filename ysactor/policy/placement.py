"""Which listed servers a new connection may go to, and which one it takes.

Node type comes before the keys: the levels are tried with the wanted type's servers only, so that a zone holding
only the other type does not count as a match. The order is the one the smart drivers document.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..config import Config, LoadBalance, TopologyKey
from ..servers import HostPort, NodeType, Server
from .topology import first_level, in_level

Chooser: TypeAlias = Callable[[Sequence[Server]], Server]
"""Takes one of several servers that are equally good; never called with none."""

WANTED: Mapping[LoadBalance, NodeType | None] = {
    LoadBalance.OFF: None,
    LoadBalance.ANY: None,
    LoadBalance.ONLY_PRIMARY: "primary",
    LoadBalance.ONLY_RR: "read_replica",
    LoadBalance.PREFER_PRIMARY: "primary",
    LoadBalance.PREFER_RR: "read_replica",
}
"""The node type each mode takes, or takes first; None is any."""

OTHERWISE: Mapping[LoadBalance, NodeType] = {
    LoadBalance.PREFER_PRIMARY: "read_replica",
    LoadBalance.PREFER_RR: "primary",
}
"""The node type taken when there is none of the wanted one."""


@dataclass(frozen=True, slots=True)
class Tier:
    """The servers that are equally preferred: those of a type, in a level of the keys or anywhere."""

    node_type: NodeType | None
    level: int | None
    """The level of the keys; None is anywhere in the cluster."""

    def holds(self, server: Server, keys: Collection[TopologyKey]) -> bool:
        """Whether the server belongs to it, up or not."""
        if self.node_type is not None and server.node_type != self.node_type:
            return False
        return self.level is None or in_level(server, keys, self.level)


def tier(config: Config, servers: Sequence[Server]) -> Tier | None:
    """Where new connections go if exactly these servers are up; None if the options forbid all of them.

    `prefer-*`: for the type that is only the second choice the keys are not looked at at all, and
    `fallback_to_topology_keys_only` does not apply.
    """
    mode, keys = config.load_balance, config.topology_keys
    wanted = WANTED[mode]
    own = [server for server in servers if wanted is None or server.node_type == wanted]
    if not own and mode in OTHERWISE:
        return Tier(OTHERWISE[mode], None)
    level = first_level(own, keys)
    if level is None and keys and config.fallback_to_topology_keys_only and mode not in OTHERWISE:
        return None
    return Tier(wanted, level)


def candidates(config: Config, servers: Sequence[Server]) -> tuple[Server, ...]:
    """Of these servers, all up, the ones that a new connection may go to, in the order given."""
    chosen = tier(config, servers)
    if chosen is None:
        return ()
    return tuple(server for server in servers if chosen.holds(server, config.topology_keys))


def least_loaded(servers: Sequence[Server], load: Callable[[HostPort], int]) -> tuple[Server, ...]:
    """The servers that hold the fewest connections, all of them when they tie. Empty only for none."""
    loads = [load(server.at) for server in servers]
    least = min(loads, default=0)
    return tuple(server for server, held in zip(servers, loads, strict=True) if held == least)


def pick(servers: Sequence[Server], load: Callable[[HostPort], int], choose: Chooser) -> Server:
    """The server with the fewest connections. A tie goes through the chooser.

    At random, that is, as in the JDBC driver: many clients with a connection each must not all meet on the first row.
    """
    return choose(least_loaded(servers, load))


def kept(config: Config, servers: Sequence[Server], up: Callable[[HostPort], bool]) -> tuple[Server, ...]:
    """The listed servers on which a pool keeps its connections: the union of two tiers.

    They are the tier in use now, and the one that would be in use were nothing out; each whole, failed members
    included, so that a failure alone moves nothing. While no candidate is up there is no tier in use: computed over
    no servers it would come out as the whole cluster, and everything would be kept.
    """
    alive = [server for server in servers if up(server.at)]
    tiers = {tier(config, servers)}
    if candidates(config, alive):
        tiers.add(tier(config, alive))
    keys = config.topology_keys
    return tuple(server for server in servers if any(t is not None and t.holds(server, keys) for t in tiers))
