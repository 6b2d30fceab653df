"""The works, written once for every contender."""

from __future__ import annotations

import gc
import os
import socket
import statistics
import struct
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from integration.bench.job import Job, Metrics
from integration.bench.worker.clients import Client, World
from integration.bench.worker.measure import Measure

_ONE = "SELECT 1"
_ROWS = "SELECT g AS id, g * 2 AS twice, 'row number ' || g AS text, now() AS at FROM generate_series(1, {}) AS g"
_INSERT = "INSERT INTO bench_insert VALUES (1, 'one row')"
_LINE = b"x" * 999 + b"\n"
_CHUNK = _LINE * 65
_OPENED = 100
_CANCELLED_AFTER = 0.02
_CANCELLATIONS = 15
_BYTES_SENT = 200
"""Where `tcpi_bytes_sent` is in Linux's `struct tcp_info`."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a work has to work with."""

    world: World
    client: Client
    measure: Measure
    job: Job


WorkFunction: TypeAlias = Callable[[Stage], Awaitable[Metrics]]


async def _in_tasks(stage: Stage, one: Callable[[], Awaitable[object]], tasks: int) -> Metrics:
    """So many tasks at once, each one operation after the other."""

    async def batch(count: int) -> None:
        each = range(count // tasks)

        async def caller() -> None:
            for _ in each:
                await one()

        await stage.world.gather(caller, tasks)

    return await stage.measure(batch, step=tasks * 4)


async def _in_a_row(stage: Stage, one: Callable[[], Awaitable[object]]) -> Metrics:
    async def batch(count: int) -> None:
        for _ in range(count):
            await one()

    return await stage.measure(batch)


async def _pooled(stage: Stage) -> Metrics:
    async with stage.client.pool(10) as pool:
        return await _in_tasks(stage, partial(pool.fetchval, _ONE), 50)


async def _pooled_alone(stage: Stage) -> Metrics:
    async with stage.client.pool(10) as pool:
        return await _in_a_row(stage, partial(pool.fetchval, _ONE))


async def _leased(stage: Stage) -> Metrics:
    async with stage.client.connection() as connection:
        return await _in_a_row(stage, partial(connection.fetchval, _ONE))


async def _rows(rows: int, stage: Stage) -> Metrics:
    async with stage.client.connection() as connection:
        return await _in_a_row(stage, partial(connection.fetch, _ROWS.format(rows)))


async def _copy_out(stage: Stage) -> Metrics:
    lines = stage.job.megabytes * 1000
    query = f"SELECT repeat('x', 999) FROM generate_series(1, {lines})"
    total = 0

    async def sink(data: bytes) -> None:
        nonlocal total
        total += len(data)

    async with stage.client.connection() as connection:

        async def one() -> None:
            await connection.copy_from_query(query, output=sink)

        metrics = await _per_megabyte(stage, one)
    if total % (lines * 1000):
        raise AssertionError(f"COPY brought {total} bytes, which is no multiple of {lines * 1000}")
    return metrics


async def _copy_in(stage: Stage) -> Metrics:
    """The server parses the lines and keeps none: it is the wire that is measured, not the table."""
    chunks = range(stage.job.megabytes * 1_000_000 // len(_CHUNK))

    async def source() -> AsyncIterator[bytes]:
        for _ in chunks:
            yield _CHUNK

    async with stage.client.connection() as connection:

        async def one() -> None:
            await connection.copy_to_table("bench_copy", source=source(), where="false")

        return await _per_megabyte(stage, one)


async def _per_megabyte(stage: Stage, copy: Callable[[], Awaitable[object]]) -> Metrics:
    metrics = await _in_a_row(stage, copy)
    return {name: value / stage.job.megabytes if name in ("wall", "cpu") else value for name, value in metrics.items()}


async def _checkout(stage: Stage) -> Metrics:
    async with stage.client.pool(10) as pool:

        async def one() -> None:
            async with pool.acquire():
                pass

        return await _in_a_row(stage, one)


async def _checkout_contended(stage: Stage) -> Metrics:
    sleep = stage.world.sleep
    async with stage.client.pool(10) as pool:

        async def one() -> None:
            async with pool.acquire():
                await sleep(0)

        return await _in_tasks(stage, one, 100)


async def _checkout_by_hand(stage: Stage, tasks: int = 0) -> Metrics:
    """Without the block, which ends with its connection: asyncpg's does not."""
    sleep = stage.world.sleep
    async with stage.client.pool(10) as pool:
        if pool.by_hand is None:
            raise AssertionError("this contender has blocks only")
        take, give_back = pool.by_hand

        async def one() -> None:
            connection = await take()
            if tasks:
                await sleep(0)
            returned = give_back(connection)
            if returned is not None:
                await returned

        return await (_in_tasks(stage, one, tasks) if tasks else _in_a_row(stage, one))


async def _transaction(stage: Stage) -> Metrics:
    async with stage.client.pool(10) as pool:
        return await _in_tasks(stage, partial(pool.insert, _INSERT), 50)


async def _transaction_alone(stage: Stage) -> Metrics:
    async with stage.client.pool(10) as pool:
        return await _in_a_row(stage, partial(pool.insert, _INSERT))


async def _open(stage: Stage) -> Metrics:
    async with stage.client.pool(1):
        pass  # what the first connection of a process imports and caches is not its pool's
    samples: list[Metrics] = []
    for _ in range(3):
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        async with stage.client.pool(_OPENED):
            samples.append({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu})
        await stage.world.sleep(0.1)  # the server's processes go
    return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}


async def _memory(stage: Stage) -> Metrics:
    """What Python has allocated for each of 100 idle connections, beside a pool that was there before."""
    async with stage.client.pool(10):
        tracemalloc.start()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        async with stage.client.pool(_OPENED):
            gc.collect()
            after = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
    return {"bytes": (after - before) / _OPENED}


async def _callers(callers: int, stage: Stage) -> Metrics:
    """So many tasks are started at once, with one query each: per query, and starting the task counts."""
    async with stage.client.pool(20) as pool:
        one = partial(pool.fetchval, _ONE)

        async def batch(count: int) -> None:
            for _ in range(count // callers):
                await stage.world.gather(one, callers)

        return await stage.measure(batch, step=callers)


async def _idle(stage: Stage) -> Metrics:
    """Less what the system charges the same process for the same time without a pool: that can be as much."""
    seconds = stage.job.idle_seconds
    bare = await _resting(stage, seconds)
    async with stage.client.pool(_OPENED):
        await stage.world.sleep(0.5)
        sent = _bytes_sent()
        metrics = {"share": max(0.0, await _resting(stage, seconds) - bare), "bare": bare}
        if sent is not None:
            metrics["sent"] = (_bytes_sent() or 0) - sent
        return metrics


async def _resting(stage: Stage, seconds: float) -> float:
    """The share of a core that the process takes while nothing is asked of it."""
    gc.collect()
    cpu = time.process_time()
    await stage.world.sleep(seconds)
    return (time.process_time() - cpu) / seconds


def _bytes_sent() -> int | None:
    """What this process's TCP sockets have sent so far, as the kernel counts it; None where it does not tell."""
    if sys.platform != "linux":
        return None
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.family == socket.AF_UNIX:
                    continue
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue
        if len(info) < _BYTES_SENT + 8:
            return None
        total += struct.unpack_from("Q", info, _BYTES_SENT)[0]
    return total


async def _cancel(stage: Stage) -> Metrics:
    """On a pool of one connection, which must be the same one afterwards."""
    free: list[float] = []
    usable: list[float] = []
    async with stage.client.pool(1) as pool:
        pid = await pool.fetchval("SELECT pg_backend_pid()")
        for _ in range(_CANCELLATIONS):
            cancelled, left = await stage.world.cancel(partial(pool.fetchval, "SELECT pg_sleep(60)"), _CANCELLED_AFTER)
            again = await pool.fetchval("SELECT pg_backend_pid()")
            usable.append(time.perf_counter() - cancelled)
            free.append(left - cancelled)
            if again != pid:
                raise AssertionError("the connection was replaced, not used again")
    return {"free": statistics.median(free), "usable": statistics.median(usable), "usable-longest": max(usable)}


async def _scale(servers: int, connections: int, stage: Stage) -> Metrics:
    from integration.bench.worker.scale import scale

    return await scale(servers, connections, stage.measure)


FUNCTIONS: dict[str, WorkFunction] = {
    "pooled": _pooled,
    "pooled-alone": _pooled_alone,
    "leased": _leased,
    "rows-100": partial(_rows, 100),
    "rows-10000": partial(_rows, 10_000),
    "copy-out": _copy_out,
    "copy-in": _copy_in,
    "checkout": _checkout,
    "checkout-contended": _checkout_contended,
    "checkout-by-hand": _checkout_by_hand,
    "checkout-by-hand-contended": partial(_checkout_by_hand, tasks=100),
    "transaction": _transaction,
    "transaction-alone": _transaction_alone,
    "open-100": _open,
    "memory": _memory,
    "callers-100": partial(_callers, 100),
    "callers-10000": partial(_callers, 10_000),
    "scale-small": partial(_scale, 3, 10),
    "scale-large": partial(_scale, 200, 2_000),
    "cancel": _cancel,
    "idle-100": _idle,
}
