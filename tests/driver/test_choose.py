"""`driver` and `rng`: what is no such thing is refused by name, before anything is opened."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import ysactor
from ysactor.testing import FakeCluster, FakeDriver

pytestmark = pytest.mark.trio


async def _pool(**options: Any) -> None:
    async with ysactor.open_pool(**options):
        pytest.fail("it was opened")


async def _cluster(**options: Any) -> None:
    async with ysactor.open_cluster(**options):
        pytest.fail("it was opened")


@pytest.mark.parametrize("opening", [_pool, _cluster, ysactor.run_pool])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("driver", value) for value in (5, True, object(), FakeDriver, "asyncpg", b"native")),
        *(("rng", value) for value in (5, 0, "seed", object(), Random, Random(1).random)),
    ],
)
async def test_what_is_no_driver_and_what_is_no_source_of_chance_are_refused(
    opening: Callable[..., Any], option: str, value: object
) -> None:
    options = {"driver": FakeDriver(FakeCluster.of(1)), option: value}
    with pytest.raises(ysactor.ConfigurationError, match=f"^{option}: expected .* not ") as caught:
        await opening(**options)
    assert len(caught.value.problems) == 1
