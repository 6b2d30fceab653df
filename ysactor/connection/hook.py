"""The failure of a user's `on_connect`."""

from __future__ import annotations

from ..errors import ConfigurationError, ConnectFailed, Error
from ..servers import HostPort


class HookFailed(Exception):
    """`on_connect` has failed by itself: so has this connection, and its server is not to blame."""

    def __init__(self, failure: Error) -> None:
        self.failure = failure
        """What whoever waits for a connection is told."""
        super().__init__(str(failure))

    @classmethod
    def of(cls, at: HostPort, error: Exception) -> HookFailed:
        """It raised an error of its own."""
        failure = ConnectFailed(at, "rejected", f"on_connect raised {type(error).__name__}: {error}")
        failure.__cause__ = error
        return cls(failure)

    @classmethod
    def not_async(cls, returned: object) -> HookFailed:
        """It is no async function, nor anything that returns what can be awaited: no server would do."""
        kind = type(returned).__name__
        return cls(ConfigurationError([f"on_connect: it must be an async function; this one returned {kind}"]))
