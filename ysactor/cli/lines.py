"""The demo in plain lines, where there is no terminal to draw on. Pure."""

from __future__ import annotations

from .events import Event
from .view import View


def progress(view: View) -> str:
    """One line about this moment."""
    servers = "  ".join(
        f"{server.zone} {_state(server.state)}{server.connections} conn {server.rate:.0f}/s" for server in view.servers
    )
    trouble = f", {view.unknown} unknown, {view.failed} failed" if view.unknown or view.failed else ""
    return f"{view.elapsed:6.1f} s  {servers}  | {view.committed} committed, {view.retried} retried{trouble}"


def event_line(event: Event) -> str:
    """One line about something that happened."""
    return event.text if event.at is None else f"{event.at:6.1f} s  {event.text}"


def _state(state: str) -> str:
    return "" if state == "up" else f"{state.upper()} "
