"""A value that is never shown: not by repr, str, format, pickle or a traceback that prints locals."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeAlias

from trio.lowlevel import disable_ki_protection

Plain: TypeAlias = str | bytes
Password: TypeAlias = Plain | Callable[[], Plain | Awaitable[Plain]]
"""What the `password` option takes: text, bytes, or a function, sync or async, that returns one."""

STILL_ASKED = "the password function was still being waited for"
"""The note on what interrupts a password function, a cancellation that is: whoever set the limit is to know what used
it up. A note, since a cancellation can't be replaced by another error without being lost."""


class Secret:
    """A password, or the function that makes one. Only `reveal` gives it out, and only a login calls that."""

    __slots__ = ("_value",)

    def __init__(self, value: Password) -> None:
        self._value = value

    @disable_ki_protection
    async def reveal(self) -> Plain:
        """The password for one login. A callable is called each time, so that rotated passwords work.

        Whatever the callable raises propagates. It may await Trio functions, and is cancelled as they are; the note
        `STILL_ASKED` is then on what leaves it.
        """
        value = self._value
        if not callable(value):
            return value
        made = value()
        if not inspect.isawaitable(made):
            return made
        try:
            return await made
        except Exception:
            raise
        except BaseException as cut:  # a group of them, where the function has a nursery
            cut.add_note(STILL_ASKED)
            raise

    def __repr__(self) -> str:
        return "<redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")
