"""One connection through a fault proxy, and what of PostgreSQL's protocol the proxy has to understand of it."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass, field

import trio

_COMMIT = re.compile(rb"\s*(commit|end)\b", re.IGNORECASE)

_CANCEL = 80877102
_SSL = 80877103
_GSS = 80877104
_HEAD = 16
_STARTUP_LIMIT = 10_000


@dataclass(eq=False, slots=True)
class ProxiedConnection:
    """One connection that the proxy accepted."""

    number: int
    client: trio.SocketStream = field(repr=False)
    first: bytes = b""
    """What came first on the wire, at most 16 bytes."""
    encrypted: bool = False
    """TLS was agreed on before anything else was sent, whoever ended it, the proxy or the server."""
    cancel: bool = False
    """It carried a cancel request. Not seen inside TLS that the server ends."""
    open: bool = True
    upstream_port: int | None = None
    """The port at this end of the connection to the server: ``client_port`` in ``pg_stat_activity``."""
    answer_is_lost: bool = False
    """The server's next answer is kept from the client, which gets an RST instead."""

    def reset(self) -> None:
        """Close it towards the client with an RST, discarding what was not sent. The server sees it close, too."""
        with suppress(OSError, ValueError):
            linger = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
            self.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.client.socket.close()


class Statements:
    """Finds COMMIT in what a client sends, which arrives in chunks of any size: as a query, or parsed ahead."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skip = 0

    def commit_in(self, chunk: bytes) -> bool:
        """True if a message that starts a COMMIT became complete with this chunk."""
        found = False
        self._rest += chunk
        while True:
            skipped = min(self._skip, len(self._rest))
            del self._rest[:skipped]
            self._skip -= skipped
            if self._skip or len(self._rest) < 5:
                return found
            kind, size = struct.unpack_from("!cI", self._rest)
            if kind not in {b"Q", b"P"}:
                # Bulk data of a COPY, or a bind's values: never kept.
                self._skip = size + 1
                continue
            if len(self._rest) < size + 1:
                return found
            text = bytes(self._rest[5 : size + 1])
            del self._rest[: size + 1]
            # A parse message has the statement's own name before the text.
            text = text if kind == b"Q" else text.partition(b"\0")[2]
            found = found or _COMMIT.match(text) is not None


async def at_least(stream: trio.abc.Stream, data: bytes, size: int) -> bytes:
    """Read until there are so many bytes, or no more to come. Never reads beyond: a TLS handshake may follow."""
    while len(data) < size:
        chunk = await stream.receive_some(size - len(data))
        if not chunk:
            break
        data += chunk
    return data


async def greet(
    connection: ProxiedConnection, server: trio.SocketStream, context: ssl.SSLContext | None
) -> tuple[trio.abc.Stream, bytes, bool]:
    """Until the client's start-up message: the stream to go on with, that message, whether statements follow it.

    A client's TLS is ended with ``context``, or passed through where there is none.
    """
    stream: trio.abc.Stream = connection.client
    while True:
        message, code = await _opening(stream, connection)
        if code == _SSL and context is not None:
            await stream.send_all(b"S")
            tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
            await tls.do_handshake()
            connection.encrypted = True
            stream = tls
        elif code in {_SSL, _GSS}:
            await server.send_all(message)
            answer = bytes(await server.receive_some(1))
            await stream.send_all(answer)
            if answer != b"N":
                connection.encrypted = answer in {b"S", b"G"}
                return stream, b"", False
        else:
            connection.cancel = code == _CANCEL
            return stream, message, code not in {None, _CANCEL}


async def _opening(stream: trio.abc.Stream, connection: ProxiedConnection) -> tuple[bytes, int | None]:
    """One message of the kind that has no type byte, and its code; code None for what is no such message."""
    data = await at_least(stream, b"", 8)
    if not connection.first:
        connection.first = data[:_HEAD]
    if len(data) < 8:
        return data, None
    size, code = struct.unpack_from("!II", data)
    if size > _STARTUP_LIMIT:
        return data, None
    whole = await at_least(stream, data, size)
    if len(connection.first) < _HEAD and whole.startswith(connection.first):
        connection.first = whole[:_HEAD]
    return whole, code
