"""Bringing a session whose call was left to a state in which no later statement can be hit by the cancelling of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import asyncpg
import trio

from ..protocol import ConnectFailure
from ..remedies import ask_again
from .link import Link
from .names import is_cancelling, wait_for_cancellation
from .stepping import run

OVER = (asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.PostgresError, OSError)
"""What asyncpg raises when its session is over, depending on where it notices."""


async def quieten(link: Link, ask: Callable[[], Awaitable[None]]) -> None:
    """Have the server asked to cancel, and read until it is idle. The caller bounds it.

    `ask` returns when the server has closed the request's own connection. Raises what it does, and what is in `OVER`.
    """
    wire, loop = link.wire, link.loop
    if loop.cancel_sent is not None:
        await ask()
        sent, loop.cancel_sent = loop.cancel_sent, None
        if not sent.done():
            sent.set_result(None)
    answered = trio.Event()
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_again, partial(_quietly, ask), answered)
        try:
            while is_cancelling(wire):
                await run(link, wait_for_cancellation(wire))
        except (asyncio.CancelledError, *OVER) as error:
            failure = error  # it leaves by itself, not in the nursery's group
        answered.set()
    if failure is not None:
        raise failure
    # A signal may still be on its way to the process, through a pooler for instance: let it hit this. It takes no
    # snapshot, and any error that answers it will do. (asyncpg cannot read the answer to an empty query.)
    with suppress(asyncpg.PostgresError):
        await run(link, wire.query("SHOW transaction_read_only", None))


async def _quietly(ask: Callable[[], Awaitable[None]]) -> None:
    with suppress(ConnectFailure, OSError):
        await ask()
