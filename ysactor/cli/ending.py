"""How a command ends: exit codes, signals, and an output that nobody reads any more."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Awaitable, Callable
from typing import TextIO

import trio

OK = 0
FAILED = 1
BAD_INPUT = 2
SIGNALLED = 128
"""Plus the signal's number, as shells report it."""
_SIGPIPE = 13
_STOPPING = [number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]


class Refusal(Exception):
    """The command can't be carried out; the text is the one line to print."""

    def __init__(self, text: str, code: int = BAD_INPUT) -> None:
        self.code = code
        super().__init__(text)


class Output:
    """Where a command writes its lines. Once the reader is gone it stays silent, and `gone` is called."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_gone = False
        self.gone: Callable[[], None] | None = None

    def line(self, text: str = "") -> None:
        """Write a line at once."""
        if self.is_gone:
            return
        try:
            print(text, file=self.stream, flush=True)
        except BrokenPipeError:
            self.is_gone = True
            # Python flushes the stream once more at its end, and would complain there.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
            if self.gone is not None:
                self.gone()

    def paragraph(self, text: str) -> None:
        """Write a line, on a terminal broken where its words end."""
        width = shutil.get_terminal_size().columns if self.stream.isatty() else 0
        self.line(textwrap.fill(text, width) if width else text)


async def until_stopped(work: Callable[[], Awaitable[int]], output: Output) -> int:
    """Run a command under Trio; the exit code.

    A signal to stop, or an output whose reader is gone, cancels it, and what it then cleans up is left the time it
    needs: further signals change nothing.
    """
    caught: list[int] = []
    code: int | None = None
    async with trio.open_nursery() as nursery:

        async def watch(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope(shield=True) as own, trio.open_signal_receiver(*_STOPPING) as signals:
                task_status.started(own)
                async for number in signals:
                    caught.append(number)
                    scope.cancel()

        with trio.CancelScope() as scope:
            watching = await nursery.start(watch)
            output.gone = scope.cancel
            try:
                code = await work()
            except Refusal as refusal:
                print(f"ysactor: {refusal}", file=sys.stderr)
                code = refusal.code
            finally:
                output.gone = None
                watching.cancel()
    if code is not None and not output.is_gone:
        return code
    return SIGNALLED + (caught[0] if caught else _SIGPIPE)
