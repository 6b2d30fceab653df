"""The transports that asyncpg writes to: one for plain sockets, one for TLS. Reading is the session's business."""

from __future__ import annotations

import functools
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import trio

from .loop import Loop
from .names import Wire

READ_SIZE = 128 * 1024
"""Bytes asked of the kernel at a time. Measured: 64 KiB is no faster, and 256 KiB, as asyncio asks, costs each pooled
query 20 µs."""

_RECORD = 16 * 1024
"""The most that one TLS record holds."""


class Transport:
    """A plain socket. Writes go straight to the kernel; what it does not take at once waits in `backlog`.

    A write that fails does not close the socket: the server's last message, which says why, may still be unread. The
    reader finds it, and after it the end.
    """

    __slots__ = (
        *("_loop", "_on_abort", "_send", "_wire", "ahead", "backlog", "closed", "flushing", "read", "reading"),
        "sock",
    )

    def __init__(self, sock: socket.socket, loop: Loop) -> None:
        self.sock = sock
        self.read: Callable[[], bytes] = functools.partial(sock.recv, READ_SIZE)
        """What has come, without waiting: empty at the end. Raises `BlockingIOError` if nothing has, and `OSError`."""
        self.backlog: list[memoryview] = []
        self.reading = True
        self.closed = False
        self.ahead: Callable[[bytes | memoryview], bytes] | None = None
        """Makes the next write longer, by what is to be sent ahead of it."""
        self._send = sock.send
        self._loop = loop
        self._wire: Wire | None = None
        self.flushing = False
        """A task of the driver is writing the backlog."""
        self._on_abort: Callable[[], None] | None = None

    def join(self, wire: Wire) -> None:
        """Introduce asyncpg's protocol; it sends its first message from within."""
        self._wire = wire
        wire.connection_made(self)

    def watch_abort(self, on_abort: Callable[[], None]) -> None:
        """Have a call made when asyncpg closes the socket by itself."""
        self._on_abort = on_abort

    # What asyncpg calls.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.sock if name == "socket" else default

    def write(self, data: bytes | memoryview) -> None:
        if self.ahead is not None:
            data = self.ahead(data)
        if self.backlog:
            self.backlog.append(memoryview(data))
            return
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._fail()
            return
        if sent < len(data):
            self.backlog.append(memoryview(data)[sent:])
            self._loop.odd = True
            if self._wire is not None:
                self._wire.pause_writing()

    def writelines(self, buffers: Iterable[bytes | memoryview]) -> None:
        self.write(b"".join(buffers))

    def pause_reading(self) -> None:
        self.reading = False
        self._loop.odd = True

    def resume_reading(self) -> None:
        self.reading = True
        self._loop.poke()

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        if self.closed:
            return
        if self._on_abort is not None:
            self._on_abort()
        self.shut()

    close = abort

    # What the session calls.

    def push(self) -> bool:
        """Hand the kernel as much of the backlog as it takes. True when none is left, or when writing is over."""
        backlog = self.backlog
        while backlog:
            try:
                sent = self._send(backlog[0])
            except BlockingIOError:
                return False
            except OSError:
                self._fail()
                return True
            if sent < len(backlog[0]):
                backlog[0] = backlog[0][sent:]
            else:
                backlog.pop(0)
        if self._wire is not None:
            self._wire.resume_writing()
        return True

    def _fail(self) -> None:
        """Nothing can be written any more: nothing is to be taken from a source, and the reader finds out why."""
        self.backlog.clear()
        if self._wire is not None:
            self._wire.pause_writing()

    def start_flush(self) -> None:
        """Have the backlog written by a task of the driver, which outlives a cancelled caller.

        Reading goes on meanwhile, in the caller: a server that is busy sending its answer reads no more of ours, and
        both sides would stand still.
        """
        if not self.flushing:
            self.flushing = True
            self._loop.spawn(self._flush)

    @trio.lowlevel.enable_ki_protection
    async def _flush(self) -> None:
        try:
            while not self.closed and not self.push():
                await trio.lowlevel.wait_writable(self.sock)
        except trio.ClosedResourceError:
            return
        finally:
            self.flushing = False
            self._loop.poke()

    async def flush(self) -> None:
        """Write the backlog from here, reading nothing: for what is short, such as a login."""
        while not self.push():
            await trio.lowlevel.wait_writable(self.sock)

    def shut(self) -> None:
        """Close the socket. Who waits for it gets `trio.ClosedResourceError`."""
        if self.closed:
            return
        self.closed = True
        self.backlog.clear()
        with suppress(RuntimeError):  # outside `trio.run`: from a finalizer
            trio.lowlevel.notify_closing(self.sock)
        self.sock.close()


class TlsTransport(Transport):
    """TLS through memory buffers: everything that one read of the kernel brings is decrypted and given on at once.

    Measured: a feed for each 16 KiB record, which an `SSLSocket` amounts to, made 10 000 rows 20 % slower than asyncpg
    on asyncio; one feed per kernel read makes them as fast.
    """

    __slots__ = ("_ended", "_fault", "_incoming", "_outgoing", "_recv", "_tls")

    def __init__(
        self, sock: socket.socket, loop: Loop, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        super().__init__(sock, loop)
        self._tls = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._recv = self.read
        self._ended = False
        self._fault: ssl.SSLError | None = None
        self.read = self._read

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls if name == "ssl_object" else super().get_extra_info(name, default)

    def write(self, data: bytes | memoryview) -> None:
        if self.ahead is not None:
            data = self.ahead(data)
        try:
            while len(data):
                data = memoryview(data)[self._tls.write(data) :]
        except ssl.SSLError:
            self._fail()  # the reader meets the same fault
            return
        super().write(self._outgoing.read())

    def _read(self) -> bytes:
        if self._fault is not None:
            raise self._fault
        if self._ended:
            return b""
        data = self._recv()
        if not data:
            return b""
        self._incoming.write(data)
        chunks: list[bytes] = []
        try:
            while chunk := self._tls.read(_RECORD):
                chunks.append(chunk)
                # Measured: not asking when there can be no more saves raising an exception, 1 µs of each answer.
                if len(chunk) < _RECORD and not self._incoming.pending:
                    break
            else:
                self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as fault:
            if not chunks:
                raise
            self._fault = fault  # what came before it may be the answer to a COMMIT
        if self._outgoing.pending:
            super().write(self._outgoing.read())  # an answer to a key update
        if chunks:
            return b"".join(chunks)
        if self._ended:
            return b""
        raise BlockingIOError
