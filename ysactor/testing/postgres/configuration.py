"""How a test bed's servers are set up: settings, roles, access, and the data directory they are copied from."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ysactor.testing.postgres import wire
from ysactor.testing.postgres.binaries import Binaries
from ysactor.testing.postgres.run import Run

ADMIN = "testbed"
"""The superuser through which the bed itself works. Always trusted from loopback, whatever others must show."""

# Small and quick, with no care for the data: 4 processes and some 5 MB a server.
_SETTINGS: Mapping[str, str] = {
    "shared_buffers": "1MB",
    "max_connections": "60",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "jit": "off",
    "max_worker_processes": "0",
    "max_logical_replication_workers": "0",
    "max_parallel_workers": "0",
    "unix_socket_directories": "",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "min_wal_size": "2MB",
    "max_wal_size": "64MB",
    "wal_buffers": "64kB",
    "dynamic_shared_memory_type": "mmap",
    "shared_memory_type": "mmap",
    "log_line_prefix": "%m [%p] %a ",
    "lc_messages": "C",
    "timezone": "UTC",
}
_SINCE_18: Mapping[str, str] = {"io_method": "sync"}
if sys.platform == "win32":
    _SETTINGS = {name: value for name, value in _SETTINGS.items() if not name.endswith("shared_memory_type")}


@dataclass(frozen=True, slots=True)
class Role:
    """A login role."""

    name: str
    password: str | None = field(default=None, repr=False)
    superuser: bool = False


USER = Role("yugabyte", "yugabyte", superuser=True)
"""The role, and the name of the database, that a bed's DSN names: those of a fresh YugabyteDB."""
APPLICATION = Role("app", "app")
"""An ordinary role, which ``max_connections`` and reserved connections hold for."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who is let in, for all but the bed's own superuser."""

    method: str = "trust"
    """A method of ``pg_hba.conf``: ``trust``, ``scram-sha-256``, ``cert``, ``reject``…"""
    tls_only: bool = False
    """Plain sessions are refused (``hostssl``)."""

    def rules(self) -> str:
        """The text of ``pg_hba.conf``."""
        kind = "hostssl" if self.tls_only else "host"
        loopback = ("127.0.0.0/8", "::1/128")
        admin = [f"host {databases} {ADMIN} {net} trust" for databases in ("all", "replication") for net in loopback]
        others = [f"{kind} all all {net} {self.method}" for net in loopback]
        # A certificate needs TLS, which a Unix socket never has.
        local = [] if self.method == "cert" else [f"local all all {self.method}"]
        return "\n".join([*admin, *others, *local, ""])


def configuration(binaries: Binaries, settings: Mapping[str, str]) -> str:
    """The text of ``postgresql.conf``: these settings over the bed's own."""
    own = {**_SETTINGS, **_SINCE_18} if binaries.version >= 18 else _SETTINGS
    return "".join(f"{name} = {wire.quote(value)}\n" for name, value in {**own, **settings}.items())


def create_data(
    run: Run,
    name: str,
    *,
    roles: Sequence[Role] = (USER, APPLICATION),
    setup: str = "",
    settings: Mapping[str, str] | None = None,
) -> Path:
    """Make a data directory with these roles and a database named ``yugabyte``, in which ``setup`` is run.

    Copies of it are servers: making it takes half a second, copying a twentieth of one. In ``setup`` a statement ends
    with a semicolon and an empty line.
    """
    data = run.path / name
    initdb = ["--auth=trust", "--no-sync", "--no-locale", "-E", "UTF8", "--wal-segsize=1", "--no-instructions"]
    run.spawner.run([run.binaries.tool("initdb"), "-D", str(data), "-U", ADMIN, *initdb])
    # The limits used last are kept in the data, and a standby with lower ones than those would refuse to start.
    (data / "postgresql.conf").write_text(configuration(run.binaries, settings or {}))
    statements = [_create(role) for role in roles]
    statements.append(f"create database {USER.name}")
    _single(run, data, "postgres", ";\n\n".join(statements) + ";\n\n")
    grants = "grant all on schema public to public;\n\n"
    _single(run, data, USER.name, grants + setup)
    return data


def _create(role: Role) -> str:
    password = "" if role.password is None else f" password {wire.quote(role.password)}"
    return f'create role "{role.name}" login{" superuser" if role.superuser else ""}{password}'


def _single(run: Run, data: Path, database: str, statements: str) -> None:
    """Run SQL without a server: no port, no processes, and an error is fatal to it."""
    options = ["-c", "fsync=off", "-c", "exit_on_error=on", "-c", "log_checkpoints=off"]
    program = run.binaries.tool("postgres")
    run.spawner.run([program, "--single", "-j", *options, "-D", str(data), database], stdin=statements)
