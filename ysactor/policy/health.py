"""What is known of a server that failed: as what it counts, how often in a row, and when a probe is due.

A server without a record is up. Only a failed attempt to connect makes a record, and only a connection that opened,
a probe's included, ends one: the end of the delay proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..servers import Kind


@dataclass(frozen=True, slots=True)
class Record:
    """A server's failures since a connection to it last opened. Times are readings of one monotonic clock."""

    kind: Kind
    """What the last attempt met decides it."""
    failures: int
    """In a row, through changes of kind, so that a doubling delay does not start over when down turns into rejected."""
    due: float
    """From when on a refresh probes the server."""
    latest: int
    """The number of the latest attempt, on any server, that had begun when the last failure was told."""


def failed(config: Config, before: Record | None, kind: Kind, *, attempt: int, latest: int, now: float) -> Record:
    """The record after one more failure: that of attempt number `attempt`, `latest` being the last that has begun.

    Attempts that were under way together when the server failed met one failure, not several in a row: one that
    began before the last failure was told restarts the delay, and does not double it. A report may come late, after
    a connection that opened meanwhile: it marks the server again all the same.
    """
    failures = 1 if before is None else before.failures + (attempt > before.latest)
    return Record(kind, failures, now + delay(config, failures), latest)


def delay(config: Config, failures: int) -> float:
    """Seconds until the first probe may come after so many failures in a row: fixed, or doubling up to a cap.

    A delay of 0 stays 0: the server is due at the next refresh. The doubling is bounded before it is computed, since
    a server may fail millions of times.
    """
    base, cap = config.failed_host_reconnect_delay_secs, config.failed_host_max_delay_secs
    if cap is None:
        return base
    return min(cap, base * 2.0 ** min(failures - 1, 64))


def is_due(record: Record, now: float) -> bool:
    """Whether a refresh now probes it."""
    return now >= record.due
