"""`prepare_on_connect`: statements that are prepared on a new connection before its first holder has it.

It only saves time later, so it is never a reason to be without a connection: what the server refuses, and what waits
for a lock that somebody holds, is logged, and the connection is used without it. A connection that is lost is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import trio

from ..driver.protocol import Status
from ..errors import ConnectionLost
from ..options.passthrough import STATEMENT_CACHE_SIZE
from ..policy.classify import LOST, is_drivers, sqlstate_of
from .actor import FAREWELL, undo
from .record import SYNC

if TYPE_CHECKING:
    from ..config import Config
    from ..driver.protocol import Session

_logger = logging.getLogger("ysactor.connection")

_INTROSPECTIONS = 3
"""The statements of its own that asyncpg keeps beside the user's, once it has had to ask for a type."""


class WarmUp:
    """Prepares the same statements on one new session after the other, for one pool.

    A statement that cannot be prepared is one line in the log, and none again until it has been prepared somewhere: the
    same line would come with every connection. It goes by its number, as its text may hold a secret.
    """

    __slots__ = ("_is_tight", "_patience", "_refused", "_statements")

    def __init__(self, config: Config) -> None:
        self._statements = tuple(enumerate(config.prepare_on_connect, 1))
        room = config.asyncpg_options.get("statement_cache_size", STATEMENT_CACHE_SIZE)
        self._is_tight = len(self._statements) + _INTROSPECTIONS > room
        self._patience = config.cancel_timeout or FAREWELL
        self._refused: set[int] = set()

    async def run(self, session: Session) -> None:
        """Prepare them on a session that nobody has yet. It takes half of the time that its caller has left, at most.

        Raises `ConnectionLost`, or the error that a server ended the session with.
        """
        now = trio.current_time()
        # A statement on a table that somebody has locked is prepared when the lock is gone. Were all of
        # `connect_timeout` spent on that, the server would count as down, and all others after it.
        until = now + (trio.current_effective_deadline() - now) / 2
        prepared = await self._prepare(session, self._statements, until)
        if self._is_tight:
            # What asyncpg asked for the types with may have pushed some out. It asks no more, and what was used last
            # is kept, so this time they all stay.
            await self._prepare(session, prepared, until)
        # As after any statement that was only prepared, the server holds its locks until it hears more.
        if not await undo(session, SYNC, self._patience):
            raise ConnectionLost("it did not answer after statements had been prepared on it", session.host)

    async def _prepare(
        self, session: Session, statements: Iterable[tuple[int, str]], until: float
    ) -> list[tuple[int, str]]:
        """Those that the session has now. None is tried after one that took too long."""
        prepared: list[tuple[int, str]] = []
        for number, text in statements:
            try:
                await session.drive(_prepare_only(session.raw, text), until - trio.current_time())
            except TimeoutError:
                self._refuse(session, number, "it took too long; perhaps something that it names is locked")
                await self._stop(session)
                break
            except Exception as error:
                sqlstate = sqlstate_of(error)
                if isinstance(error, ConnectionLost) or sqlstate in LOST or not is_drivers(error):
                    raise
                # The first line: what follows (DETAIL, HINT) is for whoever sees the text as well.
                words = str(error).partition("\n")[0] or type(error).__name__
                self._refuse(session, number, words if sqlstate is None else f"{words} (SQLSTATE {sqlstate})")
            else:
                self._accept(session, number)
                prepared.append((number, text))
        return prepared

    async def _stop(self, session: Session) -> None:
        if session.status is Status.ABANDONED and not await session.settle(self._patience):
            raise ConnectionLost("a statement that was being prepared could not be cancelled in time", session.host)

    def _refuse(self, session: Session, number: int, reason: str) -> None:
        if number not in self._refused:
            self._refused.add(number)
            _logger.warning(
                "statement %d of prepare_on_connect cannot be prepared on server %s: %s; connections are used without "
                "it, and it is tried again on each new one",
                number,
                session.host,
                reason,
            )

    def _accept(self, session: Session, number: int) -> None:
        if number in self._refused:
            self._refused.remove(number)
            _logger.info("statement %d of prepare_on_connect is prepared again, on server %s", number, session.host)


def _prepare_only(raw: Any, text: str) -> Coroutine[Any, Any, None]:
    """Prepare a statement where `fetch` and `execute` look for it, and learn its types.

    asyncpg's `executemany` does that first, and with no arguments to execute it with it sends nothing else. (`prepare`
    keeps what it prepares nowhere, and the first query would prepare it again.)
    """
    call: Coroutine[Any, Any, None] = raw.executemany(text, ())
    return call
