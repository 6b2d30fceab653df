"""The run-time parameters of a fake session: SET, SHOW, RESET, and what a transaction does to them."""

from __future__ import annotations

import math
from collections.abc import Mapping

_DEFAULTS = {"statement_timeout": "0", "search_path": '"$user", public', "server_encoding": "UTF8", "timezone": "UTC"}
_UNITS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1000, "ms": 1}
"""Units of time settings in milliseconds, the largest first."""


class Settings:
    """What is set, over what the start-up message said, over the server's defaults."""

    def __init__(self, start: Mapping[str, str]) -> None:
        self._start = dict(start)
        self._values = dict(start)
        self._before: dict[str, str] | None = None
        self._local: set[str] = set()

    def get(self, name: str) -> str | None:
        """The value as SHOW gives it, None if there is no such parameter."""
        value = self._values.get(name, _DEFAULTS.get(name))
        return _shown(value) if value is not None and name.endswith("_timeout") else value

    def seconds(self, name: str) -> float:
        """The value of a time setting; what is 0 or not set is no limit."""
        return _milliseconds(self._values.get(name, "0")) / 1000 or math.inf

    def all(self) -> dict[str, str]:
        """What is set in the session, start-up parameters included."""
        return dict(self._values)

    def set(self, name: str, value: str, *, local: bool = False) -> None:
        """SET, or SET LOCAL, whose effect ends with the transaction."""
        self._values[name] = value
        if local:
            self._local.add(name)

    def reset(self, name: str) -> None:
        """RESET name, or RESET ALL: back to the values of the start-up message."""
        if name == "all":
            self._values = dict(self._start)
        else:
            self._put_back(name, self._start)

    def begin(self) -> None:
        """A transaction begins: remember what to go back to."""
        self._before, self._local = dict(self._values), set()

    def commit(self) -> None:
        """It is committed: what was set stays, but for what was set locally."""
        for name in self._local:
            self._put_back(name, self._before or {})
        self._before = None

    def roll_back(self) -> None:
        """It is rolled back, and what was set in it with it."""
        if self._before is not None:
            self._values, self._before = self._before, None

    def _put_back(self, name: str, values: Mapping[str, str]) -> None:
        if name in values:
            self._values[name] = values[name]
        else:
            self._values.pop(name, None)


def _milliseconds(setting: str) -> float:
    number = setting.rstrip("abcdefghijklmnopqrstuvwxyz ")
    return float(number or 0) * _UNITS[setting[len(number) :].strip() or "ms"]


def _shown(setting: str) -> str:
    """A time setting in the largest unit that needs no fraction."""
    amount = round(_milliseconds(setting))
    if amount == 0:
        return "0"
    unit = next(unit for unit, size in _UNITS.items() if amount % size == 0)
    return f"{amount // _UNITS[unit]}{unit}"
