"""Limits: what a number of seconds may be, on a call and in line (C21)."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio

import ysactor
from ysactor.testing import FakeCluster

OpenPool = Callable[..., AbstractAsyncContextManager[ysactor.Pool]]

WRONG = [-1, True, math.nan, "5"]


@pytest.mark.parametrize("limit", WRONG)
async def test_what_is_no_number_of_seconds_is_refused_and_harms_nothing(
    world: FakeCluster, open_pool: OpenPool, limit: Any
) -> None:
    async with open_pool(pool_size=1) as pool:
        await pool.ready()
        world.journal.clear()
        with pytest.raises(ysactor.ConfigurationError, match="timeout"):
            await pool.fetchval("SELECT 1", timeout=limit)
        with pytest.raises(ysactor.ConfigurationError, match="timeout"):
            await pool.checkout(timeout=limit)
        with pytest.raises(ysactor.ConfigurationError, match="timeout"):
            pool.acquire(timeout=limit)
        async with pool.acquire() as conn:
            with pytest.raises(ysactor.ConfigurationError, match="timeout"):
                await conn.execute("SELECT 1", timeout=limit)
        assert world.journal.statements() == ()
        assert pool.statistics().idle == 1
        with pytest.raises(ysactor.ConfigurationError, match="checkout_timeout"):
            async with open_pool(checkout_timeout=limit):
                pytest.fail("it is not valid")


@pytest.mark.parametrize("limit", [None, math.inf, pytest.param(10**400, id="10**400")])
async def test_no_limit_is_no_limit(open_pool: OpenPool, limit: float | None) -> None:
    async with open_pool(pool_size=1) as pool, pool.acquire(timeout=limit) as conn:
        await conn.execute("SELECT pg_sleep(1000)", timeout=limit)


async def test_zero_sends_nothing_and_leaves_the_connection_as_it_was(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=1) as pool:
        await pool.ready()
        world.journal.clear()
        with pytest.raises(TimeoutError):
            await pool.fetchval("SELECT 1", timeout=0)
        assert world.journal.statements() == ()
        assert await pool.fetchval("SELECT 1") == 1
        assert pool.statistics().connections_opened == 1


async def test_a_loop_that_never_waits_lets_others_run(open_pool: OpenPool) -> None:
    ran: list[int] = []

    async def other() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            ran.append(1)

    async with open_pool(pool_size=1) as pool, trio.open_nursery() as nursery:
        await pool.ready()
        nursery.start_soon(other)
        for _ in range(1000):
            pool.checkin(await pool.checkout())
        assert len(ran) >= 10
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("sizes", [{"min_size": 0, "max_size": 2}, {"min_size": 1, "max_size": 2}])
async def test_an_elastic_pool_grows_for_callers_that_do_not_wait(open_pool: OpenPool, sizes: dict[str, int]) -> None:
    async with open_pool(**sizes) as pool:
        held: list[ysactor.Connection] = []
        for _ in range(10):
            try:
                held.append(await pool.checkout(timeout=0))
            except ysactor.CheckoutTimeout:
                await trio.sleep(1)
        assert len(held) == 2
        assert pool.statistics().connections_opened == 2
        for conn in held:
            pool.checkin(conn)
        for _ in range(3):
            pool.checkin(await pool.checkout(timeout=0))
        assert pool.statistics().connections_opened == 2
