"""What the times of the commits say about a failover."""

from __future__ import annotations

import pytest

from ysactor.cli.course import LEAST_SECONDS, Course, Schedule
from ysactor.cli.demo import Cast


def course_of(commits: list[tuple[float, str]], **facts: float) -> Course:
    course = Course(1.0)
    for time, server in commits:
        course.committed(server, time)
    for name, value in facts.items():
        setattr(course, name, value)
    return course


@pytest.mark.parametrize(
    ("times", "killed", "restarted", "gap"),
    [
        ([1, 2, 3, 4, 5], 2.5, 4.5, 1.0),
        ([1, 2, 4.5, 5, 6], 2.5, 6.5, 2.5),  # from the last commit before the fault to the first after it
        ([1, 2, 2.6, 8, 9], 2.5, 4.0, 5.4),  # one that begins while the server is down counts to its end
        ([0, 7, 7.5, 8, 8.5], 7.2, 8.2, 0.5),  # one that had ended before does not count
        ([1, 2, 3, 9, 19], 2.5, 3.5, 6.0),  # nor does one that begins after the restart
        ([1, 2], 2.5, 6.5, 4.5),  # nothing more came at all
        ([], 2.5, 6.5, 4.0),
    ],
)
def test_the_longest_gap_is_the_one_that_the_fault_made(
    times: list[float], killed: float, restarted: float, gap: float
) -> None:
    course = course_of([(time, "a") for time in times], killed=killed, restarted=restarted)
    assert course.longest_gap() == pytest.approx(gap)


def test_without_a_fault_there_is_no_gap_to_speak_of() -> None:
    assert course_of([(1, "a"), (9, "a")]).longest_gap() is None


def test_only_commits_of_other_servers_while_one_is_down_are_elsewhere() -> None:
    commits = [(1.0, "b"), (2.0, "a"), (3.0, "b"), (3.5, "c"), (3.6, "a"), (5.0, "b")]
    assert course_of(commits, killed=2.5, restarted=4.0).elsewhere("a") == 2
    assert course_of(commits).elsewhere("a") == 0


def test_the_way_back_is_counted_from_the_restart() -> None:
    assert course_of([], restarted=4.0, back=6.5).seconds_back() == 2.5
    assert course_of([], restarted=4.0).seconds_back() is None


def test_the_history_holds_the_spans_that_are_over() -> None:
    course = course_of([(0.1, "a"), (0.9, "a"), (1.5, "b"), (2.5, "a")])
    assert course.history("a", 2.9) == (2.0, 0.0)
    assert course.history("b", 3.0) == (0.0, 1.0, 0.0)


@pytest.mark.parametrize("seconds", [LEAST_SECONDS, 20.0, 600.0])
def test_the_schedule_scales_and_leaves_time_for_the_return(seconds: float) -> None:
    schedule = Schedule.over(seconds)
    assert 0 < schedule.kill < schedule.restart < schedule.end == seconds
    # A refresh and the failed server's delay, a second each, and one connection after the other.
    assert schedule.end - schedule.restart > 2 + 8 * schedule.rebalance_interval - 0.7


def test_the_seed_decides_which_server_is_preferred() -> None:
    assert Cast.drawn(3, 7) == Cast.drawn(3, 7)
    assert {Cast.drawn(3, seed).preferred for seed in range(20)} == {0, 1, 2}
    for seed in range(20):
        cast = Cast.drawn(3, seed)
        assert sorted(cast.order) == [0, 1, 2]
        assert cast.order[0] == cast.preferred != cast.order[-1]
