"""Why a connection would go where it goes: every server with its level, its load and the reason, as records.

The words are the command line's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ..config import Config
from ..errors import Refused
from ..servers import HostPort, Kind, Server
from . import fallback, placement
from .topology import level_of


class Reason(Enum):
    """Why a server is, or is not, one that a new connection may go to."""

    TAKEN = "taken"
    """A candidate that holds the fewest connections. Several that tie are all marked; chance decides among them."""
    BUSIER = "busier"
    """A candidate, but another holds fewer connections."""
    OUT = "out"
    """It has failed; `kind` says how."""
    WRONG_TYPE = "wrong type"
    """It is of a node type that the mode does not take, or not while there is one of the preferred type."""
    LESS_PREFERRED = "less preferred"
    """Its level is used only when the more preferred ones have no server."""
    OUTSIDE_KEYS = "outside keys"
    """No key names it, and a level of the keys has a server, or only the keys' servers may be used."""
    SEED_TAKEN = "seed taken"
    """A seed: the first that works, because no discovered server can be used, or none is known."""
    SEED_LAST_RESORT = "seed as last resort"
    """A seed that has failed, tried regardless because all have."""
    SEED_IN_RESERVE = "seed in reserve"
    """A seed that is used only when the places before it fail."""
    SEED_REFUSED = "seed refused"
    """A seed that is not a listed server, in a mode that uses the listed servers and nothing else."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One server, listed or configured."""

    server: Server
    reason: Reason
    level: int | None
    """Its level in the topology keys; None if no key names it."""
    load: int
    """The connections held or being opened to it, by this client."""
    kind: Kind | None
    """As what it counts if it has failed, whatever the reason says."""
    listed: bool
    """Whether `yb_servers()` lists it; otherwise it is known only as a seed."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a new connection would go, and why."""

    findings: tuple[Finding, ...]
    """The listed servers in the listing's order, then the seeds that are not listed, in their order."""
    taken: tuple[Server, ...]
    """Where it would go first; several where chance decides. Empty: it would be refused."""
    refused: Refused | None
    """What it would be refused for (`NoNodeAvailable.node_type`), if `taken` is empty."""
    level: int | None
    """The level of the keys in use; None: the keys are not what decides."""


def explain(
    config: Config,
    servers: Sequence[Server],
    failed: Mapping[HostPort, Kind],
    load: Callable[[HostPort], int],
) -> Explanation:
    """Say of every server whether a new connection may go to it. `servers` are those discovered, if any."""
    alive = [server for server in servers if server.at not in failed]
    eligible = placement.candidates(config, alive)
    places = fallback.places(config, servers, failed)
    taken = placement.least_loaded(eligible, load) if eligible else places
    tier = placement.tier(config, alive) if alive else None
    listed = {server.at for server in servers}
    seeds = [fallback.as_server(at, ()) for at in dict.fromkeys(config.hosts) if at not in listed]
    refused = fallback.refusal(config, servers)

    def listed_reason(server: Server) -> Reason:
        if server in eligible:
            return Reason.TAKEN if server in taken else Reason.BUSIER
        if server in taken:
            return Reason.SEED_LAST_RESORT if server.at in failed else Reason.SEED_TAKEN
        if server.at in failed:
            return Reason.OUT
        wanted = tier.node_type if tier is not None else placement.WANTED[config.load_balance]
        if wanted is not None and server.node_type != wanted:
            return Reason.WRONG_TYPE
        return Reason.OUTSIDE_KEYS if level_of(server, config.topology_keys) is None else Reason.LESS_PREFERRED

    def seed_reason(server: Server) -> Reason:
        if server in taken:
            return Reason.SEED_LAST_RESORT if server.at in failed else Reason.SEED_TAKEN
        if refused is not None:
            return Reason.SEED_REFUSED
        return Reason.OUT if server.at in failed else Reason.SEED_IN_RESERVE

    def finding(server: Server, reason: Reason) -> Finding:
        level = level_of(server, config.topology_keys)
        return Finding(server, reason, level, load(server.at), failed.get(server.at), server.at in listed)

    return Explanation(
        findings=(
            *(finding(server, listed_reason(server)) for server in servers),
            *(finding(server, seed_reason(server)) for server in seeds),
        ),
        taken=taken,
        refused=None if taken else refused,
        level=tier.level if tier is not None and eligible else None,
    )
