"""The contenders' own environments: one for ysactor's dependencies and its peers, one for a fork that stands in the
way of its original. Made by pip, kept between runs, and never the environment that the benchmark itself runs in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from integration.bench.catalogue import Contender

ROOT = Path(__file__).parent.parent.parent
_LIMIT = 600.0
_STATE = "bench.json"
_SHOWN = (
    "trio",
    "trio-asyncio",
    "asyncpg",
    "uvloop",
    "psycopg",
    "psycopg-pool",
    "triopg",
    "hasql",
    "psycopg-yugabytedb",
)

Say = Callable[[str], None]


def default_directory() -> Path:
    """In the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ysactor-bench"


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter, with an environment of each kind made from it."""

    version: str
    """Such as 3.11.7."""
    programs: dict[str, str]
    """The interpreter of each kind of environment."""
    missing: dict[str, str]
    """By requirement: why it could not be installed."""
    versions: dict[str, str]
    """What is installed, of what the report shows."""

    @property
    def release(self) -> tuple[int, int]:
        """Such as (3, 11)."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)

    def obstacle(self, contender: Contender) -> str | None:
        """Why the contender cannot take part here, or None."""
        if contender.before is not None and self.release >= contender.before:
            return f"does not run on Python {self.version}"
        reasons = [f"{need}: {self.missing[need]}" for need in contender.needs if need in self.missing]
        return "; ".join(reasons) or None


def prepare(program: str, directory: Path, contenders: Iterable[Contender], say: Say) -> Python:
    """Make, or find, the environments that these contenders need. Raises `OSError` or `CalledProcessError` for an
    interpreter that cannot be used; what cannot be installed is noted in `missing`."""
    shown = _run([program, "-c", "import platform; print(platform.python_implementation(), platform.python_version())"])
    implementation, version = shown.split()
    wanted: dict[str, list[str]] = {}
    for contender in contenders:
        needs = wanted.setdefault(contender.environment, [])
        if contender.before is None or tuple(map(int, version.split(".")[:2])) < contender.before:
            needs += [need for need in contender.needs if need not in needs]
    python = Python(version, {}, {}, {})
    for kind, needs in sorted(wanted.items()):
        place = directory / f"{implementation.lower()}-{version}-{kind}"
        basis = _dependencies() if kind == "peers" else []
        state, missing = _make(program, place, basis, needs, say)
        python.programs[kind] = str(_program(place))
        python.missing.update(missing)
        python.versions.update(state.versions)
    return python


def _dependencies() -> list[str]:
    """What ysactor itself depends on, from its project file: it runs from the checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = project["dependencies"]
    return found


def _program(place: Path) -> Path:
    return place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


@dataclass(slots=True)
class _State:
    """What an environment holds."""

    basis: list[str] | None = None
    """What it began with; None for one that is not there."""
    installed: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def _make(program: str, place: Path, basis: list[str], needs: list[str], say: Say) -> tuple[_State, dict[str, str]]:
    """One environment, and what could not be installed in it; what is installed already stays as it is."""
    state = _load(place)
    if state.basis != basis:
        say(f"making {place}")
        _run([program, "-m", "venv", "--clear", str(place)])
        if basis:
            _pip(place, "install", *basis)
        (place / "constraints.txt").write_text(_pip(place, "freeze"))
        state = _State(basis)
    missing: dict[str, str] = {}
    for need in needs:
        if need in state.installed:
            continue
        say(f"installing {need}")
        try:
            # Nothing may move what ysactor is measured with to another version.
            _pip(place, "install", "--constraint", str(place / "constraints.txt"), need)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            missing[need] = _reason(error)
        else:
            state.installed.append(need)
    listed = json.loads(_pip(place, "list", "--format", "json"))
    state.versions = {one["name"]: one["version"] for one in listed if one["name"].lower() in _SHOWN}
    (place / _STATE).write_text(json.dumps(asdict(state)))
    return state, missing


def _load(place: Path) -> _State:
    try:
        found = _State(**json.loads((place / _STATE).read_text()))
    except (OSError, ValueError, TypeError):
        return _State()
    return found if _program(place).exists() else _State()


def _reason(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"pip did not end within {_LIMIT:g} s"
    lines = [line for line in str(error.stderr).splitlines() if line.startswith("ERROR:")]
    return re.sub(r"^ERROR:\s*", "", lines[-1]) if lines else f"pip ended with status {error.returncode}"


def _pip(place: Path, command: str, *arguments: str) -> str:
    options = ["--disable-pip-version-check", "--no-input"]
    return _run([str(_program(place)), "-m", "pip", *options, command, *arguments])


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT).stdout
