"""How long opening rests after a failure, and how many are tried at once after that. Pure: the random share is an
argument."""

from __future__ import annotations

FIRST = 1.0
"""Seconds after the first failure in a row. The rule of a second is eysql's; what follows is ours."""
LONGEST = 2.0
GROWTH = 1.5
SHARE = 0.1
"""The random share by which a pause is longer, so that the pools of many processes do not knock together."""


class Pause:
    """Counts the failures in a row, and what has opened since.

    Until something fails there is no limit to what is opened at once. A failure leaves one attempt at a time; from the
    first that succeeds on each success allows one more, so that whole rounds of them are 2, 4, 8 … wide. One success
    must not let everything go at once: a server that has no more room than for a few would turn the rest away, each
    time that a connection ends somewhere.
    """

    __slots__ = ("_width", "failures")

    def __init__(self) -> None:
        self.failures = 0
        self._width: int | None = None

    def next(self, random: float) -> float:
        """One more failure, after a rest; the seconds to wait. `random` is in [0, 1)."""
        base = LONGEST if self.failures > 8 else min(LONGEST, FIRST * GROWTH**self.failures)
        self.failures += 1
        self._width = 1
        return base * (1 + SHARE * random)

    def failed_too(self) -> None:
        """One more failure while opening rests already: what was under way with the first."""
        self.failures = max(self.failures, 1)
        self._width = 1

    def opened(self) -> None:
        """Something opened."""
        self.failures = 0
        if self._width is not None:
            self._width += 1

    def allows(self, missing: int, under_way: int) -> int:
        """How many of those that are missing may be started beside those that are under way."""
        return missing if self._width is None else max(0, min(missing, self._width - under_way))
