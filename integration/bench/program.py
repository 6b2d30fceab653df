"""What the command does, from its arguments to its files."""

from __future__ import annotations

import datetime
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from integration.bench import counting, machine, profiling, report
from integration.bench.arguments import Arguments
from integration.bench.catalogue import Cell, cells, contender, transports_of, work
from integration.bench.environments import Python, prepare
from integration.bench.job import Endpoint, Job
from integration.bench.results import judge
from integration.bench.rounds import ContenderFailed, measure, run
from integration.bench.servers import Servers, servers
from integration.bench.targets import TARGETS
from ysactor.testing.postgres import PostgresNotFound

_DEFAULT_ONLY = {
    "run": (),
    "profile": ("pooled/ysactor",),
    "instructions": ("pooled/ysactor", "pooled/asyncpg*noreset"),
}


class Bench:
    """One run of the command."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.only = arguments.only or _DEFAULT_ONLY[arguments.mode]
        self.cores = machine.cores()

    def main(self) -> int:
        """0: done; 2: it could not begin."""
        wanted = cells("", self.arguments.transports, self.only)
        if not wanted:
            _say(f"nothing is called {', '.join(self.only)}")
            return 2
        try:
            pythons = self._pythons({cell.contender for cell in wanted})
            transports = {name for cell in wanted for name in transports_of(work(cell.work), self.arguments.transports)}
            with servers(transports, None if self.cores is None else self.cores.servers) as running:
                return {"run": self._run, "profile": self._profile, "instructions": self._count}[self.arguments.mode](
                    pythons, running
                )
        except (PostgresNotFound, OSError, subprocess.CalledProcessError) as error:
            _say(str(error))
            return 2

    def _pythons(self, names: set[str]) -> dict[str, Python]:
        chosen = [contender(name) for name in sorted(names)]
        found = [prepare(program, self.arguments.directory, chosen, _say) for program in self.arguments.pythons]
        return {python.version: python for python in found}

    def _cells(self, pythons: dict[str, Python]) -> list[Cell]:
        return [cell for version in pythons for cell in cells(version, self.arguments.transports, self.only)]

    def _job(self, cell: Cell, endpoint: Endpoint) -> Job:
        quick = self.arguments.quick
        return Job(
            work=cell.work,
            contender=cell.contender,
            endpoint=endpoint,
            seconds=0.05 if quick else 0.25,
            idle_seconds=3 if quick else 60,
            megabytes=10 if quick else 100,
            core=None if self.cores is None else self.cores.client,
        )

    def _run(self, pythons: dict[str, Python], running: Servers) -> int:
        began = time.monotonic()
        arguments = self.arguments
        results = run(self._cells(pythons), arguments.rounds, pythons, running, self.cores, self._job, _say)
        outcomes = [one for version in pythons for one in judge(results, TARGETS, version, arguments.transports[0])]
        facts = report.Circumstances(
            machine=machine.description(),
            servers=running.versions(),
            pythons=list(pythons.values()),
            rounds=arguments.rounds,
            quick=arguments.quick,
            pinned=self.cores is not None,
            date=datetime.date.today().isoformat(),
            took=time.monotonic() - began,
        )
        directory = arguments.out or Path(tempfile.mkdtemp(prefix="ysactor-bench-"))
        for path in report.write(directory, results, outcomes, facts):
            print(path)
        return 0

    def _profile(self, pythons: dict[str, Python], running: Servers) -> int:
        for cell in self._cells(pythons):
            with tempfile.TemporaryDirectory() as place:
                path = (self.arguments.out or Path(place)) / f"{cell.work}-{cell.contender}-{cell.python}.pstats"
                path.parent.mkdir(parents=True, exist_ok=True)
                job = self._job(cell, running.by_transport[cell.transport].endpoint)
                job = replace(job, mode="profile", output=str(path.absolute()), seconds=max(job.seconds, 0.5))
                try:
                    metrics = measure(pythons[cell.python], job)
                except ContenderFailed as failure:
                    print(f"{cell.work}/{cell.contender}, Python {cell.python}: {failure}")
                    continue
                print(f"== {cell.work}/{cell.contender}, {cell.transport}, Python {cell.python}")
                if "operations" not in metrics:
                    print("this work is no loop of operations, and is not profiled")
                    continue
                print(profiling.describe(path, metrics))
        return 0

    def _count(self, pythons: dict[str, Python], running: Servers) -> int:
        for cell in self._cells(pythons):
            job = replace(self._job(cell, running.by_transport[cell.transport].endpoint), core=None)
            try:
                shown = (
                    f"{counting.instructions(pythons[cell.python], job):,.0f} instructions per {work(cell.work).per}"
                )
            except ContenderFailed as failure:
                shown = str(failure)
            print(f"{cell.work}/{cell.contender}, {cell.transport}, Python {cell.python}: {shown}")
        return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
