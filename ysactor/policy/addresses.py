"""Whether servers are reached at their `host` or at their `public_ip`, from addresses that were resolved before.

The rule is the JDBC driver's (`LoadBalanceService.refresh`): row by row, in the order of the listing, the first row
that settles it decides for the life of the cluster. A name that does not resolve equals nothing, not even another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import IPv6Address, ip_address

from ..servers import HostPort, Server


class Column(Enum):
    """The column of the listing that is dialled."""

    HOST = "host"
    PUBLIC_IP = "public_ip"


@dataclass(frozen=True, slots=True)
class Choice:
    """The column in use. Once decided it stands; until then it is a guess, made again at each discovery."""

    column: Column = Column.HOST
    decided: bool = False


def choose(
    before: Choice, answered: str | None, servers: Sequence[Server], resolved: Mapping[str, str | None]
) -> Choice:
    """The column from now on.

    `answered` is the address of the name that the discovery dialled, `servers` the rows as listed, and `resolved` the
    address of each `host` and `public_ip` in them, None for one that does not resolve.
    """
    if before.decided:
        return before
    dialled = _plain(answered)
    for server in servers:
        host, public = _address(server.host, resolved), _address(server.public_ip, resolved)
        if host is not None and host == dialled:
            return Choice(Column.HOST, decided=True)
        if public is not None and public == dialled:
            return Choice(Column.PUBLIC_IP, decided=True)
        if host is not None and host == public:
            return Choice(Column.HOST, decided=True)
    everywhere = all(_address(server.public_ip, resolved) is not None for server in servers)
    return Choice(Column.PUBLIC_IP if servers and everywhere else Column.HOST)


def names(servers: Iterable[Server]) -> frozenset[str]:
    """The names that have to be resolved while the choice is open."""
    return frozenset(name for server in servers for name in (server.host, server.public_ip) if name)


def dialled(servers: Iterable[Server], column: Column) -> tuple[Server, ...]:
    """The servers by the address that is dialled. One without a `public_ip` is reached at its host either way.

    Two rows that come out as one host and port are one server: the first.
    """
    found: dict[HostPort, Server] = {}
    for server in servers:
        if column is Column.PUBLIC_IP and server.public_ip:
            server = replace(server, host=server.public_ip)
        found.setdefault(server.at, server)
    return tuple(found.values())


def _address(name: str, resolved: Mapping[str, str | None]) -> str | None:
    return _plain(resolved.get(name)) if name else None


def _plain(address: str | None) -> str | None:
    """One spelling for one address; IPv4-mapped IPv6 is the IPv4 address it maps, as in Java."""
    if address is None:
        return None
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(parsed)
