"""What makes a new session ready for its first holder: the user's `on_connect`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..policy.classify import is_drivers
from .handle import Connection
from .hook import HookFailed

if TYPE_CHECKING:
    from ..config import Config
    from ..driver.protocol import Session
    from .record import Record


def preparation(config: Config, record: Record) -> Callable[[Session], Awaitable[None]] | None:
    """`on_connect` for one connection, or None where there is nothing to do. Run once on each that opens."""
    hook = config.on_connect
    if hook is None:
        return None

    async def prepare(session: Session) -> None:
        record.session = session
        conn = Connection(record, config.cancel_timeout)
        try:
            await hook(conn)
        except Exception as error:
            if is_drivers(error):
                raise
            raise HookFailed(session.host, error) from error
        finally:
            conn._end()
            record.session = None

    return prepare
