"""Instructions of a query, counted by valgrind and compared with asyncpg's own on the same interpreter."""

from __future__ import annotations

import platform
import shutil
import sys

import pytest

from integration.bench.counting import instructions
from integration.bench.environments import Python
from integration.bench.job import Endpoint, Job
from ysactor.testing.postgres import ThreeZones

pytestmark = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")

HERE = Python(platform.python_version(), {"peers": sys.executable}, {}, {})


@pytest.mark.parametrize(
    ("work", "peer", "at_most"),
    [
        # Measured: 0.56 and 1.18 on Python 3.11. What is left of the second is Trio's wait for a socket.
        ("pooled", "asyncpg-noreset", 0.6),
        ("leased", "asyncpg", 1.25),
    ],
)
def test_a_query_takes_so_many_instructions_of_what_asyncpg_takes(
    three_zones: ThreeZones, work: str, peer: str, at_most: float
) -> None:
    server = three_zones.servers[0]
    endpoint = Endpoint(server.host, server.port, server.host, "yugabyte", "yugabyte")

    def counted(contender: str) -> float:
        return instructions(HERE, Job(work, contender, endpoint, 0.1, 1, 1), few=200, many=1200)

    assert counted("ysactor") <= at_most * counted(peer)
