"""The run: round after round, each cell in a process of its own, the order reversed from one round to the next."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

from integration.bench import buffers, catalogue
from integration.bench.catalogue import Cell
from integration.bench.environments import ROOT, Python
from integration.bench.job import Endpoint, Job, Metrics
from integration.bench.machine import Cores
from integration.bench.results import Results
from integration.bench.servers import Servers

_PATIENCE = 90.0
"""Seconds that a process is given beyond what it is told to take."""
_FAILURES = 2
"""A cell that has failed so often is not tried again."""

Say = Callable[[str], None]
NewJob = Callable[[Cell, Endpoint], Job]


class ContenderFailed(Exception):
    """A contender's process did not measure anything; the text is its last word."""


def schedule(cells: Sequence[Cell], rounds: int) -> Iterator[tuple[int, Cell]]:
    """Who is measured when. What is measured once has its turn in the first round."""
    for number in range(rounds):
        for cell in cells if number % 2 == 0 else reversed(cells):
            if number == 0 or not catalogue.work(cell.work).once:
                yield number, cell


def run(
    cells: Sequence[Cell],
    rounds: int,
    pythons: Mapping[str, Python],
    servers: Servers,
    cores: Cores | None,
    new_job: NewJob,
    say: Say,
) -> Results:
    """Measure all of it. What fails is noted and does not stop the rest."""
    results = Results()
    failed: dict[Cell, int] = {}
    for cell in cells:
        obstacle = pythons[cell.python].obstacle(catalogue.contender(cell.contender))
        if cell.transport not in servers.by_transport:
            obstacle = servers.lacking[cell.transport]
        if obstacle is not None:
            results.fail(cell, obstacle)
            failed[cell] = _FAILURES
    for number, cell in schedule(cells, rounds):
        if failed.get(cell, 0) >= _FAILURES:
            continue
        if cell.work.startswith("transaction"):
            servers.clear()
        if catalogue.work(cell.work).bulk and cores is not None:
            buffers.warm(*cores)
        say(f"round {number + 1} of {rounds}: {cell.work}/{cell.contender}, {cell.transport}, Python {cell.python}")
        job = new_job(cell, servers.by_transport[cell.transport].endpoint)
        try:
            results.add(cell, number, measure(pythons[cell.python], job))
        except ContenderFailed as failure:
            failed[cell] = failed.get(cell, 0) + 1
            results.fail(cell, str(failure))
            say(f"  failed: {failure}")
    return results


def measure(python: Python, job: Job, wrapper: Sequence[str] = ()) -> Metrics:
    """One process, started through `wrapper` if there is one. Raises `ContenderFailed`."""
    done = start(python, job, wrapper)
    metrics: Metrics = json.loads(done.stdout.splitlines()[-1])
    return metrics


def start(
    python: Python, job: Job, wrapper: Sequence[str] = (), patience: float = _PATIENCE
) -> subprocess.CompletedProcess[str]:
    """The same, for who wants all that the process printed."""
    program = python.programs[catalogue.contender(job.contender).environment]
    command = [*wrapper, program, "-m", "integration.bench.worker", job.dump()]
    limit = patience + job.seconds * 10 + job.idle_seconds * 2
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit, cwd=ROOT, env=_environment()
        )
    except subprocess.TimeoutExpired:
        raise ContenderFailed(f"not done within {limit:g} s") from None
    if done.returncode != 0 or not done.stdout:
        # The frame that is drawn around a group of exceptions is no word.
        words = [line.strip(" |+-") for line in done.stderr.splitlines() if line.strip(" |+-")]
        raise ContenderFailed(words[-1][:300] if words else f"ended with status {done.returncode}")
    return done


def _environment() -> dict[str, str]:
    """The caller's, less what would send a client elsewhere or have it import something else."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(ROOT)}
