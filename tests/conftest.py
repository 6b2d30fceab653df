"""Tests of pure code and of actors run in virtual time; those of real servers run in real time."""

from __future__ import annotations

import inspect
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing

from ysactor.testing.postgres import PostgresNotFound, ThreeZones, three_zones

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


@pytest.fixture(scope="module")
def zone() -> Iterator[ThreeZones]:
    """One real server."""
    try:
        with three_zones(1) as bed:
            yield bed
    except PostgresNotFound as missing:
        pytest.skip(str(missing))


@pytest.fixture
def counting_frames() -> Callable[[], AbstractContextManager[Counter[str]]]:
    """Python functions entered in a block, coroutines once more each time they go on."""
    return _counting_frames


@contextmanager
def _counting_frames() -> Iterator[Counter[str]]:
    entered: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            entered[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"] += 1

    sys.setprofile(profile)
    try:
        yield entered
    finally:
        sys.setprofile(None)
