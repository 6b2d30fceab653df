"""How long a failed server stays out before it may be probed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ysactor.config import Config
from ysactor.policy.health import Record, delay, failed, is_due
from ysactor.servers import Kind


def config(base: int = 5, cap: int | None = None) -> Config:
    return Config(failed_host_reconnect_delay_secs=base, failed_host_max_delay_secs=cap)


@pytest.mark.parametrize(
    ("base", "cap", "failures", "seconds"),
    [
        (5, None, 1, 5),
        (5, None, 1000, 5),
        (0, None, 3, 0),
        (1, 30, 1, 1),
        (1, 30, 2, 2),
        (1, 30, 5, 16),
        (1, 30, 6, 30),
        (60, 60, 9, 60),
        (0, 30, 9, 0),
    ],
)
def test_the_delay_is_fixed_or_doubles_up_to_the_cap(base: int, cap: int | None, failures: int, seconds: float) -> None:
    assert delay(config(base, cap), failures) == seconds


@given(st.integers(1, 60), st.integers(0, 10**6), st.integers(1, 10**7))
def test_the_delay_stays_between_its_bounds_however_often_the_server_fails(base: int, more: int, failures: int) -> None:
    assert base <= delay(config(base, base + more), failures) <= base + more


def test_five_million_failures_take_no_longer_than_one() -> None:
    assert delay(config(1, 3600), 5_000_000) == 3600


def test_a_server_is_due_once_its_delay_has_passed() -> None:
    record = failed(config(5), None, Kind.REJECTED, attempt=1, latest=1, now=100)

    assert not is_due(record, 104.9)
    assert is_due(record, 105)


def test_trap_11_the_count_runs_on_through_changes_of_kind() -> None:
    cfg = config(1, 60)
    record = failed(cfg, None, Kind.UNREACHABLE, attempt=1, latest=1, now=0)
    record = failed(cfg, record, Kind.REJECTED, attempt=2, latest=2, now=10)
    record = failed(cfg, record, Kind.READ_ONLY, attempt=3, latest=3, now=20)

    assert record == Record(Kind.READ_ONLY, failures=3, due=24, latest=3)


def test_attempts_that_were_under_way_together_met_one_failure() -> None:
    cfg = config(1, 60)
    record = failed(cfg, None, Kind.UNREACHABLE, attempt=1, latest=3, now=0)
    record = failed(cfg, record, Kind.UNREACHABLE, attempt=2, latest=3, now=0)
    record = failed(cfg, record, Kind.UNREACHABLE, attempt=3, latest=3, now=1)

    assert record == Record(Kind.UNREACHABLE, failures=1, due=2, latest=3)
