"""What ysactor asks of a driver: two nouns. A `Driver` opens sessions; a `Session` is one open connection.

Three things implement it: asyncpg's protocol on Trio sockets (`native`), asyncpg through trio-asyncio
(`trio_asyncio`), and the fake cluster of `ysactor.testing`. One set of contract tests holds all three to this page.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import trio

    from ..config import Config
    from ..servers import HostPort

T = TypeVar("T")


class Phase(Enum):
    """How far an attempt to connect had come when it failed. It decides what the failure says of the server."""

    RESOLVE = "name look-up"
    CONNECT = "connect"
    TLS = "TLS"
    """The request for TLS and the handshake, a refusal to speak TLS included."""
    LOGIN = "login"
    """Start-up message to the first ready state."""
    SETUP = "session set-up"
    """What is sent on the open session before anybody uses it."""


class ConnectFailure(Exception):
    """A known failure of `Driver.connect`. The driver's own error is the `__cause__`, where there is one.

    Anything else that leaves `connect` is a bug, and is not caught.
    """

    phase: Phase
    sqlstate: str | None
    """The server's SQLSTATE, when the server answered with an error."""

    def __init__(self, phase: Phase, detail: str, *, sqlstate: str | None = None) -> None:
        self.phase = phase
        self.sqlstate = sqlstate
        super().__init__(detail)


class NoPassword(ConnectFailure):
    """The options gave no password for this login: the function raised or did not return in time, or what it gave
    cannot be sent.

    It is no server's doing, and none is reported as down for it. The function's own error is the `__cause__`.
    """


class Status(Enum):
    """What a session is doing, as far as the client knows; telling costs no round trip."""

    IDLE = "idle"
    IN_TRANSACTION = "in a transaction"
    """Also in a failed one."""
    BUSY = "busy"
    """A call is running on it."""
    ABANDONED = "abandoned"
    """A call was left by its caller and has not been settled."""
    CLOSED = "closed"


class Preface:
    """A statement that is sent ahead of a call, in the same round trip where the transport can: BEGIN."""

    __slots__ = ("carried_out", "sent", "sql")

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.carried_out = False
        """Whether it is known to have been carried out, though the driver's connection has not heard so yet."""
        self.sent = False
        """Whether the server may have seen it; true while a call that it goes ahead of is under way. Its session writes
        this."""


class SessionEvents(Protocol):
    """What a session tells its owner, the connection's actor. Neither call may block or raise."""

    def lost(self, reason: str) -> None:
        """The session is over, by no wish of its owner: its socket was closed or failed, or `socket_timeout` ran out.

        Told once, and never in the middle of a call: what ends a session in a call is told as the call ends. The
        owner's own `terminate` and `close` are not told.
        """
        ...

    def abandoned(self) -> None:
        """A caller left a call before its end (cancelled, or its `timeout` passed): `settle` is needed."""
        ...


class Session(Protocol):
    """One open session on one server. Not shared: one call at a time.

    The holder of the lease drives it, in its own task; its actor does everything else.
    """

    @property
    def host(self) -> HostPort:
        """The server it is connected to."""
        ...

    @property
    def raw(self) -> Any:
        """The driver's connection, with asyncpg's methods. Their coroutines are run by `drive`, never awaited."""
        ...

    @property
    def pid(self) -> int:
        """The server-side process, as the server reported it."""
        ...

    @property
    def status(self) -> Status: ...

    def is_clean(self) -> bool:
        """Whether the next holder may have it as it is: idle, open, and outside a transaction. No round trip."""
        ...

    def forget_statements(self, *, types: bool = False) -> None:
        """The driver is not to use the prepared statements that it keeps: the server has thrown them away, or the
        schema has changed. Nor, with `types`, what it has learnt of the database's types.

        At once, or as the call that is under way ends. No round trip and no checkpoint: what the server still has is
        closed there as the session prepares its next statement.
        """
        ...

    @property
    def on_outdated(self) -> list[Callable[[bool], None]]:
        """Who is called when a call meets a statement from before the schema changed, or (True) a type: what other
        sessions keep is as old. (The driver's `reload_schema_state` says so as well.) To be added to.

        Called in the middle of the call, with this session's own forgotten; also where the driver runs the statement
        once more and its caller sees nothing. It may not block or raise.
        """
        ...

    def expect_notifications(self) -> None:
        """The server has been, or is about to be, asked to LISTEN otherwise than by `raw.add_listener`.

        What it then sends has to be read while no call is running, too, though nobody here wants it: a server that
        cannot get rid of a notification keeps it, and all that come after it, for all of its sessions.
        """
        ...

    def attach(self, events: SessionEvents) -> None:
        """Name the owner, once the session is set up; a loss seen earlier is told at once.

        Until then no limit of the session's own bounds a call: `connect_timeout` bounds all of an attempt, and what is
        too slow for `socket_timeout` or asyncpg's `command_timeout` there would tell against a server that lives.
        """
        ...

    async def drive(self, call: Coroutine[Any, Any, T], timeout: float | None = None, grace: float | None = None) -> T:
        """Run one of `raw`'s coroutines in the caller's task, to its end.

        `timeout` bounds it: past it `TimeoutError` is raised and the call is left, as by a cancellation. Zero or less
        sends nothing and raises `TimeoutError`; the session is untouched. The session's `socket_timeout` bounds it as
        well, once it has an owner: past that the socket is closed, and an answer that comes in the same moment counts
        as lost. So does `command_timeout`, as the `timeout` of a call that is given none.

        Cancelled before it starts, it sends nothing. Cancelled later, it leaves at once, the session is ABANDONED, and
        the owner is told. With `grace` (COMMIT) a
        cancellation is put off for up to that many seconds: if the call ends in time its result or error comes out
        and the cancellation is left to the caller's next checkpoint; if it does not, the session is terminated and
        `ConnectionLost` is raised.

        On a session with a call running it raises asyncpg's `InterfaceError` and leaves that call alone. On one that
        is ABANDONED it first waits until that has been settled.

        Raises: the server's errors, unchanged; `ConnectionLost` whenever the session is over, whatever the driver
        called it.
        """
        ...

    async def drive_after(self, preface: Preface, call: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `preface`, then `call`, as `drive` would run them. `preface` has no rows and sets none.

        If `preface` fails its error comes out, and nothing of `call` has been carried out. `preface.sent` tells
        whether it went out at all: it does not where the call ends before it sends anything.
        """
        ...

    def source(self, rows: AsyncIterable[Any]) -> AsyncIterable[Any]:
        """Make a Trio-flavoured iterable usable inside a driven call (COPY in)."""
        ...

    def sink(self, write: Callable[[bytes], Awaitable[None]]) -> Callable[[bytes], Awaitable[None]]:
        """Make a Trio-flavoured function usable inside a driven call (COPY out)."""
        ...

    async def settle(self, timeout: float) -> bool:
        """After an abandoned call: have the server cancel it, and wait until the session is usable again.

        Sends a cancel request the way the connection itself came (same address, same TLS), reads until the session
        is idle, and until the server has closed the cancel request's own connection, so that no later statement can
        be hit by it. True if all that happened within `timeout` seconds; otherwise the session is terminated and the
        answer is False. Zero terminates at once. Only the owner calls it.
        """
        ...

    async def close(self, timeout: float) -> None:
        """Say goodbye and wait until the server has closed its end, `timeout` seconds at most, then `terminate`.

        Never raises but for a cancellation, and then the socket is closed as well.
        """
        ...

    async def interrupt(self, timeout: float) -> None:
        """Have the server stop what it is executing for this session; also, and mostly, after `terminate`.

        A server does not look at the socket of a session while it executes a statement, so a statement whose client
        is gone would run on to its end. Sends a cancel request as `settle` does and waits until the server has closed
        that connection, `timeout` seconds at most. Never raises but for a cancellation.
        """
        ...

    def terminate(self, reason: str) -> None:
        """Close the socket now. A call that is running raises `ConnectionLost(reason)`. No checkpoint; idempotent."""
        ...


class Driver(Protocol):
    """Opens sessions. One per cluster; `run` encloses everything that uses it."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """What the driver needs running: started before the first `connect`, cancelled after the last `close`."""
        ...

    async def connect(self, host: HostPort, config: Config) -> Session:
        """Open one session on exactly this server, logged in. The caller bounds it.

        Cancelled, it leaves nothing open. Raises `ConnectFailure` for every known failure; nothing it raises or logs
        holds a secret.
        """
        ...

    async def resolve(self, host: str) -> str | None:
        """The address a name stands for, or None: the first IPv4, else the first IPv6; IPv4-mapped counts as IPv4.

        The caller bounds it.
        """
        ...
