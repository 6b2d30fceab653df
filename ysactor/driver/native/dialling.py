"""From a host to an open socket, encrypted where that is asked for. Each failure says how far it had come."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import trio

from ...config import Tls, TlsMode
from ...servers import HostPort
from ..protocol import ConnectFailure, Phase
from .messages import TLS_REQUEST


@dataclass(frozen=True, slots=True)
class Peer:
    """The very address that answered, and how it is spoken to: what a cancel request needs to reach the same server."""

    family: int
    address: Any
    tls: Tls
    """OFF when the connection is in plain, whatever was asked for."""


Address: TypeAlias = tuple[int, Any]
"""A family, and the address as sockets of that family take it."""

_FULL = 0.01
"""Seconds until a Unix socket is knocked at again whose server has too many waiting. The kernel does not say when."""


@dataclass(frozen=True, slots=True)
class TlsParts:
    """A finished handshake."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO


async def redial(peer: Peer) -> socket.socket:
    """Connect to the same address once more."""
    try:
        return await connected(peer.family, peer.address)
    except OSError as error:
        raise ConnectFailure(Phase.CONNECT, in_words(error)) from error


def unix(host: HostPort) -> Address:
    """Where a socket's directory is."""
    path: str | bytes = host.unix_path
    if host.host.startswith("@"):
        path = b"\0" + host.unix_path[1:].encode()  # the abstract namespace, as libpq spells it
    return socket.AF_UNIX, path


def numeric(host: HostPort) -> Address | None:
    """Where an address is; None for a name. Nothing is looked up."""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    try:
        family, _, _, _, address = socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM, flags=flags)[0]
    except (socket.gaierror, UnicodeError):
        return None
    return family, address


async def connected(family: int, address: Any) -> socket.socket:
    """A socket that is connected there. Raises `OSError`; leaves nothing open."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        while not await _tried(sock, address):  # noqa: ASYNC110  it is the server that makes room: there is no event
            await trio.sleep(_FULL)
    except BaseException:
        sock.close()
        raise
    return sock


async def _tried(sock: socket.socket, address: Any) -> bool:
    """Connect, or say that there is no room in the server's queue."""
    try:
        sock.connect(address)
    except BlockingIOError:
        if sock.family == getattr(socket, "AF_UNIX", None):
            return False
        await trio.lowlevel.wait_writable(sock)
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number)) from None
    return True


def tune(sock: socket.socket) -> None:
    """Set what every TCP socket has."""
    with suppress(OSError):  # macOS says so of a peer that is gone already; the login will find out
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer that is gone without a word (power, network) is found out by the kernel at last, when idle too.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        low_water = getattr(socket, "TCP_NOTSENT_LOWAT", None)
        if low_water is not None:
            # Trio keeps 16 KiB unsent at most, which makes large parameters wait for the kernel many times over.
            sock.setsockopt(socket.IPPROTO_TCP, low_water, 0)


async def secure(sock: socket.socket, host: HostPort, tls: Tls) -> TlsParts | None:
    """Ask for TLS and shake hands, or agree on plain. Raises `ConnectFailure` of TLS.

    As libpq does, it asks for nothing on a Unix socket, whatever the mode.
    """
    if tls.mode is TlsMode.OFF or host.is_unix:
        return None
    context = tls.context
    if context is None:
        raise ConnectFailure(Phase.TLS, "there is no TLS context")
    if not await _asked(sock, advisory=tls.mode is TlsMode.PREFER and context.verify_mode is ssl.CERT_NONE):
        return None
    name = tls.server_name or host.host
    try:
        return await _shake(sock, context, name)
    except ssl.SSLCertVerificationError as error:
        raise ConnectFailure(Phase.TLS, f"the certificate of {name} was refused: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise ConnectFailure(Phase.TLS, f"the handshake failed: {error.reason or error}") from error
    except (OSError, ValueError) as error:  # a ValueError is a name that TLS cannot carry
        raise ConnectFailure(Phase.TLS, f"the handshake failed: {in_words(error)}") from error


async def _asked(sock: socket.socket, *, advisory: bool) -> bool:
    """Send the request for TLS. True: shake hands; False: go on in plain, which only an advisory mode may."""
    try:
        await send_all(sock, TLS_REQUEST)
        answer = await receive(sock)
    except OSError as error:
        raise ConnectFailure(Phase.TLS, in_words(error)) from error
    if answer == b"S":
        return True
    if answer == b"N" and advisory:
        return False
    # Nothing in a plain answer is trusted or shown: anybody on the way may have put it there (CVE-2024-10977), and
    # bytes that come along with it would be taken for the server's encrypted word (CVE-2021-23214).
    match answer[:1]:
        case b"":
            raise ConnectFailure(Phase.TLS, "the server hung up when asked for TLS") from ConnectionResetError()
        case b"N" if len(answer) == 1:
            detail = "the server refuses TLS"
        case b"S" | b"N":
            detail = "bytes came in plain along with the answer to the request for TLS"
        case b"E":
            detail = "the server answered the request for TLS with an error; its log has it"
        case _:
            detail = "the answer to the request for TLS is not PostgreSQL's"
    raise ConnectFailure(Phase.TLS, detail)


async def _shake(sock: socket.socket, context: ssl.SSLContext, name: str) -> TlsParts:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            done = False
        except ssl.SSLError:
            with suppress(OSError):
                sock.send(outgoing.read())  # the alert that tells the server why
            raise
        else:
            done = True
        await send_all(sock, outgoing.read())
        if done:
            return TlsParts(tls, incoming, outgoing)
        data = await receive(sock)
        if not data:
            raise ConnectionResetError("the server hung up")
        incoming.write(data)


async def send_all(sock: socket.socket, data: bytes) -> None:
    """Write all of it."""
    left = memoryview(data)
    while left:
        try:
            left = left[sock.send(left) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)


async def receive(sock: socket.socket) -> bytes:
    """Wait for bytes; none is the end."""
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            return sock.recv(65536)
        except BlockingIOError:
            continue


def in_words(error: BaseException) -> str:
    """An error's reason without its number and its address."""
    match error:
        case OSError(errno=int() as number, strerror=str()):
            # Trio's own text repeats the address, which whoever shows this has named already.
            return os.strerror(number)
        case _:
            return str(error) or type(error).__name__
