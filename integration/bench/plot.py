"""The plot: how far below or above its limit each target came, and how long the pools took. Plain SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from integration.bench import wording
from integration.bench.catalogue import Cell, contender
from integration.bench.results import Outcome, Results

_WIDTH = 1000
_LABELS = 430
_BARS = 420
_ROW = 22
_MOST = 1.5
"""Bars end here, however far a target was missed."""
_COLOURS = {"met": "#2a7d4f", "missed": "#b3382c", "ours": "#2b5d9b", "theirs": "#9aa5b1"}


def draw(results: Results, outcomes: Sequence[Outcome]) -> str:
    """The whole picture."""
    lines: list[str] = []
    top = 10
    for python in dict.fromkeys(one.python for one in outcomes):
        lines += _heading(f"Python {python}: measured, as a share of the limit (the line)", top)
        rows = [one for one in outcomes if one.python == python and one.measured is not None and one.target.at_most]
        lines += _targets(rows, top + 30)
        top += 50 + _ROW * len(rows)
    for python, transport in dict.fromkeys((cell.python, cell.transport) for cell in results.samples):
        bars = list(_pools(results, python, transport))
        if not bars:
            continue
        lines += _heading(
            f"Python {python}, {transport}: pooled SELECT 1, 50 tasks on 10 connections, wall per query", top
        )
        lines += _bars(bars, top + 30)
        top += 50 + _ROW * len(bars)
    style = "text{font:13px sans-serif;fill:#222}.h{font-weight:bold}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}">'
    return "\n".join(
        [head, f"<style>{style}</style>", '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>"]
    )


def _heading(text: str, top: int) -> list[str]:
    return [f'<text class="h" x="10" y="{top + 14}">{escape(text)}</text>']


def _targets(rows: Sequence[Outcome], top: int) -> Iterator[str]:
    limit = _LABELS + _BARS / _MOST
    for number, one in enumerate(rows):
        assert one.measured is not None
        share = one.measured.median / one.target.at_most
        against = f" / {one.target.against}" if one.target.against else ""
        value = f"{wording.of_target(one.target, one.measured).split(' (')[0]} of {wording.limit(one.target)}"
        yield from _bar(
            one.target.title.replace("`", "") + against,
            min(share, _MOST) / _MOST,
            value,
            one.standing,
            top + number * _ROW,
        )
    bottom = top + _ROW * len(rows)
    yield f'<line x1="{limit}" x2="{limit}" y1="{top}" y2="{bottom}" stroke="#222" stroke-dasharray="4 3"/>'


def _pools(results: Results, python: str, transport: str) -> Iterator[tuple[str, float]]:
    for cell in results.samples:
        if (cell.python, cell.transport, cell.work) == (python, transport, "pooled"):
            found = results.spread(Cell(python, cell.transport, "pooled", cell.contender), "wall")
            if found is not None:
                yield cell.contender, found.median


def _bars(bars: Sequence[tuple[str, float]], top: int) -> Iterator[str]:
    longest = max(value for _, value in bars)
    for number, (name, value) in enumerate(sorted(bars, key=lambda bar: bar[1])):
        kind = "ours" if name.startswith("ysactor") else "theirs"
        yield from _bar(contender(name).title, value / longest, wording.seconds(value), kind, top + number * _ROW)


def _bar(label: str, share: float, value: str, kind: str, top: float) -> Iterator[str]:
    shown = label if len(label) <= 62 else f"{label[:61]}…"
    yield f'<text x="{_LABELS - 8}" y="{top + 15}" text-anchor="end">{escape(shown)}</text>'
    width, height = max(1.0, share * _BARS), _ROW - 6
    yield f'<rect x="{_LABELS}" y="{top + 3}" width="{width:.1f}" height="{height}" fill="{_COLOURS[kind]}"/>'
    yield f'<text x="{_LABELS + width + 6:.1f}" y="{top + 15}">{escape(value)}</text>'
