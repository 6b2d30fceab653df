"""What was set as the aim, each as a ratio of two measurements of the same run, or as a figure of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from integration.bench.catalogue import TransportName


@dataclass(frozen=True, slots=True)
class Target:
    """At most so much."""

    title: str
    against: str
    at_most: float
    work: str
    metric: str = "wall"
    other_work: str | None = None
    """What it is compared with is measured there; the same work by default."""
    other: str | None = None
    """Who it is compared with. None: the figure itself is judged."""
    transport: TransportName | None = None
    """None: the run's first."""
    unit: Literal["", "bytes", "seconds", "share"] = ""

    @property
    def is_ratio(self) -> bool:
        return self.other is not None


OURS = "ysactor"
_NO_RESET = "asyncpg.Pool on asyncio, no reset"
_UVLOOP_NO_RESET = "asyncpg.Pool on uvloop, no reset"
_RAW = "raw asyncpg on asyncio"
_POOLED = "pooled `SELECT 1`, 50 tasks on 10 connections"
_LARGE = "200 servers and 2,000 connections"
_SMALL = "itself with 3 servers and 10"
_TIMES_AS_MANY = 200
"""2,000 connections are so many times 10: what a tick may grow by, at most, to be linear."""

TARGETS = (
    Target(_POOLED, "asyncpg.Pool on asyncio", 0.55, "pooled", other="asyncpg"),
    Target(_POOLED, _NO_RESET, 0.75, "pooled", other="asyncpg-noreset"),
    Target(_POOLED, "asyncpg.Pool on uvloop", 0.75, "pooled", other="asyncpg-uvloop"),
    Target(_POOLED, _UVLOOP_NO_RESET, 1.0, "pooled", other="asyncpg-uvloop-noreset"),
    Target(_POOLED, "triopg", 0.08, "pooled", other="triopg"),
    Target("pooled `SELECT 1`, one task", _UVLOOP_NO_RESET, 1.0, "pooled-alone", other="asyncpg-uvloop-noreset"),
    Target("leased connection, `fetchval`", _RAW, 0.95, "leased", other="asyncpg"),
    Target("100 rows", _RAW, 1.0, "rows-100", other="asyncpg"),
    Target("10,000 rows", _RAW, 1.05, "rows-10000", other="asyncpg"),
    Target("10,000 rows over TLS", f"{_RAW}, TLS", 1.05, "rows-10000", other="asyncpg", transport="tls"),
    Target("COPY out of 100 MB", _RAW, 1.05, "copy-out", other="asyncpg"),
    Target("COPY in of 100 MB", _RAW, 1.05, "copy-in", other="asyncpg"),
    Target("checkout and return, nobody else", _NO_RESET, 0.25, "checkout-by-hand", other="asyncpg-noreset"),
    Target(
        "checkout and return, 100 tasks on 10", _NO_RESET, 0.6, "checkout-by-hand-contended", other="asyncpg-noreset"
    ),
    Target("the same as a block, nobody else", _NO_RESET, 0.25, "checkout", other="asyncpg-noreset"),
    Target("the same as a block, 100 tasks on 10", _NO_RESET, 0.6, "checkout-contended", other="asyncpg-noreset"),
    Target("`transaction` of one INSERT", f"by hand on {_NO_RESET}", 0.9, "transaction", other="asyncpg-noreset"),
    Target("opening 100 connections, wall", "asyncpg.Pool", 1.05, "open-100", other="asyncpg"),
    Target("opening 100 connections, CPU", "asyncpg.Pool", 1.5, "open-100", metric="cpu", other="asyncpg"),
    Target("Python memory per idle connection", "", 16 * 1024, "memory", metric="bytes", unit="bytes"),
    Target("10,000 callers on 20 connections", _NO_RESET, 0.85, "callers-10000", other="asyncpg-noreset"),
    Target(
        "10,000 callers, per query",
        "itself with 100 callers",
        1.2,
        "callers-10000",
        other_work="callers-100",
        other=OURS,
    ),
    Target(
        f"{_LARGE}: one checkout", _SMALL, 1.5, "scale-large", metric="checkout", other_work="scale-small", other=OURS
    ),
    Target(
        f"{_LARGE}: one placement", _SMALL, 20, "scale-large", metric="placement", other_work="scale-small", other=OURS
    ),
    Target(
        f"{_LARGE}: one rebalance tick",
        f"{_SMALL}; linear",
        _TIMES_AS_MANY,
        "scale-large",
        metric="tick",
        other_work="scale-small",
        other=OURS,
    ),
    Target("idle pool of 100, CPU", "", 0.001, "idle-100", metric="share", transport="tcp", unit="share"),
    Target("idle pool of 100, bytes sent", "", 0, "idle-100", metric="sent", transport="tcp", unit="bytes"),
    Target("cancelled in mid-query: the caller is free", "", 0.005, "cancel", metric="free", unit="seconds"),
    Target("cancelled in mid-query: the connection is usable", "", 0.020, "cancel", metric="usable", unit="seconds"),
)
