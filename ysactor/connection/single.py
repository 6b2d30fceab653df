"""One connection on its own, for the length of a block: placed by the cluster, kept by no pool."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, assert_never

import trio

from ..actor import Inbox, Ref, open_mailbox, open_tree
from ..errors import ConnectionLost, PoolClosed
from .actor import run_connection
from .handle import Connection
from .messages import Close, ConnectionEvent, ConnectionMessage, Ended, Opened, OpenFailed, Settled
from .record import Place, Record
from .setup import preparation

if TYPE_CHECKING:
    from ..cluster.actor import ClusterActor
    from ..config import Config
    from ..driver.protocol import Driver


@asynccontextmanager
async def open_single(cluster: ClusterActor, driver: Driver, config: Config, number: int) -> AsyncGenerator[Connection]:
    """See `Cluster.connect`."""
    ref: Ref[ConnectionMessage]
    inbox: Inbox[ConnectionMessage]
    ref, inbox = open_mailbox()
    events: Ref[ConnectionEvent]
    owner: Inbox[ConnectionEvent]
    events, owner = open_mailbox()
    record = Record(number, ref)
    async with open_tree() as tree:
        tree.start_soon(
            run_connection,
            record,
            inbox,
            events,
            cluster.ref,
            driver,
            config,
            preparation(config, record),
            name=f"ysactor.connection[{number}]",
        )
        match event := await owner.__anext__():
            case Opened():
                pass
            case OpenFailed(_, error):
                raise error
            case Ended():
                raise PoolClosed("the cluster is closed")
            case Settled():
                raise AssertionError(f"bug: {event} from a connection that was never open")
            case _:
                assert_never(event)
        record.place = Place.LEASED
        conn = Connection(record, config.cancel_timeout)
        loss: ConnectionLost | PoolClosed | None = None
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
                # Its farewell is bounded, and nothing may be left when the block has ended.
                with trio.CancelScope(shield=True):
                    while not isinstance(await owner.__anext__(), Ended):
                        pass
        if loss is not None and scope.cancelled_caught:
            raise loss
