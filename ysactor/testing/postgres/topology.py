"""``yb_servers()`` for servers that are not YugabyteDB's: a function over a table that a test may edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from ysactor.testing.postgres import wire


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a server stands."""

    cloud: str = "aws"
    region: str = "us-east-1"
    zone: str = "us-east-1a"


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One row of ``yb_servers()``, in the order of its columns. None is NULL, which a server may give for placement."""

    host: str
    port: int
    num_connections: int = 0
    node_type: str | None = "primary"
    cloud: str | None = "aws"
    region: str | None = "us-east-1"
    zone: str | None = "us-east-1a"
    public_ip: str | None = ""
    uuid: str | None = None
    universe_uuid: str | None = "testbed"


_COLUMNS = """host text, port bigint, num_connections bigint, node_type text, cloud text, region text, zone text,
  public_ip text, uuid text, universe_uuid text"""

SETUP = f"""
create schema yb_fake;

create table yb_fake.servers({_COLUMNS}, ord int generated always as identity);

create function pg_catalog.yb_servers({", ".join(f"out {column.strip()}" for column in _COLUMNS.split(","))})
  returns setof record language sql stable as $$
  select host, port, num_connections, node_type, cloud, region, zone, public_ip, uuid, universe_uuid
  from yb_fake.servers order by ord $$;

grant usage on schema yb_fake to public;

grant select on yb_fake.servers to public;

"""
"""For a fresh database. In ``pg_catalog``, as in YugabyteDB: found whatever the session's search path is."""


def three_zones(count: int) -> tuple[Placement, ...]:
    """One zone of one region for each server: us-east-1a, us-east-1b and so on."""
    return tuple(Placement(zone=f"us-east-1{chr(ord('a') + number)}") for number in range(count))


def rewrite(rows: Sequence[ServerRow]) -> list[str]:
    """Statements that make ``yb_servers()`` return these rows, in this order, at one moment."""

    def literal(value: object) -> str:
        return "null" if value is None else wire.quote(str(value))

    values = ", ".join(f"({', '.join(map(literal, astuple(row)))})" for row in rows)
    names = "host, port, num_connections, node_type, cloud, region, zone, public_ip, uuid, universe_uuid"
    insert = f"; insert into yb_fake.servers({names}) values {values}" if rows else ""
    # Sent as one message, so the server runs it as one transaction: no reader sees the table empty.
    return [f"delete from yb_fake.servers{insert}"]
