"""What an error says: of a server, when an attempt to connect met it, and of the work, when a call did.

The same SQLSTATE means different things before and after a session is open: 57P03 turns a connection away, and ends
one that is open. Errors are known by their SQLSTATE and their class; the driver's classes are known by name, because
nothing here may import it.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Mapping
from typing import Literal, TypeAlias

from ..driver.protocol import Phase
from ..errors import CommitOutcomeUnknown, ConnectionLost
from ..servers import Kind

Verdict: TypeAlias = Literal["retryable", "connection_lost", "other"]

NO_FUNCTION = "42883"
"""What a database answers that has no `yb_servers()`: it is not YugabyteDB."""

UNABLE_TO_CONNECT = "08001"
"""The one SQLSTATE that says "down" when a server, or something before it, answers a connect with it."""

BELOW: Mapping[Phase, Kind] = {
    Phase.RESOLVE: Kind.UNREACHABLE,
    Phase.CONNECT: Kind.UNREACHABLE,
    # A refused or failed handshake is an answer: something listens there. pgjdbc reports it as 08006, not as 08001.
    Phase.TLS: Kind.REJECTED,
    Phase.LOGIN: Kind.UNREACHABLE,
    Phase.SETUP: Kind.UNREACHABLE,
}
"""What a failure below the protocol says, by phase: the socket closed or failed, and the server gave no error."""


def connect_kind(phase: Phase, sqlstate: str | None, *, timeout: bool = False, socket: bool = True) -> Kind:
    """What a failed attempt to connect says of the server.

    `timeout`: the attempt's own time ran out, in whatever phase. `sqlstate`: the server's answer, if it gave one.
    `socket`: whether it was the socket that failed, once there was one; otherwise the driver itself would not go on (a
    login method that it does not speak, say), and that is a rejection as every other error is.
    """
    if timeout or sqlstate == UNABLE_TO_CONNECT:
        return Kind.UNREACHABLE
    if sqlstate is not None:
        return Kind.REJECTED
    return BELOW[phase] if socket or phase in (Phase.RESOLVE, Phase.CONNECT) else Kind.REJECTED


RETRYABLE = frozenset({"40001", "40P01"})
"""Serialization failure, which is also YugabyteDB's conflicts and read restarts; deadlock. Nothing was committed."""

LOST = frozenset(
    {
        "08000",  # connection exception
        "08001",  # unable to connect
        "08003",  # connection does not exist
        "08004",  # connection rejected
        "08006",  # connection failure
        "25P03",  # idle in transaction for too long: the server ends the session
        "25P04",  # in a transaction for too long: likewise
        "57P01",  # administrator's shutdown
        "57P02",  # crash shutdown
        "57P03",  # starting up or shutting down
        "57P04",  # the database was dropped
        "57P05",  # idle for too long
    }
)
"""SQLSTATEs after which an open connection is gone."""

UNKNOWN = frozenset({"08007", "40003"})
"""What a server answers a COMMIT with of which it does not know itself whether it was carried out."""

LOST_ERRNO = frozenset(
    {
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EPIPE,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ETIMEDOUT,
        errno.EHOSTUNREACH,
        errno.EHOSTDOWN,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.EADDRNOTAVAIL,
    }
)
"""What the operating system says of a connection that is gone."""

LOST_TEXTS: Mapping[str, tuple[str, ...]] = {
    # asyncpg uses InterfaceError for misuse as well: only the text tells a dead connection.
    "InterfaceError": ("connection is closed", "connection was closed"),
    # What asyncpg's protocol says when a result arrives after it has given the connection up.
    "InternalClientError": ("unknown protocol state", "connection is closed"),
    # Trio's socket streams; Trio is not imported here either.
    "BrokenResourceError": ("",),
    "ClosedResourceError": ("",),
}
"""Errors without a SQLSTATE that mean a lost connection: the class's name, and what its text contains."""


def classify(error: BaseException) -> Verdict:
    """What an error that a call on a connection raised means to whoever would run the work again.

    ``"retryable"``: nothing was committed, run the transaction again. ``"connection_lost"``: the connection is gone;
    before COMMIT nothing was committed. ``"other"``: everything else, a COMMIT of unknown outcome included, and a
    `TimeoutError` from a call's own `timeout`, after which the connection may be as good as before.
    """
    if isinstance(error, CommitOutcomeUnknown):
        return "other"
    if isinstance(error, ConnectionLost):
        return "connection_lost"
    sqlstate = sqlstate_of(error)
    if sqlstate is not None:
        return "retryable" if sqlstate in RETRYABLE else "connection_lost" if sqlstate in LOST else "other"
    return "connection_lost" if is_lost(error) else "other"


def is_lost(error: BaseException) -> bool:
    """Whether an error without a SQLSTATE says that a socket has ended or failed.

    Not every `OSError` does: a file that is missing is none of ours, a certificate that fails its check was never a
    connection, and a `TimeoutError` counts only when the operating system gave it.
    """
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, ssl.SSLCertVerificationError)
    if isinstance(error, ConnectionError | EOFError):
        return True
    if isinstance(error, OSError):
        return error.errno in LOST_ERRNO
    text = str(error)
    return any(part in text for base in type(error).__mro__ for part in LOST_TEXTS.get(base.__name__, ()))


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE that an error carries, if it does."""
    sqlstate: object = getattr(error, "sqlstate", None)
    return sqlstate if isinstance(sqlstate, str) else None


_TROUBLE = ("08", "53", "57P", "58")
"""What SQLSTATEs begin with by which a server says that it, and not the statement, is at fault: connections, resources,
its operator's doing, its system."""


def is_trouble_of_the_servers(sqlstate: str | None) -> bool:
    """Whether a server says by it that it cannot serve just now, whatever it is asked."""
    return sqlstate is not None and sqlstate.startswith(_TROUBLE)


def is_drivers(error: BaseException) -> bool:
    """Whether the driver raised it: a server's error, a lost connection, or one of the driver's own classes."""
    if isinstance(error, ConnectionLost) or sqlstate_of(error) is not None:
        return True
    return any(base.__module__.partition(".")[0] == "asyncpg" for base in type(error).__mro__)


STALE = frozenset({"InvalidCachedStatementError", "OutdatedSchemaCacheError"})
"""The driver's classes for a plan or type that was cached before somebody changed the schema."""

_NO_STATEMENT = "26000"
"""The server has thrown the statement away (DISCARD ALL, DEALLOCATE), whoever asked it to."""

_NO_TYPE = "cache lookup failed for type"
"""What it says, as an internal error, of a statement with a type that was dropped, and perhaps made anew."""


def names_a_dropped_type(error: BaseException) -> bool:
    """Whether a prepared statement failed as it names a type that is no more. On other connections it would, too."""
    return sqlstate_of(error) == "XX000" and _NO_TYPE in str(error)


def is_stale_plan(error: BaseException) -> bool:
    """Whether a statement failed only because its plan was cached before the schema changed.

    Outside a transaction the driver prepares it anew by itself. Inside one it cannot, since the error has failed the
    transaction; run again as a whole, it succeeds.
    """
    if sqlstate_of(error) == _NO_STATEMENT or names_a_dropped_type(error):
        return True
    return any(base.__name__ in STALE for base in type(error).__mro__)
