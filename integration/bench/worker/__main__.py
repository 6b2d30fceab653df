"""Reads the job from its argument, measures, and prints one line of JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from integration.bench import catalogue
from integration.bench.job import Job, Metrics


def main(text: str) -> None:
    job = Job.load(text)
    if job.core is not None:
        os.sched_setaffinity(0, {job.core})
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    metrics = _RUNNERS[job.contender](job)
    # After the work: what was imported on the way counts as well.
    allowed = catalogue.contender(job.contender).imports
    foreign = [name for name in catalogue.FOREIGN if name in sys.modules and name not in allowed]
    if foreign:
        raise SystemExit(f"unfair: the process of {job.contender} has imported {', '.join(foreign)}")
    print(json.dumps(metrics))


def _on_asyncio(job: Job, uvloop: bool = False) -> Metrics:
    from integration.bench.worker import on_asyncio
    from integration.bench.worker.measure import measure_for
    from integration.bench.worker.works import FUNCTIONS, Stage

    def client() -> Any:
        match job.contender:
            case "hasql":
                return on_asyncio.Hasql(job.endpoint)
            case "psycopg-pool" | "psycopg-yugabytedb":
                return on_asyncio.Psycopg(job.endpoint, smart=job.contender == "psycopg-yugabytedb")
            case _:
                return on_asyncio.Asyncpg(job.endpoint, reset=not job.contender.endswith("-noreset"))

    async def run() -> Metrics:
        stage = Stage(on_asyncio.Asyncio(), client(), measure_for(job), job)
        return await FUNCTIONS[job.work](stage)

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if uvloop:
        import importlib

        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(run())


def _on_uvloop(job: Job) -> Metrics:
    return _on_asyncio(job, uvloop=True)


def _on_trio(job: Job) -> Metrics:
    import trio

    from integration.bench.worker import on_trio
    from integration.bench.worker.measure import measure_for
    from integration.bench.worker.works import FUNCTIONS, Stage

    async def measured(client: Any) -> Metrics:
        stage = Stage(on_trio.Trio(), client, measure_for(job), job)
        return await FUNCTIONS[job.work](stage)

    async def run() -> Metrics:
        match job.contender:
            case "ysactor":
                return await measured(on_trio.Ysactor(job.endpoint, "native"))
            case "ysactor-trio-asyncio":
                return await measured(on_trio.Ysactor(job.endpoint, "trio_asyncio"))
            case _:
                import importlib

                client = on_trio.Triopg(job.endpoint, reset=not job.contender.endswith("-noreset"))
                async with importlib.import_module("trio_asyncio").open_loop():
                    return await measured(client)

    return trio.run(run)


_Runner = Callable[[Job], Metrics]
_RUNNERS: dict[str, _Runner] = {
    "ysactor": _on_trio,
    "ysactor-trio-asyncio": _on_trio,
    "triopg": _on_trio,
    "triopg-noreset": _on_trio,
    "asyncpg": _on_asyncio,
    "asyncpg-noreset": _on_asyncio,
    "asyncpg-uvloop": _on_uvloop,
    "asyncpg-uvloop-noreset": _on_uvloop,
    "psycopg-pool": _on_asyncio,
    "psycopg-yugabytedb": _on_asyncio,
    "hasql": _on_asyncio,
}


if __name__ == "__main__":
    main(sys.argv[1])
