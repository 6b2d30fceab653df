"""asyncpg's `Connection` with what touches its event loop taken out: cancelling, and the finalizer."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from asyncpg.exceptions import InvalidCachedStatementError, OutdatedSchemaCacheError

from .loop import Loop
from .names import RawConnection, Wire
from .transport import Transport

_PLAIN = frozenset(id(getattr(RawConnection, name).__code__) for name in ("fetch", "fetchrow", "fetchval", "execute"))


def is_plain(call: object) -> bool:
    """Whether a coroutine is a call of one of the methods that want nothing of asyncio but futures: see `run_plain`."""
    return id(getattr(call, "cr_code", None)) in _PLAIN


class NativeConnection(RawConnection):  # type: ignore[misc]  # it is Any to mypy: asyncpg ships no types
    """asyncpg's connection, driven by Trio. Its coroutines are run by `Session.drive`, never awaited."""

    __slots__ = ("_native_loop", "_native_transport", "expect_rows", "on_outdated")

    def __init__(
        self, wire: Wire, transport: Transport, loop: Loop, address: object, settings: Any, parameters: Any
    ) -> None:
        super().__init__(wire, transport, loop, address, settings, parameters)
        self._native_loop = loop
        self._native_transport = transport
        self.expect_rows: Callable[[], None]
        """Has the session read the rows of a COPY that is about to be sent (see `CopyOut`)."""
        self.on_outdated: list[Callable[[bool], None]] = []
        """See `Session.on_outdated`."""

    async def _execute(
        self,
        query: str,
        args: Sequence[Any],
        limit: int,
        timeout: float | None,
        *,
        return_status: bool = False,
        ignore_custom_codec: bool = False,
        record_class: type | None = None,
    ) -> Any:
        """asyncpg's own, without four of its layers, for a statement that is prepared, with no time-out and no logger.

        Measured: 4 % of the instructions of a pooled `SELECT 1`.
        """
        wire: Any = self._protocol
        if timeout is None and not self._query_loggers:
            kind: Any = wire.get_record_class() if record_class is None else record_class
            statement: Any = self._stmt_cache.get((query, kind, ignore_custom_codec))
            if statement is not None:
                try:
                    return await wire.bind_execute(statement, args, "", limit, return_status, None)
                except OutdatedSchemaCacheError:
                    await self.reload_schema_state()
                    raise
                except InvalidCachedStatementError:
                    self._drop_global_statement_cache()
                    if wire.is_in_transaction():
                        raise
                    # Below it is prepared anew, and run: the server has not run it.
        anew = super()._execute(
            query,
            args,
            limit,
            timeout,
            return_status=return_status,
            ignore_custom_codec=ignore_custom_codec,
            record_class=record_class,
        )
        return cast("Any", await anew)

    # asyncpg's own reach the other connections through the proxy of its own pool, which there is none of here.

    def _drop_global_statement_cache(self) -> None:
        super()._drop_global_statement_cache()
        self.tell_outdated(False)

    def _drop_global_type_cache(self) -> None:
        super()._drop_global_type_cache()
        self.tell_outdated(True)

    def tell_outdated(self, types: bool) -> None:
        """What was cached of the schema, and of types, is old."""
        for tell in self.on_outdated:
            tell(types)

    async def _copy_out(self, copy_stmt: str, output: Any, timeout: float | None) -> Any:
        self.expect_rows()
        return cast("Any", await super()._copy_out(copy_stmt, output, timeout))

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
