"""One real PostgreSQL server on a loopback address, and what can happen to it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

from ysactor.testing.postgres import wire
from ysactor.testing.postgres.configuration import ADMIN, USER, Access, configuration
from ysactor.testing.postgres.leftovers import alive, children, remove_shared_memory
from ysactor.testing.postgres.run import Run

StopMode = Literal["smart", "fast", "immediate"]
_SIGNALS: Mapping[StopMode, int] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": getattr(signal, "SIGQUIT", signal.SIGTERM),
}
_POLL = 0.002
_ANSWER = 10.0


class ServerFailed(RuntimeError):
    """A server did not start, stop or answer as asked; the text ends with the end of its log."""


class PostgresServer:
    """A server, running or not. Everything is synchronous and bounded; ``with`` ends it for certain.

    ``settings`` go to ``postgresql.conf`` over the bed's own, and are written at each start, as is ``access``: change
    them and restart, or call ``reload``. ``data`` is copied from ``template``.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        address: tuple[str, int],
        *,
        template: Path,
        settings: Mapping[str, str] | None = None,
        access: Access | None = None,
    ) -> None:
        self.name = name
        self.host, self.port = address
        self.data = run.path / name
        self.settings = dict(settings or {})
        self.access = access or Access()
        self.log = run.path / f"{name}.log"
        self._run = run
        self._template = template
        self._process: subprocess.Popen[bytes] | None = None
        self._orphans: list[int] = []
        self._frozen = False
        self.recreate()

    def __repr__(self) -> str:
        state = "frozen" if self._frozen else "running" if self.is_running else "stopped"
        return f"<PostgresServer {self.name} at {self.host}:{self.port} {state}>"

    def recreate(self) -> None:
        """Throw the data away for a fresh copy of the template; ends the server first."""
        self.close()
        remove_shared_memory(self.data)
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(self._template, self.data, symlinks=True)
        self._run.give(self.data)

    def configure(self) -> None:
        """Write ``postgresql.conf`` and ``pg_hba.conf``, as each start does."""
        place = {"listen_addresses": self.host, "port": str(self.port)}
        text = configuration(self._run.binaries, place | self.settings)
        (self.data / "postgresql.conf").write_text(text)
        (self.data / "pg_hba.conf").write_text(self.access.rules())

    def start(self, *, wait: bool = True, timeout: float = 10.0) -> None:
        """Start it, and with ``wait`` return when it takes sessions. Does nothing for one that runs.

        Raises ServerFailed when it ends at once or is not ready in time.
        """
        if self.is_running:
            return
        # A killed postmaster's children hold the shared memory for a moment, which keeps a new one from starting.
        if not until(lambda: not any(map(alive, self._orphans)), timeout):
            raise ServerFailed(f"{self!r}: processes of its last life do not end")
        self._orphans.clear()
        self.configure()
        command = [self._run.binaries.tool("postgres"), "-D", str(self.data)]
        self._process = self._run.spawner.spawn(command, log=self.log)
        if wait:
            self.wait_ready(timeout)

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Return when it takes sessions, which a starting server and a standby that only replays do not."""

        def settled() -> bool:
            return not self.is_running or self.ping() == "accepting"

        if not until(settled, timeout) or not self.is_running:
            raise self._failed("is not ready" if self.is_running else "ended instead of taking sessions")

    def ping(self, *, timeout: float = 1.0) -> wire.Readiness:
        """One attempt to connect. It uses up one of the server's connections for a moment."""
        return wire.ping(self.host, self.port, timeout=timeout)

    @property
    def is_running(self) -> bool:
        """True while the postmaster lives, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_frozen(self) -> bool:
        return self._frozen

    @property
    def pid(self) -> int:
        """The postmaster's. Raises ServerFailed when it does not run."""
        if self._process is None or not self.is_running:
            raise ServerFailed(f"{self!r} does not run")
        return self._process.pid

    def pids(self) -> list[int]:
        """The postmaster and its children."""
        return [self.pid, *children(self.pid)]

    def stop(self, mode: StopMode = "fast", *, wait: bool = True, timeout: float = 10.0) -> None:
        """Shut it down: ``smart`` waits for sessions to end, ``fast`` ends them, ``immediate`` aborts. Thaws it first.

        Without ``wait`` it returns once it has asked. Raises ServerFailed when it still runs after ``timeout`` seconds.
        """
        if self._process is None or not self.is_running:
            return
        self.thaw()
        if sys.platform == "win32":
            control = [self._run.binaries.tool("pg_ctl"), "stop", "-D", str(self.data), "-m", mode, "-W"]
            self._run.spawner.run(control)
        else:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, _SIGNALS[mode])
        if wait:
            self.wait_stopped(timeout)

    def wait_stopped(self, timeout: float = 10.0) -> None:
        """Return when the postmaster has ended. Raises ServerFailed."""
        if self._process is None:
            return
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._failed("did not stop") from None

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def reload(self) -> None:
        """Write the configuration and have the server read it. Takes effect a moment later."""
        self.configure()
        self.sql("select pg_reload_conf()")

    def kill(self) -> None:
        """``kill -9`` for all of its processes, as when the machine goes; returns when they are gone."""
        if self._process is None or not self.is_running:
            return
        # Stopped first, it can neither start a child meanwhile nor see one end.
        self._signal("SIGSTOP", self._process.pid)
        victims = self.pids()
        for pid in victims:
            self._signal("SIGKILL", pid)
        self._end_of_life()
        until(lambda: not any(map(alive, victims)), 5.0)

    def kill_postmaster(self) -> None:
        """``kill -9`` for the postmaster alone; its children notice and end by themselves."""
        if self._process is None or not self.is_running:
            return
        self._orphans = children(self._process.pid)
        self._signal("SIGKILL", self._process.pid)
        self._end_of_life()

    def _end_of_life(self) -> None:
        self._frozen = False
        if self._process is not None:
            if sys.platform == "win32":
                self._process.kill()
            self._process.wait()

    def freeze(self, *, children_too: bool = True) -> None:
        """SIGSTOP: connecting succeeds in TCP and hangs, and so do queries.

        Without ``children_too`` only the postmaster: new sessions hang, open ones work.
        """
        # The postmaster first, so that no child is born after the list was made.
        self._signal("SIGSTOP", self.pid)
        self._frozen = True
        if children_too:
            for pid in children(self.pid):
                self._signal("SIGSTOP", pid)

    def thaw(self) -> None:
        """SIGCONT to all of its processes, whichever of them were frozen."""
        if not self.is_running:
            return
        for pid in reversed(self.pids()):
            self._signal("SIGCONT", pid)
        self._frozen = False

    def freeze_backend(self, pid: int) -> None:
        """SIGSTOP one session's process, by ``pg_backend_pid()``. It keeps its locks."""
        self._signal("SIGSTOP", self._own(pid))

    def thaw_backend(self, pid: int) -> None:
        self._signal("SIGCONT", self._own(pid))

    def kill_backend(self, pid: int) -> None:
        """``kill -9`` one session's process, upon which the postmaster ends all sessions and recovers."""
        self._signal("SIGKILL", self._own(pid))

    def _own(self, pid: int) -> int:
        if pid not in children(self.pid):
            raise ServerFailed(f"process {pid} is not one of {self!r}")
        return pid

    @staticmethod
    def _signal(name: Literal["SIGSTOP", "SIGCONT", "SIGKILL"], pid: int) -> None:
        number = getattr(signal, name, None)
        if number is None:
            if name == "SIGSTOP":
                raise ServerFailed("this system cannot freeze a process")
            return
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def promote(self, timeout: float = 10.0) -> None:
        """Make a standby the primary; returns when it takes writes. Raises ServerFailed."""
        promoted = self.value(f"select pg_promote(true, {max(1, round(timeout))})") == "t"
        if not promoted or not until(lambda: self.value("select pg_is_in_recovery()") == "f", timeout):
            raise self._failed("was not promoted")

    def sql(self, *statements: str, database: str = USER.name, timeout: float = _ANSWER) -> list[wire.Row]:
        """Run statements in a session of the bed's superuser, each by itself; the rows of the last, as text.

        Raises wire.SqlError for the server's errors, OSError when it does not answer in ``timeout`` seconds.
        """
        return wire.query(self.host, self.port, *statements, user=ADMIN, database=database, timeout=timeout)

    def value(self, statement: str, *, database: str = USER.name) -> str | None:
        """The first column of the only row."""
        ((found, *_),) = self.sql(statement, database=database)
        return found

    def sessions(self, application_name: str) -> int:
        """How many sessions of this application the server has."""
        counted = self.value(
            f"select count(*) from pg_stat_activity where application_name = {wire.quote(application_name)}"
        )
        return int(counted or 0)

    def client_ports(self, application_name: str) -> list[str]:
        """The clients' ports of this application's sessions."""
        rows = self.sql(
            f"select client_port from pg_stat_activity where application_name = {wire.quote(application_name)}"
        )
        return [port for (port,) in rows if port is not None]

    def end_sessions(self) -> None:
        """Terminate every session but the bed's own and replication's, and wait until they are gone."""
        others = f"from pg_stat_activity where backend_type = 'client backend' and usename <> {wire.quote(ADMIN)}"
        if not until(lambda: not self.sql(f"select pg_terminate_backend(pid) {others}"), 5.0):
            raise self._failed("does not end its sessions")

    def log_text(self) -> str:
        """What it has written to its log, over all its lives."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _failed(self, what: str) -> ServerFailed:
        return ServerFailed(f"{self!r} {what}; its log ends:\n{self.log_text()[-1500:]}")

    def close(self) -> None:
        """End it whatever its state: an immediate shutdown, a kill when that does not help. Never raises."""
        try:
            self.stop("immediate", timeout=5.0)
        except (ServerFailed, OSError):
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait for the condition, looking ever less often, 50 times a second at least. False when the time has run out."""
    limit = time.monotonic() + timeout
    pause = _POLL
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    return True
