"""Limits that come with a call: seconds, checked before anything is sent."""

from __future__ import annotations

import math

from ..errors import ConfigurationError


def seconds(value: float | None, name: str = "timeout") -> float | None:
    """The limit in seconds, None for none. 0 is allowed: it means not to wait at all.

    Raises `ConfigurationError` for what is no number of seconds: text, a boolean, NaN, less than 0.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigurationError([f"{name}: must be a number of seconds, 0 or more, or None; got {value!r}"])
    try:
        return None if float(value) == math.inf else value
    except OverflowError:  # a whole number beyond all floats
        return None
