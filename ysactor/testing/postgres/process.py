"""Starting PostgreSQL programs, also as root, so that none outlives the run that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ysactor.testing.postgres import launcher

_TOOL_LIMIT = 60.0


class ToolFailed(RuntimeError):
    """A PostgreSQL program ended with an error; the text holds its output."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who PostgreSQL runs as."""

    spelling: str
    """For the launcher: ``self``, ``namespace`` or ``user:UID:GID``."""
    owner: tuple[int, int] | None = None
    """Who must own the data, where that is not the test run's own user."""

    def give(self, path: Path) -> None:
        """Hand a file or directory, with all that is in it, to the user that PostgreSQL runs as."""
        if self.owner is None or sys.platform == "win32":
            return
        for found in (path, *path.rglob("*")):
            os.chown(found, *self.owner, follow_symlinks=False)


def _command(identity: Identity, argv: Sequence[str]) -> list[str]:
    if identity.spelling == "self" and sys.platform != "linux":
        return list(argv)
    # -I and -S: nothing of the user's environment or site-packages runs in it, and it starts in some 10 ms.
    return [sys.executable, "-I", "-S", launcher.__file__, identity.spelling, str(os.getpid()), *argv]


def nobody() -> Identity:
    """The user nobody, who must own the data and be able to reach the programs. For root only."""
    import pwd  # not on Windows

    entry = pwd.getpwnam("nobody")
    return Identity(f"user:{entry.pw_uid}:{entry.pw_gid}", (entry.pw_uid, entry.pw_gid))


def choose_identity() -> Identity:
    """The test run's own user; for root a user namespace, and where those are refused the user nobody."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return Identity("self")
    namespace = Identity("namespace")
    if sys.platform == "linux" and _works(namespace, ["/bin/true"]):
        return namespace
    return nobody()


def _works(identity: Identity, argv: Sequence[str]) -> bool:
    """Run from a thread that lives on, which this one does: it waits here for the end."""
    done = subprocess.run(_command(identity, argv), capture_output=True, check=False, timeout=_TOOL_LIMIT, cwd="/")
    return done.returncode == 0


def can_run(identity: Identity, program: str) -> bool:
    """Whether that user may execute the program: one below a directory closed to it may not."""
    return identity.owner is None or _works(identity, [program, "--version"])


class Spawner:
    """Starts programs from one thread that lives as long as the spawner.

    The kernel ties "end with the parent" to the *thread* that forked. A server started by a worker thread would be shut
    down as that thread ends, a minute later or at once; so whoever calls, the fork happens here.
    """

    def __init__(self, identity: Identity, directory: Path) -> None:
        self.identity = identity
        self._directory = directory
        self._forks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ysactor.testing.postgres")

    def spawn(self, argv: Sequence[str], *, log: Path) -> subprocess.Popen[bytes]:
        """Start a program that runs on, with its output appended to the log."""

        def fork() -> subprocess.Popen[bytes]:
            with log.open("ab") as output:
                return subprocess.Popen(
                    _command(self.identity, argv),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # At home in the run's directory, it is found by whoever cleans up there.
                    cwd=self._directory,
                    # Ctrl-C at the terminal is for the test run, which then stops its servers in order.
                    start_new_session=True,
                    env=self._environment(),
                )

        return self._forks.submit(fork).result()

    def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
        """Run a program to its end and return what it printed. Raises ToolFailed; ends it after a minute."""

        def wait() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                _command(self.identity, argv),
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self._directory,
                env=self._environment(),
                timeout=_TOOL_LIMIT,
                check=False,
                start_new_session=True,
            )

        done = self._forks.submit(wait).result()
        if done.returncode != 0:
            raise ToolFailed(f"{Path(argv[0]).name} ended with status {done.returncode}:\n{done.stdout.strip()}")
        return done.stdout

    @staticmethod
    def _environment() -> dict[str, str]:
        """The caller's, less what would change where PostgreSQL programs connect and in which language they speak."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return kept | {"LC_ALL": "C"}

    def close(self) -> None:
        """End the thread. Servers still running are shut down by the kernel then."""
        with suppress(RuntimeError):
            self._forks.shutdown(wait=True)
