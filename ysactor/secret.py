"""A value that is never shown: not by repr, str, format, pickle or a traceback that prints locals."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeAlias

from trio.lowlevel import disable_ki_protection

Plain: TypeAlias = str | bytes
Password: TypeAlias = Plain | Callable[[], Plain | Awaitable[Plain]]
"""What the `password` option takes: text, bytes, or a function, sync or async, that returns one."""


class Secret:
    """A password, or the function that makes one. Only `reveal` gives it out, and only a login calls that."""

    __slots__ = ("_value",)

    def __init__(self, value: Password) -> None:
        self._value = value

    @disable_ki_protection
    async def reveal(self) -> Plain:
        """The password for one login. A callable is called each time, so that rotated passwords work.

        Whatever the callable raises propagates; it may await Trio functions, and is cancelled as they are.
        """
        value = self._value
        if not callable(value):
            return value
        made = value()
        return await made if inspect.isawaitable(made) else made

    def __repr__(self) -> str:
        return "<redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")
