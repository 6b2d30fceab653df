"""A fake cluster of three servers and pools on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, TypeAlias

import pytest

import ysactor
from ysactor.testing import FakeCluster, FakeDriver

OpenPool: TypeAlias = Callable[..., AbstractAsyncContextManager[ysactor.Pool]]


@pytest.fixture
def world() -> FakeCluster:
    return FakeCluster.of(3)


@pytest.fixture
def open_pool(world: FakeCluster) -> OpenPool:
    """`ysactor.open_pool` on the fake cluster: three connections, balanced, unless told otherwise."""

    def opened(**options: Any) -> AbstractAsyncContextManager[ysactor.Pool]:
        if not {"min_size", "max_size", "pool_size"} & set(options):
            options["pool_size"] = 3
        options = {"hosts": [str(server.at) for server in world.servers], "load_balance": True, **options}
        return ysactor.open_pool(driver=FakeDriver(world), rng=Random(1), **options)

    return opened
