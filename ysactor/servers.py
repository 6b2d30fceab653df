"""The vocabulary of servers: what is dialled, what a server is, what an opening failed of.

Imports nothing of ours, so that every layer may use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias

NodeType: TypeAlias = Literal["primary", "read_replica"]
"""What `yb_servers()` calls a server's type. Anything but ``read_replica`` is a primary."""


class HostPort(NamedTuple):
    """A server's identity: what is dialled. Two servers on one address differ by their port.

    `host` is a name, an address, or, when it starts with ``/``, a Unix socket directory.
    """

    host: str
    port: int

    def __str__(self) -> str:
        if ":" in self.host and not self.host.startswith("/"):
            return f"[{self.host}]:{self.port}"
        return f"{self.host}:{self.port}"

    @property
    def is_unix(self) -> bool:
        """Whether this is a socket directory rather than a network address."""
        return self.host.startswith(("/", "@"))

    @property
    def unix_path(self) -> str:
        """The socket's file in the directory, as PostgreSQL names it."""
        directory = f"\0{self.host[1:]}" if self.host.startswith("@") else self.host
        return f"{directory}/.s.PGSQL.{self.port}"


@dataclass(frozen=True, slots=True)
class Server:
    """A database server, as `yb_servers()` lists it or as a seed is known."""

    host: str
    """The host that is dialled: the listing's `host` or `public_ip`, whichever was decided."""
    port: int
    cloud: str = ""
    region: str = ""
    zone: str = ""
    node_type: NodeType = "primary"
    public_ip: str = ""

    @property
    def at(self) -> HostPort:
        """The server's identity."""
        return HostPort(self.host, self.port)

    def __str__(self) -> str:
        return str(self.at)


class Kind(Enum):
    """What a failed attempt to connect says about its server."""

    UNREACHABLE = "unreachable"
    """It could not be connected to: it is down."""
    REJECTED = "rejected"
    """It answered, and turned the connection away."""
    READ_ONLY = "read_only"
    """It is a standby, or read-only by default, and a server that accepts writes was asked for."""


class Counts(Mapping[str, int]):
    """Connections per server, keyed ``"host:port"``; a `Server` or a `HostPort` serves as a key as well."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Mapping[HostPort, int]) -> None:
        self._counts = {str(at): count for at, count in counts.items()}

    def __getitem__(self, key: object) -> int:
        return self._counts[str(key)]

    def __contains__(self, key: object) -> bool:
        return str(key) in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return repr(self._counts)
