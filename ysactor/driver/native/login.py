"""From an open socket to a logged-in connection, and what becomes of the password on the way."""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg
import trio

from ...config import Config, Tls
from ...servers import HostPort
from ..greeting import NOT_POSTGRES, Greeting
from ..password import password_of
from ..protocol import ConnectFailure, Phase
from ..words import TAIL, refusal
from .dialling import Peer, TlsParts, in_words, secure
from .loop import Loop, Spawn
from .names import Wire, new_client_configuration, new_parameters, new_wire
from .raw import NativeConnection
from .transport import TlsTransport, Transport

_PLAIN = Tls()


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """What a session is made of."""

    raw: NativeConnection
    wire: Wire
    transport: Transport
    loop: Loop
    peer: Peer
    tail: bytes
    """The end of what was read. A server may say its last words with the same breath as its welcome."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What all logins of one configuration have in common, made once: each would keep over a kilobyte of its own.

    Neither the configuration nor a password is in it: a session holds it for life.
    """

    parameters: Any
    """asyncpg's record of what a login needs, but for the password."""
    settings: Any
    """asyncpg's record of a connection's settings."""
    record_class: type

    @classmethod
    def of(cls, config: Config) -> Terms:
        record_class = config.asyncpg_options.get("record_class", asyncpg.Record)
        return cls(_parameters(config), _settings(config), record_class)


async def start_up(
    sock: socket.socket, share: trio.CancelScope | None, host: HostPort, config: Config, terms: Terms, spawn: Spawn
) -> LoggedIn:
    """Encrypt an open socket where that is asked for, and log in. Raises `ConnectFailure` of TLS or LOGIN.

    The socket is ours: it is closed if that fails. `share` ends with the time that this server has, if that is less
    than the caller's. What a password function takes does not count.
    """
    try:
        parts = await secure(sock, host, config.tls)
        loop = Loop(spawn)
        transport = _transport(sock, loop, parts)
        peer = _peer(sock, host, _PLAIN if parts is None else config.tls)
        connected = loop.create_future()
        # The password is in no local variable from here on: a traceback that prints locals would show it.
        password = password_of(config, host) if share is None else _unhurried(config, host, share)
        wire, forget = _begin(connected, loop, host, terms, await password)
        try:
            transport.join(wire)
            tail = await _until(transport, wire, connected)
        finally:
            forget()
        _judge(connected, tail)
        if parts is not None:
            wire.is_ssl = True
        try:
            raw = NativeConnection(wire, transport, loop, tuple(host), terms.settings, terms.parameters)
        except (ValueError, asyncpg.InterfaceError) as error:
            raise ConnectFailure(Phase.LOGIN, f"asyncpg cannot work with this server: {error}") from error
        wire.set_connection(raw)
        return LoggedIn(raw, wire, transport, loop, peer, tail)
    except BaseException:
        sock.close()
        raise


async def _unhurried(config: Config, host: HostPort, share: trio.CancelScope) -> str | None:
    """The password. What its function waits for is not the server."""
    left = share.deadline - trio.current_time()
    share.deadline = math.inf
    try:
        return await password_of(config, host)
    finally:
        share.deadline = trio.current_time() + left


def _transport(sock: socket.socket, loop: Loop, parts: TlsParts | None) -> Transport:
    if parts is None:
        return Transport(sock, loop)
    return TlsTransport(sock, loop, parts.tls, parts.incoming, parts.outgoing)


def _peer(sock: socket.socket, host: HostPort, tls: Tls) -> Peer:
    try:
        return Peer(sock.family, sock.getpeername(), tls)
    except OSError as error:  # it is gone already
        raise ConnectFailure(Phase.LOGIN, in_words(error)) from error


def _begin(
    connected: Any, loop: Loop, host: HostPort, terms: Terms, password: str | None
) -> tuple[Wire, Callable[[], None]]:
    return new_wire(tuple(host), connected, terms.parameters, password, terms.record_class, loop)


def _parameters(config: Config) -> Any:
    return new_parameters(
        {
            "user": config.user,
            "database": config.database,
            "server_settings": _start_up_settings(config),
        }
    )


def _start_up_settings(config: Config) -> dict[str, str]:
    settings = {"application_name": config.application_name}
    if config.statement_timeout is not None:
        settings["statement_timeout"] = str(math.ceil(config.statement_timeout * 1000))
    return settings | dict(config.server_settings)


def _settings(config: Config) -> Any:
    options: Mapping[str, Any] = config.asyncpg_options
    return new_client_configuration(
        {
            "command_timeout": None,  # it is the session's, as the default of `drive`
            "statement_cache_size": options.get("statement_cache_size", 100),
            "max_cacheable_statement_size": options.get("max_cacheable_statement_size", 15 * 1024),
            "max_cached_statement_lifetime": 0,  # asyncpg would arm a timer for each statement; the session sees to it
        }
    )


async def _until(transport: Transport, wire: Wire, connected: Any) -> bytes:
    """Until the login has ended, one way or the other; the end of what was read."""
    tail, greeting = b"", Greeting()
    try:
        while not connected.done():
            await transport.flush()
            await trio.lowlevel.wait_readable(transport.sock)
            try:
                data = transport.read()
            except BlockingIOError:
                continue
            if not data:
                wire.connection_lost(None)
                continue
            tail = (tail + data)[-TAIL:]
            understood = greeting.admits(data)
            if understood:
                try:
                    wire.data_received(data)
                except Exception:
                    understood = False
            if not understood:  # said outside the `except`: what was raised holds frames that may hold the password
                raise ConnectFailure(Phase.LOGIN, NOT_POSTGRES)
    except ssl.SSLError as error:
        # In TLS 1.3 a server that refuses our certificate says so after the handshake.
        raise ConnectFailure(Phase.TLS, f"the server ended TLS: {error.reason or error}") from error
    except OSError as error:
        raise ConnectFailure(Phase.LOGIN, in_words(error)) from error
    return tail


def _judge(connected: Any, tail: bytes) -> None:
    """Raise what the login came to, if it failed."""
    error = connected.exception()
    is_told = isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.ConnectionDoesNotExistError)
    if error is not None and not is_told and (said := refusal(tail)) is not None:
        text, sqlstate = said
        raise ConnectFailure(Phase.LOGIN, text, sqlstate=sqlstate) from error
    match error:
        case None:
            return
        case asyncpg.ConnectionDoesNotExistError():  # asyncpg's own, not an answer
            raise ConnectFailure(Phase.LOGIN, "the server hung up during the login") from error
        case asyncpg.PostgresError():
            raise ConnectFailure(Phase.LOGIN, str(error.args[0]), sqlstate=getattr(error, "sqlstate", None)) from error
        case asyncpg.InterfaceError() | asyncpg.InternalClientError():
            error.__cause__ = error.__context__ = None  # what is below may hold the password
            raise ConnectFailure(Phase.LOGIN, str(error)) from error
        case _:  # out of asyncpg's reading of a message
            raise ConnectFailure(Phase.LOGIN, NOT_POSTGRES) from error
