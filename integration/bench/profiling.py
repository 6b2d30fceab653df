"""Where the CPU of one work goes: cProfile over one contender's process, read by whose code it is."""

from __future__ import annotations

import io
import pstats
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from integration.bench.job import Metrics

Function: TypeAlias = tuple[str, int, str]
_ROWS = 25


def describe(path: Path, metrics: Metrics) -> str:
    """The tables, as text. Seconds under the profiler are about twice those without it, and calls weigh most."""
    stats = pstats.Stats(str(path))
    functions: Mapping[Function, Any] = stats.stats  # type: ignore[attr-defined]  # typeshed leaves it out
    count = metrics["operations"]
    total = sum(own for _, _, own, _, _ in functions.values())
    per = f"{metrics['wall'] * 1e6:.1f} µs wall, {metrics['cpu'] * 1e6:.1f} µs CPU"
    lines = [
        f"{count:.0f} operations; without the profiler {per} for one (for a MB of COPY)",
        f"under the profiler {total / count * 1e6:.1f} µs for one",
        "",
        "own time by whose code it is",
        *_owners(functions, total),
        "",
        "ysactor's own functions",
        *_ours(functions, count, total),
        "",
        "everybody's, by own time",
        _table(path, "tottime"),
        "everybody's, by cumulative time",
        _table(path, "cumulative"),
    ]
    return "\n".join(lines)


def _owner(function: Function) -> str:
    file, _, name = function
    if file == "~":
        return "the interpreter's C functions" if "asyncpg" not in name else "asyncpg, compiled"
    for owner in ("asyncpg", "trio_asyncio", "trio", "asyncio", "ysactor", "outcome", "integration"):
        if f"/{owner}/" in file.replace("\\", "/"):
            return owner
    return "others"


def _owners(functions: Mapping[Function, Any], total: float) -> Iterator[str]:
    times: Counter[str] = Counter()
    for function, (_, _, own, _, _) in functions.items():
        times[_owner(function)] += own
    for owner, own in times.most_common():
        yield f"{own / total * 100:6.1f} %  {owner}"


def _ours(functions: Mapping[Function, Any], count: float, total: float) -> Iterator[str]:
    yield "calls/op  own µs  cumulative µs  own share"
    ours = [(function, timing) for function, timing in functions.items() if _owner(function) == "ysactor"]
    for (file, line, name), (_, calls, own, cumulative, _) in sorted(ours, key=lambda one: -one[1][2])[:_ROWS]:
        where = f"{file.rpartition('/ysactor/')[2]}:{line}({name})"
        times = f"{own / count * 1e6:7.2f} {cumulative / count * 1e6:14.2f} {own / total * 100:9.1f} %"
        yield f"{calls / count:8.2f} {times}  {where}"


def _table(path: Path, key: str) -> str:
    text = io.StringIO()
    stats = pstats.Stats(str(path), stream=text)
    stats.strip_dirs().sort_stats(key).print_stats(_ROWS)
    _, _, table = text.getvalue().partition("   ncalls")
    return f"   ncalls{table}"
