"""What the demo's display shows at one moment, as data; whoever draws it needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import Config
from ..policy.topology import level_of
from ..servers import Server
from .bank import Outcome
from .events import Event

if TYPE_CHECKING:
    from ..cluster.info import ClusterInfo
    from ..pool.statistics import PoolStatistics
    from .load import Load


@dataclass(frozen=True, slots=True)
class ServerView:
    """One server's line."""

    at: str
    zone: str
    level: int | None
    """Its level in the topology keys."""
    state: str
    """``up``, ``down``, ``rejected`` or ``standby``, as ysactor takes it to be."""
    connections: int
    rate: float
    """Commits in the last second."""
    committed: int
    history: tuple[float, ...]
    """Commits per second, from the beginning of the load on."""


@dataclass(frozen=True, slots=True)
class View:
    """All of it."""

    title: str
    seconds: float
    """How long the load is meant to last."""
    elapsed: float
    servers: tuple[ServerView, ...]
    size: int
    """The connections that the pool means to have."""
    waiting: int
    committed: int
    retried: int
    unknown: int
    failed: int
    events: tuple[Event, ...]
    """Those since the load began."""

    @property
    def rate(self) -> float:
        """Commits in the last second, on all servers."""
        return sum(server.rate for server in self.servers)


def look(
    title: str,
    seconds: float,
    config: Config,
    load: Load,
    pool: PoolStatistics,
    info: ClusterInfo,
    events: Sequence[Event],
) -> View:
    """The view of this moment. Waits for nothing."""
    now = load.now
    lately = load.course.between(now - 1, now)
    states = state_names(info)

    def server_view(server: Server) -> ServerView:
        at = str(server)
        return ServerView(
            at=at,
            zone=server.zone or "-",
            level=level_of(server, config.topology_keys),
            state=states.get(server, "up"),
            connections=pool.by_host.get(at, 0),
            rate=float(lately[at]),
            committed=load.committed[at],
            history=load.course.history(at, now),
        )

    return View(
        title=title,
        seconds=seconds,
        elapsed=now,
        servers=tuple(map(server_view, info.servers)),
        size=pool.size,
        waiting=pool.waiting,
        committed=load.books.total(Outcome.COMMITTED),
        retried=pool.transactions_retried,
        unknown=load.books.total(Outcome.UNKNOWN),
        failed=load.books.total(Outcome.FAILED),
        events=tuple(event for event in events if event.at is not None),
    )


def state_names(info: ClusterInfo) -> dict[Server, str]:
    """The servers that are out, and in what way."""
    return {
        **dict.fromkeys(info.rejected, "rejected"),
        **dict.fromkeys(info.read_only, "read-only"),
        **dict.fromkeys(info.failed, "down"),
    }
