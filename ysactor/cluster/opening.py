"""Opening a connection: ask the cluster for a place, try it, report, and go on until one opens.

It runs in the task of whoever wants the connection, so that a slow connect holds up nobody else.
"""

from __future__ import annotations

from functools import partial

from ..actor import Ref
from ..config import Config
from ..driver.protocol import Driver, Session
from ..errors import ConnectFailed, NoNodeAvailable
from ..servers import HostPort
from .attempt import Setup, SetupFailed, attempt
from .messages import ClusterMessage, Failure, GaveUp, Nowhere, Opened, OpenFailed, Place, Reservation


async def open_session(
    cluster: Ref[ClusterMessage], driver: Driver, config: Config, *, setup: Setup | None = None
) -> tuple[Reservation, Session]:
    """Open a session on the server that the cluster chooses, trying others until one opens, each at most once.

    Waits for the first discovery to end; after that it takes `connect_timeout` seconds at most for each server tried.
    `setup` runs on the new session as the last part of the attempt. The reservation counts until the caller casts
    `Released` for it, exactly once, when the session's socket has ended.

    Cancelled at any moment, or when `setup` raises something that is neither a lost connection nor a server's error nor
    `SetupFailed`, it has given its place back and left nothing open, and no server is marked.

    Raises `ConnectFailed`, the last one, when every server tried has failed, and at once when there is no password, as
    there would be none for another server; `NoNodeAvailable` in the modes that leave the seeds out, whether or not some
    servers were tried first; `SetupFailed`, the last one, when no server is left and `setup` has failed by itself on
    any; `actor.Ended` when the cluster has ended.
    """
    tried = frozenset[HostPort]()
    last: ConnectFailed | None = None
    own: SetupFailed | None = None
    while True:
        place = await cluster.call(partial(Place, tried))
        if isinstance(place, Nowhere):
            # A server was there, and fit: that none is would be no answer.
            raise _nowhere(place, last) if own is None else own
        # No checkpoint from the answer to the attempt: from here on the place is ours, and is reported.
        tried |= {place.at}
        try:
            result = await _try(cluster, driver, config, place, setup)
        except SetupFailed as failed:
            if failed.everywhere:
                raise
            # Its server is not marked, and stays the quietest: unless others are tried, it halts every opening.
            own = failed
            continue
        if not isinstance(result, Failure):
            return place, result
        last = _failed(place.at, result)
        if not result.tells:
            raise last


async def _try(
    cluster: Ref[ClusterMessage], driver: Driver, config: Config, place: Reservation, setup: Setup | None
) -> Session | Failure:
    """Use one place, and report what came of it, whatever that is."""
    report: ClusterMessage | None = GaveUp(place)
    try:
        result = await attempt(driver, config, place.at, check_role=True, setup=setup)
        if not isinstance(result, Failure):
            report = None
        elif result.tells:
            report = OpenFailed(place, result)
    except SetupFailed:
        report = GaveUp(place, is_unfit=True)
        raise
    finally:
        if report is not None:
            cluster.cast(report)
    if not isinstance(result, Failure):
        await _confirm(cluster, place, result)
    return result


async def _confirm(cluster: Ref[ClusterMessage], place: Reservation, session: Session) -> None:
    """Report a session that is open, and wait until it counts as that: whoever has it finds it in the snapshot.

    Cancelled, it waits on: the answer comes within a pass of the scheduler or two, and a cancellation that is due then
    finds a session that has its owner.
    """
    try:
        await cluster.insist(partial(Opened, place))
    except BaseException:
        session.terminate("the cluster has ended")
        raise


def _failed(at: HostPort, failure: Failure) -> ConnectFailed:
    error = ConnectFailed(at, failure.kind.value, failure.detail)
    error.__cause__ = failure.error
    return error


def _nowhere(place: Nowhere, last: ConnectFailed | None) -> ConnectFailed | NoNodeAvailable:
    """The mode decides which error comes out, not what happened last."""
    if place.refused is not None:
        refused = NoNodeAvailable(place.refused)
        refused.__cause__ = last
        return refused
    assert last is not None, "bug: no place was left before any was tried"
    return last
