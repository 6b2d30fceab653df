"""As much of PostgreSQL's protocol as a test bed needs: is it ready, and run this SQL. Blocking, without a driver.

The library under test must not be what tells whether the bed is sound.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Literal

_PROTOCOL = 3 << 16
_AUTHENTICATED = 0
_CANNOT_CONNECT_NOW = "57P03"

Readiness = Literal["accepting", "rejecting", "silent", "refused"]
"""``rejecting``: it answers with 57P03, as while starting or stopping; ``silent``: it accepted, and does not answer."""
Row = tuple[str | None, ...]


class SqlError(Exception):
    """The server's answer was an error."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(sqlstate, message)
        self.sqlstate = sqlstate
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} (SQLSTATE {self.sqlstate})"


def _startup(parameters: Mapping[str, str]) -> bytes:
    pairs = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items())
    return struct.pack("!II", len(pairs) + 9, _PROTOCOL) + pairs + b"\0"


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("the server closed the connection")
        data += chunk
    return bytes(data)


def _messages(sock: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    while True:
        kind, size = struct.unpack("!cI", _exactly(sock, 5))
        yield kind, _exactly(sock, size - 4)


def _error(body: bytes) -> SqlError:
    fields = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
    return SqlError(fields.get(b"C", ""), fields.get(b"M", ""))


def _row(body: bytes) -> Row:
    (count,) = struct.unpack_from("!H", body)
    values: list[str | None] = []
    position = 2
    for _ in range(count):
        (size,) = struct.unpack_from("!i", body, position)
        position += 4
        values.append(None if size < 0 else body[position : position + size].decode())
        position += max(size, 0)
    return tuple(values)


def ping(host: str, port: int, *, timeout: float = 1.0) -> Readiness:
    """Whether the server takes sessions, as ``pg_isready`` tells it: any answer but 57P03 will do, a refusal too."""
    try:
        with socket.create_connection((host, port), timeout) as sock:
            sock.sendall(_startup({"user": "ping", "database": "ping"}))
            kind, body = next(_messages(sock))
            return "rejecting" if kind == b"E" and _error(body).sqlstate == _CANNOT_CONNECT_NOW else "accepting"
    except TimeoutError:
        return "silent"
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        # Accepted and closed without an answer: a server that is going down.
        return "rejecting"


def query(host: str, port: int, *statements: str, user: str, database: str, timeout: float = 10.0) -> list[Row]:
    """Run statements one by one in a session of its own, and return the rows of the last, as text.

    For a user whom the server trusts without a password. Raises SqlError for the server's errors and OSError for the
    network's; ``timeout`` bounds each wait for the server.
    """
    with socket.create_connection((host, port), timeout) as sock:
        sock.sendall(_startup({"user": user, "database": database, "application_name": "ysactor-testbed"}))
        messages = _messages(sock)
        _until_ready(messages)
        rows: list[Row] = []
        for statement in statements:
            text = statement.encode() + b"\0"
            sock.sendall(struct.pack("!cI", b"Q", len(text) + 4) + text)
            rows = _until_ready(messages)
        with suppress(OSError):
            sock.sendall(struct.pack("!cI", b"X", 4))
        return rows


def _until_ready(messages: Iterator[tuple[bytes, bytes]]) -> list[Row]:
    rows: list[Row] = []
    for kind, body in messages:
        match kind:
            case b"T":
                rows.clear()
            case b"D":
                rows.append(_row(body))
            case b"E":
                # The caller closes the session, so what may follow need not be read.
                raise _error(body)
            case b"R" if struct.unpack_from("!I", body)[0] != _AUTHENTICATED:
                raise SqlError("28000", "the server asks for a password, which this client does not do")
            case b"Z":
                break
            case _:
                pass
    return rows


def quote(text: str) -> str:
    """An SQL literal."""
    return "'" + text.replace("'", "''") + "'"
