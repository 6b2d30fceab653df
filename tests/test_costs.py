"""What a pooled query costs, counted and not timed: a change that makes it dearer fails here on any machine.

All of it on a real server with the native transport, one task, one pooled `SELECT 1` after the other, the statement
prepared before. What is counted is the same at every run; a bound that is not exact leaves room for another release of
Python, Trio or asyncpg, and for nothing else.
"""

from __future__ import annotations

import gc
import socket
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
import trio.lowlevel

import ysactor
from ysactor.config import Config
from ysactor.driver.native import NativeDriver, NativeSession
from ysactor.driver.native.link import Link
from ysactor.driver.native.transport import READ_SIZE
from ysactor.servers import HostPort
from ysactor.testing.postgres import ThreeZones

QUERIES = 200
ONE = "SELECT 1"


class CountingDriver(NativeDriver):
    """Counts what its sessions ask of the kernel, between `count` and the end of its block."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    async def connect(self, host: HostPort, config: Config) -> NativeSession:
        session = await super().connect(host, config)
        link = session._link
        link.transport._send = self._counted("send", link.transport._send)
        link.read = self._counted("recv", link.read)
        return session

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.calls[name] += 1
            return call(*args)

        return counted


class Passes(trio.abc.Instrument):
    """The scheduler's passes, and the steps of tasks in them."""

    def __init__(self) -> None:
        self.passes = 0
        self.steps = 0

    def before_io_wait(self, timeout: float) -> None:
        self.passes += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1


@pytest.fixture
async def driver() -> CountingDriver:
    return CountingDriver()


@pytest.fixture
async def pool(zone: ThreeZones, driver: CountingDriver) -> Any:
    async with ysactor.open_pool(zone.dsn(), pool_size=1, driver=driver) as opened:
        await opened.ready(1)
        for _ in range(20):
            await opened.fetchval(ONE)
        yield opened


async def queries(pool: ysactor.Pool, count: int = QUERIES) -> None:
    for _ in range(count):
        await pool.fetchval(ONE)


async def test_a_query_takes_one_pass_of_the_scheduler_and_one_step_of_a_task(pool):
    instrument = Passes()
    trio.lowlevel.add_instrument(instrument)
    await queries(pool)
    trio.lowlevel.remove_instrument(instrument)
    assert (instrument.passes, instrument.steps) == (QUERIES, QUERIES)


async def test_a_query_is_one_send_and_one_receive(pool, driver):
    driver.calls.clear()
    await queries(pool)
    assert driver.calls == {"send": QUERIES, "recv": QUERIES}


async def test_a_query_on_a_leased_connection_is_no_dearer(pool, driver):
    async with pool.acquire() as connection:
        await connection.fetchval(ONE)
        instrument = Passes()
        trio.lowlevel.add_instrument(instrument)
        driver.calls.clear()
        for _ in range(QUERIES):
            await connection.fetchval(ONE)
        trio.lowlevel.remove_instrument(instrument)
    assert (instrument.passes, instrument.steps) == (QUERIES, QUERIES)
    assert driver.calls == {"send": QUERIES, "recv": QUERIES}


@pytest.mark.parametrize("args", [(), (1,)])
async def test_a_transaction_of_one_statement_is_two_round_trips(pool, driver, args):
    """BEGIN goes with the statement."""
    statement = "SELECT $1::int" if args else ONE

    async def one(connection):
        await connection.execute(statement, *args)

    await pool.transaction(one)
    driver.calls.clear()
    for _ in range(QUERIES):
        await pool.transaction(one)
    assert driver.calls == {"send": 2 * QUERIES, "recv": 2 * QUERIES}


async def test_a_transaction_without_a_statement_sends_nothing(pool, driver):
    async def nothing(connection):
        pass

    driver.calls.clear()
    await pool.transaction(nothing)
    assert not driver.calls


async def test_a_connection_that_is_handed_on_in_line_costs_one_pass_more(pool):
    each, tasks = 10, 20
    instrument = Passes()

    async def caller():
        await queries(pool, each)

    trio.lowlevel.add_instrument(instrument)
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(caller)
    trio.lowlevel.remove_instrument(instrument)
    # The rest is the tasks' first steps, and this one's.
    assert instrument.passes <= 2 * each * tasks + 2
    assert instrument.steps <= 2 * each * tasks + tasks + 2


async def test_a_query_leaves_no_memory_behind(pool):
    await queries(pool)
    gc.collect()
    gc.disable()
    try:
        blocks, objects = sys.getallocatedblocks(), len(gc.get_objects())
        await queries(pool, 10 * QUERIES)
        more_blocks, more_objects = sys.getallocatedblocks() - blocks, len(gc.get_objects()) - objects
    finally:
        gc.enable()
    # The interpreter keeps some for itself: a tenth of a block for each query would be none of that.
    assert more_blocks < QUERIES
    assert more_objects < QUERIES / 10


async def test_a_query_makes_no_garbage_that_has_to_be_collected(pool):
    await queries(pool)
    gc.collect()
    gc.disable()
    try:
        await queries(pool)
        assert gc.collect() == 0
    finally:
        gc.enable()


async def test_beside_the_buffer_it_reads_into_a_query_takes_a_few_kilobytes_at_most(pool):
    await queries(pool)
    tracemalloc.start()
    try:
        await queries(pool, 20)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        await queries(pool, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before <= READ_SIZE + 6 * 1024


async def test_a_query_enters_so_many_functions_of_this_package_and_no_more(pool, counting_frames):
    with counting_frames() as entered:
        await queries(pool)
    ours = {name: count / QUERIES for name, count in entered.items() if name.startswith("ysactor.")}
    assert sum(ours.values()) <= 24, ours
    assert sum(entered.values()) / QUERIES <= 75, entered


# --- COPY in ---------------------------------------------------------------------------------------------------------

CHUNKS = 400
CHUNK = b"x" * 65_535 + b"\n"


class Spawned(Passes):
    """The tasks that were started, too."""

    def __init__(self) -> None:
        super().__init__()
        self.spawned: list[str] = []

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.spawned.append(task.name)


async def chunks(count: int, chunk: bytes = CHUNK) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield chunk


async def copy_in(connection: ysactor.Connection, source: AsyncIterator[bytes]) -> None:
    await connection.copy_to_table("copied", source=source, where="false")


@pytest.fixture
async def copying(pool: ysactor.Pool) -> AsyncIterator[ysactor.Connection]:
    async with pool.acquire() as connection:
        await connection.execute("CREATE TEMP TABLE copied (text text)")
        await copy_in(connection, chunks(1))
        yield connection


def link_of(connection: ysactor.Connection) -> Link:
    session = connection._session()
    assert isinstance(session, NativeSession)
    return session._link


async def test_a_chunk_that_does_not_fit_waits_once_or_twice_and_in_no_task_of_its_own(copying, driver):
    """The socket holds less than a chunk, so that every single one has to wait."""
    link = link_of(copying)
    link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 1024)
    link.stall = 60.0  # however long this machine lets the server wait for its turn
    instrument = Spawned()
    driver.calls.clear()
    trio.lowlevel.add_instrument(instrument)
    await copy_in(copying, chunks(CHUNKS))
    trio.lowlevel.remove_instrument(instrument)
    assert instrument.spawned == []
    assert CHUNKS <= instrument.passes <= 2 * CHUNKS
    assert instrument.steps <= instrument.passes + 2
    assert driver.calls["send"] <= 3 * CHUNKS
    assert driver.calls["recv"] <= 2 * CHUNKS


async def test_a_chunk_that_is_there_is_taken_where_asyncpg_asks_for_it(copying, driver, counting_frames):
    driver.calls.clear()
    with counting_frames() as entered:
        await copy_in(copying, chunks(CHUNKS, b"x\n"))
    assert driver.calls["send"] <= CHUNKS + 10
    assert entered["ysactor.driver.native.copying.step"] <= CHUNKS + 10
    assert entered["ysactor.driver.native.stepping._serve"] <= 5
    ours = {name: count / CHUNKS for name, count in entered.items() if name.startswith("ysactor.")}
    assert sum(ours.values()) <= 6, ours


async def test_a_copy_out_to_a_sink_that_waits_makes_no_garbage_that_has_to_be_collected(pool):
    """What holds a piece of it would be held until somebody collects: megabytes, where that is seldom done."""

    async def sink(data):
        await trio.lowlevel.checkpoint()
        await trio.sleep(0.001)

    async with pool.acquire() as connection:
        copy = "SELECT repeat('x', 999) FROM generate_series(1, 2000)"
        await connection.copy_from_query(copy, output=sink)
        gc.collect()
        gc.disable()
        try:
            await connection.copy_from_query(copy, output=sink)
            assert gc.collect() == 0
        finally:
            gc.enable()
