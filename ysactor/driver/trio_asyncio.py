"""The driver that leaves everything to asyncpg: its own `connect`, on a loop that trio-asyncio runs inside Trio.

For releases of asyncpg or Python that the native driver does not know, and to compare with. Each call is an asyncio
task on the loop and costs several passes of the scheduler. Importing trio-asyncio changes `asyncio.new_event_loop` for
the whole process, so nothing but this file does it, and only when this driver is made.
"""

from __future__ import annotations

import importlib
import ipaddress
import logging
import math
import socket
import ssl
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from ..config import Config, Tls, TlsMode
from ..errors import ConfigurationError
from ..servers import HostPort
from .copy_in import raise_what_a_source_raises
from .greeting import NOT_POSTGRES, WaryEar
from .password import password_of
from .protocol import ConnectFailure, Phase
from .tries import Tries
from .trio_asyncio_raw import connection_class
from .trio_asyncio_session import TrioAsyncioSession
from .trio_asyncio_work import Limits, known_failures, run
from .words import refusal

_log = logging.getLogger("ysactor")


class TrioAsyncioDriver:
    """Opens sessions with stock asyncpg.

    Raises: `ConfigurationError` where trio-asyncio is missing or does not work, as on Python 3.14.
    """

    def __init__(self) -> None:
        self._trio_asyncio = _load()
        self._loop: Any = None
        self._sessions: weakref.WeakSet[TrioAsyncioSession] = weakref.WeakSet()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the loop open: a new one, or the one the application already runs in."""
        running = self._trio_asyncio.current_loop.get()
        if running is not None:
            await self._serve(running, task_status)
        async with self._trio_asyncio.open_loop() as loop:
            # trio-asyncio's own handler lets an exception in a callback end the loop and, with it, every session.
            loop.set_exception_handler(_log_exception)
            await self._serve(loop, task_status)

    async def _serve(self, loop: Any, task_status: trio.TaskStatus[None]) -> None:
        self._loop = loop
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            self._loop = None
            # A socket can be closed only while the loop runs.
            for session in tuple(self._sessions):
                session.terminate("the driver has ended")

    async def connect(self, host: HostPort, config: Config) -> TrioAsyncioSession:
        """Open one session on exactly this server, logged in. See the protocol.

        Trio-flavoured. The addresses of a name are tried one after the other, and share `connect_timeout`, the
        connecting included: asyncpg is given one address at a time. A password callable is called once.
        """
        if self._loop is None:
            raise RuntimeError("bug: `run` of this driver has not been started")
        password = _Password(await password_of(config, host))
        tries = Tries[str](config.connect_timeout, str)
        tries.add(await _addresses(host))

        async def next_address() -> tuple[str, str]:
            return tries.left[0], tries.left[0]

        async def log_in(address: str, _: trio.CancelScope) -> TrioAsyncioSession:
            return await self._connect(host, address, config, password)

        return await tries.first(next_address, log_in)

    async def resolve(self, host: str) -> str | None:
        """The address a name stands for: the first IPv4, else the first IPv6. Trio-flavoured."""
        try:
            found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return None
        addresses = [_unmapped(str(entry[4][0])) for entry in found]
        return next((address for address in addresses if ":" not in address), addresses[0] if addresses else None)

    async def _connect(self, host: HostPort, address: str, config: Config, password: _Password) -> TrioAsyncioSession:
        stages = _Stages(self._loop, host, password)
        if host.is_unix or config.tls.mode is TlsMode.OFF:
            return await self._open(host, address, config, stages)
        stages.context = _Named.of(config.tls, host.host)
        try:
            return await self._open(host, address, config, stages)
        except ConnectFailure as refused:
            # `prefer` goes on in the clear where the server has no TLS. A handshake that failed is a failure.
            if config.tls.mode is not TlsMode.PREFER or refused.phase is not Phase.TLS or stages.context.is_used:
                raise
        return await self._open(host, address, config, _Stages(self._loop, host, password))

    async def _open(self, host: HostPort, address: str, config: Config, stages: _Stages) -> TrioAsyncioSession:
        asyncpg: Any = importlib.import_module("asyncpg")
        options = {
            "direct_tls": False,
            # asyncpg would drop after five minutes what is to be kept ready.
            **({"max_cached_statement_lifetime": 0} if config.prepare_on_connect else {}),
            **config.asyncpg_options,
            "loop": stages,
            "connection_class": connection_class(asyncpg),
            "command_timeout": None,  # it is the session's, as the default of `drive`
            # Nothing is left to asyncpg's own reading of the environment: the options have been read already.
            "host": f"/{address[1:]}" if address.startswith("\0") else address,
            "port": host.port,
            "user": config.user,
            "password": "",  # see `_Stages`; None would be leave to look in the environment and in files
            "database": config.database,
            "ssl": stages.context or False,
            "server_settings": _start(config),
            "target_session_attrs": "any",
            "timeout": None,
        }
        try:
            connection = await run(self._loop, asyncpg.connect(**options), lambda late: late.terminate())
        except known_failures() as error:
            detail, sqlstate = str(_tls_error(error) or error) or type(error).__name__, _sqlstate(error)
            if stages.ear is not None and stages.ear.is_foreign:
                detail = NOT_POSTGRES
            elif stages.ear is not None and sqlstate is None and (said := refusal(stages.ear.said)) is not None:
                detail, sqlstate = said
            raise ConnectFailure(stages.phase_of(error), detail, sqlstate=sqlstate) from error
        finally:
            stages.forget()
        limits = Limits(config.socket_timeout, config.asyncpg_options.get("command_timeout"))
        session = TrioAsyncioSession(self._loop, connection, host, limits, stages.last_words)
        self._sessions.add(session)
        return session


@dataclass(frozen=True, slots=True)
class _Password:
    """What a login is given. In variables it stands for the text, which a traceback would show."""

    text: str | None = field(repr=False)


class _Stages:
    """The loop, as one attempt to connect sees it: it notes how far the attempt has come, and knows the password.

    asyncpg's `connect` is given no password: it keeps what it is given for as long as the connection lives, and a
    traceback that prints the variables of its frames would show it. Its protocol is told, and made to forget it.
    """

    def __init__(self, loop: Any, host: HostPort, password: _Password) -> None:
        self.loop = loop
        self.context: _Named | None = None
        self._host = host
        self._password: _Password | None = password
        self._told: list[Any] = []
        self.ear: WaryEar | None = None
        self._phase = Phase.CONNECT

    async def create_connection(self, factory: Any, *args: Any, **options: Any) -> Any:
        """asyncio-flavoured."""
        made = await self.loop.create_connection(lambda: self._listen(self._tell(factory())), *args, **options)
        self._phase = Phase.LOGIN if self.context is None or "ssl" in options else Phase.TLS
        with suppress(OSError):  # it is gone already; the login will find out
            # A peer that is gone without a word is found out by the kernel at last. asyncio leaves this off.
            made[0].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return made[0], made[1].protocol if isinstance(made[1], WaryEar) else made[1]

    async def create_unix_connection(self, factory: Any, *_: Any) -> Any:
        """asyncio-flavoured."""
        made = await self.loop.create_unix_connection(lambda: self._listen(self._tell(factory())), self._host.unix_path)
        self._phase = Phase.LOGIN
        return made[0], made[1].protocol if isinstance(made[1], WaryEar) else made[1]

    async def start_tls(self, *args: Any, **options: Any) -> Any:
        """asyncio-flavoured."""
        made = await self.loop.start_tls(*args, **options)
        self._phase = Phase.LOGIN
        if made is not None:
            set_protocol = made.set_protocol

            def set_and_tell(protocol: Any) -> None:
                del made.set_protocol
                heard = self._listen(self._tell(protocol), made)
                if isinstance(heard, WaryEar):
                    heard.hold_back(made)  # asyncpg has told its protocol already, and it alone, what is read from
                set_protocol(heard)

            made.set_protocol = set_and_tell
        return made

    def _tell(self, protocol: Any) -> Any:
        """Before the server can have asked for it. What only asks for TLS is a protocol without a password."""
        if hasattr(protocol, "password"):
            protocol.password = None if self._password is None else self._password.text
            self._told.append(protocol)
            raise_what_a_source_raises(protocol)
        return protocol

    def _listen(self, protocol: Any, transport: Any = None) -> Any:
        """Hear what is sent to a protocol that logs in."""
        if not hasattr(protocol, "password"):
            return protocol
        self.ear = WaryEar(protocol, transport)
        return self.ear

    def last_words(self) -> str | None:
        """What the server said before it hung up, if it did."""
        return None if self.ear is None else self.ear.last_words()

    def expect_rows(self) -> None:
        """A COPY out begins with the next message of the server's."""
        if self.ear is not None:
            self.ear.expect_rows()

    def forget(self) -> None:
        """The login has ended, one way or the other."""
        for protocol in self._told:
            protocol.password = protocol.auth_msg = None
        self._told.clear()
        self._password = None

    def address(self, dialled: Any) -> Any:
        """Where a cancel request goes: asyncpg knows no abstract sockets, and was given a stand-in."""
        return self._host.unix_path if self._host.is_unix else dialled

    def phase_of(self, error: BaseException) -> Phase:
        """The phase an attempt that ended with this error was in."""
        if _tls_error(error) is not None:
            # A server that wants a certificate of ours says so only after its own half of the handshake.
            return Phase.TLS
        if self._phase is Phase.CONNECT and self.context is not None and self.context.is_used:
            return Phase.TLS
        return self._phase

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)


class _Named(ssl.SSLContext):
    """The options' context, checking the server's name that was asked for instead of the address that is dialled.

    asyncpg gives the dialled host as the name; here that is an address, so that a cancel request goes where the session
    went even if the name stands for several servers.
    """

    _inner: ssl.SSLContext
    _name: str
    is_used: bool
    """Whether a handshake has begun."""

    @classmethod
    def of(cls, tls: Tls, host: str) -> _Named:
        """The context for one connection."""
        assert tls.context is not None, "bug: the options make a context whenever TLS is used"
        made = cls(ssl.PROTOCOL_TLS_CLIENT)
        made._inner, made._name, made.is_used = tls.context, tls.server_name or host, False
        return made

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin TLS on one connection."""
        self.is_used = True
        return self._inner.wrap_bio(incoming, outgoing, server_side, self._name, session)


def _load() -> Any:
    try:
        return importlib.import_module("trio_asyncio")
    except (ImportError, AttributeError) as error:
        # Python 3.14 removed what trio-asyncio 0.16 subclasses, hence the AttributeError.
        raise ConfigurationError(
            [f"driver: trio-asyncio cannot be used here ({error}); it needs Python below 3.14, and to be installed"]
        ) from error


async def _addresses(host: HostPort) -> list[str]:
    if host.is_unix:
        await trio.lowlevel.checkpoint()
        return [host.unix_path]
    try:
        found = await trio.socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise ConnectFailure(Phase.RESOLVE, f"{host.host}: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _unmapped(address: str) -> str:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped) if mapped else address


def _start(config: Config) -> dict[str, str]:
    """The run-time parameters of the start-up message."""
    settings = {"application_name": config.application_name}
    if config.statement_timeout is not None:
        # Rounded up: what is shorter than a millisecond must not become 0, which is "no limit".
        settings["statement_timeout"] = str(math.ceil(config.statement_timeout * 1000))
    return {**settings, **config.server_settings}


def _sqlstate(error: BaseException) -> str | None:
    """The server's SQLSTATE. asyncpg's own errors carry one too, but no severity: no server has sent them."""
    if getattr(error, "severity", None) is not None:
        return str(error.sqlstate)  # type: ignore[attr-defined]
    return None if error.__cause__ is None else _sqlstate(error.__cause__)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The failure of TLS that an error is, or that asyncpg has wrapped: a lost connection, as it says."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _log_exception(_loop: Any, context: Mapping[str, Any]) -> None:
    _log.error("in the asyncio loop: %s", context.get("message", ""), exc_info=context.get("exception"))
