"""What the cluster shows of itself: a snapshot for people, and a view for the rebalancer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..servers import Counts, HostPort, Server


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A snapshot of the cluster as this client knows it. It holds no secret.

    Servers are sorted by host and port. A configured host that `yb_servers()` does not list shows as
    ``Server(host, port)``.
    """

    mode: Literal["discovering", "static"]
    """``"static"``: there is nothing to discover, because `load_balance` is off or this is not YugabyteDB."""
    discovered: bool
    """Whether servers have been discovered."""
    servers: tuple[Server, ...]
    """The servers: those discovered, or else the configured hosts."""
    placement: tuple[Server, ...]
    """Where a new connection may go now. Empty: it would be refused."""
    allowed: tuple[Server, ...]
    """The servers on which a pool keeps connections."""
    failed: tuple[Server, ...]
    """The servers that are down: they could not be connected to, and no connection to them has opened since."""
    read_only: tuple[Server, ...]
    """The servers that `target_session_attrs` turned away because they accept no writes: standbys, and those where
    `default_transaction_read_only` is on."""
    rejected: tuple[Server, ...]
    """The servers that answered, and failed a connection otherwise."""
    counts: Counts
    """Open connections by server. Servers that are not listed any more are in it until their connections end."""
    pending: Counts
    """Connections that are just being opened, by server. A probe's or a discovery's connection is in neither."""


@dataclass(frozen=True, slots=True)
class View:
    """Where a pool's connections should be, for its rebalancing."""

    placement: frozenset[HostPort]
    """Where a new connection may go now; a server that is out is among them only as the last resort."""
    kept: frozenset[HostPort]
    """Where connections stay: `ClusterInfo.allowed`."""
    out: frozenset[HostPort]
    """The servers that have failed, of whatever kind, and those where the last connection was given up as its own
    set-up failed. These take new connections, all the same, but nothing is to be closed for their sake."""
    load: Mapping[HostPort, int]
    """How many connections this client has, being opened or open, on each server of `placement`: what placement goes
    by. A pool's are among them, and those that are no pool's."""
