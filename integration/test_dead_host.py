"""What is found out, and when, of a server whose host goes silent; every row of the dead connections page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.scenario import NATIVE, Transport, on_both_transports
from ysactor.testing.postgres import PostgresNotFound, find

LIMIT = 60.0
ROOT = Path(__file__).parent.parent
UNSHARE = ("unshare", "--user", "--map-root-user", "--net")


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    """Skip where a process may not have a network of its own, and where there is nothing to put on it."""
    if sys.platform != "linux":
        pytest.skip("network namespaces are Linux's")
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no program {program} here (of util-linux and iproute2)")
    cable = "ip link add here type veth peer name there && echo 7200 > /proc/sys/net/ipv4/tcp_keepalive_time"
    tried = subprocess.run([*UNSHARE, "sh", "-c", cable], capture_output=True, text=True, timeout=LIMIT, check=False)
    if tried.returncode:
        pytest.skip(f"no network namespace of one's own here: {tried.stderr.strip()}")
    try:
        find()
    except PostgresNotFound as missing:
        pytest.skip(str(missing))


def result(case: str, transport: Transport) -> dict[str, Any]:
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "integration.dead_host", case, transport],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@on_both_transports
def test_keepalive_with_short_timers_finds_an_idle_connection_dead(transport: Transport) -> None:
    found = result("idle_with_timers", transport)
    assert found["found after"] is not None
    assert 1 <= found["found after"] <= 6


def test_with_the_systems_own_timers_an_idle_connection_looks_alive() -> None:
    found = result("idle_without", NATIVE)
    assert (found["found after"], found["idle"]) == (None, 1)
    # The same the other way round is an option, as it is the server's: how soon it looks for its client.
    assert found["the server's"] == "60"


def test_a_statement_sent_into_silence_hangs_when_nothing_bounds_it() -> None:
    assert result("used_without", NATIVE) == {"hung": True}


@on_both_transports
def test_socket_timeout_ends_a_statement_sent_into_silence(transport: Transport) -> None:
    found = result("used_with_timeout", transport)
    assert found["lost"] == "socket_timeout"
    assert 1 <= found["after"] <= 3


@on_both_transports
def test_keepalive_finds_a_host_dead_that_has_a_statement_and_owes_its_answer(transport: Transport) -> None:
    found = result("waiting_with_timers", transport)
    assert found["lost"]
    assert found["after"] <= 8


@on_both_transports
def test_the_kernel_gives_up_on_what_nobody_acknowledges_after_tcp_retries2(transport: Transport) -> None:
    found = result("used_and_given_up", transport)
    assert found["lost"] != "socket_timeout"
    assert 1 <= found["after"] <= 9


def test_keepalive_does_not_find_a_process_that_hangs_on_a_host_that_lives() -> None:
    assert result("frozen_with_timers", NATIVE) == {"found after": None, "idle": 1}
