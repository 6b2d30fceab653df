"""What is drawn, and the same in plain lines."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from ysactor.cli.display import chart, render
from ysactor.cli.events import Event
from ysactor.cli.lines import event_line, progress
from ysactor.cli.view import ServerView, View


def view(**changes: object) -> View:
    servers = (
        ServerView("127.0.0.1:21000", "zone-a", 1, "down", 0, 0.0, 1204, (300.0,) * 20 + (0.0,) * 10),
        ServerView("[::1]:21000", "zone-b", 2, "up", 8, 312.0, 640, (0.0,) * 20 + (310.0,) * 10),
    )
    values: dict[str, object] = {
        "title": "a title",
        "seconds": 20.0,
        "elapsed": 10.0,
        "servers": servers,
        "size": 8,
        "waiting": 0,
        "committed": 1844,
        "retried": 3,
        "unknown": 1,
        "failed": 0,
        "events": (Event(5.0, "zone-a is [gone]", "bad"),),
    }
    return View(**values | changes)  # type: ignore[arg-type]


def drawn(shown: View, width: int = 100) -> list[str]:
    console = Console(file=StringIO(), width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(render(shown))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_everything_is_to_be_seen_in_a_terminal_of_24_lines(width: int) -> None:
    lines = drawn(view(), width)
    assert len(lines) <= 24
    assert all(len(line) == width for line in lines)
    down, up = (next(line for line in lines if at in line) for at in ("127.0.0.1:21000", "[::1]:21000"))
    for part in ("zone-a", "down", "········ 0", "1204"):
        assert part in down
    for part in ("zone-b", "up", "●●●●●●●● 8", "312", "640"):
        assert part in up
    text = "\n".join(lines)
    for part in ("a title", "10.0 s of 20 s", "312 transfers/s", "1844 committed", "3 retried", "1 of unknown outcome"):
        assert part in text
    assert "zone-a is [gone]" in text, "text of events is not markup"


def test_only_the_newest_events_are_shown_and_the_height_stays() -> None:
    many = tuple(Event(float(number), f"event {number}") for number in range(40))
    lines = drawn(view(events=many))
    assert len(lines) == len(drawn(view()))
    assert any("event 39" in line for line in lines)
    assert not any("event 5" in line for line in lines)


@pytest.mark.parametrize(
    ("history", "drawn"),
    [
        ((), ""),
        ((0.0, 0.0), "··"),
        ((10.0, 5.0, 0.0, 10.0), "█▅·█"),
        ((10.0, 10.0), "██"),  # what is to come stays blank
    ],
)
def test_the_chart_is_drawn_over_the_whole_time(history: tuple[float, ...], drawn: str) -> None:
    assert chart(history, 10.0, spans=4, width=4) == drawn


def test_a_narrow_chart_takes_the_mean_of_its_spans_and_a_wide_one_repeats_them() -> None:
    assert chart((10.0, 0.0, 10.0, 10.0), 10.0, spans=4, width=2) == "▅█"
    assert chart((10.0, 0.0), 10.0, spans=2, width=4) == "██··"


def test_the_plain_line_names_what_is_down_and_what_went_wrong() -> None:
    line = progress(view())
    assert line == (
        "  10.0 s  zone-a DOWN 0 conn 0/s  zone-b 8 conn 312/s  | 1844 committed, 3 retried, 1 unknown, 0 failed"
    )
    assert "unknown" not in progress(view(unknown=0))


def test_an_event_outside_the_load_has_no_time() -> None:
    assert event_line(Event(None, "text")) == "text"
    assert event_line(Event(3.21, "text")) == "   3.2 s  text"
