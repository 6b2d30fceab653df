"""The command line, taken apart. Imports nothing that takes time."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ..options.table import OPTIONS
from .course import DEFAULT_SECONDS, LEAST_SECONDS, MOST_SECONDS
from .ending import BAD_INPUT

LEAST_VISIT = 1.0
"""Seconds of load on a database of the user's own, where nothing has to fail and come back."""

_SECRET = re.compile(r"\S*(://|@).*|password\s*=.*", re.IGNORECASE | re.DOTALL)
_UNKNOWN = "unrecognized arguments: "
_KNOWN = frozenset(f"--{name.replace('_', '-')}" for name in OPTIONS)

_REPEATING: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"(?<=: )ignored explicit argument .*", re.DOTALL), "takes no value"),
    (re.compile(r"(?<=: )invalid choice: .*(?= \(choose from )", re.DOTALL), "invalid choice"),
    (re.compile(r"^ambiguous option: .*(?= could match )", re.DOTALL), "ambiguous option: that (not shown)"),
)
"""argparse's sentences that repeat what was typed, and what is said instead: any of it may be a password."""

CHECKED: Sequence[tuple[str, str]] = (
    ("user", "NAME"),
    ("database", "NAME"),
    ("ssl", "MODE"),
    ("ssl_root_cert", "FILE"),
    ("ssl_server_name", "NAME"),
    ("connect_timeout", "SECONDS"),
    ("load_balance", "MODE"),
    ("topology_keys", "KEYS"),
    ("fallback_to_topology_keys_only", "BOOL"),
    ("target_session_attrs", "ATTRS"),
)
"""The options that decide where a connection goes and whether it opens. The pool's have no effect on one connection."""


class _Parser(argparse.ArgumentParser):
    """One line for an error, in which nothing that may hold a password is repeated."""

    def error(self, message: str) -> NoReturn:
        before, unknown, values = message.partition(_UNKNOWN)
        if unknown:
            # Of these nobody knows what they are, and a password may begin with a dash: what is shown is the library's
            # own names, which are no options of this command.
            names = [name for value in values.split() if (name := value.partition("=")[0]) in _KNOWN]
            message = f"{before}{unknown}{' '.join(names) or '(not shown)'}"
        for repeating, instead in _REPEATING:
            message = repeating.sub(instead, message)
        shown = " ".join(_SECRET.sub("(not shown)", message).split())
        print(f"{self.prog}: {shown}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(BAD_INPUT)


def parser(version: str) -> argparse.ArgumentParser:
    """The whole of it."""
    main = _Parser(prog="ysactor", description="Connection pools for YugabyteDB and PostgreSQL, on Trio.")
    main.add_argument("--version", action="version", version=f"ysactor {version}")
    commands = main.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _demo(commands)
    _check(commands)
    return main


def _demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="bank transfers while a server fails and comes back, and the proof that nothing is lost",
        description="Starts three PostgreSQL servers on this machine, one in each zone, as a stand-in for a YugabyteDB "
        "cluster; runs bank transfers through a pool that prefers one zone; kills the server there, starts it again; "
        "and checks on the servers that every transfer reported as committed is there exactly once. "
        "Needs pip install 'ysactor[demo]'.",
        epilog="Exit code: 0 if nothing was lost and the load came back, 1 if not, 2 for bad input, 130 after Ctrl-C.",
    )
    demo.add_argument(
        "--seconds",
        type=_number(LEAST_VISIT, MOST_SECONDS),
        metavar="N",
        default=DEFAULT_SECONDS,
        help=f"how long the load lasts (default {DEFAULT_SECONDS:g}, at least {LEAST_SECONDS:g}; "
        f"with --url at least {LEAST_VISIT:g})",
    )
    demo.add_argument("--seed", type=_whole, metavar="N", help="repeats the choice of server and accounts of that run")
    demo.add_argument(
        "--json", action="store_true", help="print the result as JSON, and the progress on standard error"
    )
    demo.add_argument(
        "--url",
        metavar="DSN",
        help="use this database instead, and kill nothing: the load runs in a schema of its own, ysactor_demo_ and "
        "eight hexadecimal digits, which is dropped at the end; options can stand in the DSN's query string",
    )


def _check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="show the servers, and say where a connection would go and why",
        description="Connects, shows every server with its state, says where a new connection would go and why, and "
        "makes one. Every server is dialled once. Nothing is changed.",
        epilog="Exit code: 0 if a connection was made, 1 if not, 2 for bad input. A password is better given by "
        "PGPASSWORD or ~/.pgpass than in the DSN, where other users of the machine may see it.",
    )
    check.add_argument("dsn", metavar="DSN", help="postgresql://user@host:port/database?load_balance=true&…")
    check.add_argument(
        "--timeout", type=_number(0.1, 600), metavar="SECONDS", default=30.0, help="for all of it (default 30)"
    )
    check.add_argument("--json", action="store_true", help="print what was found as JSON")
    group = check.add_argument_group(
        "library options", "The library's, as its documentation describes them; they precede the DSN's."
    )
    for name, metavar in CHECKED:
        group.add_argument(f"--{name.replace('_', '-')}", dest=f"option_{name}", metavar=metavar)


def options_of(arguments: argparse.Namespace) -> dict[str, object]:
    """The library's options that were given, read from text as a DSN's are."""
    given: dict[str, str | None] = {name: getattr(arguments, f"option_{name}") for name, _ in CHECKED}
    readers = {name: parse for name in given if (parse := OPTIONS[name].parse) is not None}
    return {name: readers[name](text) for name, text in given.items() if text is not None}


def _number(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a number of seconds from {least:g} to {most:g}")
        return value

    return read


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError("expected a whole number, 0 or more")
    return int(text)
