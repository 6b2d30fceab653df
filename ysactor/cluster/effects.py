"""What a change of the cluster's state asks of its actor. The actor carries them out in order, without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..policy.addresses import Choice
from ..policy.notices import Notice, Subject
from ..servers import HostPort


@dataclass(frozen=True, slots=True)
class StartDiscovery:
    """Ask these servers, in order, each once, for the list of servers."""

    seeds: tuple[HostPort, ...]
    others: tuple[HostPort, ...]
    """Listed servers, asked after the seeds; one that is down when its turn comes is passed over."""
    choice: Choice


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Probe a failed server."""

    at: HostPort
    number: int


@dataclass(frozen=True, slots=True)
class StopProbe:
    """End a probe: there is nothing left for it to tell, and its end is no failure."""

    at: HostPort
    number: int


@dataclass(frozen=True, slots=True)
class ArmRefresh:
    """Send `RefreshDue(number)` in so many seconds, instead of the one that is armed."""

    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ArmNotice:
    """Send `NoticeDue(subject, last)` in so many seconds."""

    subject: Subject
    last: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class RefreshEnded:
    """Answer whoever asked for a refresh and got this ticket."""

    ticket: int


Effect: TypeAlias = StartDiscovery | StartProbe | StopProbe | ArmRefresh | ArmNotice | Log | RefreshEnded
Effects: TypeAlias = Sequence[Effect]
