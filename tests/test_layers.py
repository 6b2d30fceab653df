"""The arrows between the layers: who may import whom. The drawing in the architecture page stays true by this test."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ysactor"

VOCABULARY = {"errors", "servers", "secret", "config", "options"}

ALLOWED: dict[str, set[str]] = {
    # What a layer may import of ours, beside itself. `driver.protocol` is vocabulary too: it waits for nothing.
    **dict.fromkeys(VOCABULARY, VOCABULARY),
    "actor": set(),
    "policy": {*VOCABULARY, "driver.protocol"},
    "driver": {*VOCABULARY, "policy.classify"},
    "cluster": {*VOCABULARY, "actor", "policy", "driver.protocol"},
    "connection": {*VOCABULARY, "actor", "policy", "cluster", "driver.protocol"},
    "pool": {*VOCABULARY, "actor", "policy", "cluster", "connection", "driver.protocol"},
    "client": {*VOCABULARY, "actor", "cluster", "connection", "pool", "driver.choose", "driver.protocol"},
    "testing": {*VOCABULARY, "driver.protocol"},
    "cli": {
        *VOCABULARY,
        "__version__",
        "actor",
        "client",
        "cluster",
        "connection",
        "policy",
        "pool",
        "testing",
        "driver.choose",
        "driver.protocol",
    },
}

FOREIGN = {"asyncio", "asyncpg", "trio_asyncio"}
MAY_BE_FOREIGN = {"driver", "testing/pgerrors.py"}
"""Where asyncio and asyncpg may be imported. The fake cluster raises asyncpg's own error classes."""

IMPURE = {"asyncio", "datetime", "logging", "random", "secrets", "socket", "threading", "time", "trio"}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), ast.parse(path.read_text())


def imports(path: Path, tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Every module that is imported, by its full name, and whether only for type checkers."""
    package = ["ysactor", *path.parts[:-1]]
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        only = id(node) in typing_only
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, only
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, node.module] if node.module else base)
            if node.module is None:
                for alias in node.names:
                    yield f"{prefix}.{alias.name}", only
            else:
                yield prefix, only


def layer(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def test_every_arrow_between_layers_is_allowed() -> None:
    wrong = []
    for path, tree in modules():
        here = layer(path)
        if here in ("__init__", "__main__"):
            continue
        assert here in ALLOWED, f"{path} is in no layer"
        for name, typing_only in imports(path, tree):
            if not name.startswith("ysactor.") or typing_only:
                continue
            there = name.split(".")[1:]
            if there[0] == here or there[0] in ALLOWED[here] or ".".join(there[:2]) in ALLOWED[here]:
                continue
            wrong.append(f"{path} imports {name}")
    assert wrong == []


def test_asyncio_and_asyncpg_stop_at_the_driver() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, tree in modules()
        for name, _ in imports(path, tree)
        if name.split(".")[0] in FOREIGN and layer(path) not in MAY_BE_FOREIGN and path.as_posix() not in MAY_BE_FOREIGN
    ]
    assert wrong == []


def test_policy_waits_for_nothing_reads_no_clock_and_draws_no_lots() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, tree in modules()
        if layer(path) == "policy"
        for name, _ in imports(path, tree)
        if name.split(".")[0] in IMPURE or name.split(".")[0] not in {*sys.stdlib_module_names, "ysactor"}
    ]
    assert wrong == []


def test_importing_the_package_imports_no_event_loop_of_trio_asyncio() -> None:
    """Importing trio_asyncio changes asyncio's event loops for the whole process."""
    import subprocess

    program = "import sys, ysactor, ysactor.driver.native; assert 'trio_asyncio' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=PACKAGE.parent)
