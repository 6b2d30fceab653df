"""How long opening rests after a failure. Pure: the random share is an argument."""

from __future__ import annotations

FIRST = 1.0
"""Seconds after the first failure in a row. The rule of a second is eysql's; what follows is ours."""
LONGEST = 2.0
GROWTH = 1.5
SHARE = 0.1
"""The random share by which a pause is longer, so that the pools of many processes do not knock together."""


class Pause:
    """Counts the failures in a row."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        self.failures = 0

    def next(self, random: float) -> float:
        """One more failure; the seconds to wait. `random` is in [0, 1)."""
        base = LONGEST if self.failures > 8 else min(LONGEST, FIRST * GROWTH**self.failures)
        self.failures += 1
        return base * (1 + SHARE * random)

    def reset(self) -> None:
        """Something opened."""
        self.failures = 0
