"""Figures as people read them."""

from __future__ import annotations

from integration.bench.results import Spread
from integration.bench.targets import Target


def seconds(value: float) -> str:
    """Three digits, in the unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{value * 1e6:.2f} µs"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def amount(value: float) -> str:
    """Bytes."""
    return f"{value / 1024:.1f} KB" if value >= 1024 else f"{value:.0f} bytes"


def share(value: float) -> str:
    """Of a core."""
    return f"{value * 100:.3f} %"


def ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


FORMATS = {"": ratio, "seconds": seconds, "bytes": amount, "share": share}
METRICS = {
    "wall": ("wall", seconds),
    "cpu": ("CPU", seconds),
    "bytes": ("memory", amount),
    "checkout": ("one checkout", seconds),
    "placement": ("one placement", seconds),
    "tick": ("one rebalance tick", seconds),
    "free": ("caller free", seconds),
    "usable": ("usable again", seconds),
    "usable-longest": ("usable again, longest", seconds),
    "share": ("CPU", share),
    "bare": ("CPU without a pool", share),
    "sent": ("sent", amount),
}
"""What a column is called, and how its figures are written."""


def spread(value: Spread, metric: str) -> str:
    """A median, with the least and the most."""
    write = METRICS[metric][1]
    if value.least == value.most:
        return write(value.median)
    return f"{write(value.median)} ({write(value.least)} to {write(value.most)})"


def of_target(target: Target, value: Spread | None) -> str:
    """What was measured for a target."""
    if value is None:
        return "-"
    write = FORMATS[target.unit]
    if value.least == value.most:
        return write(value.median)
    return f"{write(value.median)} ({write(value.least)} to {write(value.most)})"


def limit(target: Target) -> str:
    """A target's limit."""
    if target.unit == "":
        return f"{target.at_most:g}"
    return FORMATS[target.unit](target.at_most)
