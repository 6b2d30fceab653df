"""Which failures deserve a line, and in which words."""

from __future__ import annotations

import pytest

from ysactor.policy.notices import Notice, Run, ended, failed, opened
from ysactor.servers import HostPort, Kind

AT = HostPort("10.0.0.1", 5433)


def test_a_run_is_told_once_at_its_start() -> None:
    run, first = failed(None, AT, Kind.UNREACHABLE, "connection refused", 10)
    run, second = failed(run, AT, Kind.UNREACHABLE, "timeout", 20)

    assert first == Notice(
        "warning", "server 10.0.0.1:5433 is down: connection refused; it is left out until a refresh finds it back"
    )
    assert second is None
    assert run == Run(Kind.UNREACHABLE, 2, 20)


@pytest.mark.parametrize(
    ("kind", "level", "word", "end"),
    [
        (Kind.UNREACHABLE, "warning", "is down", "is back after 1 failure"),
        (Kind.REJECTED, "warning", "turns connections away", "takes connections again after 1 failure"),
        (Kind.READ_ONLY, "info", "accepts no writes: why", "accepts writes"),
    ],
)
def test_each_kind_has_its_own_words(kind: Kind, level: str, word: str, end: str) -> None:
    run, notice = failed(None, AT, kind, "why", 0)

    assert notice is not None
    assert notice.level == level
    assert word in notice.text
    assert ended(AT, run) == Notice("info", f"server {AT} {end}")


def test_a_rejected_login_is_never_called_down() -> None:
    _, notice = failed(None, AT, Kind.REJECTED, "password authentication failed", 0)

    assert notice is not None
    assert "down" not in notice.text


def test_a_change_of_kind_starts_a_new_run() -> None:
    run, _ = failed(None, AT, Kind.UNREACHABLE, "refused", 0)
    run, notice = failed(run, AT, Kind.REJECTED, "starting up", 1)

    assert notice is not None
    assert run == Run(Kind.REJECTED, 1, 1)


def test_a_run_ends_a_minute_after_its_last_failure_and_only_if_something_opened() -> None:
    run, _ = failed(None, AT, Kind.UNREACHABLE, "refused", 100)
    assert run.end is None

    run = opened(run)
    assert run.end == 160

    run, notice = failed(run, AT, Kind.UNREACHABLE, "refused", 130)
    assert notice is None
    assert run.end is None


def test_discovery_has_a_run_of_its_own_in_its_own_words() -> None:
    run, first = failed(None, "discovery", Kind.UNREACHABLE, "10.0.0.1:5433: refused", 0)
    run, second = failed(run, "discovery", Kind.UNREACHABLE, "10.0.0.1:5433: refused", 1)

    assert first is not None
    assert first.level == "warning"
    assert "list of servers" in first.text
    assert second is None
    assert ended("discovery", run) == Notice("info", "the list of servers can be read again after 2 failures")
