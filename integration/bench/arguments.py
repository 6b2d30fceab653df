"""The command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from integration.bench.catalogue import TRANSPORTS, TransportName
from integration.bench.environments import default_directory

Mode = Literal["run", "profile", "instructions"]


@dataclass(frozen=True, slots=True)
class Arguments:
    """What to do."""

    mode: Mode
    out: Path | None
    rounds: int
    quick: bool
    only: tuple[str, ...]
    pythons: tuple[str, ...]
    transports: tuple[TransportName, ...]
    directory: Path


def parse(argv: Sequence[str] | None = None) -> Arguments:
    """Ends the program for what it cannot use."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench", description=__doc__)
    parser.description = (
        "Measures ysactor and its peers against a PostgreSQL server of its own. "
        "profile: where the CPU of one work goes. instructions: counted by valgrind, slow."
    )
    parser.add_argument("mode", nargs="?", choices=["run", "profile", "instructions"], default="run")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the report goes (default: a new directory)")
    parser.add_argument("--rounds", type=_count, metavar="N", help="4 by default, 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="short measurements, to see that everything works")
    parser.add_argument("--only", action="append", metavar="WORK/CONTENDER", help="patterns with * and ?; repeatable")
    parser.add_argument("--python", nargs="+", metavar="PATH", help="interpreters (default: this one)")
    parser.add_argument("--env", type=Path, metavar="DIR", help="where the contenders' environments are kept")
    for name in TRANSPORTS:
        parser.add_argument(f"--{name}", action="append_const", dest="transports", const=name, help=f"over {name}")
    found = parser.parse_args(argv)
    return Arguments(
        mode=found.mode,
        out=found.out,
        rounds=found.rounds or (2 if found.quick else 4),
        quick=found.quick,
        only=tuple(found.only or ()),
        pythons=tuple(found.python or [sys.executable]),
        transports=tuple(dict.fromkeys(found.transports or ["unix"])),
        directory=found.env or default_directory(),
    )


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least one")
    return count
