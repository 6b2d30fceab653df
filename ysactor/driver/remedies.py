"""What both of asyncpg's transports do about its statements and its cancel requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

STALE = frozenset({"26000", "XX000"})
"""SQLSTATEs of a prepared statement that the server has no more (DISCARD ALL, DEALLOCATE), and of one that names a type
that is no more, an internal error to the server. asyncpg would use the same statement again, for every later holder."""

_OF_TYPES = (
    *("codec", "encoder", "decoder", "type record missing", "could not resolve query", "data format"),
    *("exchange format", "expected a sequence"),
)
"""What asyncpg's internal errors say that are about a type or an argument, and not about the conversation."""

_PATIENCE = 0.1
"""Seconds that a server is given to carry out a cancel request before it is sent another one."""


def has_lost_track(error: BaseException) -> bool:
    """Whether asyncpg no longer knows where it is in the conversation, as a rule because the server has ended it in the
    middle of a call that has several statements.

    Of the same class is what it says of a type that it has no codec for, after which its connection is as good as ever.
    What is not known to be that costs the connection.
    """
    return type(error).__name__ == "InternalClientError" and not any(words in str(error) for words in _OF_TYPES)


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
