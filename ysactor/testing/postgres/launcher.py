"""A step between the test run and a PostgreSQL program: ``python -I -S launcher.py IDENTITY PARENT PROGRAM ARG...``.

PostgreSQL refuses to run as root, and a server must not outlive the run that started it. Both are settled here, in a
process of its own, rather than in ``preexec_fn``: running Python between fork and exec may deadlock in a program with
threads, and Python 3.12 warns about it. The file is run as a script without the package, so it imports the standard
library only.
"""

from __future__ import annotations

# All imports up here: the user it becomes may not be able to read the interpreter's own files.
import ctypes
import os
import signal
import sys
from pathlib import Path

# The uid must be one the system knows: initdb gives up on a uid without a passwd entry, and 65534 is nobody.
NOBODY = 65534
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
REFUSED = 96
"""Exit status when the identity asked for could not be taken."""


def enter_user_namespace() -> None:
    """Become uid 65534 in a user namespace of our own: files stay root's, nothing is copied or chowned."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWUSER)")
    Path("/proc/self/uid_map").write_text(f"{NOBODY} {uid} 1")
    # The kernel wants setgroups denied before an unprivileged process may write gid_map.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{NOBODY} {gid} 1")


def become(uid: int, gid: int) -> None:
    """Drop root for good."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def end_with_parent(parent: int) -> None:
    """Have the kernel send SIGQUIT, PostgreSQL's immediate shutdown, when the thread that forked us ends."""
    if sys.platform != "linux":
        return
    # After the change of identity: the kernel clears the setting when credentials change.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGQUIT), 0, 0, 0)
    if os.getppid() != parent:
        # The parent ended before the request was made, so the signal will never come.
        sys.exit(REFUSED)


def main(arguments: list[str]) -> None:
    identity, parent, *command = arguments
    try:
        match identity.split(":"):
            case ["namespace"]:
                enter_user_namespace()
            case ["user", uid, gid]:
                become(int(uid), int(gid))
            case _:
                pass
    except OSError as error:
        print(f"launcher: cannot run as {identity}: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    end_with_parent(int(parent))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
