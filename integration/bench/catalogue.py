"""Who takes part, and what is measured: names and sizes, and no library of anybody's."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

TransportName: TypeAlias = Literal["unix", "tcp", "tls"]
TRANSPORTS: tuple[TransportName, ...] = ("unix", "tcp", "tls")


@dataclass(frozen=True, slots=True)
class Contender:
    """One client library, as one would use it."""

    name: str
    title: str
    imports: tuple[str, ...]
    """Top-level modules that its process may hold, of those in `FOREIGN`."""
    needs: tuple[str, ...] = ()
    """What to install for it, beside ysactor's own dependencies."""
    environment: Literal["peers", "yugabyte"] = "peers"
    before: tuple[int, int] | None = None
    """The first Python that it does not run on."""
    note: str = ""


FOREIGN = ("trio", "trio_asyncio", "asyncpg", "uvloop", "psycopg", "triopg", "hasql", "ysactor")
"""Libraries that change what a process measures, or would flatter one contender with another's work."""

_ASYNCPG = ("asyncpg",)
_UVLOOP = ("asyncpg", "uvloop")
_TRIO_ASYNCIO = ("trio", "trio_asyncio", "asyncpg")

CONTENDERS = (
    Contender("ysactor", "ysactor, native", ("ysactor", "trio", "asyncpg")),
    Contender("ysactor-trio-asyncio", "ysactor, trio_asyncio", ("ysactor", *_TRIO_ASYNCIO), before=(3, 14)),
    Contender("asyncpg", "asyncpg, asyncio", _ASYNCPG),
    Contender("asyncpg-noreset", "asyncpg, asyncio, no reset", _ASYNCPG),
    Contender("asyncpg-uvloop", "asyncpg, uvloop", _UVLOOP, ("uvloop",)),
    Contender("asyncpg-uvloop-noreset", "asyncpg, uvloop, no reset", _UVLOOP, ("uvloop",)),
    Contender("psycopg-pool", "psycopg_pool, asyncio", ("psycopg",), ("psycopg[binary]", "psycopg-pool")),
    Contender(
        "triopg",
        "triopg",
        ("triopg", *_TRIO_ASYNCIO),
        ("triopg", "async_generator"),
        before=(3, 14),
        note="async_generator is installed with it: it imports that without declaring it",
    ),
    Contender(
        "triopg-noreset", "triopg, no reset", ("triopg", *_TRIO_ASYNCIO), ("triopg", "async_generator"), before=(3, 14)
    ),
    Contender(
        "hasql",
        "hasql, asyncpg",
        ("hasql", "asyncpg"),
        ("hasql",),
        note="over TCP where the others use a Unix socket, which it cannot",
    ),
    Contender(
        "psycopg-yugabytedb",
        "psycopg-yugabytedb",
        ("psycopg",),
        ("psycopg-yugabytedb", "psycopg-yugabytedb-binary", "psycopg-pool"),
        environment="yugabyte",
        note="with load_balance_hosts=true, so over TCP, to the server that yb_servers() lists",
    ),
)

_BOTH = ("ysactor", "ysactor-trio-asyncio")
_POOLS = tuple(contender.name for contender in CONTENDERS)
_RAW = (*_BOTH, "asyncpg", "asyncpg-uvloop", "psycopg-pool", "triopg")
_COPY = (*_BOTH, "asyncpg", "asyncpg-uvloop")
_NO_RESET = (*_BOTH, "asyncpg-noreset", "asyncpg-uvloop-noreset")


@dataclass(frozen=True, slots=True)
class Work:
    """One thing that is measured."""

    name: str
    title: str
    contenders: tuple[str, ...]
    per: str = "query"
    """What one operation is."""
    also_tls: bool = False
    """Measured over TLS too where the run itself is over another transport."""
    only_tcp: bool = False
    """Reads its result off TCP sockets."""
    once: bool = False
    """Takes so long that one round has to do."""
    bulk: bool = False
    """Moves so much that the state of the kernel's memory for sockets counts."""


WORKS = (
    Work("pooled", "pooled SELECT 1, 50 tasks on 10 connections", _POOLS),
    Work("pooled-alone", "pooled SELECT 1, one task", _POOLS),
    Work("leased", "SELECT 1 on one connection", _RAW),
    Work("rows-100", "100 rows of 4 columns", _RAW),
    Work("rows-10000", "10,000 rows of 4 columns", _RAW, also_tls=True, bulk=True),
    Work("copy-out", "COPY out, 100 MB (10 in a quick run)", _COPY, per="MB", bulk=True),
    Work("copy-in", "COPY in, 100 MB (10 in a quick run)", _COPY, per="MB", bulk=True),
    Work("checkout", "checkout and return, nobody else", _POOLS, per="checkout"),
    Work("checkout-contended", "checkout and return, 100 tasks on 10", _POOLS, per="checkout"),
    Work("checkout-by-hand", "checkout and return by hand, nobody else", _NO_RESET, per="checkout"),
    Work("checkout-by-hand-contended", "checkout and return by hand, 100 tasks on 10", _NO_RESET, per="checkout"),
    Work("transaction", "transaction of one INSERT, 50 tasks on 10 connections", _NO_RESET, per="transaction"),
    Work("transaction-alone", "transaction of one INSERT, one task", _NO_RESET, per="transaction"),
    Work("open-100", "opening 100 connections", (*_BOTH, "asyncpg", "asyncpg-uvloop"), per="100 connections"),
    Work("memory", "Python memory per idle connection", (*_BOTH, "asyncpg"), per="connection"),
    Work("callers-100", "100 callers at once on 20 connections", _NO_RESET),
    Work("callers-10000", "10,000 callers at once on 20 connections", _NO_RESET),
    Work("scale-small", "3 servers and 10 connections (fake cluster)", ("ysactor",), per="operation"),
    Work("scale-large", "200 servers and 2,000 connections (fake cluster)", ("ysactor",), per="operation"),
    Work("cancel", "cancelled in mid-query", (*_BOTH, "asyncpg"), per="cancellation"),
    Work("idle-100", "idle pool of 100", ("ysactor",), per="pool", only_tcp=True, once=True),
)


def contender(name: str) -> Contender:
    """The contender of that name."""
    return next(one for one in CONTENDERS if one.name == name)


def work(name: str) -> Work:
    """The work of that name."""
    return next(one for one in WORKS if one.name == name)


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender at one work, over one transport, on one Python."""

    python: str
    """The version, such as 3.11.7."""
    transport: TransportName
    work: str
    contender: str


def transports_of(task: Work, asked: tuple[TransportName, ...]) -> tuple[TransportName, ...]:
    """Over what a work is measured, in a run over `asked`."""
    if task.only_tcp:
        return ("tcp",)
    if task.name.startswith("scale-"):
        return asked[:1]  # nothing of it goes over a network
    return (*asked, "tls") if task.also_tls and "tls" not in asked else asked


def cells(python: str, asked: tuple[TransportName, ...], only: tuple[str, ...] = ()) -> list[Cell]:
    """Everything to measure, work by work, so that contenders of one work follow one another.

    `only`: ``WORK/CONTENDER`` or ``WORK`` patterns, one of which must match; none of them is everything.
    """
    patterns = [pattern if "/" in pattern else f"{pattern}/*" for pattern in only]
    return [
        Cell(python, transport, task.name, name)
        for task in WORKS
        for transport in transports_of(task, asked)
        for name in task.contenders
        if not patterns or any(fnmatchcase(f"{task.name}/{name}", pattern) for pattern in patterns)
    ]
