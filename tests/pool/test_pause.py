"""How opening slows down after a failure, and how it gets going again."""

from __future__ import annotations

import pytest

from ysactor.pool.pause import Pause


def after(course: str) -> Pause:
    """`f`: a failure and a rest. `F`: one while opening rests already. `o`: something opened."""
    pause = Pause()
    for event in course:
        match event:
            case "f":
                pause.next(0.0)
            case "F":
                pause.failed_too()
            case _:
                pause.opened()
    return pause


@pytest.mark.parametrize(
    ("course", "under_way", "allowed"),
    [
        ("", 0, 100),
        ("ooo", 50, 100),
        ("f", 0, 1),
        ("f", 1, 0),
        ("fff", 0, 1),
        ("fFFF", 0, 1),
        ("f", 7, 0),
        ("fo", 0, 2),
        ("fo", 1, 1),
        ("fooo", 0, 4),
        ("fooooooo", 0, 8),
        ("fooof", 0, 1),
        ("fooF", 0, 1),
        ("foFo", 0, 2),
        ("f" + "o" * 200, 0, 100),
    ],
)
def test_after_a_failure_it_is_one_at_a_time_and_then_one_more_for_each_that_opens(
    course: str, under_way: int, allowed: int
) -> None:
    assert after(course).allows(100, under_way) == allowed


def test_whole_rounds_double() -> None:
    pause = after("f")
    rounds: list[int] = []
    missing = 30
    while missing:
        rounds.append(pause.allows(missing, 0))
        missing -= rounds[-1]
        for _ in range(rounds[-1]):
            pause.opened()
    assert rounds == [1, 2, 4, 8, 15]


@pytest.mark.parametrize("under_way", [0, 1, 5])
def test_no_more_is_started_than_is_missing(under_way: int) -> None:
    assert after("").allows(3, under_way) == 3
    assert after("f" + "o" * 20).allows(3, under_way) == 3
    assert after("fo").allows(0, under_way) == 0


@pytest.mark.parametrize(("course", "failures"), [("", 0), ("ff", 2), ("fFF", 1), ("ffo", 0), ("foF", 1)])
def test_whether_the_last_attempt_failed(course: str, failures: int) -> None:
    assert after(course).failures == failures


@pytest.mark.parametrize(("course", "rest"), [("", 1.0), ("f", 1.5), ("ff", 2.0), ("f" * 2000, 2.0), ("fffo", 1.0)])
def test_the_rest_grows_with_the_failures_in_a_row_and_stays_short(course: str, rest: float) -> None:
    assert after(course).next(0.0) == rest
    assert rest < after(course).next(0.99) < rest * 1.1
