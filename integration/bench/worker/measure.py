"""How an operation is measured: timed, profiled, or just carried out so many times for whoever counts from outside."""

from __future__ import annotations

import cProfile
import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from integration.bench.job import Job, Metrics

Batch: TypeAlias = Callable[[int], Awaitable[object]]
"""Carries out that many operations, a multiple of its step."""

_CHUNKS = 3
"""The measuring time is cut in so many, and the median counts: a hiccup of the machine spoils one."""


class Measure(Protocol):
    """Takes the measure of a batch."""

    async def __call__(self, batch: Batch, step: int = 1) -> Metrics: ...


class Timed:
    """Seconds for one operation, by the clock and of this process's CPU time. It warms up, and counts, for as long as a
    quarter of the measuring takes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __call__(self, batch: Batch, step: int = 1) -> Metrics:
        await batch(step)
        count, taken = step, 0.0
        began = time.perf_counter()
        while True:
            start = time.perf_counter()
            await batch(count)
            now = time.perf_counter()
            taken = now - start
            if now - began >= self._seconds / 4:
                break
            count *= 2
        chunk = max(1, round(count * self._seconds / _CHUNKS / taken / step)) * step
        samples = [await timed(batch, chunk) for _ in range(_CHUNKS)]
        return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}


async def timed(batch: Batch, count: int) -> Metrics:
    """That many operations, after a collection of garbage: nobody pays for what was left before."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await batch(count)
    return {"wall": (time.perf_counter() - wall) / count, "cpu": (time.process_time() - cpu) / count}


class Profiled:
    """One chunk under cProfile, whose statistics go to a file."""

    def __init__(self, seconds: float, path: str) -> None:
        self._timed = Timed(seconds)
        self._seconds = seconds
        self._path = path

    async def __call__(self, batch: Batch, step: int = 1) -> Metrics:
        metrics = await self._timed(batch, step)
        count = max(1, round(self._seconds / metrics["wall"] / step)) * step
        profile = cProfile.Profile()
        profile.enable()
        await batch(count)
        profile.disable()
        profile.dump_stats(self._path)
        return {**metrics, "operations": count}


class Counted:
    """Exactly so many operations, in steps, after one step of warming up."""

    def __init__(self, operations: int) -> None:
        self._operations = operations

    async def __call__(self, batch: Batch, step: int = 1) -> Metrics:
        await batch(step)
        steps = max(1, self._operations // step)
        await batch(steps * step)
        return {"operations": steps * step}


def measure_for(job: Job) -> Measure:
    """As the job says."""
    match job.mode:
        case "time":
            return Timed(job.seconds)
        case "profile":
            return Profiled(job.seconds, job.output)
        case "count":
            return Counted(job.operations)
