"""When a refresh may start, and who waits for one to end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ..servers import HostPort
from .effects import ArmRefresh, Effects, RefreshEnded

GAP = 1.0
"""Seconds that must have passed since a refresh *started* before a failure, or a discovery that is due again, may start
another: a busy pool must not hammer a dead cluster."""

Probe = tuple[HostPort, int]


@dataclass(slots=True)
class RefreshClock:
    """When the last refresh started, and which timer is the one that counts. `interval` 0: there is no timer."""

    interval: float
    started: float = 0.0
    due_again: bool = False
    """The last discovery failed: the next connection to be opened tries again."""
    armed: int = 0

    def may_follow_a_failure(self, now: float) -> bool:
        """Whether a failed connect starts a refresh. If not, it starts none: it is dropped, not postponed."""
        return now - self.started >= GAP

    def is_due(self, now: float) -> bool:
        """Whether a connection that is about to be opened starts a refresh in the background.

        A discovery that failed is tried again once a second at most, whatever the interval, 0 included.
        """
        return now - self.started >= (GAP if self.due_again else self.interval)

    def arm(self) -> Effects:
        """Set the timer for the full interval from now."""
        if not self.interval:
            return ()
        self.armed += 1
        return (ArmRefresh(self.armed, self.interval),)


@dataclass(slots=True)
class _Waiting:
    discovery: bool
    probes: set[Probe]


@dataclass(slots=True)
class RefreshTickets:
    """Those who asked for a refresh and wait for its end."""

    _last: int = 0
    _waiting: dict[int, _Waiting] = field(default_factory=dict[int, _Waiting])

    def issue(self, discovery: bool, probes: Collection[Probe]) -> tuple[int, Effects]:
        """A ticket for the discovery, if one is running, and these probes."""
        self._last += 1
        self._waiting[self._last] = _Waiting(discovery, set(probes))
        return self._last, self._settle()

    def discovery_ended(self, probes: Collection[Probe]) -> Effects:
        """The discovery has ended; the probes that it has started, and those still running, belong to it."""
        for waiting in self._waiting.values():
            if waiting.discovery:
                waiting.discovery = False
                waiting.probes.update(probes)
        return self._settle()

    def probe_ended(self, probe: Probe) -> Effects:
        """A probe has ended or was stopped."""
        for waiting in self._waiting.values():
            waiting.probes.discard(probe)
        return self._settle()

    def _settle(self) -> Effects:
        ended = [ticket for ticket, on in self._waiting.items() if not on.discovery and not on.probes]
        for ticket in ended:
            del self._waiting[ticket]
        return tuple(RefreshEnded(ticket) for ticket in ended)
