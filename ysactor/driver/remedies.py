"""What both of asyncpg's transports do about its statements and its cancel requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

STALE = frozenset({"26000", "XX000"})
"""SQLSTATEs of a prepared statement that the server has no more (DISCARD ALL, DEALLOCATE), and of one that names a type
that is no more, an internal error to the server. asyncpg would use the same statement again, for every later holder."""

_PATIENCE = 0.1
"""Seconds that a server is given to carry out a cancel request before it is sent another one."""


async def ask_again(ask: Callable[[], Awaitable[None]], answered: trio.Event) -> None:
    """Repeat the request while the statement runs on: one that overtakes its statement finds nothing to cancel.

    It can't hit anything later: the session is not used before the server has closed each request's connection. `ask`
    raises nothing for a server that cannot be asked.
    """
    while True:
        with trio.move_on_after(_PATIENCE):
            await answered.wait()
        if answered.is_set():
            return
        await ask()
