"""The cluster's actor: one loop over its messages. Whatever takes time is a child that reports by message."""

from __future__ import annotations

import logging
import random
from functools import partial
from typing import Any, assert_never

import trio

from ..actor import Ended, Inbox, Ref, Reply, Timer, open_mailbox, send_after
from ..config import Config
from ..driver.protocol import Driver
from ..policy.explain import Explanation, explain
from ..policy.notices import Notice
from ..servers import HostPort, Kind
from .discovery import discover
from .effects import ArmNotice, ArmRefresh, Effects, Log, RefreshEnded, StartDiscovery, StartProbe, StopProbe
from .info import ClusterInfo, View
from .messages import (
    ClusterMessage,
    DiscoveryEnded,
    Failure,
    GaveUp,
    NoticeDue,
    Opened,
    OpenFailed,
    Place,
    ProbeEnded,
    ProbeOpened,
    Recheck,
    Refresh,
    RefreshDue,
    Released,
    Reservation,
)
from .probe import probe
from .state import ClusterState

_logger = logging.getLogger("ysactor.cluster")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


class ClusterActor:
    """The actor, and what may be read of it. Reading neither waits nor changes anything.

    All randomness comes from `rng`: which of several servers that tie is taken.
    """

    def __init__(self, config: Config, driver: Driver, rng: random.Random) -> None:
        self.ref: Ref[ClusterMessage]
        """Where to send. What is sent before `run` waits for it."""
        self._inbox: Inbox[ClusterMessage]
        self.ref, self._inbox = open_mailbox()
        self.state = ClusterState(config)
        """Only to read, and not across a checkpoint: the actor changes it."""
        self._config = config
        self._driver = driver
        self._rng = rng

    def info(self) -> ClusterInfo:
        """A snapshot for people."""
        return self.state.info()

    def view(self) -> View:
        """Where a pool's connections should be."""
        return self.state.view()

    def explain(self) -> Explanation:
        """Where a new connection would go now, and why, server by server."""
        return explain(self._config, self.state.servers, self.state.failed, self.state.load)

    def waits_for(self) -> str:
        """What whoever waits for a connection waits for, to go on after another text. Empty if nothing is opened."""
        return self.state.waits_for(trio.current_time())

    async def refresh(self) -> None:
        """Refresh now; returns when the discovery and the probes have ended, whatever came of them.

        A discovery that is running already is the one that is waited for. Cancelled, the refresh goes on. Raises
        `actor.Ended` when the actor has ended.
        """
        await self.ref.call(Refresh)

    async def recheck(self, at: HostPort) -> bool:
        """Probe a server that has not failed; whether it turns out to accept no writes. Otherwise as `refresh`."""
        await self.ref.call(partial(Recheck, at))
        return self.state.failed.get(at) is Kind.READ_ONLY

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the actor until cancelled; once only, with the driver at work already.

        It has started once the first refresh is under way; connections wait for that refresh's discovery to end.
        Whoever still waits for an answer when it ends gets `actor.Ended`. A bug in it, in a probe or in a discovery
        propagates.
        """
        async with trio.open_nursery() as nursery:
            loop = _Loop(self.state, self._config, self._driver, self._rng, self.ref, nursery)
            try:
                loop.start()
                task_status.started()
                await loop.serve(self._inbox)
            finally:
                self._inbox.close()
                loop.refuse_all()


class _Loop:
    """The loop over the messages, and its children in `nursery`."""

    def __init__(
        self,
        state: ClusterState,
        config: Config,
        driver: Driver,
        rng: random.Random,
        ref: Ref[ClusterMessage],
        nursery: trio.Nursery,
    ) -> None:
        self.state = state
        self._config = config
        self._driver = driver
        self._rng = rng
        self._ref = ref
        self._nursery = nursery
        self._parked: list[Place] = []
        self._waiting: dict[int, Reply[None]] = {}
        self._probes: dict[int, trio.CancelScope] = {}
        self._timer: Timer | None = None
        self._served: ClusterMessage | None = None

    def start(self) -> None:
        """Begin the first refresh."""
        self._perform(self.state.start(trio.current_time()))

    async def serve(self, inbox: Inbox[ClusterMessage]) -> None:
        """Take one message after the other. Nothing in here waits for anything but the next message."""
        async for message in inbox:
            self._served = message
            now = trio.current_time()
            match message:
                case Place():
                    self._parked.append(message)
                case Refresh(reply):
                    ticket, effects = self.state.refresh_asked(now)
                    self._waiting[ticket] = reply
                    self._perform(effects)
                case Recheck(at, reply):
                    ticket, effects = self.state.recheck_asked(at)
                    self._waiting[ticket] = reply
                    self._perform(effects)
                case Opened(reservation, reply):
                    self._perform(self.state.opened(reservation, now))
                    reply.offer(None)
                case OpenFailed(reservation, failure):
                    self._perform(self.state.open_failed(reservation, failure, now))
                case GaveUp(reservation, is_unfit):
                    self._perform(self.state.gave_up(reservation, is_unfit))
                case Released(reservation, reply):
                    self._perform(self.state.released(reservation))
                    if reply is not None:
                        reply.offer(None)
                case DiscoveryEnded(result):
                    self._perform(self.state.discovery_ended(result, now))
                case ProbeOpened(at, number):
                    self._perform(self.state.probe_opened(at, number, now))
                case ProbeEnded(at, number, failure):
                    self._perform(self.state.probe_ended(at, number, failure, now))
                case RefreshDue(number):
                    self._perform(self.state.refresh_due(number, now))
                case NoticeDue(subject, last):
                    self._perform(self.state.notice_due(subject, last))
                case _:
                    assert_never(message)
            if self.state.ready:
                self._place_all(now)

    def refuse_all(self) -> None:
        """Nobody will answer any more, not even the request that was being served when it ended."""
        replies: list[Reply[Any]] = [place.reply for place in self._parked]
        replies += self._waiting.values()
        match self._served:
            case (
                Place(_, reply) | Refresh(reply) | Recheck(_, reply) | Opened(_, reply) | Released(_, Reply() as reply)
            ):
                replies.append(reply)
            case _:
                pass
        for reply in replies:
            reply.refuse(Ended())

    def _place_all(self, now: float) -> None:
        parked, self._parked = self._parked, []
        for place in parked:
            answer, effects = self.state.place(place.tried, now, self._rng.choice)
            if not place.reply.offer(answer) and isinstance(answer, Reservation):
                # The caller was cancelled before it got its place, and will never report it.
                self._perform(self.state.gave_up(answer))
            self._perform(effects)

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case StartDiscovery():
                    self._nursery.start_soon(self._discover, effect, name="ysactor.discovery")
                case StartProbe(at, number):
                    # The scope is there before the task runs, so that a probe can be stopped before it has begun.
                    scope = self._probes[number] = trio.CancelScope()
                    self._nursery.start_soon(self._probe, at, number, scope, name=f"ysactor.probe[{at}]")
                case StopProbe(_, number):
                    running = self._probes.get(number)
                    if running is not None:  # otherwise it has just ended by itself
                        running.cancel()
                case ArmRefresh(number, seconds):
                    if self._timer is not None:
                        self._timer.cancel()
                    self._timer = send_after(self._nursery, seconds, self._ref, RefreshDue(number))
                case ArmNotice(subject, last, seconds):
                    send_after(self._nursery, seconds, self._ref, NoticeDue(subject, last))
                case Log(notice):
                    _write(notice)
                case RefreshEnded(ticket):
                    self._waiting.pop(ticket).offer(None)
                case _:
                    assert_never(effect)

    @trio.lowlevel.enable_ki_protection
    async def _discover(self, start: StartDiscovery) -> None:
        result = await discover(self._driver, self._config, start.seeds, start.others, start.choice, self.state.is_down)
        self._ref.cast(DiscoveryEnded(result))

    @trio.lowlevel.enable_ki_protection
    async def _probe(self, at: HostPort, number: int, scope: trio.CancelScope) -> None:
        failure: Failure | None = None
        with scope:
            failure = await probe(self._driver, self._config, at, lambda: self._ref.cast(ProbeOpened(at, number)))
        del self._probes[number]
        self._ref.cast(ProbeEnded(at, number, failure))


def _write(notice: Notice) -> None:
    _logger.log(_LEVELS[notice.level], "%s", notice.text)
