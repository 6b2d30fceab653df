"""The failure of a user's `on_connect`."""

from __future__ import annotations

from ..errors import ConnectFailed
from ..servers import HostPort


class HookFailed(Exception):
    """`on_connect` raised an error of its own: this connection has failed, and its server is not to blame."""

    def __init__(self, at: HostPort, error: Exception) -> None:
        self.failure = ConnectFailed(at, "rejected", f"on_connect raised {type(error).__name__}: {error}")
        self.failure.__cause__ = error
        super().__init__(str(self.failure))
