"""What is left after `open_pool`, whatever state it is left in, and after input that cannot work: nothing."""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio

import ysactor
from integration.scenario import (
    NATIVE,
    Transport,
    Truth,
    nothing_is_left,
    on_both_transports,
    open_case,
    until,
    watched,
)
from ysactor.testing.postgres import Access, PostgresServer, Replicated, SharedData, ThreeZones

pytestmark = watched


# --- leaving ---------------------------------------------------------------------------------------------------------


@on_both_transports
async def test_leaving_at_once_leaves_nothing(three_zones: ThreeZones, transport: Transport) -> None:
    for _ in range(20):
        async with open_case(three_zones, transport, rest=False, load_balance=True, pool_size=6):
            pass


@on_both_transports
async def test_leaving_while_connections_are_opening_leaves_nothing(
    shared_data: SharedData, transport: Transport
) -> None:
    """The login of each waits in the proxy when the pool is cancelled, at whatever point."""
    for proxy in shared_data.proxies:
        proxy.login_delay = 0.02
    for step in range(15):
        async with open_case(shared_data, transport, rest=False, load_balance=True, pool_size=6) as case:
            await trio.sleep(step * 0.004)
            assert case.pool.statistics().idle < 6 or step > 8


@on_both_transports
async def test_leaving_with_everything_in_use_ends_it_all_in_bounded_time(
    three_zones: ThreeZones, transport: Transport
) -> None:
    """Statements, leases, transactions, and a line of callers: all are told that the pool is closed."""
    told: list[type[BaseException]] = []

    async def caller(use: Callable[[], Awaitable[object]]) -> None:
        try:
            await use()
        except Exception as error:  # the test looks at it
            told.append(type(error))

    async def lease(pool: ysactor.Pool) -> None:
        async with pool.acquire() as conn:
            await conn.fetchval("SELECT 1")
            await trio.sleep_forever()

    async def sleep(conn: ysactor.Connection) -> None:
        await conn.execute("INSERT INTO never VALUES (1)")
        await conn.execute("SELECT pg_sleep(60)")

    for server in three_zones.servers:
        server.sql("create table never(i int)")
    async with (
        trio.open_nursery() as nursery,
        open_case(
            three_zones,
            transport,
            rest=False,
            load_balance=True,
            pool_size=6,
            shutdown_timeout=0.1,
            checkout_timeout=None,
        ) as case,
    ):
        pool = case.pool
        for _ in range(2):
            nursery.start_soon(caller, partial(pool.fetch, "SELECT pg_sleep(60)"))
            nursery.start_soon(caller, partial(lease, pool))
            nursery.start_soon(caller, partial(pool.transaction, sleep))
        await case.truth.until_active("pg_sleep", 4)
        await until(lambda: pool.statistics().leased == 6, "all are leased")
        for _ in range(10):
            nursery.start_soon(caller, partial(pool.fetch, "SELECT 1"))
        await until(lambda: pool.statistics().waiting == 10, "ten are in line")
        started = trio.current_time()
        await pool.aclose()
        assert trio.current_time() - started < 2.0
        assert await case.truth.count() == 0
        await until(lambda: len(told) == 16, lambda: f"all were told: {told}")
    assert set(told) == {ysactor.PoolClosed}
    for server in three_zones.servers:
        assert server.value("select count(*) from never") == "0"


@on_both_transports
async def test_leaving_by_an_error_or_a_cancellation_lets_it_out_and_leaves_nothing(
    three_zones: ThreeZones, transport: Transport
) -> None:
    class Mine(Exception):
        pass

    async def hold(pool: ysactor.Pool) -> None:
        async with pool.acquire() as conn:
            await conn.execute("SELECT pg_sleep(60)")

    name = "leaving-by-error"
    options: dict[str, Any] = {"load_balance": True, "pool_size": 4, "shutdown_timeout": 0.1, "application_name": name}
    truth = Truth(three_zones.servers, name)
    async with nothing_is_left(truth):
        with pytest.raises(Mine):
            async with ysactor.open_pool(three_zones.dsn(), driver=transport, **options) as pool:
                await pool.ready(4)
                raise Mine
        with trio.move_on_after(5) as scope:
            async with ysactor.open_pool(three_zones.dsn(), driver=transport, **options) as pool:
                with trio.CancelScope(shield=True):
                    await pool.ready(4)
                scope.cancel()
                await hold(pool)
        assert scope.cancelled_caught
        # Its own holder in a sibling task, and the cancellation in mid-query.
        with trio.move_on_after(5) as scope:
            async with (
                ysactor.open_pool(three_zones.dsn(), driver=transport, **options) as pool,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(hold, pool)
                await truth.until_active("pg_sleep(60)")
                scope.cancel()
        assert scope.cancelled_caught


@on_both_transports
async def test_a_pool_whose_servers_are_all_frozen_is_left_in_bounded_time(
    three_zones: ThreeZones, transport: Transport
) -> None:
    async with open_case(three_zones, transport, rest=False, load_balance=True, pool_size=6) as case:
        await case.pool.ready(6)
        for index in range(3):
            await three_zones.freeze(index)
        started = trio.current_time()
        await case.pool.aclose()
        took = trio.current_time() - started
        for index in range(3):
            await three_zones.thaw(index)
        assert took < 3.0


@on_both_transports
async def test_a_whole_pool_under_the_callers_own_nursery(three_zones: ThreeZones, transport: Transport) -> None:
    truth = Truth(three_zones.servers, "run-pool")
    async with nothing_is_left(truth), trio.open_nursery() as nursery:
        opened = partial(
            ysactor.run_pool, three_zones.dsn(), driver=transport, application_name=truth.name, load_balance=True
        )
        pool: ysactor.Pool = await nursery.start(opened)
        assert await pool.fetchval("SELECT 1") == 1
        await pool.aclose()


@on_both_transports
async def test_several_pools_and_transports_live_side_by_side(three_zones: ThreeZones, transport: Transport) -> None:
    truth = Truth(three_zones.servers, "side-by-side")
    named: dict[str, Any] = {"application_name": truth.name}
    async with (
        nothing_is_left(truth),
        ysactor.open_pool(three_zones.dsn(), driver=transport, load_balance=True, pool_size=3, **named) as one,
        ysactor.open_pool(three_zones.dsn(), driver=NATIVE, pool_size=2, **named) as other,
        ysactor.open_cluster(three_zones.dsn(), driver=transport, load_balance=True, **named) as cluster,
        cluster.connect() as conn,
    ):
        assert [await one.fetchval("SELECT 1"), await other.fetchval("SELECT 2")] == [1, 2]
        assert await conn.fetchval("SELECT 3") == 3


# --- input that cannot work ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dsn", "options", "named"),
    [
        (None, {"pool_sise": 3}, ["pool_sise", "pool_size"]),
        (
            None,
            {"pool_size": 0, "connect_timeout": -1, "checkout_timeout": "5"},
            ["pool_size", "connect_timeout", "checkout_timeout"],
        ),
        (None, {"topology_keys": "nonsense"}, ["topology_keys"]),
        (None, {"driver": "psycopg"}, ["driver", "psycopg"]),
        ("mysql://u@h/db", {}, ["dsn"]),
        ("postgresql://u:SENTINEL-42/x#y@h/db", {}, ["dsn"]),
        ("postgresql://u@h/db?load_balance=perhaps", {}, ["load_balance"]),
    ],
)
async def test_an_option_that_cannot_be_used_is_one_error_and_nothing_is_opened(
    three_zones: ThreeZones, dsn: str | None, options: dict[str, Any], named: list[str]
) -> None:
    truth = Truth(three_zones.servers, "bad-options")
    async with nothing_is_left(truth):
        with pytest.raises(ysactor.ConfigurationError) as caught:
            async with ysactor.open_pool(dsn or three_zones.dsn(), application_name=truth.name, **options):
                pytest.fail("entered")
    for word in named:
        assert word in str(caught.value).lower()
    assert "SENTINEL" not in str(caught.value)
    assert not isinstance(caught.value, BaseExceptionGroup)


@asynccontextmanager
async def one_error(
    servers: list[PostgresServer], dsn: str, transport: Transport, caplog: pytest.LogCaptureFixture, **options: Any
) -> AsyncGenerator[list[Exception]]:
    """Three callers of a pool that cannot connect: each gets one error of ours, soon, and the log one line a server."""
    truth = Truth(servers, "cannot-work")
    errors: list[Exception] = []
    async with nothing_is_left(truth):
        with caplog.at_level(logging.WARNING, "ysactor"):
            async with ysactor.open_pool(
                dsn, driver=transport, application_name=truth.name, pool_size=5, checkout_timeout=3, **options
            ) as pool:

                async def caller() -> None:
                    with pytest.raises(ysactor.Error) as caught:
                        await pool.fetch("SELECT 1")
                    errors.append(caught.value)

                started = trio.current_time()
                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(caller)
                assert trio.current_time() - started < 2.5
                s = pool.statistics()
                assert (s.idle, s.leased, s.by_host) == (0, 0, {})
            assert await truth.count() == 0
    yield errors
    logged = [record for record in caplog.records if record.name.startswith("ysactor")]
    assert len(logged) <= 1, [record.getMessage() for record in logged]
    for shown in [*map(str, errors), *map(repr, errors), *(record.getMessage() for record in logged)]:
        assert "SENTINEL" not in shown


@on_both_transports
async def test_a_host_that_does_not_exist(
    three_zones: ThreeZones, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_error([], "postgresql://u:SENTINEL-42@nosuch.invalid:5433/db", transport, caplog) as errors:
        pass
    for error in errors:
        assert isinstance(error, ysactor.ConnectFailed)
        assert error.kind == "unreachable"
        assert "nosuch.invalid:5433" in str(error)
        assert error.__cause__ is not None


@pytest.fixture
def strict(three_zones: ThreeZones) -> PostgresServer:
    """A server that asks for passwords."""
    server = three_zones.servers[0]
    server.access = Access("scram-sha-256")
    server.restart("immediate")
    return server


@on_both_transports
async def test_a_wrong_password(strict: PostgresServer, transport: Transport, caplog: pytest.LogCaptureFixture) -> None:
    dsn = f"postgresql://app:SENTINEL-42@{strict.host}:{strict.port}/yugabyte"
    async with one_error([strict], dsn, transport, caplog) as errors:
        pass
    for error in errors:
        assert isinstance(error, ysactor.ConnectFailed)
        assert error.kind == "rejected"
        assert getattr(error.__cause__, "sqlstate", None) == "28P01"
        assert "app" in str(error)
    # The right one, with everything that has to be quoted in a DSN, is let in.
    strict.sql("alter role app password 'p@ss:w/o#r?d%2B+é'")
    for given in ("postgresql://app:p%40ss%3Aw%2Fo%23r%3Fd%252B%2B%C3%A9@", "postgresql://app@"):
        password: dict[str, Any] = {} if "p%40" in given else {"password": "p@ss:w/o#r?d%2B+é"}
        dsn = f"{given}{strict.host}:{strict.port}/yugabyte"
        async with open_case(strict, transport, dsn=dsn, pool_size=2, **password) as case:
            assert await case.pool.fetchval("SELECT current_user") == "app"
    strict.sql("alter role app password 'app'")


@on_both_transports
async def test_a_database_that_does_not_exist(
    three_zones: ThreeZones, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    dsn = three_zones.dsn(0, database="nosuch")
    async with one_error(three_zones.servers, dsn, transport, caplog) as errors:
        pass
    for error in errors:
        assert isinstance(error, ysactor.ConnectFailed)
        assert error.kind == "rejected"
        assert getattr(error.__cause__, "sqlstate", None) == "3D000"
        assert "nosuch" in str(error)


@on_both_transports
@pytest.mark.parametrize("mode", ["require", "verify-full"])
async def test_a_server_without_tls_where_tls_is_asked_for(
    replicated: Replicated, transport: Transport, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_error(replicated.servers[:1], replicated.dsn(0), transport, caplog, ssl=mode) as errors:
        pass
    for error in errors:
        assert isinstance(error, ysactor.ConnectFailed)
        assert error.kind == "rejected"
        assert str(replicated.members[0]) in str(error)


@contextmanager
def database(server: PostgresServer, *setup: str) -> Generator[str]:
    """A database of its own, with a `yb_servers()` of its own."""
    name = "odd"
    server.sql(f"create database {name}")
    try:
        server.sql(*setup, database=name)
        yield name
    finally:
        server.sql(f"drop database {name} with (force)")


@on_both_transports
@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ("host text, port int", "values ('127.0.0.1', 5433)"),
        ("host text", "values ('127.0.0.1')"),
        (
            "host text, port text, node_type text, cloud text, region text, zone text, public_ip text",
            "values ('', 'x', '', '', '', '', '')",
        ),
        (
            "host text, port bigint, node_type text, cloud text, region text, zone text, public_ip text",
            "values (null, null::bigint, null, null, null, null, null),"
            " ('h', 0, '', '', '', '', ''), ('h', 99999, '', '', '', '', '')",
        ),
        ("host text, port bigint", "select 'h', 1/0"),
    ],
)
async def test_a_yb_servers_that_makes_no_sense_leaves_the_seeds(
    three_zones: ThreeZones, transport: Transport, columns: str, rows: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = three_zones.servers[0]
    outs = ", ".join(f"out {column}" for column in columns.split(", "))
    kind = "setof record" if "," in columns else "setof text"
    function = f"create function pg_catalog.yb_servers({outs}) returns {kind} language sql as $f$ {rows} $f$"
    with database(server, function) as name, caplog.at_level(logging.WARNING, "ysactor"):
        dsn = three_zones.dsn(0, database=name)
        async with open_case(three_zones, transport, dsn=dsn, load_balance=True, pool_size=3) as case:
            assert await case.pool.fetchval("SELECT 1") == 1
            await case.pool.cluster.refresh()
            await case.pool.cluster.refresh()
            info = case.pool.cluster.info()
            assert not info.discovered
            assert [str(at) for at in info.servers] == [str(three_zones.members[0])]
            assert not info.failed
            assert not info.rejected
        logged = [record.getMessage() for record in caplog.records if record.name.startswith("ysactor")]
        assert len(logged) == 1, logged


@on_both_transports
async def test_rows_that_make_no_sense_are_passed_over(three_zones: ThreeZones, transport: Transport) -> None:
    good = three_zones.rows()
    await three_zones.set_topology([*good, replace(good[0], port=0), replace(good[0], host="", public_ip="")])
    async with open_case(three_zones, transport, load_balance=True, pool_size=6) as case:
        await case.pool.ready(6)
        assert len(case.pool.cluster.info().servers) == 3


async def test_nothing_is_raised_from_the_garbage_collector(three_zones: ThreeZones) -> None:
    """Also after a pool was left in the middle of everything."""
    transports: tuple[Transport, ...] = ("native", "trio_asyncio")
    for transport in transports:
        async with (
            open_case(
                three_zones,
                transport,
                rest=False,
                load_balance=True,
                pool_size=4,
                shutdown_timeout=0,
            ) as case,
            trio.open_nursery() as nursery,
        ):
            for _ in range(6):
                nursery.start_soon(case.pool.fetch, "SELECT pg_sleep(60)")
            await case.truth.until_active("pg_sleep")
            nursery.cancel_scope.cancel()
        gc.collect()
