"""What the fake server understands of SQL: how a text is cut up, which command it is, and what is known by heart.

It is no parser. A statement that is neither scripted nor listed here fails with a syntax error that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from .pgerrors import error
from .rows import Result

if TYPE_CHECKING:
    from .executor import Executor

WRITES = frozenset({"insert", "update", "delete", "merge", "create", "alter", "drop", "truncate"})
"""First words of what a standby, or a read-only transaction, refuses with 25006."""

LISTING = (
    "host",
    "port",
    "num_connections",
    "node_type",
    "cloud",
    "region",
    "zone",
    "public_ip",
    "uuid",
    "universe_uuid",
)
"""The columns of yb_servers()."""


class Command(Enum):
    """The statements that move the transaction's state."""

    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    SAVEPOINT = auto()
    RELEASE = auto()
    ROLLBACK_TO = auto()


_COMMANDS = (
    (re.compile(r"(?:begin|start\s+transaction)\b(?P<rest>.*)", re.IGNORECASE | re.DOTALL), Command.BEGIN),
    (re.compile(r"(?:commit|end)(?:\s+(?:work|transaction))?(?P<rest>)", re.IGNORECASE), Command.COMMIT),
    (
        re.compile(r"rollback(?:\s+(?:work|transaction))?\s+to(?:\s+savepoint)?\s+(?P<rest>\S+)", re.IGNORECASE),
        Command.ROLLBACK_TO,
    ),
    (re.compile(r"(?:rollback|abort)(?:\s+(?:work|transaction))?(?P<rest>)", re.IGNORECASE), Command.ROLLBACK),
    (re.compile(r"savepoint\s+(?P<rest>\S+)", re.IGNORECASE), Command.SAVEPOINT),
    (re.compile(r"release(?:\s+savepoint)?\s+(?P<rest>\S+)", re.IGNORECASE), Command.RELEASE),
)


def command(sql: str) -> tuple[Command, str] | None:
    """The transaction command this is, with what follows it: BEGIN's modes or a savepoint's name."""
    for pattern, kind in _COMMANDS:
        if found := pattern.fullmatch(sql):
            return kind, found["rest"].strip().strip('"')
    return None


def tidy(sql: str) -> str:
    """One statement without what doesn't matter: white space between words, a final semicolon."""
    return " ".join(sql.split()).rstrip("; ")


def first_word(sql: str) -> str:
    """The verb, in lower case."""
    found = re.match(r"\s*(\w+)", sql)
    return found[1].lower() if found else ""


_PIECE = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|\$\$.*?\$\$|--[^\n]*|;|[^;'\"$-]+|.", re.DOTALL)


def split(sql: str) -> list[str]:
    """The statements of a simple query. Semicolons in quotes divide nothing."""
    statements = [""]
    for piece in _PIECE.findall(sql):
        if piece == ";":
            statements.append("")
        elif not piece.startswith("--"):
            statements[-1] += piece
    return [statement for statement in map(tidy, statements) if statement]


@dataclass(frozen=True, slots=True)
class Match:
    """A statement that is known, with its arguments and the session it came in on."""

    found: re.Match[str]
    args: tuple[Any, ...]
    session: Executor

    def value(self, token: str) -> Any:
        """What a token stands for: ``$1`` an argument, else a number, a quoted text, NULL, true or false."""
        token = token.split("::")[0].strip()
        if token.startswith("$"):
            index = int(token[1:]) - 1
            if index >= len(self.args):
                raise error("42P02", f"there is no parameter {token}")
            return self.args[index]
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if (word := token.lower()) in _WORDS:
            return _WORDS[word]
        return float(token) if "." in token else int(token)


_WORDS = {"null": None, "true": True, "false": False}
_VALUE = r"(\$\d+|'(?:[^']|'')*'|-?\d+(?:\.\d+)?|null|true|false)(?:::\w+)?"
_NAME = r"\"?([\w.]+)\"?"
_SCHEMA = r"(?:pg_catalog\.)?"

Known = Callable[[Match], "Result | float"]
"""Answers a statement; a number is a time to sleep before one row whose only column is empty."""

_KNOWN: list[tuple[re.Pattern[str], Known]] = []


def _knows(pattern: str) -> Callable[[Known], Known]:
    def register(known: Known) -> Known:
        _KNOWN.append((re.compile(pattern, re.IGNORECASE), known))
        return known

    return register


def known(sql: str, args: tuple[Any, ...], session: Executor) -> Result | float:
    """Answer a statement that is known by heart.

    Raises: 42601 for any other; the known ones' own errors.
    """
    for pattern, answer in _KNOWN:
        if found := pattern.fullmatch(sql):
            return answer(Match(found, args, session))
    raise error("42601", f"the fake server does not know this statement, script it with answer(): {sql}")


def _one(column: str, value: Any) -> Result:
    return Result.of([{column: value}])


@_knows(rf"select (?:{_VALUE})(?: (?:as )?(\w+))?")
def _constant(m: Match) -> Result:
    return _one(m.found[2] or "?column?", m.value(m.found[1]))


@_knows(r"select (-?\d+)\s*/\s*(-?\d+)")
def _division(m: Match) -> Result:
    if int(m.found[2]) == 0:
        raise error("22012", "division by zero")
    return _one("?column?", int(m.found[1]) // int(m.found[2]))


@_knows(rf"select {_SCHEMA}pg_sleep\({_VALUE}\)")
def _sleep(m: Match) -> float:
    return float(m.value(m.found[1]))


@_knows(rf"select {_SCHEMA}pg_is_in_recovery\(\)")
def _in_recovery(m: Match) -> Result:
    return _one("pg_is_in_recovery", m.session.server.is_standby)


@_knows(
    rf"select {_SCHEMA}pg_is_in_recovery\(\) as standby, "
    rf"{_SCHEMA}current_setting\('transaction_read_only'\) as read_only"
)
def _role(m: Match) -> Result:
    read_only = m.session.setting("transaction_read_only")
    return Result.of([{"standby": m.session.server.is_standby, "read_only": read_only}])


@_knows(rf"select {_SCHEMA}pg_backend_pid\(\)")
def _pid(m: Match) -> Result:
    return _one("pg_backend_pid", m.session.pid)


@_knows(rf"select {_SCHEMA}(pg_terminate_backend|pg_cancel_backend)\({_VALUE}\)")
def _signal(m: Match) -> Result:
    name, pid = m.found[1].lower(), int(m.value(m.found[2]))
    other = m.session.server.backend(pid)
    if other is not None and name == "pg_cancel_backend":
        other.cancel()
    elif other is not None:
        other.end("terminated by an administrator")
    return _one(name, other is not None)


@_knows(rf"select (?:\* |(\w+) )from generate_series\({_VALUE}, ?{_VALUE}\)(?: (?:as )?(\w+))?")
def _series(m: Match) -> Result:
    column = m.found[1] or m.found[4] or "generate_series"
    numbers = range(int(m.value(m.found[2])), int(m.value(m.found[3])) + 1)
    return Result.of([{column: number} for number in numbers])


@_knows(rf"select (.+) from {_SCHEMA}yb_servers\(\)")
def _yb_servers(m: Match) -> Result:
    listing = m.session.server.listing()
    wanted = m.found[1].strip()
    if wanted == "*":
        return Result.of(listing)
    columns = [column.strip().lower() for column in wanted.split(",")]
    for column in columns:
        if column not in LISTING:
            raise error("42703", f'column "{column}" does not exist')
    return Result.of([{column: row.get(column) for column in columns} for row in listing])


@_knows(rf"show {_NAME}")
def _show(m: Match) -> Result:
    name = m.found[1].lower()
    value = m.session.setting(name)
    if value is None:
        raise error("42704", f'unrecognized configuration parameter "{name}"')
    return Result.of([{name: value}], tag="SHOW")


@_knows(rf"select (?:{_SCHEMA})current_setting\({_VALUE}\)")
def _current_setting(m: Match) -> Result:
    name = str(m.value(m.found[1])).lower()
    value = m.session.setting(name)
    if value is None:
        raise error("42704", f'unrecognized configuration parameter "{name}"')
    return _one("current_setting", value)


@_knows(rf"set (session |local )?(?!transaction |session ){_NAME}(?: to | ?= ?)(.+)")
def _set(m: Match) -> Result:
    local = (m.found[1] or "").lower() == "local "
    m.session.settings.set(m.found[2].lower(), m.found[3].strip().strip("'"), local=local)
    return Result(tag="SET")


@_knows(r"set (?:transaction|session characteristics as transaction) .+|set session authorization .+")
def _set_transaction(m: Match) -> Result:
    return Result(tag="SET")


@_knows(rf"reset {_NAME}")
def _reset(m: Match) -> Result:
    m.session.settings.reset(m.found[1].lower())
    return Result(tag="RESET")


@_knows(r"discard all")
def _discard_all(m: Match) -> Result:
    if m.session.in_block:
        raise error("25001", "DISCARD ALL cannot run inside a transaction block")
    m.session.settings.reset("all")
    m.session.channels.clear()
    m.session.prepared.clear()
    return Result(tag="DISCARD ALL")


@_knows(rf"select {_SCHEMA}pg_advisory_unlock_all\(\)")
def _unlock(m: Match) -> Result:
    return _one("pg_advisory_unlock_all", "")


@_knows(r"close all|deallocate all|discard (?:plans|sequences|temp|temporary)")
def _forget(m: Match) -> Result:
    if first_word(m.found[0]) == "deallocate":
        m.session.prepared.clear()
    return Result(
        tag={"close": "CLOSE CURSOR ALL", "deallocate": "DEALLOCATE ALL"}.get(
            first_word(m.found[0]), m.found[0].upper()
        )
    )


@_knows(rf"listen {_NAME}")
def _listen(m: Match) -> Result:
    m.session.channels.add(m.found[1])
    return Result(tag="LISTEN")


@_knows(rf"unlisten (?:{_NAME}|\*)")
def _unlisten(m: Match) -> Result:
    if m.found[1]:
        m.session.channels.discard(m.found[1])
    else:
        m.session.channels.clear()
    return Result(tag="UNLISTEN")


@_knows(rf"notify {_NAME}(?:, ?'((?:[^']|'')*)')?")
def _notify(m: Match) -> Result:
    m.session.notify(m.found[1], (m.found[2] or "").replace("''", "'"))
    return Result(tag="NOTIFY")


@_knows(rf"select {_SCHEMA}pg_notify\({_VALUE}, ?{_VALUE}\)")
def _pg_notify(m: Match) -> Result:
    m.session.notify(str(m.value(m.found[1])), str(m.value(m.found[2])))
    return _one("pg_notify", "")


def names() -> Iterator[str]:
    """The patterns of what is known, for whoever wants to print them."""
    return (pattern.pattern for pattern, _ in _KNOWN)
