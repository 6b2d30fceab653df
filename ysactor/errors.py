"""Every exception of ours, by what a caller can do about it. Imports only the vocabulary.

A server's own errors are not here: they come through unchanged, as asyncpg's classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from .servers import HostPort

Refused = Literal["primary", "read_replica", "cluster"]


def _rebuilt(kind: type[Error], args: tuple[Any, ...]) -> Error:
    """An error as it was made, without its `__init__`: that takes other arguments than those it hands on."""
    error = kind.__new__(kind)
    error.args = args
    return error


class Error(Exception):
    """The root of ysactor's own errors.

    They can be copied and pickled, as far as what they hold can: type, text, attributes and notes are kept, and cause,
    context and traceback are not, as with every exception of Python's.
    """

    __module__ = "ysactor"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args), self.__dict__ or None


class ConfigurationError(Error, ValueError):
    """One or more options, or the DSN, cannot be used. Nothing was opened.

    Every problem is reported, not only the first. A value that may hold a secret is never echoed. Correct the options.
    """

    __module__ = "ysactor"

    problems: tuple[str, ...]
    """One sentence for each problem; each names its option."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class PoolClosed(Error):
    """The pool is closed or closing. What ran when it closed was cut off, and may or may not have been carried out.

    Stop using this pool.
    """

    __module__ = "ysactor"

    def __init__(self, message: str = "the pool is closed") -> None:
        super().__init__(message)


class PoolOverloaded(Error):
    """The line was as long as `max_waiting` allows, and the caller was not let in. Nothing ran; try again later."""

    __module__ = "ysactor"

    waiting: int
    """How many callers were in line."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        super().__init__(f"{waiting} callers are in line, as many as max_waiting allows")


class CheckoutTimeout(Error, TimeoutError):
    """No connection came free within `checkout_timeout`. Nothing ran; it is safe to try again.

    If connections could not be opened meanwhile, the text says why, and the last such error is the `__cause__`.
    """

    __module__ = "ysactor"

    timeout: float
    """The limit that ran out, in seconds."""

    def __init__(self, timeout: float, situation: str, last: BaseException | None = None) -> None:
        self.timeout = timeout
        text = f"no connection came free within {timeout:g} s ({situation})"
        if last is not None:
            text = f"{text}; the last failure to open one: {last}"
        super().__init__(text)


class NoNodeAvailable(Error):
    """No server of the wanted type, in the wanted placement, could be used, and the options forbid any other.

    Nothing ran. `node_type` says what was wanted; the last failed attempt, if there was one, is the `__cause__`.
    """

    __module__ = "ysactor"

    node_type: Refused
    """``"primary"``, ``"read_replica"``, or ``"cluster"`` when any type would have done."""

    def __init__(self, node_type: Refused) -> None:
        self.node_type = node_type
        kind = {"primary": "primary", "read_replica": "read replica", "cluster": "server"}[node_type]
        super().__init__(f"no {kind} is available in the given placement")


class ConnectFailed(Error):
    """Every server that was tried failed; this is the last failure. Nothing ran.

    The driver's error is the `__cause__`.
    """

    __module__ = "ysactor"

    server: HostPort
    """The server that was tried last."""
    kind: Literal["unreachable", "rejected", "read_only"]
    """``"unreachable"``: it is down. ``"rejected"``: it answered and turned the connection away. ``"read_only"``:
    it accepts no writes, being a standby or read-only by default, and `target_session_attrs` asks for a server that
    does."""

    def __init__(self, server: HostPort, kind: Literal["unreachable", "rejected", "read_only"], detail: str) -> None:
        self.server = server
        self.kind = kind
        words = {
            "unreachable": "could not be reached",
            "rejected": "turned the connection away",
            "read_only": "does not accept writes",
        }
        super().__init__(f"server {server} {words[kind]}: {detail}" if detail else f"server {server} {words[kind]}")


class ConnectionLost(Error):
    """The connection ended under its holder. The statement that was running may or may not have been carried out.

    The connection is closed and the pool opens another; a transaction that was open on it is rolled back by the
    server. The driver's error, if there is one, is the `__cause__`. Run idempotent work again.
    """

    __module__ = "ysactor"

    reason: str
    """What ended it: ``"socket_timeout"``, ``"closed by the server"``, …"""
    server: HostPort | None
    """The server it was connected to."""

    def __init__(self, reason: str, server: HostPort | None = None) -> None:
        self.reason = reason
        self.server = server
        where = f" to {server}" if server is not None else ""
        super().__init__(f"the connection{where} was lost: {reason}")


class CommitOutcomeUnknown(Error):
    """The connection was lost, or given up, while COMMIT was under way: the transaction may or may not be committed.

    It is deliberately no `ConnectionLost`: code that runs lost work again must not run this again unread. Read back
    something that the transaction wrote. The loss is the `__cause__`.
    """

    __module__ = "ysactor"

    server: HostPort | None
    """The server that was asked to commit."""

    def __init__(self, reason: str, server: HostPort | None = None) -> None:
        self.server = server
        where = f" on {server}" if server is not None else ""
        super().__init__(f"COMMIT{where} was sent and its answer is unknown: {reason}")


class TransactionAborted(Error):
    """The block or function returned normally, but the server had failed the transaction: nothing was committed.

    It happens when an error of a statement is caught inside the transaction. The first such error, if it was seen, is
    the `__cause__`. Use a savepoint (`conn.transaction()` inside the transaction) around what may fail.
    """

    __module__ = "ysactor"

    def __init__(self) -> None:
        super().__init__("a statement had failed, or was left, inside the transaction, so the server rolled it back")


class TransactionEnded(Error):
    """The block or function ended its transaction itself, with a COMMIT or ROLLBACK of its own.

    What it committed or rolled back is its own doing; ysactor sent no COMMIT and claims nothing about the outcome.
    """

    __module__ = "ysactor"

    def __init__(self) -> None:
        super().__init__("the transaction was ended by a COMMIT or ROLLBACK of its own before it could be committed")


class LeaseEnded(Error):
    """A connection, or something made from it, was used after its lease had ended. Nothing was sent."""

    __module__ = "ysactor"

    def __init__(self, message: str = "the lease on this connection has ended") -> None:
        super().__init__(message)


class LeaseExpired(LeaseEnded):
    """The lease was held for longer than its limit, and the pool ended it."""

    __module__ = "ysactor"


class RestartLimit(Error):
    """A supervised worker failed more often than its restart policy allows."""

    __module__ = "ysactor"


class Rollback(Exception):
    """Raise it in a transaction's function to roll back; `pool.transaction` then returns `value`."""

    __module__ = "ysactor"

    value: Any

    def __init__(self, value: Any = None) -> None:
        self.value = value
        super().__init__(value)
