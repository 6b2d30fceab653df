"""The addresses of one name: each is tried up to the end of its login, and the time there is is shared out among them.

A first address that accepts and then says nothing must not use up the time of the others, as it does where only the
connecting is tried address by address (asyncpg, and Trio by itself). libpq and pgx give each address the whole limit
instead; here the limit is that of the name.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

import trio

from ..policy.classify import UNABLE_TO_CONNECT, classify
from .protocol import ConnectFailure, NoPassword, Phase

Address = TypeVar("Address")
Dialled = TypeVar("Dialled")
Session = TypeVar("Session")

_SHARED = 0.99
"""The part of the time that is shared out. The rest is for saying which addresses were tried: once the caller's own
limit has ended the attempt, nobody can."""

_SHOWN = 5
"""How many addresses an error names."""

_PASSED_OVER = frozenset({UNABLE_TO_CONNECT, "57P03"})
"""Answers after which another address is tried: what a server says that is starting up or shutting down. libpq goes on
to the next host after it. Every other answer is taken for the name's: the next server would only count one more wrong
password, say."""


class Tries(Generic[Address]):
    """The addresses that are left to try, and what came of the others.

    `timeout` is in seconds from now, for all of them; an earlier deadline of the caller's counts. A single address has
    no limit but the caller's, and its failures come out as they are. `spell` names an address.
    """

    def __init__(self, timeout: float, spell: Callable[[Address], str]) -> None:
        now = trio.current_time()
        self._until = now + _SHARED * (min(trio.current_effective_deadline(), now + timeout) - now)
        self._spell = spell
        self._several = False
        self._reasons: list[str] = []
        self.left: list[Address] = []

    def add(self, addresses: Iterable[Address]) -> None:
        """What the name stands for. Called once."""
        self.left = list(dict.fromkeys(addresses))
        self._several = len(self.left) > 1

    async def first(
        self,
        dial: Callable[[], Awaitable[tuple[Address, Dialled]]],
        log_in: Callable[[Dialled, trio.CancelScope], Awaitable[Session]],
    ) -> Session:
        """The first login that succeeds. `dial` takes one of the addresses that are left.

        The scope that `log_in` is given ends with the address's share of the time; it may be put off for as long as
        something else than the server is waited for. Raises the `ConnectFailure` that settles it: an answer that the
        others would only repeat or, once none is left, one that names them all.
        """
        while True:
            address, dialled = await dial()
            since = trio.current_time()
            with trio.CancelScope(deadline=self._share(since)) as share:
                try:
                    return await log_in(dialled, share)
                except ConnectFailure as failure:
                    if not self.failed(address, failure):
                        raise self.summed_up(failure) from failure.__cause__
            if share.cancelled_caught:
                self.was_silent(address, since)
                if not self.left:
                    raise self.timed_out()

    def failed(self, address: Address, failure: ConnectFailure) -> bool:
        """One has failed. Whether another is to be tried."""
        self._strike(address, str(failure))
        return bool(self.left) and _another_may_do(failure)

    def was_silent(self, address: Address, since: float) -> None:
        """One has used up its time."""
        self._strike(address, f"no answer within {round(trio.current_time() - since, 3):g} s")

    def summed_up(self, failure: ConnectFailure) -> ConnectFailure:
        """The error that stands for all that were tried, this one being the last. Its cause is left to be set."""
        if not self._several or not _another_may_do(failure):
            return failure
        return ConnectFailure(failure.phase, self._all(), sqlstate=failure.sqlstate)

    def timed_out(self) -> ConnectFailure:
        """The error when the last one was silent."""
        failure = ConnectFailure(Phase.CONNECT, self._all())
        failure.__cause__ = TimeoutError(self._all())
        return failure

    def time_left(self) -> trio.CancelScope:
        """A scope that ends with the time of all of them, to connect to any."""
        return trio.CancelScope(deadline=self._until if self._several else math.inf)

    def _share(self, now: float) -> float:
        """When the time of the address that is tried now is over: a fair share of what there is for those left."""
        return now + (self._until - now) / len(self.left) if self._several else math.inf

    def _strike(self, address: Address, reason: str) -> None:
        self.left.remove(address)
        self._reasons.append(f"{self._spell(address)}: {reason}")

    def _all(self) -> str:
        more = len(self._reasons) - _SHOWN
        return "; ".join([*self._reasons[:_SHOWN], f"and {more} more"] if more > 0 else self._reasons)


def _another_may_do(failure: ConnectFailure) -> bool:
    """Whether a failure is one address's own: it refused, or the connection ended or failed, without an answer."""
    if isinstance(failure, NoPassword):
        return False
    if failure.sqlstate is not None:
        return failure.sqlstate in _PASSED_OVER
    cause = failure.__cause__
    return failure.phase is Phase.CONNECT or (cause is not None and classify(cause) == "connection_lost")
