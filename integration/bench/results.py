"""Samples and what follows from them: medians, spreads, and ratios taken round by round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from integration.bench.catalogue import Cell, TransportName
from integration.bench.job import Metrics
from integration.bench.targets import OURS, Target


@dataclass(frozen=True, slots=True)
class Spread:
    """A median between the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(slots=True)
class Results:
    """Everything that was measured, by cell, and why something was not."""

    samples: dict[Cell, list[tuple[int, Metrics]]] = field(default_factory=dict)
    """With the number of the round."""
    failures: dict[Cell, str] = field(default_factory=dict)
    """The last reason. A cell may have failed in one round and have samples of others."""

    def add(self, cell: Cell, round_number: int, metrics: Metrics) -> None:
        self.samples.setdefault(cell, []).append((round_number, metrics))

    def fail(self, cell: Cell, reason: str) -> None:
        self.failures[cell] = reason

    def spread(self, cell: Cell, metric: str) -> Spread | None:
        """Over the rounds; None if it was not measured."""
        values = list(self._by_round(cell, metric).values())
        return Spread.of(values) if values else None

    def ratio(self, cell: Cell, metric: str, other: Cell) -> Spread | None:
        """Of each round by itself, since the machine's pace changes from one round to the next."""
        ours, theirs = self._by_round(cell, metric), self._by_round(other, metric)
        ratios = [ours[number] / theirs[number] for number in ours if theirs.get(number)]
        return Spread.of(ratios) if ratios else None

    def _by_round(self, cell: Cell, metric: str) -> dict[int, float]:
        return {number: sample[metric] for number, sample in self.samples.get(cell, ()) if metric in sample}


Standing = Literal["met", "missed", "not measured"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a target."""

    target: Target
    python: str
    measured: Spread | None
    standing: Standing
    cpu: Spread | None = None
    """The same ratio of the client's CPU, where that of wall time is judged: on a busy machine the steadier."""


def judge(results: Results, targets: Sequence[Target], python: str, transport: TransportName) -> list[Outcome]:
    """Every target on one Python, those that name no transport over this one."""
    return [_judged(results, target, python, target.transport or transport) for target in targets]


def _judged(results: Results, target: Target, python: str, transport: TransportName) -> Outcome:
    cell = Cell(python, transport, target.work, OURS)
    cpu: Spread | None = None
    if target.other is None:
        measured = results.spread(cell, target.metric)
    else:
        other = Cell(python, transport, target.other_work or target.work, target.other)
        measured = results.ratio(cell, target.metric, other)
        cpu = results.ratio(cell, "cpu", other) if target.metric == "wall" else None
    if measured is None:
        return Outcome(target, python, None, "not measured")
    return Outcome(target, python, measured, "met" if measured.median <= target.at_most else "missed", cpu)
