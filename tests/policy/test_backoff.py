"""How long a transaction waits before it is run again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ysactor.policy.backoff import retry_wait


@pytest.mark.parametrize(("attempts", "longest"), [(1, 0.02), (2, 0.04), (3, 0.08), (6, 0.5), (10**9, 0.5)])
def test_trap_19_a_retry_waits_up_to_twice_as_long_each_time_and_never_longer_than_the_cap(
    attempts: int, longest: float
) -> None:
    assert retry_wait(attempts, 0.5, 0.0) == longest
    assert retry_wait(attempts, 0.5, 0.5) == longest / 2


@given(st.integers(1, 10**9), st.floats(0.001, 10), st.floats(0, 1, exclude_max=True))
def test_a_retry_always_waits_a_little(attempts: int, cap: float, random: float) -> None:
    assert 0 < retry_wait(attempts, cap, random) <= cap


def test_a_cap_of_zero_is_no_wait() -> None:
    assert retry_wait(3, 0, 0.3) == 0
