"""Which driver carries the connections. The only place that names the drivers, and imports one only when it is used."""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias

from ..errors import ConfigurationError
from ..options.readers import shown
from .protocol import Driver

Transport: TypeAlias = Literal["native", "trio_asyncio"]

_METHODS = ("run", "connect", "resolve")
"""A driver's."""

_log = logging.getLogger("ysactor")


def choose(driver: Driver | Transport | None) -> Driver:
    """The driver itself, or a new one by name. None is ``"native"``, or ``"trio_asyncio"`` where that cannot be used.

    Raises `ConfigurationError` for a name that is none, and for what is no driver.
    """
    if driver is None:
        try:
            return _native()
        except ImportError as error:
            _log.warning(
                "the native transport does not work with this asyncpg (%s); trio-asyncio is used instead", error
            )
            return _trio_asyncio()
    if driver == "native":
        return _native()
    if driver == "trio_asyncio":
        return _trio_asyncio()
    if isinstance(driver, str | type) or not all(callable(getattr(driver, name, None)) for name in _METHODS):
        raise ConfigurationError([f"driver: expected 'native', 'trio_asyncio' or a driver, not {shown(driver)}"])
    return driver


def _native() -> Driver:
    from .native import NativeDriver

    return NativeDriver()


def _trio_asyncio() -> Driver:
    from .trio_asyncio import TrioAsyncioDriver

    return TrioAsyncioDriver()
