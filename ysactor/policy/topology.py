"""Topology keys: which servers a key names, and which level a server is preferred at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..config import TopologyKey
from ..servers import Server

ANY_ZONE = "*"
"""As a key's zone it names every zone of the region. As a cloud or a region it is a name like any other."""


def matches(key: TopologyKey, server: Server) -> bool:
    """Whether the key names the server's placement. Names are compared without regard to case, as JDBC's are.

    A key's names are folded when the options are read; a server's are folded here. A part that the listing left
    empty equals no name.
    """
    if server.cloud.casefold() != key.cloud or server.region.casefold() != key.region:
        return False
    return key.zone == ANY_ZONE or server.zone.casefold() == key.zone


def level_of(server: Server, keys: Iterable[TopologyKey]) -> int | None:
    """The most preferred level whose keys name the server; None if no key does. A key may repeat at several levels."""
    return min((key.level for key in keys if matches(key, server)), default=None)


def first_level(servers: Iterable[Server], keys: Sequence[TopologyKey]) -> int | None:
    """The most preferred level that has one of the servers; None if none has, or if there are no keys."""
    levels = (level_of(server, keys) for server in servers)
    return min((level for level in levels if level is not None), default=None)


def in_level(server: Server, keys: Iterable[TopologyKey], level: int) -> bool:
    """Whether one of the level's keys names the server."""
    return any(key.level == level and matches(key, server) for key in keys)
