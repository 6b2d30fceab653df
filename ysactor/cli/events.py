"""What is worth a line while the demo runs: its own doings, and what ysactor logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Weight = Literal["plain", "good", "bad"]


@dataclass(frozen=True, slots=True)
class Event:
    """One line."""

    at: float | None
    """Seconds since the load began; None before and after it."""
    text: str
    weight: Weight = "plain"


@dataclass(slots=True)
class Events:
    """The lines so far. `heard` is called with each new one."""

    heard: Callable[[Event], None]
    clock: Callable[[], float] | None = None
    """Tells the seconds since the load began, while it runs."""
    lines: list[Event] = field(default_factory=list[Event])

    def say(self, text: str, weight: Weight = "plain") -> None:
        """Add a line."""
        event = Event(None if self.clock is None else self.clock(), text, weight)
        self.lines.append(event)
        self.heard(event)


class _Listener(logging.Handler):
    def __init__(self, events: Events) -> None:
        super().__init__(logging.INFO)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        self._events.say(record.getMessage(), "bad" if record.levelno >= logging.WARNING else "plain")


@contextmanager
def listening(events: Events) -> Generator[None, None, None]:
    """Have what ysactor logs, from info up, among the events, and nowhere else, for the length of a block."""
    logger = logging.getLogger("ysactor")
    listener = _Listener(events)
    before = logger.level, logger.propagate
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before[0])
        logger.propagate = before[1]
