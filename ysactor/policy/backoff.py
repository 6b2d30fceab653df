"""How long a transaction waits before it is run again."""

from __future__ import annotations

FIRST_RETRY = 0.02
"""The longest wait before a transaction's second attempt, in seconds; each later one may be twice as long."""


def retry_wait(attempts: int, max_backoff: float, random: float) -> float:
    """Seconds to wait after `attempts` (1 or more) failed attempts at a transaction.

    It is random, from just above zero up to 20, 40, 80… ms, and never more than `max_backoff`; with a `max_backoff` of
    0 there is no wait. `random` is a draw from [0, 1).
    """
    longest = min(max_backoff, FIRST_RETRY * 2.0 ** min(attempts - 1, 64))
    return longest * (1 - random)
