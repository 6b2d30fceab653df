"""Tests of pure code and of actors run in virtual time; those of real servers run in real time."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

VIRTUAL = ("actor", "cluster", "connection", "pool", "scenarios")
"""The folders whose tests never wait in real time."""
LIMIT = 100_000.0
"""Virtual seconds after which a test has hung."""


def run_in_virtual_time(main: Callable[[], Awaitable[None]], *, clock: object = None, instruments: Any = ()) -> None:
    async def bounded() -> None:
        with trio.fail_after(LIMIT):
            await main()

    trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0), instruments=instruments)


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts its background jobs so, and tests of KeyboardInterrupt would wait for one in vain.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = config.rootpath / "tests"
    for item in items:
        if not inspect.iscoroutinefunction(getattr(item, "obj", None)):
            continue
        if item.path.is_relative_to(tests) and item.path.relative_to(tests).parts[0] in VIRTUAL:
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time))
