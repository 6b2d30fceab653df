"""One connection on its own, for the length of a block: placed by the cluster, kept by no pool."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, assert_never

import trio

from ..actor import Inbox, Ref, open_mailbox
from ..errors import PoolClosed
from .actor import run_connection
from .handle import Connection
from .messages import (
    Close,
    ConnectionEvent,
    ConnectionMessage,
    Doubted,
    Ended,
    IsReadOnly,
    Opened,
    OpenFailed,
    Settled,
)
from .record import Place, Record

if TYPE_CHECKING:
    from ..cluster.actor import ClusterActor
    from ..config import Config
    from ..driver.protocol import Driver
    from .setup import Preparation


@asynccontextmanager
async def open_single(
    nursery: trio.Nursery,
    cluster: ClusterActor,
    driver: Driver,
    config: Config,
    number: int,
    preparation: Preparation,
) -> AsyncGenerator[Connection]:
    """See `Cluster.connect`. Its actor runs in `nursery`, the cluster's, and ends with it: so does the block then."""
    ref: Ref[ConnectionMessage]
    inbox: Inbox[ConnectionMessage]
    ref, inbox = open_mailbox()
    events: Ref[ConnectionEvent]
    owner: Inbox[ConnectionEvent]
    events, owner = open_mailbox()
    record = Record(number, ref)
    life = trio.CancelScope()

    @trio.lowlevel.enable_ki_protection
    async def live() -> None:
        with life:
            await run_connection(record, inbox, events, cluster.ref, driver, config, preparation.of(record))

    await trio.lowlevel.checkpoint_if_cancelled()
    nursery.start_soon(live, name=f"ysactor.connection[{number}]")
    try:
        await _opened(owner)
    except trio.Cancelled:
        life.cancel()
        await _gone(owner)
        raise
    record.place = Place.LEASED
    conn = Connection(record, config.cancel_timeout)
    loss: Exception | None = None
    with trio.CancelScope() as scope:
        record.scope = scope
        if record.reason is not None:
            scope.cancel()  # it ended before this task was run
        try:
            yield conn
        finally:
            loss = record.loss() if scope.cancel_called else None
            record.scope = None
            conn._end()
            record.place = Place.CLOSING
            ref.cast(Close("closed"))
            await _gone(owner)
    try:
        if loss is not None and scope.cancelled_caught:
            raise loss
    finally:
        del loss  # its traceback holds this frame


async def _opened(owner: Inbox[ConnectionEvent]) -> None:
    match event := await owner.__anext__():
        case Opened():
            return
        case OpenFailed(_, error):
            raise error
        case Ended():
            raise PoolClosed("the cluster is closed")
        case Settled() | Doubted() | IsReadOnly():
            raise AssertionError(f"bug: {event} from a connection that was never open")
        case _:
            assert_never(event)


async def _gone(owner: Inbox[ConnectionEvent]) -> None:
    """Until its socket is. Its farewell is bounded, and nothing may be left when the block has ended."""
    with trio.CancelScope(shield=True):
        while not isinstance(await owner.__anext__(), Ended | OpenFailed):
            pass
        # The cluster was told in the same moment: one pass of the scheduler later it no longer counts it.
        await trio.lowlevel.checkpoint()
