"""Ends what a run left behind: processes, shared memory, directories.

Three callers. A run that closes uses it as its last step. The guard, this file run as a script, waits for its run to
end and does it in the run's place when that was killed. The next run on the machine does it for runs whose guard was
killed as well. Run as a script without the package, so it imports the standard library only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FAREWELL = b"closed\n"
"""What a run tells its guard when it has cleaned up itself."""
PATIENCE = 5.0
"""Seconds to wait for killed processes to be gone."""


def alive(pid: int) -> bool:
    """True if the process runs or is stopped; a zombie that nobody has reaped yet does not count."""
    if sys.platform == "linux":
        fields = _stat(pid)
        return fields is not None and fields[0] not in {"Z", "X"}
    if sys.platform == "win32":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/<pid>/stat`` behind the name, from the state on; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name stands in parentheses and may hold blanks and parentheses itself.
    return text.rpartition(")")[2].split()


def _parents() -> Iterator[tuple[int, int]]:
    """Every (process, its parent)."""
    if sys.platform == "linux":
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (fields := _stat(int(entry))) is not None:
                yield int(entry), int(fields[1])
        return
    listing = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        pid, parent = line.split()
        yield int(pid), int(parent)


def children(pid: int) -> list[int]:
    """The direct children of a process: a postmaster has no grandchildren."""
    return [child for child, parent in _parents() if parent == pid]


def _running_in(directory: Path) -> list[int]:
    """Processes at home in the directory: a postmaster and all its children work in their data directory."""
    if sys.platform == "linux":
        found: list[int] = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            with suppress(OSError):
                home = Path(os.readlink(f"/proc/{entry}/cwd"))
                if (home == directory or directory in home.parents) and alive(int(entry)):
                    found.append(int(entry))
        return found
    postmasters = [pid for pid in _recorded_postmasters(directory) if _names(pid, directory)]
    return [*postmasters, *(child for pid in postmasters for child in children(pid))]


def _names(pid: int, directory: Path) -> bool:
    """The process was started with a path in the directory: a recorded pid may have passed to a stranger."""
    if sys.platform == "win32":
        return False
    shown = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False)
    return str(directory) in shown.stdout


def _recorded_postmasters(directory: Path) -> Iterator[int]:
    for record in directory.glob("*/postmaster.pid"):
        with suppress(OSError, ValueError, IndexError):
            yield int(record.read_text().splitlines()[0])


def remove_shared_memory(data: Path) -> None:
    """Remove the interlock segment of a killed server, which only a restart with the same data would have reused."""
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(OSError, ValueError, IndexError):
        _key, segment = (data / "postmaster.pid").read_text().splitlines()[6].split()
        ctypes.CDLL(None, use_errno=True).shmctl(int(segment), 0, None)  # IPC_RMID


def end(directory: Path) -> None:
    """Kill every process at home in the directory, frozen ones too, and remove it. Bounded; never raises."""
    limit = time.monotonic() + PATIENCE
    with suppress(OSError):
        while (found := _running_in(directory)) and time.monotonic() < limit:
            for pid in found:
                with suppress(OSError):
                    os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
            time.sleep(0.005)
        for data in directory.iterdir():
            remove_shared_memory(data)
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
        if time.monotonic() > limit:
            return
        time.sleep(0.01)


def guard(directory: Path) -> None:
    """Wait until the run at the other end of standard input says farewell or is gone; clean up in the latter case."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            # Sent to a whole group of processes, they would take the guard before the run that it watches.
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if sys.stdin.buffer.read() != FAREWELL:
        end(directory)


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
