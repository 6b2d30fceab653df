"""Real servers for the commands, and the commands as programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from ysactor.testing.postgres import PostgresNotFound, ThreeZones, find, three_zones

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="package")
def zones_of_package() -> Iterator[ThreeZones]:
    try:
        find()
    except PostgresNotFound as missing:
        pytest.skip(str(missing))
    with three_zones() as bed:
        yield bed


@pytest.fixture
def zones(zones_of_package: ThreeZones) -> Iterator[ThreeZones]:
    yield zones_of_package
    zones_of_package.reset()


@pytest.fixture
def ysactor() -> Run:
    """The command as a program of its own: its output, its exit code."""

    def run(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ysactor", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return run
