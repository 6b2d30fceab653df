"""The rows of `yb_servers()`, as servers. Pure.

Columns are read by name: the function's width differs by version. A text that is NULL is empty, and a node type that is
not `read_replica` is a primary. A row is of use only with a host and a port.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..servers import Server

QUERY = "SELECT host, port, node_type, cloud, region, zone, public_ip FROM yb_servers()"
"""Not schema-qualified: on YugabyteDB the function is in pg_catalog, in an emulation wherever it was created."""


def parse(rows: Iterable[Mapping[str, Any]]) -> tuple[tuple[Server, ...], int]:
    """The servers in the order listed, by the host as listed, and how many rows were of no use."""
    servers: list[Server] = []
    skipped = 0
    for row in rows:
        host, port = _text(row["host"]).strip(), _port(row["port"])
        if not host or port is None:
            skipped += 1
            continue
        servers.append(
            Server(
                host,
                port,
                _text(row["cloud"]),
                _text(row["region"]),
                _text(row["zone"]),
                "read_replica" if _text(row["node_type"]).casefold() == "read_replica" else "primary",
                _text(row["public_ip"]).strip(),
            )
        )
    return tuple(servers), skipped


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _port(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < 65536 else None
