"""Trio-flavoured iterables and functions inside asyncpg's COPY."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from .loop import TrioCall


class Source:
    """An async iterable whose every step is run by the driver of the call, under Trio and outside asyncpg."""

    __slots__ = ("_iterator", "_rows")

    def __init__(self, rows: AsyncIterable[Any]) -> None:
        self._rows = rows
        self._iterator: AsyncIterator[Any] | None = None

    def __aiter__(self) -> Source:
        self._iterator = aiter(self._rows)
        return self

    def __anext__(self) -> TrioCall[Any]:
        if self._iterator is None:
            self._iterator = aiter(self._rows)
        return TrioCall(partial(_awaited, self._iterator.__anext__))


def sink(write: Callable[[bytes], Awaitable[None]]) -> Callable[[bytes], Awaitable[None]]:
    """A function that has `write` called by the driver of the call, under Trio and outside asyncpg."""

    def writer(data: bytes) -> TrioCall[None]:
        return TrioCall(partial(_awaited, write, data))

    return writer


async def _awaited(function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return await function(*args)
