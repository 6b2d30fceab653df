"""One bounded attempt to open one session on one server, and what its failure says.

Openings, probes and discovery all connect this way. `connect_timeout` bounds the whole of it: look-up, connect, TLS,
login and the set-up of the session. The limit is per attempt, never for a list of hosts: a first host that accepts
and then says nothing must not use up the time of the second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from ..config import Config
from ..driver.protocol import ConnectFailure, Driver, NoPassword, Phase, Session
from ..errors import ConnectionLost, Error
from ..policy.classify import classify, connect_kind, is_drivers, sqlstate_of
from ..secret import STILL_ASKED
from ..servers import HostPort, Kind
from .messages import Failure

Setup: TypeAlias = Callable[[Session], Awaitable[None]]
"""What is done on a new session before anybody uses it."""


class SetupFailed(Exception):
    """What a `Setup` raises that failed by itself: so did this attempt, and its server is not to blame."""

    def __init__(self, failure: Error, *, everywhere: bool) -> None:
        self.failure = failure
        """What whoever waits for a connection is told."""
        self.everywhere = everywhere
        """Whether no other server would do."""
        super().__init__(str(failure))


ROLE = (
    "SELECT pg_catalog.pg_is_in_recovery() AS standby, pg_catalog.current_setting('transaction_read_only') AS read_only"
)
"""Whether the session accepts writes, as libpq's and asyncpg's `read-write` have it: a primary whose transactions are
read-only by default accepts none either. No operator and no cast is in it that a search_path could replace."""


async def attempt(
    driver: Driver, config: Config, at: HostPort, *, check_role: bool, setup: Setup | None = None
) -> Session | Failure:
    """Open a session, or say how that failed. Takes `connect_timeout` seconds at most.

    `check_role`: turn the server away where `target_session_attrs` asks for one that accepts writes and a transaction
    of the new session would be read-only, whatever makes it so: the server, its database, the user's settings there,
    or what `server_settings` says itself. `setup` runs after that. What it raises counts as the server's doing if it
    is a lost connection or a server's error. A password function that fails, or is still being waited for when the time
    is up, is nobody's: that `Failure` tells nothing of the server.

    Cancelled, or with anything else raised by `setup` or by a bug in the driver, it leaves nothing open, raises that,
    and nothing is known of the server.
    """
    asked = False
    with trio.move_on_after(config.connect_timeout):
        try:
            return await _attempt(driver, config, at, check_role, setup)
        except BaseException as cut:
            asked = STILL_ASKED in getattr(cut, "__notes__", ())
            raise
    if asked:
        # The server was waiting for us.
        detail = f"the password function did not return within {config.connect_timeout:g} s"
        return _unopened(NoPassword(Phase.LOGIN, detail))
    detail = f"no answer within {config.connect_timeout:g} s"
    return Failure(connect_kind(Phase.CONNECT, None, timeout=True), TimeoutError(detail), detail)


async def _attempt(
    driver: Driver, config: Config, at: HostPort, check_role: bool, setup: Setup | None
) -> Session | Failure:
    try:
        session = await driver.connect(at, config)
    except ConnectFailure as error:
        return _unopened(error)
    failure: Failure | None = None
    ready = False
    try:
        if check_role and config.target_session_attrs == "read-write":
            failure = await role(session, config.connect_timeout)
        if failure is None and setup is not None:
            failure = await _set_up(session, setup)
        ready = failure is None
    finally:
        if not ready:
            session.terminate("its set-up failed")
    return session if failure is None else failure


def _unopened(error: ConnectFailure) -> Failure:
    cause = error.__cause__
    if isinstance(error, NoPassword):
        return Failure(Kind.REJECTED, error if cause is None else cause, str(error), tells=False)
    # Without a server's answer it is the socket, unless the driver names another reason: a login it does not speak.
    socket = cause is None or isinstance(cause, OSError) or classify(cause) == "connection_lost"
    kind = connect_kind(error.phase, error.sqlstate, socket=socket)
    return Failure(kind, error if cause is None else cause, str(error))


async def role(session: Session, timeout: float) -> Failure | None:
    """Ask a session that is at rest whether it accepts writes: None, or why it is not to be used for any."""
    try:
        answer = await session.drive(session.raw.fetchrow(ROLE), timeout)
    except TimeoutError as late:
        return Failure(Kind.UNREACHABLE, late, f"no answer within {timeout:g} s")
    except Exception as error:
        if not is_drivers(error):
            raise
        return _after_login(error)
    if answer["standby"]:
        detail = "it is in recovery"
    elif answer["read_only"] == "on":
        detail = "default_transaction_read_only is on"
    else:
        return None
    return Failure(Kind.READ_ONLY, ConnectFailure(Phase.SETUP, detail), detail)


async def _set_up(session: Session, setup: Setup) -> Failure | None:
    try:
        await setup(session)
    except Exception as error:
        if not isinstance(error, ConnectionLost) and sqlstate_of(error) is None:
            raise
        return _after_login(error)
    return None


def _after_login(error: Exception) -> Failure:
    lost = isinstance(error, ConnectionLost)
    return Failure(connect_kind(Phase.SETUP, sqlstate_of(error), socket=lost), error, str(error))
