"""asyncpg's compiled protocol on Trio sockets, without an asyncio loop: the default driver."""

from __future__ import annotations

from .driver import NativeDriver
from .session import NativeSession

__all__ = ["NativeDriver", "NativeSession"]
