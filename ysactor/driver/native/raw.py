"""asyncpg's `Connection` with what touches its event loop taken out: cancelling, and the finalizer."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import asyncio
from typing import Any

from .loop import Loop
from .names import RawConnection, Wire
from .transport import Transport


class NativeConnection(RawConnection):  # type: ignore[misc]  # it is Any to mypy: asyncpg ships no types
    """asyncpg's connection, driven by Trio. Its coroutines are run by `Session.drive`, never awaited."""

    __slots__ = ("_native_loop", "_native_transport")

    def __init__(
        self, wire: Wire, transport: Transport, loop: Loop, address: object, settings: Any, parameters: Any
    ) -> None:
        super().__init__(wire, transport, loop, address, settings, parameters)
        self._native_loop = loop
        self._native_transport = transport

    def _cancel_current_command(self, waiter: asyncio.Future[Any], cancel_waiter: object = None) -> None:
        # asyncpg would dial from here, and terminate the connection if that fails. The owner sends the request
        # instead (`Session.settle`), and bounds it.
        self._native_loop.cancel_sent = waiter
        self._native_loop.odd = True

    async def add_listener(self, channel: str, callback: Any) -> None:
        await super().add_listener(channel, callback)
        self._native_loop.odd = True  # the end of the call has the idle socket watched for data

    def add_log_listener(self, callback: Any) -> None:
        super().add_log_listener(callback)
        self._native_loop.odd = True

    def __del__(self) -> None:
        # asyncpg warns and terminates. Nobody is to be told here: this may run on any thread, outside any loop.
        transport = getattr(self, "_native_transport", None)
        if transport is not None:
            transport.shut()
