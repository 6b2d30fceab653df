"""The root of a tree of actors: a nursery out of which the user's own exception comes bare.

| the block raised | actors raised | what comes out |
|---|---|---|
| E | nothing | E itself, its own context kept |
| nothing | F | F, in its group: it is a bug, and everything about it is kept |
| E | F | E, with the group of F as its context |
| anything | KeyboardInterrupt (or the other way round) | KeyboardInterrupt |
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import trio


@asynccontextmanager
async def open_tree() -> AsyncGenerator[trio.Nursery]:
    """A nursery that is cancelled when its block ends, and whose block's error leaves by the table above."""
    body: BaseException | None = None
    context: BaseException | None = None
    actors: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                body, context = error, error.__context__
                if _is_cancelled(error):
                    # Only the scope that it belongs to may end a cancellation.
                    raise
                # Everything else is kept away from the nursery, which would take groups apart and put them together
                # anew: what comes out has to be what went in.
            finally:
                nursery.cancel_scope.cancel()
    except BaseException as error:
        actors = error
    try:
        chosen = _choose(body, actors)
        if chosen is None:
            return
        cause, suppress = chosen.__cause__, chosen.__suppress_context__
        try:
            raise chosen
        finally:
            if body is not None and chosen is body:
                # `raise` may have put another context in its place.
                chosen.__context__ = context if actors is None or _is_cancelled(body) else actors
                chosen.__cause__, chosen.__suppress_context__ = cause, suppress
    finally:
        del body, context, actors


def _choose(body: BaseException | None, actors: BaseException | None) -> BaseException | None:
    """The one exception that comes out."""
    if actors is None:
        return body
    interrupt = next((leaf for leaf in _leaves(actors) if isinstance(leaf, KeyboardInterrupt)), None)
    if interrupt is not None:
        return interrupt
    if body is None or all(isinstance(leaf, trio.Cancelled) for leaf in _leaves(actors)):
        return body or actors
    return actors if _is_cancelled(body) else body


def _is_cancelled(error: BaseException) -> bool:
    return any(isinstance(leaf, trio.Cancelled) for leaf in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error
