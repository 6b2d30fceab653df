"""A TCP proxy before a PostgreSQL server that does to its clients what networks and dying servers do.

What it cannot show: a host that no longer acknowledges packets. Here the kernel acknowledges always, so a black hole
looks like a hung server, and keepalive does not notice it.
"""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

import trio

from ysactor.testing.breaking import Break, Breaker, Framing, Side, Then
from ysactor.testing.proxied import ProxiedConnection, Statements, greet

Mode = Literal["pass", "blackhole", "reset", "close", "refuse", "full"]
"""What happens to connections:

``pass``: forwarded. ``blackhole``: accepted, nothing is forwarded either way, until another mode is set. ``reset``:
open ones get an RST, and each new one. ``close``: each new one is closed at once, open ones go on. ``refuse``: nothing
listens, open ones go on. ``full``: the queue of connections not yet accepted is full, so connecting hangs; open ones
go on.
"""
Cut = Literal["before", "after"]

# What there is to connect to. Only a change of this needs another listening socket, which drops the old one's queue.
_LISTENS: Mapping[Mode, Literal["open", "none", "full"]] = {
    "pass": "open",
    "blackhole": "open",
    "reset": "open",
    "close": "open",
    "refuse": "none",
    "full": "full",
}

_CHUNK = 65536
_FILLERS = 3
_CONNECT_LIMIT = 10.0

Address = tuple[str, int]
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError)


class FaultProxy:
    """Started by ``open_fault_proxy`` or ``nursery.start(proxy.run)``; changed at any time by attributes and methods.

    All times are in seconds. With ``tls`` the proxy answers a client's request for TLS itself and speaks plainly to the
    server; without, TLS is passed through, and what is inside is not seen.
    """

    def __init__(
        self, upstream: Address, *, listen: Address = ("127.0.0.1", 0), tls: ssl.SSLContext | None = None
    ) -> None:
        self.upstream = upstream
        self.tls = tls
        self.latency = 0.0
        """Before each chunk is forwarded, in each direction."""
        self.login_delay = 0.0
        """Once a connection, before the login is forwarded; cancel requests are not delayed by it."""
        self.cancel_delay = 0.0
        """Before a cancel request is forwarded."""
        self.piece: int | None = None
        """The most bytes of an answer that are forwarded at a time; None for as many as there are.

        A client in the same Trio run, waiting for data, gets every piece by itself.
        """
        self.connections: list[ProxiedConnection] = []
        """Every connection accepted so far."""
        self.commits_cut = 0
        self._breaker = Breaker()
        self._mode: Mode = "pass"
        self._cut: Cut | None = None
        self._address = listen
        self._listener: trio.SocketListener | None = None
        self._fillers: list[socket.socket] = []
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<FaultProxy {self._address[0]}:{self._address[1]} {self._mode}, {len(self.live)} open>"

    @property
    def address(self) -> Address:
        """Where it listens; the port is known once it runs."""
        return self._address

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def live(self) -> list[ProxiedConnection]:
        """The connections that are open now."""
        return [connection for connection in self.connections if connection.open]

    @property
    def accepted(self) -> int:
        """How many connections were accepted so far."""
        return len(self.connections)

    @property
    def cancel_requests(self) -> int:
        """How many cancel requests were seen so far."""
        return sum(connection.cancel for connection in self.connections)

    @property
    def messages_broken(self) -> int:
        """How many messages were broken so far."""
        return self._breaker.broken

    def set_mode(self, mode: Mode) -> None:
        """From now on. Takes effect at once, also for what is waiting in a black hole."""
        before, self._mode = _LISTENS[self._mode], mode
        if _LISTENS[mode] != before:
            self._close_listener()
            if mode != "refuse":
                self._listen(full=mode == "full")
        if mode == "reset":
            self.reset_all()
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def reset_all(self) -> None:
        """RST to every open connection; new ones are served as before."""
        for connection in self.live:
            connection.reset()

    def kill(self) -> None:
        """As when the server is killed: open connections get an RST, new ones are refused."""
        self.set_mode("refuse")
        self.reset_all()

    def hold_cancel(self, seconds: float) -> None:
        """Delay every cancel request from now on by so much."""
        self.cancel_delay = seconds

    def cut_next_commit(self, when: Cut) -> None:
        """Break the connection that sends the next COMMIT: ``before`` the server sees it, or ``after`` the server has
        answered, without the client getting the answer. The client cannot tell the one from the other. Once."""
        self._cut = when

    def break_next(self, side: Side, kind: bytes, *, at: int, begins: bytes = b"", then: Then = "reset") -> None:
        """Break the connection that carries the next message of this kind, ``at`` bytes after the message's beginning.

        ``kind`` is the message's type byte, as in ``b"D"`` for a row of an answer; ``begins`` narrows it to messages
        whose content begins so. Once, whichever connection it is; not seen inside TLS that the server ends.
        """
        self._breaker.arm(Break(side, kind, at, begins, then))

    def resume(self) -> None:
        """Forward what a break holds, and all that comes after it."""
        self._breaker.resume()

    def clear(self) -> None:
        """Forward everything again, and forget the connections that are closed."""
        self.latency = self.login_delay = self.cancel_delay = 0.0
        self._cut = None
        self.commits_cut = 0
        self.piece = None
        self._breaker.resume()
        self._breaker = Breaker()
        self.set_mode("pass")
        self.connections = self.live

    def _listen(self, *, full: bool) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if sys.platform != "win32":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(self._address)
            sock.listen(0 if full else 128)
        except BaseException:
            sock.close()
            raise
        self._address = sock.getsockname()[:2]
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        for _ in range(_FILLERS if full else 0):
            filler = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            filler.setblocking(False)
            filler.connect_ex(self._address)
            self._fillers.append(filler)

    def _close_listener(self) -> None:
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()
        if self._listener is not None:
            self._listener.socket.close()
            self._listener = None

    async def run(self, *, task_status: trio.TaskStatus[FaultProxy] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then every connection is broken off. Raises OSError if the address is taken."""
        try:
            self._listen(full=False)
            async with trio.open_nursery() as nursery:
                task_status.started(self)
                await self._accept(nursery)
        finally:
            self._close_listener()

    async def _accept(self, nursery: trio.Nursery) -> None:
        while True:
            listener = self._listener
            if listener is None or self._mode == "full":
                await self._changed.wait()
                continue
            try:
                client = await listener.accept()
            except trio.ClosedResourceError:
                # The mode has changed, and the next listener, if any, is there already.
                await trio.lowlevel.checkpoint()
                continue
            connection = ProxiedConnection(len(self.connections) + 1, client)
            self.connections.append(connection)
            nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: ProxiedConnection) -> None:
        try:
            match self._mode:
                case "reset":
                    connection.reset()
                case "close":
                    pass
                case _:
                    await self._gate()
                    await self._forward(connection)
        except* _GONE:
            pass
        finally:
            connection.open = False
            connection.client.socket.close()

    async def _gate(self) -> None:
        while self._mode == "blackhole":
            await self._changed.wait()

    async def _forward(self, connection: ProxiedConnection) -> None:
        with trio.fail_after(_CONNECT_LIMIT):
            server = await trio.open_tcp_stream(*self.upstream)
        try:
            connection.upstream_port = server.socket.getsockname()[1]
            stream, opening, readable = await greet(connection, server, self.tls)
            if opening:
                await trio.sleep(self.cancel_delay if connection.cancel else self.login_delay)
                await self._gate()
                await server.send_all(opening)
            async with trio.open_nursery() as nursery:

                async def until_either_ends(pump: Callable[[], Awaitable[None]]) -> None:
                    await pump()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(until_either_ends, partial(self._upward, connection, stream, server, readable))
                nursery.start_soon(until_either_ends, partial(self._downward, connection, server, stream, readable))
        finally:
            server.socket.close()

    async def _upward(
        self, connection: ProxiedConnection, client: trio.abc.Stream, server: trio.SocketStream, readable: bool
    ) -> None:
        statements, framing = Statements(), Framing() if readable else None
        while chunk := await self._read(client):
            if readable and statements.commit_in(chunk) and self._cut is not None:
                when, self._cut = self._cut, None
                self.commits_cut += 1
                if when == "before":
                    connection.reset()
                    return
                connection.answer_is_lost = True
            if await self._breaker.pass_on(chunk, framing, "request", server.send_all, connection.reset):
                return
        if connection.cancel:
            # The client may leave at once; the server closes when it has dealt with the request.
            await trio.sleep_forever()

    async def _downward(
        self, connection: ProxiedConnection, server: trio.SocketStream, client: trio.abc.Stream, readable: bool
    ) -> None:
        framing = Framing() if readable else None

        async def send(data: bytes) -> None:
            while (piece := self.piece) is not None and data:
                await client.send_all(data[:piece])
                data = data[piece:]
                # A client in this run reads it before the next piece is there, in whatever order tasks are run.
                await trio.lowlevel.checkpoint()
            if data:
                await client.send_all(data)

        while chunk := await self._read(server):
            if connection.answer_is_lost:
                connection.reset()
                return
            if await self._breaker.pass_on(chunk, framing, "answer", send, connection.reset):
                return

    async def _read(self, stream: trio.abc.Stream) -> bytes:
        """The next chunk, through the gate and after the latency; empty at the end."""
        await self._gate()
        chunk = bytes(await stream.receive_some(_CHUNK))
        if self.latency:
            await trio.sleep(self.latency)
        await self._gate()
        return chunk


@asynccontextmanager
async def open_fault_proxy(
    upstream: Address, *, listen: Address = ("127.0.0.1", 0), tls: ssl.SSLContext | None = None
) -> AsyncGenerator[FaultProxy, None]:
    """A proxy for the length of a block; connections are broken off at its end. The block's errors come out bare."""
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        proxy = await nursery.start(FaultProxy(upstream, listen=listen, tls=tls).run)
        try:
            yield proxy
        except BaseException as error:  # raised below, outside the nursery
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
