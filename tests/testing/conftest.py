"""The tests of the fake cluster run in virtual time; those of real servers beside them do not."""

from __future__ import annotations

import inspect

import pytest
import trio
import trio.testing

from ysactor.config import Config
from ysactor.testing import FakeCluster, FakeDriver

LIMIT = 10_000.0
"""Virtual seconds after which a test has hung."""


def _in_virtual_time(main, *, clock=None, instruments=()):
    async def bounded():
        with trio.fail_after(LIMIT):
            await main()

    trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0), instruments=instruments)


def pytest_collection_modifyitems(items):
    for item in items:
        is_fake = item.path.parent.name == "testing" and item.path.name.startswith("test_fake")
        if is_fake and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=_in_virtual_time))


@pytest.fixture
def cluster():
    """Three servers, 10.0.0.1 to 3, each in a zone of its own."""
    return FakeCluster.of(3)


@pytest.fixture
async def driver(cluster):
    driver = FakeDriver(cluster)
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        yield driver
        nursery.cancel_scope.cancel()


@pytest.fixture
def connect(driver):
    """Open a session on a server."""

    async def open_one(server, **options):
        return await driver.connect(server.at, Config(**options))

    return open_one
