"""Servers that are frozen, gone, refusing or not to be found, and limits in time (field cases C11 to C21)."""

from __future__ import annotations

import logging
import math
import socket
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import ysactor
from integration.scenario import Transport, level, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import Access, SharedData, ThreeZones

pytestmark = watched

LIMIT = 0.3


@on_both_transports
@pytest.mark.parametrize("how", ["timeout", "socket_timeout", "cancelled"])
async def test_a_frozen_backend_holds_up_neither_its_caller_nor_the_pool_nor_its_end(
    three_zones: ThreeZones, transport: Transport, how: str
) -> None:
    """C11: the process of a leased connection is stopped. The query fails in time, the block ends, the pool closes."""
    server = three_zones.servers[0]
    options: dict[str, Any] = {"socket_timeout": LIMIT} if how == "socket_timeout" else {}
    async with open_case(server, transport, rest=False, pool_size=2, cancel_timeout=0.2, **options) as case:
        pool = case.pool
        await pool.ready(2)
        frozen: list[int] = []
        try:
            started = trio.current_time()
            with trio.move_on_after(LIMIT if how == "cancelled" else math.inf) as scope:
                expected = {
                    "timeout": TimeoutError,
                    "socket_timeout": ysactor.ConnectionLost,
                    "cancelled": trio.Cancelled,
                }
                with pytest.raises(expected[how]):
                    async with pool.acquire() as conn:
                        frozen.append(conn.get_server_pid())
                        server.freeze_backend(frozen[0])
                        await conn.fetch("SELECT 1", timeout=LIMIT if how == "timeout" else None)
                if how == "cancelled":
                    await trio.sleep_forever()
            assert scope.cancelled_caught == (how == "cancelled")
            assert LIMIT * 0.9 < trio.current_time() - started < LIMIT + 0.7
            assert await pool.fetchval("SELECT 'others go on'") == "others go on"
            await until(lambda: pool.statistics().idle == 2, lambda: f"it is replaced: {pool.statistics()}")
            reason = "socket_timeout" if how == "socket_timeout" else "unsettled"
            assert pool.statistics().connections_closed == {reason: 1}
            info = pool.cluster.info()
            assert info.failed == info.rejected == ()

            # And with one frozen in the hands of its holder, in an idle state, and in mid-query.
            async with pool.acquire() as conn:
                frozen.append(conn.get_server_pid())
                server.freeze_backend(frozen[1])
            started = trio.current_time()
            await pool.aclose()
            # One second is what a server is given to close its end.
            assert trio.current_time() - started < 1.5
        finally:
            for pid in frozen:
                server.thaw_backend(pid)


@on_both_transports
async def test_a_first_host_that_accepts_and_never_answers_does_not_use_up_the_time_of_the_second(
    three_zones: ThreeZones, transport: Transport
) -> None:
    """C13: the limit is for one attempt on one server; the next callers pass the frozen host over at once."""
    await three_zones.freeze(0)
    try:
        dsn = three_zones.dsn(0, 1)
        async with open_case(three_zones, transport, dsn=dsn, min_size=0, max_size=4, connect_timeout=0.5) as case:
            pool = case.pool
            started = trio.current_time()
            async with pool.acquire() as conn:
                assert conn.server.host == three_zones.members[1].host
                assert 0.45 < trio.current_time() - started < 2.0
                started = trio.current_time()
                async with pool.acquire(), pool.acquire(), pool.acquire():
                    assert trio.current_time() - started < 0.45
            assert [str(one) for one in pool.cluster.info().failed] == [str(three_zones.members[0])]
    finally:
        await three_zones.thaw(0)


class _OneName(trio.abc.HostnameResolver):
    """`db.test` stands for all of these servers, in this order."""

    def __init__(self, bed: ThreeZones) -> None:
        self._hosts = [member.host for member in bed.members]
        trio.socket.set_custom_hostname_resolver(self)

    async def getaddrinfo(self, host: Any, port: Any, *_: Any, **__: Any) -> Any:
        assert host == b"db.test"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port))) for address in self._hosts]

    async def getnameinfo(self, *_: Any) -> Any:
        raise NotImplementedError


@on_both_transports
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_one_name_for_several_servers_leads_to_one_that_lets_us_in(
    three_zones: ThreeZones, transport: Transport, how: str
) -> None:
    """C16: the first address refuses, or takes the connection and says nothing."""
    bed = three_zones
    _OneName(bed)
    dsn = f"postgresql://yugabyte@db.test:{bed.members[0].port}/yugabyte"
    await (bed.kill(0) if how == "killed" else bed.freeze(0))
    try:
        async with open_case(bed, transport, dsn=dsn, rest=False, pool_size=2, connect_timeout=1.2) as case:
            pool = case.pool
            started = trio.current_time()
            assert await pool.fetchval("SELECT inet_server_addr()::text") == f"{bed.members[1].host}/32"
            took = trio.current_time() - started
            assert took < 1 if how == "killed" else 0.3 < took < 1.5
            await pool.ready(2)
            assert pool.cluster.info().failed == ()
    finally:
        await (bed.start(0) if how == "killed" else bed.thaw(0))


@on_both_transports
async def test_when_no_address_of_a_name_lets_us_in_each_is_named_and_the_limit_holds_for_all(
    three_zones: ThreeZones, transport: Transport
) -> None:
    bed = three_zones
    first, second, third = (member.host for member in bed.members)
    _OneName(bed)
    dsn = f"postgresql://yugabyte@db.test:{bed.members[0].port}/yugabyte"
    for number in (0, 2):
        await bed.freeze(number)
    await bed.kill(1)
    try:
        async with open_case(bed, transport, dsn=dsn, rest=False, pool_size=1, connect_timeout=3) as case:
            started = trio.current_time()
            with pytest.raises(ysactor.ConnectFailed) as told:
                await case.pool.fetchval("SELECT 1")
            assert 2.9 < trio.current_time() - started < 4
            assert told.value.kind == "unreachable"
            for part in (f"{first}: no answer within ", f"; {second}: ", f"{third}: no answer within "):
                assert part in str(told.value)
    finally:
        for number in (0, 2):
            await bed.thaw(number)


@on_both_transports
@pytest.mark.parametrize("made", [None, ["s3cret"], ConnectionRefusedError("s3cret")], ids=repr)
async def test_a_password_function_that_gives_none_is_not_the_servers_doing(
    three_zones: ThreeZones, transport: Transport, made: Any
) -> None:
    """C65: no server is marked, and what the function gave is told by its type only."""

    def function() -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    async with open_case(three_zones, transport, rest=False, pool_size=1, password=function) as case:
        with pytest.raises(ysactor.ConnectFailed, match=rf"the password function .*{type(made).__name__}") as told:
            await case.pool.fetchval("SELECT 1")
        assert told.value.kind == "rejected"
        assert "s3cret" not in str(told.value)
        info = case.pool.cluster.info()
        assert (info.rejected, info.failed) == ((), ())


@on_both_transports
async def test_a_name_that_cannot_be_resolved_is_down_and_the_next_host_serves(
    three_zones: ThreeZones, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    """C15: one of the configured names does not exist."""
    good = three_zones.members[0]
    dsn = f"postgresql://yugabyte@nosuch.invalid:5433,{good}/yugabyte"
    for balanced in (False, True):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "ysactor"):
            options: dict[str, Any] = {"load_balance": True} if balanced else {}
            async with open_case(three_zones, transport, dsn=dsn, pool_size=3, **options) as case:
                assert await case.pool.fetchval("SELECT 1") == 1
                await case.pool.ready(3)
                if not balanced:
                    assert [str(one) for one in case.pool.cluster.info().failed] == ["nosuch.invalid:5433"]
                    assert case.pool.statistics().by_host == {str(good): 3}
        said = [record.getMessage() for record in caplog.records if record.name.startswith("ysactor")]
        assert len(said) == (0 if balanced else 1), said
        assert balanced or "nosuch.invalid:5433" in said[0]


class _SlowNames(trio.abc.HostnameResolver):
    """A name server that drops what it is asked about one name."""

    async def getaddrinfo(self, host: Any, port: Any, *rest: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name == "slow.invalid":
            await trio.sleep_forever()
        return socket.getaddrinfo(host, port, *rest)

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        return socket.getnameinfo(sockaddr, flags)


async def test_a_slow_name_server_counts_against_the_limit_and_blocks_nobody(three_zones: ThreeZones) -> None:
    """C15, the second part. With the native transport, as the look-up of the other goes through threads."""
    trio.socket.set_custom_hostname_resolver(_SlowNames())
    dsn = f"postgresql://yugabyte@slow.invalid:5433,{three_zones.members[0]}/yugabyte"
    async with open_case(three_zones, dsn=dsn, pool_size=2, connect_timeout=0.4) as case:
        started = trio.current_time()
        assert await case.pool.fetchval("SELECT 1") == 1
        assert 0.35 < trio.current_time() - started < 2.0
        assert [str(one) for one in case.pool.cluster.info().failed] == ["slow.invalid:5433"]


@on_both_transports
@pytest.mark.parametrize("pause", [0, 0.01, 0.3])
async def test_connections_that_are_killed_while_idle_are_replaced_and_hardly_anybody_notices(
    three_zones: ThreeZones, transport: Transport, pause: float
) -> None:
    """C17: all idle sessions are terminated; then, at once or a little later, the pool is used to its full size."""
    size = 5
    async with open_case(three_zones, transport, load_balance=True, pool_size=size) as case:
        pool = case.pool
        await case.at_rest()
        outcomes: Counter[str] = Counter()

        async def use() -> None:
            try:
                await pool.fetch("SELECT 1")
            except ysactor.ConnectionLost:
                outcomes["lost"] += 1
            else:
                outcomes["served"] += 1

        rounds = 15 if pause < 0.1 else 3
        for number in range(1, rounds + 1):
            outcomes.clear()
            # More, if one was replaced on another server before that was asked.
            assert await case.truth.terminate() >= size
            if pause:
                await trio.sleep(pause)
            if pause > 0.1:
                assert sum(pool.statistics().connections_closed.values()) >= number * size
            async with trio.open_nursery() as nursery:
                for _ in range(size):
                    nursery.start_soon(use)
            assert outcomes["served"] + outcomes["lost"] == size
            if pause > 0.1:
                assert outcomes["lost"] == 0
            await case.at_rest()
        assert set(pool.statistics().connections_closed) == {"lost"}
        info = pool.cluster.info()
        assert info.failed == info.rejected == ()


@on_both_transports
async def test_connections_that_the_server_ends_when_they_idle_are_replaced_for_ever(
    three_zones: ThreeZones, transport: Transport
) -> None:
    """C17, with `idle_session_timeout`: whoever uses the pool meets a live connection."""
    settings = {"idle_session_timeout": "60ms"}
    async with open_case(
        three_zones, transport, rest=False, load_balance=True, pool_size=3, server_settings=settings
    ) as case:
        pool = case.pool
        lost = 0
        for _ in range(60):
            try:
                assert await pool.fetchval("SELECT 1") == 1
            except ysactor.ConnectionLost:
                lost += 1  # it ended in the very moment in which it was used
            await trio.sleep(0.01)
        await until(lambda: pool.statistics().connections_closed.get("lost", 0) >= 9, "the server ended some")
        assert lost <= 3
        assert not pool.cluster.info().failed
        await until(lambda: pool.statistics().idle == 3, "the size is kept")


@on_both_transports
async def test_a_lease_whose_connection_is_killed_ends_with_it(three_zones: ThreeZones, transport: Transport) -> None:
    """C17, during a lease: a block that waits for something else is woken, and told what happened."""
    async with open_case(three_zones, transport, load_balance=True, pool_size=3) as case:
        for _ in range(10):
            started = trio.current_time()
            with pytest.raises(ysactor.ConnectionLost):
                async with case.pool.acquire() as conn:
                    await case.truth.terminate(pids=[conn.get_server_pid()])
                    await trio.sleep_forever()
            assert trio.current_time() - started < 1.0
        await case.at_rest()
        assert case.pool.statistics().connections_closed == {"lost": 10}


@asynccontextmanager
async def _fifty_callers(pool: ysactor.Pool, limit: float) -> AsyncGenerator[list[Exception]]:
    errors: list[Exception] = []
    end = trio.current_time() + limit

    async def caller() -> None:
        while trio.current_time() < end:
            try:
                await pool.fetch("SELECT 1")
            except ysactor.Error as error:
                errors.append(error)
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(caller)
        yield errors


@on_both_transports
async def test_a_server_that_closes_at_once_is_not_stormed(
    shared_data: SharedData, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    """C19: a pool of twenty and fifty callers before a port that accepts and closes."""
    seconds = 1.5
    proxy = shared_data.proxies[0]
    proxy.set_mode("close")
    with caplog.at_level(logging.INFO, "ysactor"):
        async with open_case(
            shared_data,
            transport,
            dsn=shared_data.dsn(0),
            pool_size=20,
            checkout_timeout=1,
            failed_host_reconnect_delay_secs=0,
        ) as case:
            async with _fifty_callers(case.pool, seconds) as errors:
                pass
            accepted = proxy.accepted
            # The first attempts go out all at once, one for each of the twenty; after that one at a time.
            assert 20 <= accepted <= 20 + 9 * seconds
            assert len(errors) >= 50
            assert {type(error) for error in errors} <= {ysactor.ConnectFailed, ysactor.CheckoutTimeout}
            assert all(str(shared_data.members[0]) in str(error) for error in errors)
            proxy.set_mode("pass")
            await case.pool.ready(timeout=4)
            await case.at_rest()
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1, lines


@on_both_transports
async def test_a_server_that_rejects_every_login_is_not_stormed(
    three_zones: ThreeZones, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    """C19: the same with a real server whose pg_hba.conf says reject, and one caller's limit kept."""
    seconds = 1.5
    server = three_zones.servers[0]
    server.access = Access("reject")
    server.restart("immediate")
    before = server.log_text().count("pg_hba.conf rejects")
    with caplog.at_level(logging.INFO, "ysactor"):
        async with open_case(server, transport, pool_size=20, checkout_timeout=1) as case:
            async with _fifty_callers(case.pool, seconds) as errors:
                pass
            attempts = server.log_text().count("pg_hba.conf rejects") - before
            assert 20 <= attempts <= 20 + 9 * seconds
            assert {type(error) for error in errors} <= {ysactor.ConnectFailed, ysactor.CheckoutTimeout}
            assert [str(one) for one in case.pool.cluster.info().rejected] == [f"{server.host}:{server.port}"]
            server.access = Access()
            server.reload()
            await case.pool.ready(timeout=4)
            await case.at_rest()
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1, lines


DURATIONS = {
    # Whether 0, None and infinity may be given; nothing else that is odd may.
    "connect_timeout": (False, False),
    "statement_timeout": (True, True),
    "socket_timeout": (False, True),
    "idle_timeout": (False, True),
    "checkout_timeout": (False, True),
    "max_lifetime": (False, True),
    "lifetime_jitter": (True, False),
    "rebalance_interval": (False, False),
    "cancel_timeout": (True, False),
    "shutdown_timeout": (True, True),
    "yb_servers_refresh_interval": (True, False),
    "failed_host_reconnect_delay_secs": (True, False),
}


@pytest.mark.parametrize("name", DURATIONS)
async def test_odd_limits_are_refused_by_name_or_mean_what_the_table_says(three_zones: ThreeZones, name: str) -> None:
    """C21: zero, negative, huge, boolean, NaN and text, for every limit of a pool."""
    zero, none = DURATIONS[name]
    value: Any
    for value in (-1, True, math.nan, "5", [], -math.inf):
        with pytest.raises(ysactor.ConfigurationError, match=name):
            async with open_case(three_zones, rest=False, **{name: value}):
                pytest.fail(f"entered with {value!r}")
    for value, taken in ((0, zero), (None, none), (math.inf, none)):
        if taken:
            async with open_case(three_zones, pool_size=1, **{name: value}) as case:
                assert await case.pool.fetchval("SELECT 1") == 1
        else:
            with pytest.raises(ysactor.ConfigurationError, match=name):
                async with open_case(three_zones, rest=False, **{name: value}):
                    pytest.fail(f"entered with {value!r}")


@on_both_transports
@pytest.mark.parametrize(
    ("limit", "error"),
    [
        (0, TimeoutError),
        (-1, ysactor.ConfigurationError),
        (-math.inf, ysactor.ConfigurationError),
        (math.nan, ysactor.ConfigurationError),
        (True, ysactor.ConfigurationError),
        ("5", ysactor.ConfigurationError),
    ],
)
async def test_a_limit_of_nothing_on_a_call_sends_nothing_and_does_no_harm(
    three_zones: ThreeZones, transport: Transport, limit: Any, error: type[Exception]
) -> None:
    """C21, for calls: 0 raises `TimeoutError`, what is no limit is refused, the connection stays the same."""
    async with open_case(three_zones, transport, pool_size=1) as case:
        pool = case.pool
        pid = await pool.fetchval("SELECT pg_backend_pid()")
        for call in (pool.fetch, pool.fetchrow, pool.fetchval, pool.execute):
            with pytest.raises(error):
                await call("SELECT 1", timeout=limit)
        async with pool.acquire(timeout=0) as conn:
            for call in (conn.fetch, conn.fetchrow, conn.fetchval, conn.execute, conn.prepare):
                with pytest.raises(error):
                    await call("SELECT 1", timeout=limit)
            assert await conn.fetchval("SELECT pg_backend_pid()", timeout=math.inf) == pid
            with pytest.raises(ysactor.CheckoutTimeout if limit == 0 else ysactor.ConfigurationError):
                await pool.checkout(timeout=limit)
        assert pool.statistics().connections_opened == 1


@on_both_transports
async def test_a_killed_server_is_noticed_by_idle_connections_at_once(
    three_zones: ThreeZones, transport: Transport
) -> None:
    """No query is sent for it: the end of their sockets is seen."""
    async with open_case(three_zones, transport, load_balance=True, pool_size=6) as case:
        pool = case.pool
        await pool.ready(6)
        lost = pool.statistics().by_host[str(three_zones.members[2])]
        await three_zones.kill(2)
        await until(lambda: pool.statistics().connections_closed.get("lost") == lost, "they are seen to be lost")
        await until(lambda: level(three_zones, pool, 0, 1), "the others carry all")
        for _ in range(12):
            assert await pool.fetchval("SELECT 1") == 1
