"""Where a connection may go, the seeds included: in what order they are used, and when they are refused.

`servers` is what was discovered, and empty until something has been: then the seeds are all there is, and every
mode takes them. A server and a seed of one host and port are one, with one failure and one turn per connection.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..config import Config, LoadBalance
from ..errors import Refused
from ..servers import HostPort, Server
from . import placement

_REFUSING: dict[LoadBalance, Refused] = {LoadBalance.ONLY_PRIMARY: "primary", LoadBalance.ONLY_RR: "read_replica"}


def refusal(config: Config, servers: Sequence[Server]) -> Refused | None:
    """What a connection that finds no server was looking for, in the modes that then leave the seeds out, else None.

    A seed may be a load balancer that leads to a server of any type in any zone; the JDBC driver refuses there too.
    The keys-only flag refuses only with keys, and only under `true` and `any`.
    """
    if not servers:
        return None
    if config.load_balance is LoadBalance.ANY and config.topology_keys and config.fallback_to_topology_keys_only:
        return "cluster"
    return _REFUSING.get(config.load_balance)


def as_server(at: HostPort, servers: Sequence[Server]) -> Server:
    """What is known of a host: its listed server, or a server of which nothing else is known."""
    return next((server for server in servers if server.at == at), Server(at.host, at.port))


def seed(config: Config, out: Collection[HostPort], tried: Collection[HostPort] = ()) -> HostPort | None:
    """The seed that is next: the first that has not failed, or, when all have, the first regardless.

    The last resort keeps work going after a cluster-wide blip, and lets a lone server that comes back take
    connections before a refresh has probed it.
    """
    untried = [at for at in config.hosts if at not in tried]
    return next((at for at in untried if at not in out), untried[0] if untried else None)


def places(
    config: Config, servers: Sequence[Server], out: Collection[HostPort], tried: Collection[HostPort] = ()
) -> tuple[Server, ...]:
    """Where a connection that has tried `tried` may go now; empty when there is nothing left.

    The eligible servers come first; then, unless the mode refuses, one seed: seeds are a list, never compared by load.
    """
    fit = [server for server in servers if server.at not in out and server.at not in tried]
    chosen = placement.candidates(config, fit)
    if chosen:
        return chosen
    if refusal(config, servers) is not None:
        return ()
    at = seed(config, out, tried)
    return () if at is None else (as_server(at, servers),)


def kept(config: Config, servers: Sequence[Server], out: Collection[HostPort]) -> frozenset[HostPort]:
    """The hosts on which a pool keeps connections.

    The seeds are among them while no listed server is up, unless the mode refuses them: the very first, and the
    first that is not out; all of them only while all are out.
    """
    own = frozenset(server.at for server in placement.kept(config, servers, lambda at: at not in out))
    alive = [server for server in servers if server.at not in out]
    if placement.candidates(config, alive) or refusal(config, servers) is not None:
        return own
    up = next((at for at in config.hosts if at not in out), None)
    return own | (frozenset(config.hosts) if up is None else {config.hosts[0], up})
