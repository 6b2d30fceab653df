"""The failure of a user's `on_connect`."""

from __future__ import annotations

from ..cluster.attempt import SetupFailed
from ..errors import ConfigurationError, ConnectFailed
from ..servers import HostPort


class HookFailed(SetupFailed):
    """`on_connect` has failed by itself: so has this connection, and its server is not to blame."""

    @classmethod
    def of(cls, at: HostPort, error: Exception) -> HookFailed:
        """It raised an error of its own. It may do well on another server."""
        failure = ConnectFailed(at, "rejected", f"on_connect raised {type(error).__name__}: {error}")
        failure.__cause__ = error
        return cls(failure, everywhere=False)

    @classmethod
    def not_async(cls, returned: object) -> HookFailed:
        """It is no async function, nor anything that returns what can be awaited: no server would do."""
        kind = type(returned).__name__
        failure = ConfigurationError([f"on_connect: it must be an async function; this one returned {kind}"])
        return cls(failure, everywhere=True)
