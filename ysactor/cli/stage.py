"""Runs a load and shows it: live on a terminal, in plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import trio

from ..actor import open_tree
from .ending import Output, Refusal
from .events import Event, Events
from .lines import event_line, progress

if TYPE_CHECKING:
    from .view import View

FRAME = 0.125
LINE = 1.0


class Stage:
    """The output of a demo: `events` may be told at any time; `showing` draws while the load runs."""

    def __init__(self, output: Output, *, live: bool) -> None:
        self._output = output
        self._live = live
        self._drawing = False
        self.events = Events(self._heard)

    def _heard(self, event: Event) -> None:
        if event.at is None:
            self._output.paragraph(event.text)
        elif not self._drawing:
            self._output.line(event_line(event))

    @asynccontextmanager
    async def showing(self, look: Callable[[], View]) -> AsyncGenerator[None, None]:
        """Show the views for the length of a block, and the last one at its end."""
        self._drawing = self._live
        try:
            async with open_tree() as tree:
                tree.start_soon(self._draw if self._live else self._print, look)
                yield
        finally:
            self._drawing = False

    async def _print(self, look: Callable[[], View]) -> None:
        while True:
            await trio.sleep(LINE)
            self._output.line(progress(look()))

    async def _draw(self, look: Callable[[], View]) -> None:
        from rich.console import Console
        from rich.live import Live

        from .display import render

        with _quiet_control_c(), Live(console=Console(file=self._output.stream), auto_refresh=False) as live:
            try:
                while True:
                    live.update(render(look()), refresh=True)
                    await trio.sleep(FRAME)
            finally:
                # Live draws once more as it ends.
                live.update(render(look()))


@contextmanager
def _quiet_control_c() -> Generator[None, None, None]:
    """Have the terminal not write ``^C`` into the drawing. Nothing else of it is changed."""
    if sys.platform == "win32" or not _in_the_foreground():
        # A program in the background that changes its terminal is stopped by the system.
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    quiet = list(before)
    quiet[3] &= ~termios.ECHOCTL
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _in_the_foreground() -> bool:
    """Whether standard input is the terminal that Ctrl-C would reach us from."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # no terminal, another session's, or closed
        return False


def choose_output(*, as_json: bool) -> tuple[Output, bool]:
    """Where the demo's progress goes, and whether it is drawn live.

    With `as_json` standard output is for the result alone. Raises `Refusal` where a terminal wants rich.
    """
    if as_json:
        return Output(sys.stderr), False
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if live and find_spec("rich") is None:
        raise Refusal("the live display needs rich: pip install 'ysactor[demo]'")
    return Output(sys.stdout), live
