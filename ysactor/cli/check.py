"""``ysactor check``: what a connection would do, and why; then it makes one."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from ..client import open_cluster_of
from ..config import Config, LoadBalance
from ..errors import ConnectFailed, Error
from ..policy.classify import is_drivers
from ..policy.explain import explain
from ..servers import HostPort, Kind
from .events import Events, listening
from .findings import UNVISITED, Findings, Made, Source, Visit

if TYPE_CHECKING:
    from ..client import Cluster
    from ..cluster.info import ClusterInfo
    from ..connection.handle import Connection

_LOOK = """SELECT pg_catalog.pg_is_in_recovery() AS standby,
  (SELECT sum(numbackends) FROM pg_catalog.pg_stat_database) - 1 AS sessions"""


async def check(config: Config, limit: float) -> Findings:
    """Find it all out, in `limit` seconds at most. Every server is dialled once, by itself, and nothing is changed."""
    visits: dict[HostPort, Visit] = {}
    made: Made | None = None
    error: str | None = f"none was open after {limit:g} s"
    # What it would log is what is found out here.
    with listening(Events(lambda _: None)):
        async with open_cluster_of(config, None, Random()) as cluster:
            with trio.move_on_after(limit):
                await cluster.refresh()
                listed = [server.at for server in cluster.info().servers]
                async with trio.open_nursery() as nursery:
                    for at in dict.fromkeys([*listed, *config.hosts]):
                        nursery.start_soon(_visit, config, at, visits)
                made, error = await _connect(cluster)
            info = cluster.info()
    failed = {at: visit.kind for at, visit in visits.items() if visit.kind is not None}
    return Findings(
        config=config,
        source=_source(config, info),
        explanation=explain(config, info.servers if info.discovered else (), failed, lambda _: 0),
        visits=visits,
        made=made,
        error=error,
    )


def _source(config: Config, info: ClusterInfo) -> Source:
    if info.discovered:
        return "yb_servers"
    if config.load_balance is LoadBalance.OFF:
        return "off"
    return "not yugabyte" if info.mode == "static" else "unknown"


async def _visit(config: Config, at: HostPort, visits: dict[HostPort, Visit]) -> None:
    """Dial one server as the pool would, with nothing to fall back to."""
    alone = replace(config, hosts=(at,), load_balance=LoadBalance.OFF)
    began = trio.current_time()
    visit = UNVISITED
    try:
        async with open_cluster_of(alone, None, Random()) as cluster, cluster.connect() as conn:
            visits[at] = visit = Visit(seconds=trio.current_time() - began)
            row = await conn.fetchrow(_LOOK)
            visit = replace(visit, standby=row["standby"], sessions=int(row["sessions"]))
    except ConnectFailed as failure:
        visit = Visit(Kind(failure.kind), _detail(failure))
    except Exception as error:
        if not isinstance(error, Error) and not is_drivers(error):
            raise
        # It opened, and that is what counts; what it did not want to tell is left out.
    visits[at] = visit


def _detail(failure: ConnectFailed) -> str:
    """The failure without what the row says already."""
    text = str(failure)
    _, colon, rest = text.removeprefix(f"server {failure.server} ").partition(": ")
    return rest if colon else ""


async def _connect(cluster: Cluster) -> tuple[Made | None, str | None]:
    """A connection, placed as the options say; or why there is none."""
    began = trio.current_time()
    try:
        async with cluster.connect() as conn:
            return _made(conn, trio.current_time() - began), None
    except Error as error:
        cause = error.__cause__
        return None, f"{error} ({cause})" if isinstance(cause, ConnectFailed) else str(error)


def _made(conn: Connection, seconds: float) -> Made:
    # asyncpg has no public name for the transport of a connection.
    transport: Any = getattr(conn.raw, "_transport", None)
    tls: Any = None if transport is None else transport.get_extra_info("ssl_object")
    version: str = conn.get_settings().server_version
    return Made(conn.server, seconds, version, None if tls is None else str(tls.version()))
