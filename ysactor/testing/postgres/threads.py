"""Blocking context managers under Trio."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

import trio

T = TypeVar("T")


@asynccontextmanager
async def off_thread(manager: AbstractContextManager[T]) -> AsyncGenerator[T, None]:
    """Enter and leave in worker threads. Cancellation interrupts neither: what was built is always taken down."""
    # A scope cancelled already ends here with nothing built; one cancelled later, at the first checkpoint of the block.
    value = await trio.to_thread.run_sync(manager.__enter__)
    try:
        yield value
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(manager.__exit__, None, None, None)
