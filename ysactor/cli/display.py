"""The demo's live display: a pure function from a view to what rich draws."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .course import SPANS
from .events import Event
from .view import ServerView, View

EVENTS = 7
"""How many of the newest events are shown."""
_BARS = "▁▂▃▄▅▆▇█"
_STATES = {"up": "green", "down": "bold red", "rejected": "bold yellow", "standby": "cyan", "read-only": "cyan"}
_WEIGHTS = {"plain": "", "good": "green", "bad": "red"}


def render(view: View) -> RenderableType:
    """What to draw."""
    return Panel(
        Group(_clock(view), Text(), _servers(view), Text(), _totals(view), Text(), _events(view.events)),
        title=f"[bold]{view.title}[/]",
        box=box.ROUNDED,
        border_style="blue",
        padding=(0, 1),
    )


def chart(history: tuple[float, ...], highest: float, spans: int, width: int) -> str:
    """A line of bars over the whole time, `spans` spans of it; what is still to come is blank."""
    if not spans or highest <= 0:
        return ""
    drawn: list[str] = []
    for column in range(width):
        part = history[column * spans // width : max((column + 1) * spans // width, column * spans // width + 1)]
        if not part:
            break
        height = sum(part) / len(part) / highest
        drawn.append(_BARS[min(int(height * len(_BARS)), len(_BARS) - 1)] if height > 0.01 else "·")
    return "".join(drawn)


def _clock(view: View) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(justify="left", no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    bar = ProgressBar(total=view.seconds, completed=min(view.elapsed, view.seconds))
    rate = Text(f"{view.rate:.0f} transfers/s", style="bold")
    grid.add_row(Text(f"{view.elapsed:5.1f} s of {view.seconds:g} s"), bar, rate)
    return grid


def _servers(view: View) -> RenderableType:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("server", no_wrap=True)
    table.add_column("zone", no_wrap=True)
    table.add_column("level", justify="center", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("connections", no_wrap=True)
    table.add_column("/s", justify="right", no_wrap=True, min_width=4)
    table.add_column("commits", ratio=1, no_wrap=True)
    table.add_column("", justify="right", no_wrap=True, min_width=5)
    highest = max((rate for server in view.servers for rate in server.history), default=0.0)
    for server in view.servers:
        table.add_row(
            Text(server.at),
            Text(server.zone),
            "-" if server.level is None else str(server.level),
            Text(server.state, style=_STATES.get(server.state, "")),
            _connections(server, view.size),
            f"{server.rate:.0f}",
            _Chart(server.history, highest),
            str(server.committed),
        )
    return table


@dataclass(frozen=True, slots=True)
class _Chart:
    """As wide as its column."""

    history: tuple[float, ...]
    highest: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(chart(self.history, self.highest, SPANS, min(options.max_width, SPANS)), style="cyan")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(8, options.max_width), min(SPANS, options.max_width))


def _connections(server: ServerView, size: int) -> Text:
    shown = min(max(size, server.connections), 10)
    full = round(server.connections * shown / max(size, server.connections, 1))
    return Text.assemble(("●" * full, "green"), ("·" * (shown - full), "dim"), f" {server.connections}")


def _totals(view: View) -> RenderableType:
    def count(number: int, word: str, style: str) -> Text:
        return Text(f"{number} {word}", style=style if number else "dim")

    parts = [
        count(view.committed, "committed", "bold green"),
        count(view.retried, "retried", "yellow"),
        count(view.unknown, "of unknown outcome", "yellow"),
        count(view.failed, "failed", "red"),
        count(view.waiting, "waiting", "yellow"),
    ]
    return Text("   ").join(parts)


def _events(events: tuple[Event, ...]) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(justify="right", style="dim", width=7, no_wrap=True)
    grid.add_column(ratio=1)
    shown = events[-EVENTS:]
    for event in shown:
        when = "" if event.at is None else f"{event.at:.1f} s"
        grid.add_row(when, Text(event.text, style=_WEIGHTS[event.weight]))
    for _ in range(EVENTS - len(shown)):
        grid.add_row("", "")
    return grid
