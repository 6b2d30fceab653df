"""One probe: connect to a failed server as an opening would, check it, close again."""

from __future__ import annotations

from collections.abc import Callable

import trio

from ..config import Config
from ..driver.protocol import Driver, Phase
from ..policy.classify import connect_kind
from ..servers import HostPort
from .attempt import attempt
from .messages import Failure


async def probe(driver: Driver, config: Config, at: HostPort, opened: Callable[[], object]) -> Failure | None:
    """Probe a server, and call `opened` as soon as a session is open and of the right role.

    It ends once the session is closed again, within twice `connect_timeout`; a probe that is still connecting then
    counts as one that found nobody. Only a login and the role check prove that a server is back: one that is starting
    up accepts sockets too. None as well where nothing is known, for want of a password. Cancelled, it leaves nothing
    open.
    """
    limit = 2 * config.connect_timeout
    proved = False
    with trio.move_on_after(limit):
        result = await attempt(driver, config, at, check_role=True)
        if isinstance(result, Failure):
            return result if result.tells else None
        proved = True
        opened()
        await result.close(config.connect_timeout)
    if proved:
        return None
    detail = f"no answer within {limit:g} s"
    return Failure(connect_kind(Phase.CONNECT, None, timeout=True), TimeoutError(detail), detail)
