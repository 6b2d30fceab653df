"""The page of promises names files and tests that exist, and leaves no promise without one or a reason."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "explain" / "conformance.md"

SECTIONS = (
    "How a connection is placed",
    "When a server is left out",
    "The pool",
    "Dead connections",
    "Transactions",
    "TLS",
    "Passwords",
    "Differences from the smart drivers",
    "PostgreSQL",
    "Without a pool",
)
PROOF = re.compile(r"`((?:tests|integration)/[\w/]+\.py)::(test_\w+)`")
REASONS = ("Does not apply", "Not offered: ", "Not tested: ", "A duty of the caller")


@dataclass(frozen=True)
class Row:
    section: str
    promise: str
    where: str
    proof: str

    def __str__(self) -> str:
        return f"{self.section}: {self.promise}"


def rows() -> Iterator[Row]:
    section = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| ") and not line.startswith("| promise |"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 3, f"not three cells: {line}"
            yield Row(section, *cells)


@cache
def functions_of(path: Path) -> frozenset[str]:
    """The test functions of a module, those in classes included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def test_every_section_has_its_promises_and_each_is_made_once() -> None:
    assert tuple(dict.fromkeys(row.section for row in rows())) == SECTIONS
    assert [promise for promise, times in Counter(row.promise for row in rows()).items() if times > 1] == []


@pytest.mark.parametrize("section", SECTIONS)
def test_every_promise_has_tests_that_exist_or_a_reason(section: str) -> None:
    for row in rows():
        if row.section == section and not row.proof.startswith(REASONS):
            proofs = PROOF.findall(row.proof)
            assert proofs, f"neither a test nor a reason: {row}"
            assert PROOF.sub("", row.proof).strip(", ") == "", f"what is no test is no proof: {row}"
            for path, name in proofs:
                assert (ROOT / path).is_file(), f"there is no {path}: {row}"
                assert name in functions_of(ROOT / path), f"there is no {path}::{name}: {row}"


def test_every_reason_is_one() -> None:
    for row in rows():
        if row.proof.startswith(REASONS):
            assert not PROOF.search(row.proof), f"a reason beside a test: {row}"
            assert len(row.proof) > 50, f"a reason in a word: {row}"


def test_every_promise_says_where_it_is_kept() -> None:
    for row in rows():
        assert re.fullmatch(r"`[\w/]+\.py`", row.where), f"no file: {row}"
        assert (ROOT / "ysactor" / row.where.strip("`")).is_file(), f"there is no {row.where}: {row}"
