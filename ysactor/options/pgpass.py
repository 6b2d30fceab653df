"""The password file: libpq's ``~/.pgpass``, one line of ``host:port:database:user:password`` for each server."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..secret import Secret
from ..servers import HostPort

log = logging.getLogger(__name__)

_ANY = "*"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the file. ``*`` stands for anything."""

    host: str
    port: str
    database: str
    user: str
    password: Secret

    def matches(self, server: HostPort, database: str, user: str) -> bool:
        """Whether this line is for that login. A Unix socket also goes by the name of localhost."""
        hosts = {_ANY, server.host, "localhost"} if server.is_unix else {_ANY, server.host}
        return (
            self.host in hosts
            and self.port in {_ANY, str(server.port)}
            and self.database in {_ANY, database}
            and self.user in {_ANY, user}
        )


@dataclass(frozen=True, slots=True)
class PassFile:
    """What a password file says. The first line that matches counts."""

    entries: tuple[Entry, ...] = field(default=(), repr=False)

    def find(self, server: HostPort, database: str, user: str) -> Secret | None:
        """The password for one login."""
        return next((entry.password for entry in self.entries if entry.matches(server, database, user)), None)

    def first(self, servers: Iterable[HostPort], database: str, user: str) -> Secret | None:
        """The password for the first of several servers that the file has one for."""
        found = (self.find(server, database, user) for server in servers)
        return next((password for password in found if password is not None), None)


def default_path(environ: Mapping[str, str]) -> Path | None:
    """Where the file is when nobody says."""
    if sys.platform == "win32":
        root = environ.get("APPDATA")
        return Path(root, "postgresql", "pgpass.conf") if root else None
    home = environ.get("HOME")
    return Path(home, ".pgpass") if home else None


def read_passfile(path: Path) -> PassFile:
    """Read the file. One that is missing is empty, and so is, with a warning, one that others could read."""
    try:
        # Looked at before it is opened: opening a named pipe would wait for somebody to write to it.
        reason = _unsafe(path.stat())
        if reason is not None:
            log.warning("password file %s is ignored: it %s", path, reason)
            return PassFile()
        return PassFile(tuple(_entries(path.read_bytes())))
    except FileNotFoundError:
        return PassFile()
    except (OSError, ValueError) as error:
        log.warning("password file %s is ignored: %s", path, getattr(error, "strerror", None) or type(error).__name__)
        return PassFile()


def _unsafe(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "is not a plain file"
    if sys.platform != "win32" and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return "has group or world access; permissions should be u=rw (0600) or less"
    return None


def _entries(content: bytes) -> Iterator[Entry]:
    for line in content.splitlines():
        if not line.strip() or line.startswith(b"#"):
            continue
        fields = _fields(line)
        if len(fields) == 5:
            host, port, database, user = (name.decode(errors="replace") for name in fields[:4])
            yield Entry(host, port, database, user, _password(fields[4]))


def _password(value: bytes) -> Secret:
    try:
        return Secret(value.decode())
    except UnicodeDecodeError:
        return Secret(value)


def _fields(line: bytes) -> list[bytes]:
    """Split at colons. A backslash takes the next byte as it is; further colons belong to the password."""
    fields = [bytearray()]
    rest = iter(line)
    for byte in rest:
        if byte == ord("\\"):
            # A backslash at the very end stands for itself.
            fields[-1].append(next(rest, byte))
        elif byte == ord(":") and len(fields) < 5:
            fields.append(bytearray())
        else:
            fields[-1].append(byte)
    return [bytes(part) for part in fields]
