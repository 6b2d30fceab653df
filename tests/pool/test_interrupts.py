"""Ctrl-C may strike between any two lines of the user's tasks, and the pool's own code runs in them."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest
import trio
import trio.testing

import ysactor
from ysactor.connection.actor import run_connection
from ysactor.pool import transactions
from ysactor.pool.actor import PoolActor
from ysactor.pool.lease import Acquire
from ysactor.pool.ledger import Ledger
from ysactor.pool.line import Line
from ysactor.testing import FakeCluster, FakeDriver

FUNCTIONS: tuple[Any, ...] = (
    # in the user's tasks
    *(Ledger.take, Ledger.give_back, Ledger.discard, Ledger._offer, Line.wait, Line.hand),
    *(ysactor.Pool._take, ysactor.Pool._wait, ysactor.Pool._give_back, ysactor.Pool._statement, ysactor.Pool.checkout),
    *(ysactor.Pool.discard, Acquire.__aenter__, Acquire.__aexit__, transactions.run, transactions._attempt),
    # in the actors'
    *(Ledger.opening, Ledger.opened, Ledger.gone, Ledger.close_idle, Ledger._give_up, run_connection),
    *(PoolActor.run, PoolActor._receive, PoolActor._opened, PoolActor._ended, PoolActor._open, PoolActor._book_the_end),
)
LIMIT = 30.0
"""Seconds after which a program has hung. It takes milliseconds: its clock is not real."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs fork")


def lines(code: CodeType) -> Iterator[int]:
    yield from sorted({line for *_, line in code.co_lines() if line is not None and line > code.co_firstlineno})


async def use(pool: ysactor.Pool) -> None:
    """Every way of taking and giving back, with somebody in line."""

    async def fn(conn: ysactor.Connection) -> None:
        await conn.fetchval("SELECT 1")

    for _ in range(3):
        await pool.fetchval("SELECT 1")
        async with pool.acquire() as conn:
            await conn.fetchval("SELECT 1")
        conn = await pool.checkout()
        await trio.lowlevel.checkpoint()
        pool.checkin(conn)
        await pool.transaction(fn)
    pool.discard(await pool.checkout())


def run(code: CodeType, line: int) -> bool:
    """Whether the line was met. Ctrl-C strikes there, once; the program is to end by it and by nothing else."""
    struck = False

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal struck
        if frame.f_code is not code:
            return None
        if event == "line" and frame.f_lineno == line and not struck:
            struck = True
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return trace

    async def main() -> None:
        driver = FakeDriver(FakeCluster.of(1))
        sys.settrace(trace)
        opening = ysactor.open_pool(hosts="10.0.0.1", pool_size=1, shutdown_timeout=1, driver=driver)
        async with opening as pool, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(use, pool)
        sys.settrace(None)

    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseException as error:
        assert struck
        found: list[BaseException] = [error]
        while found:
            one = found.pop()
            found.extend(getattr(one, "exceptions", ()))
            assert isinstance(one, KeyboardInterrupt | BaseExceptionGroup), one
        return True
    finally:
        sys.settrace(None)
    assert not struck, "it went on as if nothing had been"
    return False


def every_line(place: Any, met: Any) -> None:
    for number, function in enumerate(FUNCTIONS):
        for line in lines(function.__code__):
            place[0], place[1] = number, line
            met.value += run(function.__code__, line)


def test_an_interrupt_anywhere_ends_the_program_and_the_pool() -> None:
    fork = multiprocessing.get_context("fork")
    place, met = fork.Array("i", 2), fork.Value("i", 0)
    process = fork.Process(target=every_line, args=(place, met))
    process.start()
    process.join(LIMIT)
    try:
        where = f"{FUNCTIONS[place[0]].__qualname__}, line {place[1]}"
        assert process.exitcode is not None, f"it hangs: {where}"
        assert process.exitcode == 0, where
        assert met.value > 60, "so many lines are in the way of what is done here"
    finally:
        process.kill()
        process.join()


async def test_the_users_own_code_in_a_transaction_is_interrupted_at_once() -> None:
    async def fn(conn: ysactor.Connection) -> None:
        assert not trio.lowlevel.currently_ki_protected()

    driver = FakeDriver(FakeCluster.of(1))
    async with ysactor.open_pool(hosts="10.0.0.1", driver=driver) as pool:
        await pool.transaction(fn)
