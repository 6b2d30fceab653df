"""A table in plain text."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines whose columns begin at the same place. The last column may be of any length."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (header, *rows)
    ]
