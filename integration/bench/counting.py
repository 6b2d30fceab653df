"""Instructions for one operation, by valgrind: slow, and the same on a busy machine as on a quiet one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace

from integration.bench.environments import Python
from integration.bench.job import Job
from integration.bench.rounds import ContenderFailed, start

_FEW, _MANY = 1_000, 6_000
_PATIENCE = 600.0
_COUNT = re.compile(r"refs:\s+([\d,]+)|Collected\s*:\s*(\d+)")


def instructions(python: Python, job: Job, few: int = _FEW, many: int = _MANY) -> float:
    """Executed by the client for one operation: the difference of a run of few and one of many, without starting up.

    Raises `ContenderFailed`, also where there is no valgrind.
    """
    if shutil.which("valgrind") is None:
        raise ContenderFailed("valgrind is not installed")
    less, more = (_collected(python, replace(job, mode="count", operations=count)) for count in (few, many))
    return (more[0] - less[0]) / (more[1] - less[1])


def _collected(python: Python, job: Job) -> tuple[int, int]:
    """Instructions of a whole run, and its operations."""
    wrapper: Sequence[str] = (
        "env",
        "PYTHONHASHSEED=0",  # or the order of things in sets, and so the count, differs from run to run
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
    )
    done = start(python, job, wrapper, patience=_PATIENCE)
    found = _COUNT.search(done.stderr)
    if found is None:
        raise ContenderFailed("valgrind did not say how many instructions there were")
    return int((found[1] or found[2]).replace(",", "")), round(json.loads(done.stdout.splitlines()[-1])["operations"])
