"""What bounds a call: the session's limits, and how long a cancellation is put off."""

from __future__ import annotations

from dataclasses import dataclass

import trio


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds every call of a session, in seconds."""

    socket_timeout: float | None = None
    """A call that takes longer costs the session."""
    command_timeout: float | None = None
    """The time-out of a call that is given none."""
    statement_lifetime: float | None = None
    """Prepared statements are dropped when they are this old. One look at the clock per call, no timer."""

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return (self.socket_timeout, self.command_timeout, self.statement_lifetime) != (None, None, None)


class Expired(Exception):
    """A cancellation was put off for as long as was allowed, and the call did not end."""


class Grace:
    """How long a cancellation is put off. One's own time-out (`own`) is not."""

    __slots__ = ("cut", "own", "seconds")

    def __init__(self, seconds: float, own: trio.CancelScope | None, cut: float) -> None:
        self.seconds = seconds
        self.own = own
        self.cut = cut
        """The session's own limit, on Trio's clock; no grace goes beyond it."""

    def covers(self, error: BaseException) -> bool:
        """Whether to go on in spite of it."""
        return isinstance(error, trio.Cancelled) and not (self.own is not None and self.own.cancel_called)

    def shield(self) -> trio.CancelScope:
        """What to go on in."""
        return trio.CancelScope(shield=True, deadline=min(trio.current_time() + self.seconds, self.cut))
