"""The pages say what is so: their links lead somewhere, their programs compile, and what they name exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ysactor
from ysactor import cli
from ysactor.testing.postgres import PostgresNotFound, find

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_compile_and_name_what_exists(page: Path) -> None:
    for program in blocks(page, "python"):
        tree = ast.parse(program)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ysactor":
                assert hasattr(ysactor, node.attr), f"ysactor.{node.attr}"


def test_the_program_for_real_servers_does_what_it_says() -> None:
    try:
        find()
    except PostgresNotFound:
        pytest.skip("no PostgreSQL was found")
    (program,) = [
        text for text in blocks(ROOT / "docs" / "guide" / "testing.md", "python") if "open_three_zones" in text
    ]
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_the_readmes_two_commands_are_what_the_project_installs() -> None:
    setup = blocks(ROOT / "README.md", "")[0]
    commands = [line.split("#")[0].strip() for line in setup.splitlines()]
    assert commands == ["pip install '.[demo]' && ysactor demo", "pip install '.[test]' && pytest"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"demo", "test"} <= set(project["optional-dependencies"])
    assert project["scripts"] == {"ysactor": "ysactor.cli:main"}
    assert callable(cli.main)


def test_the_gate_runs_the_readmes_test_command() -> None:
    assert re.search(r"^if ! step pytest 2", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_the_top_level_holds_only_what_it_should() -> None:
    allowed = {"pyproject.toml", "README.md", "LICENSE", "ysactor", "tests", "integration", "docs"}
    caches = {"build", "dist", "ysactor.egg-info", "__pycache__"}
    assert {path.name for path in ROOT.iterdir() if not path.name.startswith(".")} <= allowed | caches


def test_the_version_is_said_in_one_voice() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == ysactor.__version__


def test_the_page_of_the_interface_has_every_public_name() -> None:
    words = set(re.findall(r"\w+", (ROOT / "docs" / "reference" / "api.md").read_text()))
    classes = (
        *(ysactor.Pool, ysactor.PoolStatistics, ysactor.Cluster, ysactor.ClusterInfo, ysactor.Server),
        *(ysactor.Connection, ysactor.PreparedStatement, ysactor.Cursor, ysactor.Transaction),
    )
    members = {name for kind in classes for name in dir(kind) if not name.startswith("_")}
    missing = {name for name in ysactor.__all__ if not name.startswith("_")} | members
    assert missing - words == set()
