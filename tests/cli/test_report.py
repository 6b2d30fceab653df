"""The verdict in words and as JSON: a success only if nothing at all is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from ysactor.cli.bank import Audit, Money
from ysactor.cli.events import Event
from ysactor.cli.report import Failover, Result, as_json, words

SOUND = Audit(
    committed=12,
    unknown_present=1,
    unknown_absent=2,
    cut_off_present=0,
    cut_off_absent=0,
    lost=(),
    doubled=(),
    undead=(),
    strangers=(),
    altered=(),
    misplaced=(),
    money=(Money("a:1", 100, 100), Money("b:1", 100, 100)),
    wrong_accounts=(),
    negative=(),
)
GOOD = Result(
    seconds=8.0,
    seed=5,
    audit=SOUND,
    failed=0,
    declined=1,
    retried=3,
    by_server={"a:1": 7, "b:1": 5},
    errors={},
    failover=Failover("a:1", "zone-a", elsewhere=5, longest_gap=0.25, seconds_back=2.0),
    events=(Event(1.0, "something"),),
)


def test_the_verdict_gives_the_numbers() -> None:
    text = "\n".join(words(GOOD))
    for part in (
        "Nothing lost: 12 transfers",
        "200 in all",
        "3 runs retried",
        "3 of unknown outcome (1 turned out committed, 2 not)",
        "1 declined",
        "longest gap without a commit was 0.25 s",
        "back 2.0 s after the restart",
    ):
        assert part in text
    assert text.endswith("Verdict: passed")
    assert GOOD.ok


def lost(good: Result) -> Result:
    return replace(good, audit=replace(SOUND, lost=(3,)))


def wrong_sum(good: Result) -> Result:
    return replace(good, audit=replace(SOUND, money=(Money("a:1", 100, 99),)))


def nothing_done(good: Result) -> Result:
    return replace(good, audit=replace(SOUND, committed=0))


def no_failover(good: Result) -> Result:
    return replace(good, failover=Failover("a:1", "zone-a", 0, 3.0, 2.0))


def no_return(good: Result) -> Result:
    return replace(good, failover=Failover("a:1", "zone-a", 5, 0.1, None))


def left_behind(good: Result) -> Result:
    return replace(good, clean_up="schema x may still be there")


@pytest.mark.parametrize("harm", [lost, wrong_sum, nothing_done, no_failover, no_return, left_behind])
def test_one_thing_wrong_is_enough(harm: Callable[[Result], Result]) -> None:
    bad = harm(GOOD)
    assert not bad.ok
    assert len(bad.problems) == 1
    assert words(bad)[-2:] == [f"PROBLEM: {bad.problems[0]}", "Verdict: FAILED"]
    assert as_json(bad)["ok"] is False


def test_with_a_fault_in_the_books_it_is_not_said_that_nothing_is_lost() -> None:
    assert not any("Nothing lost" in line for line in words(lost(GOOD)))


def test_nothing_killed_is_no_failover_to_speak_of() -> None:
    quiet = replace(GOOD, failover=None)
    assert quiet.ok
    assert not any("Failover" in line for line in words(quiet))


def test_what_transfers_failed_of_is_said() -> None:
    assert any("failed of: disk full (4 times)" in line for line in words(replace(GOOD, errors={"disk full": 4})))


def test_json_is_json_and_has_the_numbers() -> None:
    told = json.loads(json.dumps(as_json(GOOD)))
    assert told["transfers"]["unknown"] == {"present": 1, "absent": 2}
    assert told["failover"]["longest_gap"] == 0.25
    assert told["money"][0] == {"where": "a:1", "expected": 100, "found": 100}
    assert told["events"] == [{"at": 1.0, "text": "something"}]
