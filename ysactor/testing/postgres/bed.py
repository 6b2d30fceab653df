"""What every test bed offers, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ysactor.testing.postgres.configuration import USER, Role
from ysactor.testing.postgres.topology import Placement, ServerRow

Capability = Literal[
    "yb-servers",  # yb_servers() lists the servers
    "topology-edit",  # set_topology changes what it lists
    "topology-per-server",  # ...on each server by itself
    "shared-data",  # all servers show the same data, and all take writes
    "replication",  # one primary, the others are standbys that can be promoted
    "freeze",  # freeze and thaw
    "signals",  # the servers' processes can be signalled one by one
    "proxy",  # a fault proxy stands before each server
    "yugabyte",  # the real thing
]


@dataclass(frozen=True, slots=True)
class Member:
    """One server of a bed: where clients dial it, and where it stands."""

    host: str
    port: int
    placement: Placement

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def row(self, *, node_type: str = "primary", number: int = 0) -> ServerRow:
        """The row that ``yb_servers()`` has for it by default."""
        where = self.placement
        uuid = f"00000000-0000-4000-8000-{number:012}"
        return ServerRow(self.host, self.port, 0, node_type, where.cloud, where.region, where.zone, uuid=uuid)


class Bed(Protocol):
    """Servers that can be killed, frozen and brought back, by their number from 0.

    The methods return when the change has taken place. They wait in worker threads, ten seconds at most, and are not
    interrupted by cancellation: the bed is never left half changed.
    """

    @property
    def name(self) -> str: ...

    @property
    def members(self) -> Sequence[Member]: ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What a test may ask of the bed; one that asks for more is skipped."""
        ...

    @property
    def detect_s(self) -> float:
        """Seconds within which the bed itself reflects a change, such as a dead server missing in ``yb_servers()``."""
        ...

    async def kill(self, index: int) -> None:
        """The server is gone at once: its sessions break, and connecting is refused."""
        ...

    async def start(self, index: int) -> None:
        """Bring a killed server back; returns when it takes sessions."""
        ...

    async def freeze(self, index: int) -> None:
        """The server goes on accepting in TCP, and answers nothing."""
        ...

    async def thaw(self, index: int) -> None: ...

    async def set_topology(self, rows: Sequence[ServerRow], *, on: Iterable[int] | None = None) -> None:
        """Have ``yb_servers()`` return these rows, on the servers named or on all that run."""
        ...

    async def sessions(self, index: int, application_name: str) -> int:
        """How many sessions of that application the server has, as the server counts them."""
        ...

    def reset(self) -> None:
        """Make it as new, between tests: dead servers started, frozen ones thawed, ``yb_servers()`` and settings as at
        first, strangers' sessions ended, schema ``public`` empty. Synchronous."""
        ...


class Dialled:
    """How a bed's servers are written down for a client."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)

    @property
    def contact_points(self) -> list[str]:
        """``host:port`` of every server."""
        return [str(member) for member in self.members]

    def dsn(self, *indexes: int, role: Role = USER, database: str = USER.name) -> str:
        """A DSN with the servers named, in that order, or all of them."""
        chosen = [self.members[index] for index in indexes] if indexes else self.members
        secret = "" if role.password is None else f":{role.password}"
        return f"postgresql://{role.name}{secret}@{','.join(map(str, chosen))}/{database}"

    def rows(self, *, node_types: Sequence[str] = ()) -> list[ServerRow]:
        """A row for each server, all primaries unless told otherwise."""
        types = [*node_types, *["primary"] * len(self.members)]
        return [member.row(node_type=types[number], number=number) for number, member in enumerate(self.members)]
