"""The demo's load: workers that carry out transfers through the pool, and book what they are told."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import trio

from ..errors import CommitOutcomeUnknown, Error, PoolClosed
from ..policy.classify import is_drivers
from .bank import ACCOUNTS, Books, Outcome, Transfer
from .course import SPANS, Course

if TYPE_CHECKING:
    from ..pool.handle import Pool
    from .teller import Bank

BREATH = 0.01
"""Seconds between two transfers of a worker, on average: a steady load, not the most that the machine can do."""
AFTER_A_FAILURE = 0.1
FAREWELL = 10.0
"""Seconds that transfers under way are given when the load ends."""
LARGEST = 50


class Load:
    """What the workers share."""

    def __init__(self, pool: Pool, bank: Bank, *, seed: int, seconds: float) -> None:
        self.books = Books()
        self.course = Course(seconds / SPANS)
        self.committed: Counter[str] = Counter()
        """By server."""
        self.errors: Counter[str] = Counter()
        """What failed transfers failed of, in words."""
        self._pool = pool
        self._bank = bank
        self._seed = seed
        self._began = trio.current_time()
        self._stopped = trio.Event()
        self._over = trio.Event()

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return trio.current_time() - self._began

    async def sleep_until(self, moment: float) -> None:
        """Until so many seconds since the load began."""
        await trio.sleep_until(self._began + moment)

    async def finish(self) -> None:
        """No new transfers; returns when those under way have ended, or were cut off."""
        self._stopped.set()
        await self._over.wait()

    @property
    def stopped(self) -> bool:
        """Whether it is to end."""
        return self._stopped.is_set()

    async def run(self, workers: int) -> None:
        """Until `finish`, and until the transfers that were under way have ended, for `FAREWELL` seconds at most.

        What is cut off then, or by a cancellation, stays booked as that.
        """
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as inner:
                for number in range(workers):
                    inner.start_soon(self._work, Random(f"{self._seed}/{number}"))
                nursery.start_soon(self._see_off, inner.cancel_scope)
            nursery.cancel_scope.cancel()
        self.course.ended = self.now
        self._over.set()

    async def _see_off(self, scope: trio.CancelScope) -> None:
        await self._stopped.wait()
        await trio.sleep(FAREWELL)
        scope.cancel()

    async def _work(self, rng: Random) -> None:
        while not self.stopped:
            source, target = rng.sample(range(1, ACCOUNTS + 1), 2)
            transfer = self.books.issue(source, target, rng.randint(1, LARGEST))
            went_well = await self._carry_out(transfer)
            await trio.sleep(rng.expovariate(1 / BREATH) if went_well else AFTER_A_FAILURE)

    async def _carry_out(self, transfer: Transfer) -> bool:
        """One transfer, through `pool.transaction`, and what the caller was told, in the books."""
        books = self.books
        try:
            server = await self._pool.transaction(self._bank.carry_out, transfer)
        except (CommitOutcomeUnknown, PoolClosed):
            books.book(transfer, Outcome.UNKNOWN)
            return False
        except Exception as error:
            if not isinstance(error, Error) and not is_drivers(error):
                raise  # a bug, not an answer
            books.book(transfer, Outcome.FAILED)
            self.errors[str(error)] += 1
            return False
        if server is None:
            books.book(transfer, Outcome.DECLINED)
            return True
        books.book(transfer, Outcome.COMMITTED, server)
        self.course.committed(server, self.now)
        self.committed[server] += 1
        return True
