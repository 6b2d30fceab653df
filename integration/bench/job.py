"""What a contender's process is told, as one line of JSON, and what it says."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

Metrics = dict[str, float]
"""By name: ``wall`` and ``cpu`` are seconds for one operation, others are what their work says."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server is. It lets the user in without a password."""

    host: str
    """An address, or the directory of a Unix socket."""
    port: int
    tcp_host: str
    """The address all the same, for who cannot do Unix sockets."""
    user: str
    database: str
    authority: str | None = None
    """The file of the authority to check certificates by; None: no TLS."""


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement."""

    work: str
    contender: str
    endpoint: Endpoint
    seconds: float
    """How long to measure, about."""
    idle_seconds: float
    megabytes: int
    """For COPY."""
    core: int | None = None
    """Where to run; None: anywhere."""
    mode: Literal["time", "profile", "count"] = "time"
    output: str = ""
    """Where a profile is written."""
    operations: int = 0
    """How many to run, where they are counted and not timed."""

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Job:
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "endpoint": Endpoint(**fields["endpoint"])})
