"""`ysactor demo` as a program, on real servers."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from ysactor.testing.postgres import ThreeZones

Ysactor = Callable[..., "subprocess.CompletedProcess[str]"]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and pseudo-terminals")


def schemas(bed: ThreeZones) -> list[str | None]:
    found = [server.sql("select nspname from pg_namespace where nspname like 'ysactor%'") for server in bed.servers]
    return [name for rows in found for (name,) in rows]


def all_closed(text: str) -> bool:
    """Whether nothing listens any more at any of the addresses that the text names."""
    found = set(re.findall(r"127\.0\.0\.\d+:\d+", text))
    assert found, text
    for address in found:
        host, port = address.split(":")
        with socket.socket() as probe:
            probe.settimeout(2)
            if probe.connect_ex((host, int(port))) == 0:
                return False
    return True


@pytest.mark.usefixtures("zones_of_package")
def test_a_server_fails_and_comes_back_and_nothing_is_lost(ysactor: Ysactor) -> None:
    done = ysactor("demo", "--seconds", "8", "--seed", "1", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert told["problems"] == []
    assert told["transfers"]["committed"] > 100
    failover = told["failover"]
    assert failover["elsewhere"] > 10
    assert 0 < failover["longest_gap"] < 5
    assert 0 < failover["seconds_back"] < 25
    # It served before the fault and after the return; another one served meanwhile.
    by_server = told["transfers"]["by_server"]
    assert len(by_server) == 3
    assert by_server[failover["victim"]] > 10
    assert len([server for server, count in by_server.items() if count]) >= 2
    assert [money["found"] for money in told["money"]] == [100_000] * 3
    texts = [event["text"] for event in told["events"]]
    for part in ("kill -9", "is down", "committed on", "started again", "all 8 connections are on"):
        assert any(part in text for text in texts), (part, texts)
    # What stands in for what is said, and everything is told as it happens, on standard error.
    assert "stand in for a YugabyteDB cluster" in done.stderr
    assert "kill -9" in done.stderr
    assert all_closed(done.stderr)


def test_on_a_database_of_ones_own_the_load_runs_in_a_schema_that_is_dropped(
    zones: ThreeZones, ysactor: Ysactor
) -> None:
    done = ysactor("demo", "--url", f"{zones.dsn(0)}?pool_size=3", "--seconds", "1")
    assert done.returncode == 0, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("created schema ysactor_demo_")
    assert any(line.startswith("dropped schema ysactor_demo_") for line in lines)
    assert any(line.startswith("Nothing lost") for line in lines)
    assert lines[-1] == "Verdict: passed"
    assert schemas(zones) == []


def test_a_row_that_is_taken_away_or_added_behind_its_back_is_found(zones: ThreeZones) -> None:
    argv = [sys.executable, "-m", "ysactor", "demo", "--url", zones.dsn(0), "--seconds", "3", "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        created = re.search(r"ysactor_demo_\w+", process.stderr.readline())
        assert created is not None
        time.sleep(1)
        zones.servers[0].sql(
            f"delete from {created[0]}.transfer where number = 2",
            f"insert into {created[0]}.transfer select * from {created[0]}.transfer where number = 3",
        )
        out, _ = process.communicate(timeout=60)
    told = json.loads(out)
    assert process.returncode == 1
    assert (told["faults"]["lost"]["first"], told["faults"]["doubled"]["first"]) == ([2], [3])
    assert told["faults"]["wrong_accounts"]["count"] > 0
    assert [money["found"] for money in told["money"]] == [100_000], "both faults left the sum as it was"
    assert schemas(zones) == []


def test_servers_that_share_no_data_are_refused_and_nothing_is_left(zones: ThreeZones, ysactor: Ysactor) -> None:
    done = ysactor("demo", "--url", zones.dsn(0, 1), "--seconds", "1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{zones.members[1]} does not show what was created through another server" in done.stderr
    assert schemas(zones) == []


def test_a_user_who_may_not_create_a_schema_is_told_so_in_one_line(zones: ThreeZones, ysactor: Ysactor) -> None:
    done = ysactor("demo", "--url", f"postgresql://app:s3cret@{zones.members[0]}/yugabyte", "--seconds", "1")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "permission denied" in done.stderr
    assert "s3cret" not in done.stderr + done.stdout


def test_a_database_that_cannot_be_reached_is_told_in_one_line(ysactor: Ysactor) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        done = ysactor("demo", "--url", f"postgresql://u:s3cret@127.0.0.1:{held.getsockname()[1]}/d")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "could not be reached" in done.stderr
    assert "s3cret" not in done.stderr + done.stdout


@POSIX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drops_the_schema_and_shows_in_the_exit_code(zones: ThreeZones, number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "ysactor", "demo", "--url", zones.dsn(0), "--seconds", "60"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "committed" in line:
                break
        assert schemas(zones) != []
        process.send_signal(number)
        process.send_signal(number)  # an impatient one changes nothing
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert out.splitlines()[-1] == "stopped before the end: nothing was checked"
    assert "Traceback" not in out
    assert schemas(zones) == []


@POSIX
def test_a_reader_that_goes_away_ends_it_quietly(zones: ThreeZones) -> None:
    argv = [sys.executable, "-m", "ysactor", "demo", "--url", zones.dsn(0), "--seconds", "60"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=30) == 141
        assert process.stderr.read() == ""
    assert schemas(zones) == []


class Terminal:
    """A program in a pseudo-terminal of 100 by 30."""

    def __init__(self, *argv: str) -> None:
        import pty  # not on Windows
        import termios

        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (30, 100))
        self.process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color"},
        )
        os.close(theirs)
        self.shown = ""

    def read_until(self, wanted: Callable[[str], bool], seconds: float = 40) -> bool:
        """Read until the text of all that was shown is as wanted, or the program has ended; whether it is."""
        limit = time.monotonic() + seconds
        while not wanted(self.shown) and time.monotonic() < limit:
            if not select.select([self._ours], [], [], 0.5)[0]:
                continue
            try:
                chunk = os.read(self._ours, 65536)
            except OSError:  # Linux's word for the end
                break
            if not chunk:
                break
            self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", chunk.decode(errors="replace"))
        return wanted(self.shown)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


@POSIX
@pytest.mark.usefixtures("zones_of_package")
def test_on_a_terminal_it_is_drawn_and_control_c_stops_its_servers() -> None:
    terminal = Terminal(sys.executable, "-m", "ysactor", "demo", "--seconds", "60", "--seed", "3")
    try:
        assert terminal.read_until(lambda shown: "●●●●●●●● 8" in shown and "of 60 s" in shown), terminal.shown
        assert terminal.read_until(lambda shown: bool(re.search(r"[1-9]\d* transfers/s", shown))), terminal.shown
        # The terminal sends the signal to whoever is in its foreground, which is nobody here: no session leads it.
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.read_until(lambda shown: "stopped before the end: nothing was checked" in shown), terminal.shown
        assert terminal.process.wait(timeout=20) == 130
        assert "the servers are stopped, and their files removed" in terminal.shown
        assert "Traceback" not in terminal.shown
        assert all_closed(terminal.shown)
    finally:
        terminal.close()


@POSIX
def test_without_rich_a_terminal_is_told_what_to_install() -> None:
    program = "import sys; sys.modules['rich'] = None; from ysactor.cli import main; sys.exit(main(['demo']))"
    terminal = Terminal(sys.executable, "-c", program)
    try:
        terminal.read_until(lambda _: False, seconds=20)
        assert terminal.process.wait(timeout=20) == 2
        assert terminal.shown.strip() == "ysactor: the live display needs rich: pip install 'ysactor[demo]'"
    finally:
        terminal.close()
