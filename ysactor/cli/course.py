"""When things happen in the demo, and what the times of the commits say about it. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

LEAST_SECONDS = 8.0
"""In less, a server cannot be seen to fail and to come back."""
MOST_SECONDS = 3600.0
DEFAULT_SECONDS = 20.0
SPANS = 60
"""Into how many spans the time of the load is divided for the charts."""
GRACE = 15.0
"""Seconds for which the load goes on, past its time, while it is not back on the server that was restarted."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Seconds since the load began."""

    kill: float
    restart: float
    end: float
    rebalance_interval: float
    """One connection is moved in each, so that the load is seen to come back bit by bit."""

    @classmethod
    def over(cls, seconds: float) -> Schedule:
        """A quarter before the fault, a quarter without the server, and half for its return."""
        return cls(seconds / 4, seconds / 2, seconds, min(max(seconds / 40, 0.1), 1.0))


@dataclass(slots=True)
class Course:
    """What happened and when, in seconds since the load began."""

    width: float
    """Commits are also counted by spans of so many seconds, for the chart."""
    times: list[float] = field(default_factory=list[float])
    """When each commit was reported, in order."""
    by: list[str] = field(default_factory=list[str])
    """The server that each was reported by."""
    killed: float | None = None
    restarted: float | None = None
    back: float | None = None
    """When every connection was on the server again that was restarted."""
    ended: float | None = None
    _bins: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])

    def committed(self, server: str, now: float) -> None:
        """A commit was reported."""
        self.times.append(now)
        self.by.append(server)
        self._bins[server, int(now / self.width)] += 1

    def between(self, start: float, end: float) -> Counter[str]:
        """The commits from one moment to another, by server."""
        return Counter(self.by[bisect_left(self.times, start) : bisect_left(self.times, end)])

    def history(self, server: str, now: float) -> tuple[float, ...]:
        """Commits per second in each span that is over."""
        return tuple(self._bins[server, number] / self.width for number in range(int(now / self.width)))

    def longest_gap(self) -> float | None:
        """The longest time without a commit while the server was down; None if none was killed."""
        if self.killed is None:
            return None
        end = self.ended if self.restarted is None else self.restarted
        stop = max(self.times[-1] if self.times else 0.0, self.killed) if end is None else end
        first = max(bisect_left(self.times, self.killed) - 1, 0)
        # The last commit before the fault opens the first gap, the first after the restart closes the last.
        last = bisect_left(self.times, stop) + 1
        marks = self.times[first:last]
        if not marks or marks[-1] < stop:
            marks = [*marks, stop]
        if marks[0] > self.killed:
            marks = [self.killed, *marks]
        return max((later - earlier for earlier, later in pairwise(marks)), default=0.0)

    def elsewhere(self, victim: str) -> int:
        """The commits on other servers while the server was down."""
        if self.killed is None:
            return 0
        end = self.restarted if self.restarted is not None else float("inf")
        return sum(count for server, count in self.between(self.killed, end).items() if server != victim)

    def seconds_back(self) -> float | None:
        """From the restart until every connection was back; None if they were not."""
        return None if self.restarted is None or self.back is None else self.back - self.restarted
