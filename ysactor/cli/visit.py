"""``ysactor demo --url``: the same load on the user's own database, with nothing killed and nothing left behind."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import trio

from ..actor import open_tree
from ..client import open_cluster_of, open_pool_over
from ..config import Config, LoadBalance
from ..errors import ConfigurationError, Error
from ..policy.classify import is_drivers, sqlstate_of
from .bank import Holdings, Outcome, audit
from .demo import viewing
from .ending import FAILED, Refusal
from .events import listening
from .load import Load
from .report import Result
from .stage import Stage
from .teller import Bank, holdings

if TYPE_CHECKING:
    from ..client import Cluster
    from ..connection.handle import Connection
    from ..servers import Server

MOST_WORKERS = 20
CLEAN_UP = 60.0
"""Seconds for dropping the schema: YugabyteDB's DDL takes seconds."""
SEEN_WITHIN = 5.0
"""Seconds for what was created to show on every server: a standby lags."""


class _Traces:
    """What the visit has made in the database, and whether it is gone again."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.left: str | None = None


async def visit(stage: Stage, seconds: float, seed: int, url: str) -> Result:
    """All of it. However it ends, cancelled as well, the schema is dropped again, within `CLEAN_UP` seconds.

    Raises `Refusal`: bad options, no connection, no right to create a schema, servers that share no data.
    """
    try:
        config = Config.of(url)
    except ConfigurationError as error:
        raise Refusal(str(error)) from None
    bank = Bank(f"ysactor_demo_{secrets.token_hex(4)}")
    traces = _Traces(bank)
    with listening(stage.events):
        async with open_cluster_of(config, None, Random(seed)) as cluster, _schema(stage, cluster, config, traces):
            await _must_share(stage, cluster, config, bank)
            result = await _load(stage, seconds, seed, config, cluster, bank)
    return replace(result, clean_up=traces.left, events=tuple(stage.events.lines))


async def _load(stage: Stage, seconds: float, seed: int, config: Config, cluster: Cluster, bank: Bank) -> Result:
    workers = min(config.max_size, MOST_WORKERS)
    stage.events.say(f"{config.max_size} connections at most and {workers} workers; seed {seed}; nothing is killed")
    async with open_pool_over(cluster, config, Random(seed)) as pool:
        load = Load(pool, bank, seed=seed, seconds=seconds)
        stage.events.clock = lambda: load.now
        view = viewing("ysactor demo: bank transfers on your database", stage, seconds, config, load, pool)
        async with stage.showing(view), open_tree() as tree:
            tree.start_soon(load.run, workers)
            await load.sleep_until(seconds)
            await load.finish()
        retried = pool.statistics().transactions_retried
    stage.events.clock = None
    stage.events.say("the load has ended; reading back what is in the database")
    try:
        async with cluster.connect() as conn:
            found = await _read(conn, bank)
    except Exception as error:
        raise _refusal("what is in the database could not be read back", error) from error
    course, books = load.course, load.books
    return Result(
        seconds=course.ended or seconds,
        seed=seed,
        audit=audit(books, [found], apart=False),
        failed=books.total(Outcome.FAILED),
        declined=books.total(Outcome.DECLINED),
        retried=retried,
        by_server=dict(load.committed),
        errors=dict(load.errors),
        failover=None,
        events=(),
    )


async def _read(conn: Connection, bank: Bank) -> Holdings:
    """Both tables as of one moment."""
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        accounts = await conn.fetch(bank.accounts)
        journal = await conn.fetch(bank.journal)
    return holdings("the database", map(tuple, accounts), map(tuple, journal))


@asynccontextmanager
async def _schema(stage: Stage, cluster: Cluster, config: Config, traces: _Traces) -> AsyncGenerator[None, None]:
    """The schema, for the length of a block. One that could not be made is dropped as far as it was."""
    bank = traces.bank
    may_be_there = False
    try:
        try:
            async with cluster.connect() as conn:
                create, *others = bank.create()
                # Until the server has said no. The name is random, so a schema that is there is ours.
                may_be_there = True
                try:
                    await conn.execute(create)
                except Exception as error:
                    may_be_there = sqlstate_of(error) is None
                    raise
                for statement in others:
                    await conn.execute(statement)
        except Exception as error:
            raise _refusal(f"schema {bank.schema} could not be created", error) from error
        stage.events.say(f"created schema {bank.schema} with two tables; nothing else is touched")
        yield
    finally:
        stage.events.clock = None
        if may_be_there:
            with trio.CancelScope(shield=True):
                traces.left = await _drop(stage, config, bank)


async def _drop(stage: Stage, config: Config, bank: Bank) -> str | None:
    """Drop the schema; what is left if that failed. Through a cluster of its own, as the other may be cancelled."""
    reason = f"no answer within {CLEAN_UP:g} s"
    with trio.move_on_after(CLEAN_UP):
        try:
            async with open_cluster_of(config, None, Random()) as cluster, cluster.connect() as conn:
                for statement in bank.drop():
                    await conn.execute(statement)
            stage.events.say(f"dropped schema {bank.schema}")
            return None
        except Exception as error:
            if not isinstance(error, Error) and not is_drivers(error):
                raise
            reason = str(error)
    left = f"schema {bank.schema} may still be there ({reason}): DROP SCHEMA {bank.schema} CASCADE"
    stage.events.say(left, "bad")
    return left


async def _must_share(stage: Stage, cluster: Cluster, config: Config, bank: Bank) -> None:
    """Refuse servers that do not show what was made on another: each would hold a part of the truth."""
    blind: list[str] = []

    async def see(server: Server) -> None:
        alone = replace(config, hosts=(server.at,), load_balance=LoadBalance.OFF, target_session_attrs="any")
        try:
            async with open_cluster_of(alone, None, Random()) as one, one.connect() as conn:
                if not await _shows(conn, bank):
                    blind.append(str(server))
        except Exception as error:
            if not isinstance(error, Error) and not is_drivers(error):
                raise
            stage.events.say(f"not looked at: {error}", "bad")

    async with trio.open_nursery() as nursery:
        for server in cluster.info().servers:
            nursery.start_soon(see, server)
    if blind:
        names = ", ".join(sorted(blind))
        raise Refusal(
            f"{names} does not show what was created through another server: these servers share no data, so a check "
            "of all of them together would mean nothing; name one of them only"
        )


async def _shows(conn: Connection, bank: Bank) -> bool:
    with trio.move_on_after(SEEN_WITHIN):
        while True:
            if await conn.fetchval("SELECT to_regclass($1)::text", f"{bank.schema}.transfer") is not None:
                return True
            await trio.sleep(0.1)
    return False


def _refusal(what: str, error: Exception) -> Refusal:
    """A database's error as the command's; a bug stays one."""
    if not isinstance(error, Error) and not is_drivers(error):
        raise error
    return Refusal(f"{what}: {error}", FAILED)
