"""A run leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ysactor.testing.postgres import PostgresServer, Run, create_data, find, three_zones
from ysactor.testing.postgres.leftovers import alive, children
from ysactor.testing.postgres.process import nobody

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and relies on PR_SET_PDEATHSIG")

# Starts servers, freezes one, tells who they are, and waits to be killed.
VICTIM = """
import sys
from ysactor.testing.postgres import three_zones
with three_zones(2) as bed:
    bed.servers[1].freeze()
    running, frozen = (server.pids() for server in bed.servers)
    print(bed.run.path, bed.run.guard_pid, len(running), *running, *frozen, flush=True)
    sys.stdin.read()
"""


def until(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit, f"still waiting: {what}"
        time.sleep(0.01)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> tuple[Path, int, list[int], list[int]]:
    assert process.stdout is not None
    path, guard, count, *pids = process.stdout.readline().split()
    numbers = [int(pid) for pid in pids]
    return Path(path), int(guard), numbers[: int(count)], numbers[int(count) :]


def segments() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


@LINUX
def test_a_killed_run_leaves_neither_processes_nor_files_even_of_frozen_servers(victim: subprocess.Popen[str]) -> None:
    path, guard, running, frozen = told(victim)
    assert path.is_dir()
    # The postmasters: of their children, a session's may have been just ending.
    assert alive(running[0])
    assert alive(frozen[0])

    victim.kill()

    until(lambda: not any(map(alive, [*running, *frozen])), "the servers' end")
    until(lambda: not path.exists(), "the directory's end")
    until(lambda: not alive(guard), "the guard's end")


@LINUX
def test_a_run_killed_with_its_guard_has_its_servers_shut_down_and_is_swept_up_by_the_next(
    victim: subprocess.Popen[str],
) -> None:
    path, guard, running, frozen = told(victim)
    os.kill(guard, signal.SIGKILL)
    victim.kill()
    victim.wait()
    # No signal but the sweep's reaches the frozen ones.
    until(lambda: not any(map(alive, running)), "the servers' end")

    # Any run started by this user sweeps, so one elsewhere on the machine may be faster.
    with Run() as run:
        assert run.path.is_dir()
        assert not path.exists()
        assert not any(map(alive, frozen))


@LINUX
def test_a_closed_run_leaves_nothing_even_of_a_killed_server() -> None:
    before = segments()
    with three_zones(2) as bed:
        path = bed.run.path
        others = set(path.parent.glob(f"run-{os.getpid()}-*")) - {path}
        pids = [pid for server in bed.servers for pid in server.pids()]
        guard = bed.run.guard_pid
        assert segments() - before, "the servers have no shared memory, so its removal is not tested"
        # Killed and rebuilt, killed and left: neither record of the segment must be lost.
        bed.servers[0].kill()
        bed.servers[0].recreate()
        bed.servers[1].kill()
    assert not path.exists()
    assert not any(map(alive, [*pids, guard]))
    assert set(path.parent.glob(f"run-{os.getpid()}-*")) <= others
    until(lambda: not segments() - before, "the shared memory's end")


def test_runs_at_the_same_time_use_different_ports_and_directories() -> None:
    with Run() as one, Run() as other:
        ports = [one.addresses(3)[0][1], one.addresses(3)[0][1], other.addresses(3)[0][1]]
        assert len(set(ports)) == 3
        assert one.path != other.path


def test_a_run_does_not_sweep_up_one_that_lives() -> None:
    with Run() as one, Run():
        assert one.path.is_dir()


def test_a_server_started_by_a_worker_thread_outlives_the_thread() -> None:
    with Run() as run:
        template = create_data(run, "template")
        (address,) = run.addresses(1)
        with PostgresServer(run, "server", address, template=template) as server:
            starter = threading.Thread(target=server.start)
            starter.start()
            starter.join()
            # The death signal would come at once.
            assert server.value("select count(*) from pg_sleep(0.1)") == "1"
            assert server.is_running


def needs_root() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs root, to become another user")


def test_root_may_run_it_as_nobody_from_programs_that_only_root_can_reach(tmp_path: Path) -> None:
    needs_root()
    binaries = find()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    above = binaries.directory.parents[2]
    (closed / "link").symlink_to(above)
    hidden = replace(binaries, directory=closed / "link" / binaries.directory.relative_to(above))
    with Run(hidden, identity=nobody()) as run:
        template = create_data(run, "template")
        (address,) = run.addresses(1)
        with PostgresServer(run, "server", address, template=template) as server:
            server.start()
            assert server.value("select 1") == "1"
            assert Path(f"/proc/{server.pid}").stat().st_uid == int(nobody().spelling.split(":")[1])
            assert run.path in run.binaries.directory.parents


def test_an_ordinary_user_can_run_it() -> None:
    needs_root()
    packages = Path(pytest.__file__).parents[1]
    version = sys.version_info[:2]
    script = (
        f"import sys\nif sys.version_info[:2] != {version}: sys.exit(77)\n"
        f"sys.path[:0] = [{str(ROOT)!r}, {str(packages)!r}]\n"
        "try: import trio\nexcept ImportError: sys.exit(77)\n"  # what is installed is closed to this user
        "import os\nfrom ysactor.testing.postgres import three_zones\n"
        "with three_zones(2) as bed:\n    "
        "print(os.geteuid(), bed.servers[1].value('select count(*) from yb_servers()'))\n"
    )
    user = int(nobody().spelling.split(":")[1])
    for interpreter in (sys.executable, "/usr/bin/python3"):
        with suppress(OSError):
            done = subprocess.run(
                [interpreter, "-c", script],
                user=user,
                extra_groups=[],
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
                env={"PATH": "/usr/bin:/bin"},
            )
            if done.returncode != 77:
                assert done.stdout.split() == [str(user), "2"], done.stderr
                return
    pytest.skip("the user nobody can reach no Python interpreter of this version, or not what is installed for it")


def test_a_postmaster_has_children_that_are_found() -> None:
    with three_zones(1) as bed:
        assert len(children(bed.servers[0].pid)) >= 3
