"""A lease as a block: the holder's right to one connection, ended by the block, the connection, or the pool."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import trio

from ..connection.handle import Connection
from ..errors import Error

if TYPE_CHECKING:
    from .handle import Pool


class Acquire:
    """What `pool.acquire()` returns. Enter it once.

    If the connection ends under the block, the block is cancelled and raises `ConnectionLost`, or `PoolClosed` if it
    was the pool's doing. Leaving gives the connection back without waiting, cancelled or not.
    """

    __slots__ = ("_conn", "_entered", "_limit", "_pool", "_scope")

    def __init__(self, pool: Pool, limit: float | None) -> None:
        self._pool = pool
        self._limit = limit
        self._entered = False
        self._conn: Connection
        self._scope: trio.CancelScope

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Connection:
        if self._entered:
            raise Error("this block was entered before: call `acquire` once for each")
        self._entered = True
        pool = self._pool
        record = await pool._take(self._limit)
        # No checkpoint from here on: what was taken has its holder.
        scope = self._scope = trio.CancelScope()
        scope.__enter__()
        record.scope = scope
        if record.reason is not None:
            # It was handed over, and ended before this task was run.
            scope.cancel()
        self._conn = Connection(record, pool._patience)
        return self._conn

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        conn, scope = self._conn, self._scope
        record = conn._record
        loss = record.loss() if record.reason is not None else None
        self._pool._give_back(conn)
        swallowed = scope.__exit__(kind, error, trace)
        try:
            if loss is not None and scope.cancelled_caught:
                raise loss from None
        finally:
            del loss  # its traceback holds this frame
        return swallowed
