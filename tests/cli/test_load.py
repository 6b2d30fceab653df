"""What the workers book for each thing that a pool can tell them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from ysactor import CheckoutTimeout, CommitOutcomeUnknown, ConnectionLost, Pool, PoolClosed, TransactionAborted
from ysactor.cli.bank import Outcome, Transfer
from ysactor.cli.load import FAREWELL, Load
from ysactor.cli.teller import Bank


class ServerSaidNo(Exception):
    sqlstate = "53100"


class Scripted:
    """A pool that answers every transaction alike: `answer` returns what it returns, or raises."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer
        self.asked: list[Transfer] = []

    async def transaction(self, _fn: object, transfer: Transfer) -> Any:
        self.asked.append(transfer)
        await trio.sleep(0.05)
        return self._answer()


def load_over(pool: object, seed: int = 1) -> Load:
    return Load(cast("Pool", pool), Bank("b"), seed=seed, seconds=60)


async def run_for(load: Load, seconds: float, workers: int = 2) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run, workers)
        await trio.sleep(seconds)
        await load.finish()


def raising(error: Exception) -> Callable[[], None]:
    def answer() -> None:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (lambda: "a:1", Outcome.COMMITTED),
        (lambda: None, Outcome.DECLINED),
        (raising(CommitOutcomeUnknown("lost")), Outcome.UNKNOWN),
        (raising(PoolClosed()), Outcome.UNKNOWN),
        (raising(ConnectionLost("closed by the server")), Outcome.FAILED),
        (raising(CheckoutTimeout(5, "nothing free")), Outcome.FAILED),
        (raising(TransactionAborted()), Outcome.FAILED),
        (raising(ServerSaidNo("disk full")), Outcome.FAILED),
    ],
)
async def test_what_the_pool_says_is_what_is_booked(
    answer: Callable[[], Any], outcome: Outcome, autojump_clock: MockClock
) -> None:
    load = load_over(Scripted(answer))
    await run_for(load, 1.0)
    assert len(load.books) > 5
    assert {booking.outcome for booking in load.books} == {outcome}
    assert load.committed == ({"a:1": len(load.books)} if outcome is Outcome.COMMITTED else {})
    assert len(load.course.times) == (len(load.books) if outcome is Outcome.COMMITTED else 0)
    assert bool(load.errors) is (outcome is Outcome.FAILED)


async def test_a_bug_is_not_booked_but_raised(autojump_clock: MockClock) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await run_for(load_over(Scripted(lambda: 1 / 0)), 1.0, workers=1)
    bugs, others = caught.value.split(ZeroDivisionError)
    assert bugs is not None
    assert others is None


async def test_what_hangs_at_the_end_is_cut_off_and_booked_as_that(autojump_clock: MockClock) -> None:
    class Hanging:
        async def transaction(self, _fn: object, _transfer: Transfer) -> None:
            await trio.sleep_forever()

    load = load_over(Hanging())
    await run_for(load, 1.0, workers=3)
    assert load.now == pytest.approx(1.0 + FAREWELL)
    assert load.books.total(Outcome.CUT_OFF) == 3


async def test_what_is_under_way_at_the_end_is_finished_and_nothing_new_begins(autojump_clock: MockClock) -> None:
    load = load_over(Scripted(cycle(["a:1", "b:1"]).__next__))
    await run_for(load, 1.02, workers=4)
    assert load.now < 1.02 + 0.2
    assert load.books.total(Outcome.CUT_OFF) == 0
    assert sum(load.committed.values()) == len(load.books)


async def test_the_seed_decides_the_accounts_and_amounts(autojump_clock: MockClock) -> None:
    async def asked(seed: int) -> list[Transfer]:
        pool = Scripted(lambda: "a:1")
        await run_for(load_over(pool, seed), 2.0, workers=1)
        return pool.asked[:10]

    assert await asked(7) == await asked(7)
    assert await asked(7) != await asked(8)
