"""What the cluster's actor is told and asked. Requests are imperative, events past participles, timers end in Due.

A place in the cluster is taken by a `Reservation`. Whoever was given one reports exactly one of `Opened`,
`OpenFailed` and `GaveUp`, and after `Opened`, once the socket has ended, `Released`. What gives a place back is a cast,
so that it may stand in the `finally` of a cancelled task; one that comes twice, or for an old reservation, changes
nothing. Where a reply comes with a report, it says that the report has been taken in, and shows in the snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ..actor import Reply
from ..errors import Refused
from ..policy.addresses import Choice
from ..policy.notices import Subject
from ..servers import HostPort, Kind, Server


@dataclass(frozen=True, slots=True)
class Reservation:
    """One place on one server, counted from the moment it was chosen until it is given back."""

    number: int
    """Never used again."""
    server: Server
    """The server as it was known when it was chosen."""

    @property
    def at(self) -> HostPort:
        """What is dialled."""
        return self.server.at


@dataclass(frozen=True, slots=True)
class Failure:
    """A known failure of one attempt to connect."""

    kind: Kind
    error: BaseException = field(compare=False)
    """The driver's own error."""
    detail: str
    """The reason in words; no secret is in it."""
    tells: bool = True
    """Whether it tells something of the server, which is then marked. That there was no password tells nothing."""


@dataclass(frozen=True, slots=True)
class Nowhere:
    """No server is left for this connection."""

    refused: Refused | None
    """What it was looking for, in a mode that refuses the seeds; None where everything has been tried."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A discovery that succeeded."""

    by: HostPort
    """The server that answered."""
    servers: tuple[Server, ...]
    """By the addresses that are dialled. Empty: the server lists none, and those known are kept."""
    choice: Choice
    skipped: int = 0
    """Rows without a usable host or port."""


@dataclass(frozen=True, slots=True)
class NotYugabyte:
    """A server answered that it has no `yb_servers()`: there is nothing to discover, now or later."""

    by: HostPort


@dataclass(frozen=True, slots=True)
class NoListing:
    """A discovery that failed on every server it asked."""

    detail: str


Discovered: TypeAlias = Listing | NotYugabyte | NoListing


# Requests


@dataclass(frozen=True, slots=True)
class Place:
    """Choose a server for a connection and count the connection there.

    Answered once the first discovery has ended, either way. The connection that has tried nothing yet is the one
    that starts a refresh which is due.
    """

    tried: frozenset[HostPort]
    """The servers this connection has tried; none is tried twice."""
    reply: Reply[Reservation | Nowhere]


@dataclass(frozen=True, slots=True)
class Refresh:
    """Refresh now. Answered when the discovery and the probes have ended, whatever came of them."""

    reply: Reply[None]


@dataclass(frozen=True, slots=True)
class Recheck:
    """Probe this server, though it has not failed: it has refused a write. Answered when that probe has ended."""

    at: HostPort
    reply: Reply[None]


# Events


@dataclass(frozen=True, slots=True)
class Opened:
    """The reservation's connection is open, its session set up."""

    reservation: Reservation
    reply: Reply[None]


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """The reservation's attempt failed in a way that says something about the server."""

    reservation: Reservation
    failure: Failure


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The reservation's attempt was cancelled, or ended by something that says nothing about the server: the user's own
    functions, or a bug."""

    reservation: Reservation
    is_unfit: bool = False
    """Whether it was the set-up of the session that failed by itself: nothing is to be moved there for now."""


@dataclass(frozen=True, slots=True)
class Released:
    """The reservation's socket has ended."""

    reservation: Reservation
    reply: Reply[None] | None = None


@dataclass(frozen=True, slots=True)
class DiscoveryEnded:
    """The discovery that was running has ended."""

    result: Discovered


@dataclass(frozen=True, slots=True)
class ProbeOpened:
    """A probe's connection opened and passed its checks; the probe now closes it."""

    at: HostPort
    number: int


@dataclass(frozen=True, slots=True)
class ProbeEnded:
    """A probe has ended and holds no connection any more."""

    at: HostPort
    number: int
    failure: Failure | None
    """None: it had opened, or tells nothing of the server."""


# Timers


@dataclass(frozen=True, slots=True)
class RefreshDue:
    """The interval has passed. A number that is not the last one armed is ignored."""

    number: int


@dataclass(frozen=True, slots=True)
class NoticeDue:
    """A run of failures may have ended: a minute has passed since the failure at `last`."""

    subject: Subject
    last: float


ClusterMessage: TypeAlias = (
    Place
    | Refresh
    | Recheck
    | Opened
    | OpenFailed
    | GaveUp
    | Released
    | DiscoveryEnded
    | ProbeOpened
    | ProbeEnded
    | RefreshDue
    | NoticeDue
)
