"""Readers of plain values: each returns a value of the wanted type, or raises `Invalid` saying what it wants.

A reader takes what a keyword gave. Text of a DSN or of the environment first goes through one of the `parse_`
functions, which return what such text stands for, or the text itself, for the reader to refuse.
"""

from __future__ import annotations

import inspect
import math
import re
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard, cast

Reader: TypeAlias = Callable[[object], Any]

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_INFINITE = frozenset({"inf", "infinity"})
_UNQUOTABLE = re.compile(r"://|@|-----BEGIN|password\s*=", re.IGNORECASE)


class Invalid(Exception):
    """A value cannot be used. The text says what is wanted, and never holds the value.

    `reason` replaces the whole sentence where "expected this, not that" does not say it.
    """

    def __init__(self, expected: str = "", *, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(expected)


def shown(value: object) -> str:
    """A value for an error's text: short, and never one that looks like a DSN or a key, whoever put it there."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = 80
    try:
        # Looked for in all of it: what gives a DSN away may be in the part that is cut out.
        if _UNQUOTABLE.search(repr(value)):
            return "that (not shown)"
        return shortener.repr(value)
    except Exception:
        # Whatever a foreign repr raises, the error that is being written is the one to raise.
        return f"<{type(value).__name__}>"


def is_integer(value: object) -> TypeGuard[int]:
    """Whether this is a whole number. True and False are not numbers here."""
    return isinstance(value, int) and not isinstance(value, bool)


def elements(value: object) -> Sequence[object] | None:
    """What a sequence holds; None if this is text, bytes, or no sequence."""
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return cast("Sequence[object]", value)
    return None


def integer(low: int, high: int | None = None, *, absent: bool = False, unlimited: bool = False) -> Reader:
    """A whole number from `low` to `high`; with `absent` also None, and with `unlimited` infinity for None."""
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    expected = f"an integer {bounds}" + (" or None" if absent else "")

    def read(value: object) -> int | None:
        if absent and (value is None or (unlimited and value == math.inf)):
            return None
        if not is_integer(value) or value < low or (high is not None and value > high):
            raise Invalid(expected)
        return value

    return read


def seconds(*, zero: bool, limitless: bool = False, high: float = 1e9) -> Reader:
    """A number of seconds; more than zero unless `zero`; with `limitless` also None, and infinity for None.

    The bound of 1e9 (31 years) keeps every deadline computed from it a usable float.
    """
    bounds = "of at least 0" if zero else "greater than 0"
    expected = f"a number of seconds {bounds}, at most {high:.10g}" + (", or None" if limitless else "")

    def read(value: object) -> float | None:
        if limitless and (value is None or value == math.inf):
            return None
        if not (isinstance(value, float) or is_integer(value)):
            raise Invalid(expected)
        # NaN fails both comparisons.
        if not 0 <= value <= high or (value == 0 and not zero):
            raise Invalid(expected)
        return value

    return read


def boolean(value: object) -> bool:
    """True or False and nothing that is merely equal to one."""
    if not isinstance(value, bool):
        raise Invalid("True or False")
    return value


def encodable(value: str) -> bool:
    """Whether this can be sent to a server: UTF-8, and no NUL, which would end it early."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def text(*, empty: bool = False) -> Reader:
    """Text that can be sent to a server."""
    expected = "text" if empty else "text that is not empty"

    def read(value: object) -> str:
        if not isinstance(value, str) or not (value or empty):
            raise Invalid(expected)
        if not encodable(value):
            raise Invalid("text without NUL that can be encoded as UTF-8")
        return value

    return read


def accepts(function: Callable[..., object], *args: object) -> bool:
    """Whether a callable can be called with these arguments, as far as it tells."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True


def on_connect(value: object) -> Callable[[Any], Any] | None:
    """An async function of the connection. Whether a callable is async shows only when it is called."""
    if value is None:
        return None
    if not callable(value) or not accepts(value, None):
        raise Invalid("an async function of one argument, the connection, or None")
    if inspect.isclass(value):
        raise Invalid("an async function, not a class")
    return cast("Callable[[Any], Any]", value)


def statements(value: object) -> tuple[str, ...]:
    """SQL texts, each once. No message holds a piece of one: there may be a secret in it."""
    if isinstance(value, str):
        raise Invalid("a sequence of SQL texts; put a single one into a list")
    texts = elements(value)
    if texts is None:
        raise Invalid("a sequence of SQL texts")
    found: dict[str, None] = {}
    for number, given in enumerate(texts, 1):
        if not isinstance(given, str):
            raise Invalid(f"a sequence of SQL texts, and entry {number} is not text")
        if not given.strip():
            raise Invalid(f"a sequence of SQL texts, and entry {number} is empty: leave it out")
        if not encodable(given):
            raise Invalid(f"text without NUL that can be encoded as UTF-8, which entry {number} is not")
        found[given] = None
    return tuple(found)


def parse_integer(given: str) -> object:
    """What text says, if it is a whole number or a word for no limit."""
    if _INTEGER.fullmatch(given):
        return int(given)
    return _parse_word(given)


def parse_number(given: str) -> object:
    """What text says, if it is a number or a word for no limit."""
    if _NUMBER.fullmatch(given) and math.isfinite(number := float(given)):
        return number
    return _parse_word(given)


def parse_boolean(given: str) -> object:
    """What text says, if it is a truth value in any case."""
    return {"true": True, "false": False}.get(given.lower(), given)


def _parse_word(given: str) -> object:
    word = given.lower()
    if word == "none":
        return None
    return math.inf if word in _INFINITE else given
