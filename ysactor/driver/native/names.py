"""Every private name of asyncpg and asyncio that this driver leans on, in one place, checked at import.

Nothing else in the package reaches for a name with an underscore that is not its own. When a release of either
library moves one of them, importing the driver fails with an `ImportError` that says which.
"""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import asyncio.events
import asyncio.tasks
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, cast

import asyncpg
from asyncpg import connect_utils, connection
from asyncpg.protocol import protocol

from ..leftovers import tidied

_WANTED: tuple[tuple[object, str, tuple[str, ...]], ...] = (
    (asyncio.events, "asyncio.events", ("_get_running_loop", "_set_running_loop")),
    (asyncio.tasks, "asyncio.tasks", ("_enter_task", "_leave_task")),
    (protocol, "asyncpg.protocol.protocol", ("Protocol", "PreparedStatementState", "NO_TIMEOUT")),
    (
        protocol.Protocol,
        "asyncpg.protocol.protocol.Protocol",
        (
            *("connection_made", "data_received", "connection_lost", "pause_writing", "resume_writing"),
            *("set_connection", "is_in_transaction", "is_connected", "query", "get_settings"),
            *("backend_pid", "backend_secret", "is_ssl", "_is_cancelling", "_wait_for_cancellation", "bind_execute"),
            *("get_record_class", "close_statement"),
        ),
    ),
    (connect_utils, "asyncpg.connect_utils", ("_ConnectionParameters", "_ClientConfiguration", "SSLMode")),
    (connect_utils._ConnectionParameters, "asyncpg.connect_utils._ConnectionParameters", ("_fields",)),
    (
        asyncpg.Connection,
        "asyncpg.Connection",
        (
            *("_cancel_current_command", "_drop_local_statement_cache", "_listeners", "_log_listeners", "_top_xact"),
            *("_copy_out", "_execute", "_protocol", "_query_loggers", "_stmt_cache", "_drop_global_statement_cache"),
            *("_drop_global_type_cache", "_drop_local_type_cache"),
            *("add_listener", "add_log_listener", "is_closed", "reload_schema_state", "__slots__"),
            *("_get_statement", "_get_unique_id", "_cleanup_stmts", "_maybe_gc_stmt", "_stmts_to_close"),
        ),
    ),
)


def missing(wanted: Iterable[tuple[object, str, tuple[str, ...]]] = _WANTED) -> list[str]:
    """The names that are not where they are expected, dotted in full."""
    return [f"{path}.{name}" for owner, path, names in wanted for name in names if not hasattr(owner, name)]


if _gone := missing():
    raise ImportError(
        f"the native driver cannot work with asyncpg {asyncpg.__version__} on this Python: "
        f"{', '.join(_gone)} is not there any more"
    )


class Wire(Protocol):
    """The compiled protocol of one connection: what asyncpg calls `Protocol`, under its public names."""

    backend_pid: int
    backend_secret: int | bytes
    is_ssl: bool

    def connection_made(self, transport: Any, /) -> None: ...
    def data_received(self, data: bytes, /) -> None: ...
    def connection_lost(self, exc: Exception | None, /) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def set_connection(self, connection: Any, /) -> None: ...
    def is_in_transaction(self) -> bool: ...
    def is_connected(self) -> bool: ...
    def query(self, query: str, timeout: float | None, /) -> Coroutine[Any, Any, str]: ...


# trio-asyncio puts a function of its own in this place when it is imported; the original keeps this name.
get_running_loop = cast(
    "Callable[[], Any]", getattr(asyncio.events, "_c__get_running_loop", asyncio.events._get_running_loop)
)
set_running_loop = cast("Callable[[Any], None]", asyncio.events._set_running_loop)
enter_task = cast("Callable[[Any, Any], None]", asyncio.tasks._enter_task)
leave_task = cast("Callable[[Any, Any], None]", asyncio.tasks._leave_task)
RawConnection = tidied(connection.Connection, protocol)


def other_notion_of_the_loop() -> ContextVar[Any] | None:
    """Where asyncio looks for the running loop in a Trio task once somebody has imported trio-asyncio, which we do not.

    Without this, `asyncio.timeout` and asyncpg's COPY would find no loop in a process that also uses trio-asyncio.
    """
    module = sys.modules.get("trio_asyncio")
    return None if module is None else cast("ContextVar[Any] | None", getattr(module, "current_loop", None))


def new_wire(
    address: object,
    connected: asyncio.Future[Any],
    parameters: Any,
    password: str | None,
    record_class: type,
    loop: Any,
) -> tuple[Wire, Callable[[], None]]:
    """asyncpg's protocol, not yet connected, and what makes it forget the password.

    asyncpg keeps a password for as long as the connection lives, in two places; it only reads these by attribute.
    """
    login = _Login(parameters, password)
    wire: Any = protocol.Protocol(address, connected, cast("Any", login), record_class, loop)

    def forget() -> None:
        login.password = wire.password = wire.auth_msg = None

    return cast("Wire", wire), forget


class _Login:
    """Parameters that many logins share, and the password of one, until it is forgotten."""

    __slots__ = ("_shared", "password")

    def __init__(self, shared: Any, password: str | None) -> None:
        self._shared = shared
        self.password = password

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)


def new_parameters(known: Mapping[str, Any]) -> Any:
    """asyncpg's record of what a login needs. Its fields differ from release to release: what is not known is None."""
    fields = connect_utils._ConnectionParameters._fields
    values = {"sslmode": connect_utils.SSLMode.disable, "gsslib": "gssapi", **known}
    return connect_utils._ConnectionParameters(**{name: values.get(name) for name in fields})


def new_client_configuration(known: Mapping[str, Any]) -> Any:
    """asyncpg's record of a connection's settings."""
    fields = connect_utils._ClientConfiguration._fields
    return connect_utils._ClientConfiguration(**{name: known.get(name) for name in fields})


def is_cancelling(wire: Wire) -> bool:
    """Whether a command was left and the server's last word on it is still to come."""
    return cast("bool", cast("Any", wire)._is_cancelling())


def wait_for_cancellation(wire: Wire) -> Coroutine[Any, Any, object]:
    """asyncpg's wait for that last word."""
    return cast("Coroutine[Any, Any, object]", cast("Any", wire)._wait_for_cancellation())


def hears(raw: Any) -> bool:
    """Whether somebody listens for what the server sends unasked."""
    return bool(raw._listeners or raw._log_listeners)


def forget_statements(raw: Any, types: bool = False) -> None:
    """Drop the connection's prepared statements; asyncpg closes them on the server with its next `prepare`.

    With `types` also what it has learnt of the database's types; the codecs that somebody set stay.
    """
    if types:
        raw._drop_local_type_cache()
    raw._drop_local_statement_cache()
