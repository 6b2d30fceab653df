"""The report: one Markdown page, the same as JSON, and the plot beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from integration.bench import wording
from integration.bench.catalogue import WORKS, Cell, Work, contender
from integration.bench.environments import Python
from integration.bench.plot import draw
from integration.bench.results import Outcome, Results
from integration.bench.targets import OURS, Target


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Under which it was measured."""

    machine: Mapping[str, str]
    servers: Mapping[str, str]
    pythons: Sequence[Python]
    rounds: int
    quick: bool
    pinned: bool
    date: str
    took: float


def write(directory: Path, results: Results, outcomes: Sequence[Outcome], facts: Circumstances) -> list[Path]:
    """Write the three files; their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    page, data, plot = (directory / f"bench.{kind}" for kind in ("md", "json", "svg"))
    page.write_text("\n".join(_page(results, outcomes, facts)) + "\n")
    data.write_text(json.dumps(_data(results, outcomes, facts), indent=1) + "\n")
    plot.write_text(draw(results, outcomes))
    return [page, data, plot]


def _data(results: Results, outcomes: Sequence[Outcome], facts: Circumstances) -> dict[str, object]:
    return {
        "circumstances": {
            **asdict(facts),
            "pythons": [{"version": p.version, "with": p.versions} for p in facts.pythons],
        },
        "targets": [asdict(outcome) for outcome in outcomes],
        "samples": [
            {**asdict(cell), "rounds": [{"round": number, **metrics} for number, metrics in samples]}
            for cell, samples in results.samples.items()
        ],
        "failures": [{**asdict(cell), "reason": reason} for cell, reason in results.failures.items()],
    }


def _page(results: Results, outcomes: Sequence[Outcome], facts: Circumstances) -> Iterator[str]:
    yield "# ysactor and its peers\n"
    yield from _head(facts)
    yield from _targets(outcomes, [python.version for python in facts.pythons])
    yield "\n![targets and pools](bench.svg)\n"
    for task in WORKS:
        yield from _work(results, task)
    yield from _failures(results)


def _head(facts: Circumstances) -> Iterator[str]:
    if facts.quick:
        yield "**A quick run: it shows that everything works, and its figures are not to be quoted.**\n"
    machine = facts.machine
    held = "client and server on a core each" if facts.pinned else "client and server not held apart"
    yield f"- {machine['processor']}, {machine['cores']} cores, {held}; {machine['system']}"
    for transport, version in facts.servers.items():
        yield f"- {transport}: {version}"
    for python in facts.pythons:
        yield f"- Python {python.version}: {', '.join(f'{name} {number}' for name, number in python.versions.items())}"
    yield (
        f"- {facts.date}, {facts.rounds} rounds in {facts.took / 60:.1f} minutes; each figure is the median of the "
        "rounds (the least to the most), and each ratio the median of the rounds' ratios; CPU is the client's"
    )


def _targets(outcomes: Sequence[Outcome], pythons: Sequence[str]) -> Iterator[str]:
    """One row for each target, with three columns for each Python."""
    yield f"\n## Targets, Python {' and '.join(pythons)}\n"
    heads = ["measured"] if len(pythons) == 1 else pythons
    yield "| work | against | at most |" + "".join(f" {head} | | CPU alone |" for head in heads)
    yield "|---" * (3 + 3 * len(heads)) + "|"
    rows: dict[Target, dict[str, Outcome]] = {}
    for one in outcomes:
        rows.setdefault(one.target, {})[one.python] = one
    for target, row in rows.items():
        figures = " | ".join(_outcome(row[python]) for python in pythons)
        yield f"| {target.title} | {target.against or 'absolute'} | {wording.limit(target)} | {figures} |"


def _outcome(one: Outcome) -> str:
    cpu = "" if one.cpu is None else wording.ratio(one.cpu.median)
    return f"{wording.of_target(one.target, one.measured)} | {one.standing} | {cpu}"


def _work(results: Results, task: Work) -> Iterator[str]:
    measured = [cell for cell in results.samples if cell.work == task.name]
    for python, transport in dict.fromkeys((cell.python, cell.transport) for cell in measured):
        names = [cell.contender for cell in measured if (cell.python, cell.transport) == (python, transport)]
        over = "" if task.name.startswith("scale-") else f", {transport}"
        yield f"\n### {task.title}{over}, Python {python}\n"
        cells = [Cell(python, transport, task.name, name) for name in names]
        metrics = list(dict.fromkeys(name for cell in cells for _, sample in results.samples[cell] for name in sample))
        heads = [
            f"{wording.METRICS[name][0]} per {task.per}" if name in ("wall", "cpu") else wording.METRICS[name][0]
            for name in metrics
        ]
        compared = metrics[0] == "wall" and len(cells) > 1
        yield "| | " + " | ".join(heads) + (" | wall, ysactor = 1 |" if compared else " |")
        yield "|---" * (1 + len(heads) + compared) + "|"
        for cell in cells:
            yield _row(results, cell, metrics, compared)


def _row(results: Results, cell: Cell, metrics: Sequence[str], compared: bool) -> str:
    figures = [results.spread(cell, metric) for metric in metrics]
    columns = [
        "-" if one is None else wording.spread(one, metric) for one, metric in zip(figures, metrics, strict=True)
    ]
    if compared:
        times = results.ratio(cell, "wall", Cell(cell.python, cell.transport, cell.work, OURS))
        columns.append("-" if times is None else wording.ratio(times.median))
    who = contender(cell.contender)
    return f"| {who.title} | {' | '.join(columns)} |"


def _failures(results: Results) -> Iterator[str]:
    names = dict.fromkeys(cell.contender for cell in (*results.samples, *results.failures))
    notes = [f"- {who.title}: {who.note}" for who in map(contender, names) if who.note]
    if notes:
        yield "\n## Notes\n"
        yield from notes
    if results.failures:
        yield "\n## What failed, or could not be measured\n"
        alike: dict[tuple[str, str, str], list[str]] = {}
        for cell, reason in results.failures.items():
            count = len(results.samples.get(cell, ()))
            some = f" (measured in {count} other rounds)" if count else ""
            alike.setdefault((cell.contender, cell.python, reason), []).append(
                f"{cell.work} over {cell.transport}{some}"
            )
        for (name, python, reason), works in alike.items():
            yield f"- {contender(name).title}, Python {python}: {reason} ({', '.join(works)})"
