"""One connected socket with asyncpg's protocol behind it: reading, and how it ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import trio
from trio.lowlevel import wait_readable, wait_writable

from ..copy_out import CopyOut
from ..words import TAIL, last_words
from .dialling import in_words
from .login import LoggedIn
from .messages import GOODBYE

_FOREVER = float("inf")

_STALL = 0.02
"""`Link.stall`, by default."""

_BOTH = 1.0
"""Seconds for which reading and writing go on at once after that."""


class Link:
    """A socket's reading side. Whoever holds the right to drive reads it; nobody else does."""

    __slots__ = (
        *(
            "_both_until",
            "_rows",
            "_tail",
            "away",
            "closed",
            "errand",
            "loop",
            "on_end",
            "read",
            "reason",
            "receive",
            "scope",
        ),
        *("sock", "stall", "stirred", "streams", "transport", "users_error", "wire"),
    )

    def __init__(self, parts: LoggedIn, on_end: Callable[[], None]) -> None:
        self.loop = parts.loop
        self.wire = parts.wire
        self.transport = parts.transport
        self.sock = parts.transport.sock
        self.read = parts.transport.read
        self.closed = False
        self.reason = ""
        """Why it is closed."""
        self.on_end = on_end
        """Called once, when it has been closed, by whichever side."""
        self.stirred = False
        """Something happened on the socket while a call was running, which the call may not have seen."""
        self.scope: trio.CancelScope | None = None
        """Around a wait that a finished flush, or reading that goes on, has to end."""
        self.errand: trio.CancelScope | None = None
        """Around the user's own code, inside a call."""
        self.streams = False
        """Whether the user's own code is to be expected in the next call."""
        self.away = False
        """The driver of the call is waiting in the user's own code, and reads nothing."""
        self.stall = _STALL
        """Seconds that a server may take no byte, until reading goes on beside the writing."""
        self._both_until = 0.0
        self.users_error: BaseException | None = None
        """What the user's own code raised inside the last call that it did."""
        self.receive: Callable[[bytes], None] = parts.wire.data_received
        """Where what was read goes."""
        self._tail = parts.tail[-TAIL:]
        self._rows: CopyOut | None = None
        """What `receive` is while a COPY out is under way."""
        parts.raw.expect_rows = self.expect_rows
        parts.loop.poke = self.poke
        parts.transport.watch_abort(self._aborted)

    def expect_rows(self) -> None:
        """A COPY out begins with the next message of the server's."""
        if self._rows is None:
            self.receive = self._rows = CopyOut(self.wire.data_received, self._no_more_rows)

    def _no_more_rows(self) -> None:
        self._rows = None
        self.receive = self.wire.data_received

    def feed(self, data: bytes) -> None:
        """Give asyncpg what was read; nothing is the end."""
        if not data:
            self.ended(None)
            return
        self._tail = data[-TAIL:]
        try:
            self.receive(data)
        except BaseException as error:
            # asyncpg's state is anybody's guess: what it raises here is no answer of the server's.
            self.shut("asyncpg could not read what the server sent", error if isinstance(error, Exception) else None)
            if not isinstance(error, Exception):
                raise

    def ended(self, error: OSError | None) -> None:
        """The server's end is closed, or the socket failed."""
        match error:
            case None:
                reason = "closed by the server"
            case ssl.SSLError():
                reason = f"TLS failed: {error.reason or error}"
            case _:
                reason = in_words(error)
        self.shut(self._in_its_words(reason), error)

    def _in_its_words(self, otherwise: str) -> str:
        words = last_words(self._tail)
        return otherwise if words is None else f"closed by the server: {words}"

    def shut(self, reason: str, cause: Exception | None = None, *, goodbye: bool = False) -> None:
        """Close the socket and tell asyncpg, which fails what is waiting. Idempotent; no checkpoint."""
        if self.closed:
            return
        if goodbye and not self.transport.backlog:
            self.transport.write(GOODBYE)
        self._close(reason)
        self.transport.shut()
        self.wire.connection_lost(cause)

    def lose_track(self, error: Exception) -> None:
        """asyncpg no longer knows where it is in the conversation."""
        self.shut(self._in_its_words(f"asyncpg cannot go on: {error}"))

    def _aborted(self) -> None:
        """asyncpg closed the transport: its holder said so, or it met what it cannot go on after."""
        self._close(self._in_its_words("closed by asyncpg"))

    def _close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self.reason = reason
        self.loop.odd = True
        self.poke()
        if self.errand is not None:
            self.errand.cancel()
        self.on_end()

    def poke(self) -> None:
        """End the wait of `turn`, if there is one."""
        if self.scope is not None:
            self.scope.cancel()

    async def turn(self, waiting: asyncio.Future[Any]) -> None:
        """Wait once, with everything that the fast path leaves out: timers, callbacks, a backlog, paused reading."""
        loop, transport = self.loop, self.transport
        loop.task.pending = waiting
        try:
            loop.run_ready()
            loop.run_due()
            if self.closed or waiting.done():
                return
            if transport.reading and self._rows is not None and self._rows.left_over:
                self.read_once()
                return
            self.recount()
            if not loop.odd or await self._pushed(waiting):
                return
            with trio.CancelScope(deadline=loop.next_due()) as self.scope:
                if transport.backlog:
                    transport.start_flush()
                if transport.reading:
                    await wait_readable(self.sock)
                else:
                    await trio.sleep_forever()
            self.scope = None
            self.read_once()
            loop.run_due()
        except BaseException:
            if not self.closed and transport.backlog:
                transport.start_flush()  # the caller goes, and half a message may have been sent
            raise
        finally:
            self.scope = None
            loop.task.pending = None
            self.recount()

    async def _pushed(self, waiting: asyncio.Future[Any]) -> bool:
        """Wait until the server takes more of the backlog, if that is all there is to wait for.

        A server that is busy sending its answers takes nothing until they are read: one that stalls, and has sent
        something, is read and written to at once for a while, which takes a task more for each wait. (Measured: without
        that task COPY in takes 30 % less CPU. One private epoll for either direction, or a high-water mark of 64 KiB,
        brought nothing more.)
        """
        transport, now = self.transport, trio.current_time()
        if not transport.backlog or transport.flushing or now < self._both_until or self.loop.next_due() < _FOREVER:
            return False
        with trio.CancelScope(deadline=now + self.stall) as scope:
            await wait_writable(self.sock)
        if not scope.cancelled_caught:
            transport.push()
            return True
        if self.read_once():
            self._both_until = trio.current_time() + _BOTH
        if waiting.done() and transport.backlog and not self.closed:
            transport.start_flush()  # the call has its answer, and the next one may be long in coming
        return True

    def overhear(self) -> None:
        """Something has happened on the socket: take it, if the driver of the call does not, be it the end."""
        while self.away and self.read_once():
            pass

    async def breathe(self) -> None:
        """Let others run, and take what has come meanwhile."""
        await trio.lowlevel.checkpoint()
        self.read_once()

    def read_once(self) -> bool:
        """Read without waiting. False if there was nothing, or nothing may be read."""
        if self.closed or not self.transport.reading:
            return False
        if self._rows is not None and self._rows.left_over:
            self._rows.more()
            return True
        try:
            data = self.read()
        except BlockingIOError:
            return False
        except OSError as error:
            self.ended(error)
            return False
        self.feed(data)
        return True

    def drain(self) -> None:
        """Take everything that has come while no call is running."""
        self.stirred = False
        before = self._tail
        while self.read_once():
            pass
        if not self.closed and self._tail is not before and last_words(self._tail) is not None:
            self.ended(None)  # it has said goodbye, and asyncpg cannot use a session after that: no need to see the end
        self.loop.run_ready()
        self.recount()

    async def until_end(self) -> None:
        """Read, and throw away, until the server has closed its end."""
        while not self.closed:
            await wait_readable(self.sock)
            try:
                if not self.read():
                    return
            except BlockingIOError:
                continue
            except OSError:
                return

    def recount(self) -> None:
        """Whether a call must look closer."""
        loop, transport = self.loop, self.transport
        loop.odd = (
            self.closed or self.stirred or not transport.reading or bool(transport.backlog) or not loop.is_quiet()
        ) or (self._rows is not None and bool(self._rows.left_over))
