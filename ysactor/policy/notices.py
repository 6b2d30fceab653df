"""Which change deserves which log line: one line at the start of a run of failures, one at its end.

A run is a server's failures of one kind. It ends once a connection to the server has opened since its last failure
*and* a minute has passed since that failure, so that a server that flaps stays in one run, and one that nobody tries
has not shown that it works. A failure of another kind starts a new run, in words that say which. Discovery's failures
are one more run. A standby is expected rather than a fault: its lines are at info.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..servers import HostPort, Kind

WINDOW = 60.0
"""Seconds without a failure that end a run. YugabyteDB takes as long to declare a server dead, so that a restart is one
run."""

Level: TypeAlias = Literal["debug", "info", "warning"]
Subject: TypeAlias = HostPort | Literal["discovery"]
"""What a run is about: a server, or the discovery."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for the log."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run of failures."""

    kind: Kind
    failures: int
    last: float
    """When the last failure was."""
    opened: bool = False
    """Whether a connection has opened since then."""

    @property
    def end(self) -> float | None:
        """When it ends if nothing fails until then; None while no connection has opened."""
        return self.last + WINDOW if self.opened else None


_STARTS: Mapping[Kind, tuple[Level, str]] = {
    Kind.UNREACHABLE: ("warning", "server {at} is down: {detail}; it is left out until a refresh finds it back"),
    Kind.REJECTED: (
        "warning",
        "server {at} answers but turns connections away: {detail}; it is left out until it takes them again",
    ),
    Kind.READ_ONLY: (
        "info",
        "server {at} accepts no writes: {detail}; it is left out until it does",
    ),
}
_ENDS: Mapping[Kind, str] = {
    Kind.UNREACHABLE: "server {at} is back after {count}",
    Kind.REJECTED: "server {at} takes connections again after {count}",
    Kind.READ_ONLY: "server {at} accepts writes",
}


def failed(before: Run | None, subject: Subject, kind: Kind, detail: str, now: float) -> tuple[Run, Notice | None]:
    """The run after a failure, and the line that it deserves, if any. A discovery's kind is always UNREACHABLE."""
    if before is not None and before.kind is kind:
        return Run(kind, before.failures + 1, now), None
    return Run(kind, 1, now), _start(subject, kind, detail)


def opened(before: Run) -> Run:
    """The run after a connection has opened, or a discovery has succeeded."""
    return Run(before.kind, before.failures, before.last, opened=True)


def ended(subject: Subject, run: Run) -> Notice:
    """The line at a run's end."""
    count = "1 failure" if run.failures == 1 else f"{run.failures} failures"
    if isinstance(subject, HostPort):
        return Notice("info", _ENDS[run.kind].format(at=subject, count=count))
    return Notice("info", f"the list of servers can be read again after {count}")


def _start(subject: Subject, kind: Kind, detail: str) -> Notice:
    if isinstance(subject, HostPort):
        level, words = _STARTS[kind]
        return Notice(level, words.format(at=subject, detail=detail))
    return Notice(
        "warning",
        f"the list of servers could not be read: {detail}; the servers known are used, and it is tried again as "
        "connections are opened",
    )
