"""A `TimeoutError` out of a COPY's source, which asyncpg would take for one of its own timers'.

asyncpg (0.32) answers each as it answers its own: it waits for the end of the COPY and raises what comes of that, be it
the server's `QueryCanceledError`, a `TimeoutError` without a word, or an `AttributeError` of its own where the server
has refused the COPY already. The sessions here leave no time-out to asyncpg's COPY, so each is the source's.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, cast


def raise_what_a_source_raises(wire: Any) -> None:
    """Have asyncpg's protocol treat such an error as it treats all others: the COPY is undone, and it comes out."""
    protocol = weakref.ref(wire)
    timed_out: Callable[[Any, Any], None] | None = getattr(cast("Any", type(wire)), "_on_timeout", None)
    if timed_out is None:
        return  # a release of asyncpg that has another way with it

    def on_timeout(waiter: Any) -> None:
        wire, error = protocol(), sys.exc_info()[1]
        assert wire is not None, "bug: what calls this is alive"
        if not isinstance(error, TimeoutError) or not _is_met_in_copy(error):
            timed_out(wire, waiter)  # a timer has called
            return
        # The server has been told that the COPY fails. Where nothing waits it has refused the COPY by itself before.
        if waiter is not None:
            wire._request_cancel()
            waiter.add_done_callback(_look_at)
        try:
            raise error
        finally:
            del error  # it has this frame in its traceback

    wire._on_timeout = on_timeout


def _is_met_in_copy(error: TimeoutError) -> bool:
    """Whether this is what asyncpg is about to answer, and not what some caller is busy with."""
    met = error.__traceback__
    return met is not None and met.tb_frame.f_code.co_name.rpartition(".")[2] == "copy_in"


def _look_at(answer: Any) -> None:
    """Lest it be reported that nobody has."""
    if not answer.cancelled():
        answer.exception()
