"""Opening: what is tried, how often, and what callers are told when nothing opens."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import asyncpg
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import ysactor
from ysactor import Cluster
from ysactor.testing import FakeCluster, FakeDriver, Statement, error

OpenPool = Callable[..., AbstractAsyncContextManager[ysactor.Pool]]


async def test_with_every_server_down_callers_are_told_at_once_and_why(world: FakeCluster, open_pool: OpenPool) -> None:
    for server in world.servers:
        server.crash()
    async with open_pool() as pool:
        with pytest.raises(ysactor.ConnectFailed) as caught:
            await pool.fetchval("SELECT 1")
        assert caught.value.kind == "unreachable"
        assert isinstance(caught.value.__cause__, OSError)
        assert trio.current_time() < 2


async def test_each_caller_gets_an_error_of_its_own(world: FakeCluster, open_pool: OpenPool) -> None:
    for server in world.servers:
        server.crash()
    errors: list[ysactor.ConnectFailed] = []
    async with open_pool() as pool, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(ysactor.ConnectFailed) as caught:
                await pool.fetchval("SELECT 1")
            errors.append(caught.value)

        for _ in range(5):
            nursery.start_soon(ask)
    assert len({id(error) for error in errors}) == 5
    assert len({str(error) for error in errors}) == 1


async def test_the_checkout_limit_gives_the_last_failure(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=2, checkout_timeout=3) as pool:
        await pool.ready(2)
        conns = [await pool.checkout() for _ in range(2)]
        for server in world.servers:
            server.reject("57P03", "starting up")
        pool.discard(conns[0])
        with pytest.raises(ysactor.CheckoutTimeout, match="starting up") as caught:
            await pool.fetchval("SELECT 1")
        assert isinstance(caught.value.__cause__, ysactor.ConnectFailed)
        assert caught.value.__cause__.kind == "rejected"
        pool.checkin(conns[1])


async def test_the_checkout_limit_names_what_is_being_opened_and_for_how_long(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """C13: with every option at its default nothing has failed yet when the caller's time is up."""
    world.servers[0].hang()
    hosts = [str(server.at) for server in world.servers[:2]]
    async with open_pool(hosts=hosts, load_balance=False) as pool:
        with pytest.raises(ysactor.CheckoutTimeout, match=f"; opening to {hosts[0]} for 5 s"):
            await pool.fetchval("SELECT 1")
        await pool.ready(1)
        assert pool.cluster.info().failed


async def test_a_server_that_hangs_costs_one_attempt_and_is_then_avoided(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """C13."""
    world.servers[0].hang()
    hosts = [str(server.at) for server in world.servers[:2]]
    async with open_pool(hosts=hosts, load_balance=False, connect_timeout=2, pool_size=1) as pool:
        start = trio.current_time()
        assert await pool.fetchval("SELECT 1") == 1
        assert trio.current_time() - start == pytest.approx(2)
        async with pool.acquire() as conn:
            pool.discard(conn)
        start = trio.current_time()
        assert await pool.fetchval("SELECT 1") == 1
        assert trio.current_time() - start < 0.1


@pytest.mark.parametrize("stuck", [False, True])
async def test_a_name_that_does_not_resolve_is_a_server_that_is_down(
    world: FakeCluster, open_pool: OpenPool, stuck: bool
) -> None:
    """C15."""
    if stuck:
        world.stuck_names.add("nosuch.invalid")
    hosts = ["nosuch.invalid:5433", str(world.servers[1].at)]
    async with open_pool(hosts=hosts, load_balance=False, connect_timeout=1, pool_size=2) as pool:
        await pool.ready(2)
        assert set(pool.statistics().by_host) == {str(world.servers[1].at)}
        assert [server.host for server in pool.cluster.info().failed] == ["nosuch.invalid"]


async def test_a_server_that_closes_every_login_is_not_stormed(
    world: FakeCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """C19: every slot retries at once, with no pause, and keeps the server down."""
    for server in world.servers:
        server.reject("28000", "no entry for this host")
    with caplog.at_level(logging.INFO, logger="ysactor"):
        async with open_pool(pool_size=20, checkout_timeout=5) as pool:
            await trio.sleep(1)
            world.journal.clear()
            errors: Counter[str] = Counter()

            async def caller() -> None:
                while True:
                    try:
                        await pool.fetchval("SELECT 1")
                    except (ysactor.ConnectFailed, ysactor.CheckoutTimeout) as error:
                        errors[type(error).__name__] += 1

            with trio.move_on_after(10):
                async with trio.open_nursery() as nursery:
                    for _ in range(50):
                        nursery.start_soon(caller)
            for server in world.servers:
                assert len(world.journal.dials(server)) < 40, "single digits a second, whatever the number of slots"
            assert errors["ConnectFailed"] >= 50
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len({record.getMessage() for record in warnings}) == len(warnings) <= len(world.servers) + 1


async def test_the_pool_is_whole_again_seconds_after_the_servers_are(world: FakeCluster, open_pool: OpenPool) -> None:
    async with open_pool(pool_size=6) as pool:
        await pool.ready(6)
        for server in world.servers:
            server.crash()
        await trio.sleep(60)
        assert pool.statistics().idle == 0
        for server in world.servers:
            server.recover()
        start = trio.current_time()
        await pool.ready(6, timeout=10)
        assert trio.current_time() - start < 5


async def test_after_a_failure_opening_rests_for_a_second_and_newcomers_wait_for_it(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    hosts = [str(world.servers[0].at)]
    world.servers[0].crash()
    async with open_pool(hosts=hosts, load_balance=False, pool_size=2) as pool:
        await wait_all_tasks_blocked()
        start = trio.current_time()
        world.servers[0].recover()
        assert await pool.fetchval("SELECT 1") == 1
        assert 1 <= trio.current_time() - start < 1.2


async def test_callers_wait_while_another_opening_is_under_way(world: FakeCluster, open_pool: OpenPool) -> None:
    world.servers[0].crash()
    world.servers[1].slow(connect=3)
    hosts = [str(world.servers[1].at)]
    async with open_pool(hosts=hosts, load_balance=False, pool_size=2) as pool:
        with pytest.raises(ysactor.CheckoutTimeout):
            async with pool.acquire(timeout=1):
                pytest.fail("nothing is open yet")
        assert await pool.fetchval("SELECT 1") == 1


async def test_ready_tells_why_it_could_not_be(world: FakeCluster, open_pool: OpenPool) -> None:
    world.databases = {"other"}
    async with open_pool() as pool:
        with pytest.raises(ysactor.CheckoutTimeout, match="does not exist"):
            await pool.ready(1, timeout=3)
        with pytest.raises(ysactor.ConfigurationError):
            await pool.ready(99)


async def test_on_connect_runs_once_on_each_connection_and_not_on_probes(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """C54."""
    seen: list[int] = []

    async def prepare(conn: ysactor.Connection) -> None:
        seen.append(conn.get_server_pid())
        await conn.execute("SET TimeZone = 'UTC'")

    async with open_pool(pool_size=3, on_connect=prepare, failed_host_reconnect_delay_secs=1) as pool:
        await pool.ready(3)
        for _ in range(20):
            await pool.fetchval("SELECT 1")
        assert len(seen) == 3
        world.servers[0].crash()
        await trio.sleep(1)
        world.servers[0].recover()
        await trio.sleep(5)
        await pool.cluster.refresh()
        await pool.ready(3)
        assert pool.cluster.info().failed == ()
        assert len(seen) == len(set(seen)) == pool.statistics().connections_opened


async def test_an_error_in_on_connect_fails_that_connection_and_no_server(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    async def prepare(_conn: ysactor.Connection) -> None:
        raise KeyError("mine")

    async with open_pool(on_connect=prepare) as pool:
        with pytest.raises(ysactor.ConnectFailed, match="on_connect raised KeyError") as caught:
            await pool.fetchval("SELECT 1")
        assert isinstance(caught.value.__cause__, KeyError)
        info = pool.cluster.info()
        assert info.failed == info.rejected == ()
        assert world.sessions == 0
        assert set(info.counts.values()) == {0}


@pytest.mark.parametrize("size", [{"pool_size": 6}, {"min_size": 0, "max_size": 6}])
async def test_an_on_connect_that_fails_on_one_server_leaves_the_others_to_serve(
    world: FakeCluster, open_pool: OpenPool, size: dict[str, int]
) -> None:
    """That server is never marked, so it stays the quietest: every opening would go there."""
    broken = str(world.servers[2].at)

    async def prepare(conn: ysactor.Connection) -> None:
        if str(conn.server) == broken:
            raise KeyError("mine")

    async with open_pool(on_connect=prepare, **size) as pool:
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(pool.fetchval, "SELECT pg_sleep(1)")
        assert sorted(pool.statistics().by_host.values()) == [3, 3]
        assert trio.current_time() < 1.5
        info = pool.cluster.info()
        assert info.failed == info.rejected == ()
        assert info.counts[broken] == info.pending[broken] == 0


async def test_a_password_function_that_fails_for_a_while_costs_no_server_its_connections(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """C65: the servers are well, and are used again as soon as there is a password."""
    well = True

    def password() -> str:
        if not well:
            raise ConnectionRefusedError("the token service is down")
        return ""

    async with open_pool(pool_size=6, password=password) as pool:
        await pool.ready(6)
        well = False
        for server in world.servers:
            server.kill_sessions()
        with pytest.raises(ysactor.ConnectFailed, match="the password function raised"):
            await pool.fetchval("SELECT 1")
        await trio.sleep(2)
        well = True
        await pool.ready(6, timeout=3)
        assert set(pool.statistics().by_host.values()) == {2}
        info = pool.cluster.info()
        assert info.failed == info.rejected == ()


async def test_a_full_server_is_not_stormed_for_each_connection_that_ends(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    full = world.servers[0]
    full.max_connections = 10
    full.slow(connect=0.05)
    async with open_pool(hosts=[str(full.at)], load_balance=False, pool_size=50) as pool:
        await pool.ready(10)
        await trio.sleep(10)
        for _ in range(5):
            before = len(world.journal.dials())
            victim = full.sessions[0].pid
            full.kill_sessions(lambda view, pid=victim: view.pid == pid)
            await trio.sleep(20)
            assert len(full.sessions) == 10
            # One every two seconds at most, and one more beside the one that got in.
            assert len(world.journal.dials()) - before <= 20


async def test_after_an_outage_a_pool_fills_up_within_a_few_round_trips(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    for server in world.servers:
        server.slow(connect=0.05)
    async with open_pool(pool_size=30) as pool:
        await pool.ready(30)
        for server in world.servers:
            server.crash()
        await trio.sleep(30)
        for server in world.servers:
            server.recover()
        await pool.ready(1)
        first = trio.current_time()
        await pool.ready(30)
        assert trio.current_time() - first < 0.3


async def test_an_on_connect_that_is_not_async_is_told_so_and_fails_no_server(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    def prepare(_conn: ysactor.Connection) -> None:
        pass

    async with open_pool(on_connect=prepare) as pool:
        with pytest.raises(ysactor.ConfigurationError) as caught:
            await pool.fetchval("SELECT 1")
        assert str(caught.value) == "on_connect: it must be an async function; this one returned NoneType"
        info = pool.cluster.info()
        assert info.failed == info.rejected == ()
        with pytest.raises(ysactor.ConfigurationError, match="must be an async function"):
            async with pool.cluster.connect():
                pass
        assert world.sessions == 0


async def test_on_connect_is_any_callable_that_returns_what_can_be_awaited(open_pool: OpenPool) -> None:
    seen: list[str] = []

    async def prepare(name: str, conn: ysactor.Connection) -> None:
        seen.append(name)
        await conn.execute("SET TimeZone = 'UTC'")

    class Prepares:
        async def __call__(self, conn: ysactor.Connection) -> None:
            await prepare("object", conn)

    for hook in (lambda conn: prepare("lambda", conn), partial(prepare, "partial"), Prepares()):
        async with open_pool(pool_size=1, on_connect=hook) as pool:
            assert await pool.fetchval("SELECT 1") == 1
    assert seen == ["lambda", "partial", "object"]


async def test_thirty_openings_at_once_are_spread_evenly(world: FakeCluster, open_pool: OpenPool) -> None:
    """C40."""
    async with open_pool(pool_size=30) as pool:
        await pool.ready(30)
        assert all(9 <= count <= 11 for count in pool.statistics().by_host.values())
        for server in world.servers:
            server.kill_sessions()
        await trio.sleep(1)
        await pool.ready(30)
        assert all(9 <= count <= 11 for count in pool.statistics().by_host.values())
        assert dict(pool.cluster.info().counts) == pool.statistics().by_host


async def test_counts_are_true_when_a_server_leaves_the_listing_and_returns(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """C42."""
    gone = world.servers[1]
    async with open_pool(pool_size=9, rebalance_interval=1, rebalance_batch=9) as pool:
        await pool.ready(9)
        conns = [await pool.checkout() for _ in range(9)]
        world.unlist(gone)
        await pool.cluster.refresh()
        await trio.sleep(2)
        assert pool.cluster.info().counts[str(gone.at)] == len(gone.sessions) == 3
        assert pool.statistics().draining == 3
        held = [conn for conn in conns if str(conn.server) == str(gone.at)]
        gone.kill_sessions(lambda view: view.pid == held[0].get_server_pid())
        await trio.sleep(0.1)
        assert pool.statistics().draining == 2
        for conn in conns:
            pool.checkin(conn)
        await trio.sleep(3)
        counts = pool.cluster.info().counts
        assert all(count >= 0 for count in counts.values())
        assert len(gone.sessions) == 0
        world.list(gone)
        await pool.cluster.refresh()
        await trio.sleep(10)
        for server in world.servers:
            assert pool.cluster.info().counts[str(server.at)] == len(server.sessions) == 3


async def test_one_connection_without_a_pool(world: FakeCluster) -> None:
    hosts = [str(server.at) for server in world.servers]
    async with ysactor.open_cluster(driver=FakeDriver(world), hosts=hosts, load_balance=True) as cluster:
        async with cluster.connect() as conn, cluster.connect() as other:
            assert await conn.fetchval("SELECT 1") == 1
            assert conn.server != other.server
            assert sum(cluster.info().counts.values()) == 2
        assert sum(cluster.info().counts.values()) == 0
        assert world.sessions == 0
        with pytest.raises(ysactor.LeaseEnded):
            await conn.fetchval("SELECT 1")
        with pytest.raises(ysactor.ConnectionLost):
            async with cluster.connect() as conn:
                world.server(str(conn.server)).kill_sessions()
                await trio.sleep(100)
        for server in world.servers:
            server.crash()
        with pytest.raises(ysactor.ConnectFailed):
            async with cluster.connect():
                pytest.fail("there is no server")


async def test_a_cluster_that_is_closed_says_so(world: FakeCluster) -> None:
    hosts = [str(server.at) for server in world.servers]
    async with ysactor.open_cluster(driver=FakeDriver(world), hosts=hosts, load_balance=True) as cluster:
        pass
    with pytest.raises(ysactor.PoolClosed):
        async with cluster.connect():
            pytest.fail("it is closed")
    with pytest.raises(ysactor.PoolClosed):
        await cluster.refresh()


async def test_a_single_connection_cancelled_at_any_moment_leaves_nothing(world: FakeCluster) -> None:
    hosts = [str(server.at) for server in world.servers]
    for server in world.servers:
        server.slow(connect=0.02, query=0.02)
    async with ysactor.open_cluster(driver=FakeDriver(world), hosts=hosts, load_balance=True) as cluster:
        await cluster.refresh()
        for step in range(40):
            with trio.move_on_after(step * 0.003):
                async with cluster.connect() as conn:
                    await conn.fetchval("SELECT pg_sleep(1)")
            await trio.sleep(0.1)
            assert world.sessions == 0
            assert sum(cluster.info().counts.values()) == sum(cluster.info().pending.values()) == 0


@pytest.mark.parametrize("limit", [0, 5])
async def test_ready_at_once_when_it_is(open_pool: OpenPool, limit: float) -> None:
    async with open_pool() as pool:
        await pool.ready(3)
        await pool.ready(3, timeout=limit)


@pytest.mark.parametrize("wrong", [{"timeout": -1}, {"timeout": float("nan")}, {"timeout": True}, {"connections": 1.5}])
async def test_ready_refuses_what_is_no_number(open_pool: OpenPool, wrong: dict[str, float]) -> None:
    async with open_pool() as pool:
        with pytest.raises(ysactor.ConfigurationError, match=next(iter(wrong))):
            await pool.ready(**wrong)  # type: ignore[arg-type]


async def test_on_connect_may_give_up_a_call_and_a_block(world: FakeCluster, open_pool: OpenPool) -> None:
    """What they leave is put right before the next call, and before the first holder."""

    async def prepare(conn: ysactor.Connection) -> None:
        with pytest.raises(TimeoutError):
            await conn.execute("SELECT pg_sleep(5)", timeout=0.1)
        assert await conn.fetchval("SELECT 1") == 1
        with trio.move_on_after(0.1):
            async with conn.transaction():
                await conn.execute("SELECT pg_sleep(5)")
        await conn.add_listener("news", print)

    async with open_pool(pool_size=1, on_connect=prepare) as pool:
        async with pool.acquire() as conn:
            assert trio.current_time() < 1
            assert not conn.is_in_transaction()
            assert await conn.fetchval("SELECT 1") == 1
            [session] = world.server(str(conn.server)).sessions
            assert session.channels == frozenset()
        assert pool.statistics().connections_closed == {}


async def test_a_connection_that_on_connect_leaves_in_a_transaction_is_nobodys(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    """Its first holder's statements would be rolled back without a word."""

    async def prepare(conn: ysactor.Connection) -> None:
        await conn.execute("BEGIN")

    async with open_pool(pool_size=1, on_connect=prepare) as pool:
        with pytest.raises(ysactor.ConnectFailed, match="inside a transaction"):
            await pool.execute("SELECT 1")
        assert pool.cluster.info().failed == pool.cluster.info().rejected == ()
        assert world.sessions == 0


async def test_a_driver_error_in_on_connect_that_is_not_the_servers_fails_that_connection_only(
    world: FakeCluster, open_pool: OpenPool
) -> None:
    async def prepare(_conn: ysactor.Connection) -> None:
        raise asyncpg.InterfaceError("the server expects 1 argument for this query, 0 were passed")

    async with open_pool(on_connect=prepare) as pool:
        with pytest.raises(ysactor.ConnectFailed, match="expects 1 argument"):
            await pool.fetchval("SELECT 1")
        assert pool.cluster.info().failed == pool.cluster.info().rejected == ()


@pytest.mark.parametrize("sql", ["SELECT 1", "SELECT pg_sleep(100)"])
async def test_a_single_connection_ends_with_its_cluster(world: FakeCluster, sql: str) -> None:
    hosts = [str(server.at) for server in world.servers]

    async def hold(cluster: Cluster) -> None:
        with pytest.raises(ysactor.PoolClosed):
            async with cluster.connect() as conn:
                await conn.execute(sql)
                await trio.sleep(100)

    async def knock(cluster: Cluster) -> None:
        with pytest.raises(ysactor.PoolClosed):
            async with cluster.connect():
                pytest.fail("it is not open yet")

    async with trio.open_nursery() as nursery:
        async with ysactor.open_cluster(driver=FakeDriver(world), hosts=hosts, load_balance=True) as cluster:
            nursery.start_soon(hold, cluster)
            await trio.sleep(1)
            for server in world.servers:
                server.slow(connect=5)
            nursery.start_soon(knock, cluster)
            await trio.sleep(1)
        assert world.sessions == 0
    assert trio.current_time() <= 4


@pytest.mark.parametrize("met", ["loss", "error"])
async def test_what_on_connect_meets_elsewhere_is_no_fault_of_the_server(
    world: FakeCluster, open_pool: OpenPool, met: str
) -> None:
    """It asks another database, whose errors look like those of this one."""
    other = FakeCluster.of(1)
    asked = trio.Event()

    async def slow(_: Statement) -> None:
        asked.set()
        await trio.sleep(10)

    other.answer("CONFIG", slow if met == "loss" else error("53200", "out of memory"))
    async with ysactor.open_pool(hosts=str(other.servers[0].at), driver=FakeDriver(other), pool_size=1) as settings:

        async def prepare(_: ysactor.Connection) -> None:
            await settings.fetchval("CONFIG")

        hosts = str(world.servers[0].at)
        async with open_pool(pool_size=1, on_connect=prepare, hosts=hosts, load_balance=False) as pool:
            if met == "loss":
                await asked.wait()
                other.servers[0].kill_sessions(lambda _: True)
            with pytest.raises(ysactor.ConnectFailed, match="on_connect raised"):
                await pool.fetchval("SELECT 1")
            info = pool.cluster.info()
            assert (info.failed, info.rejected) == ((), ())


async def test_a_pool_is_not_closed_in_its_own_on_connect(open_pool: OpenPool) -> None:
    pools: list[ysactor.Pool] = []

    async def prepare(_: ysactor.Connection) -> None:
        await pools[0].aclose()

    async with open_pool(pool_size=1, on_connect=prepare) as pool:
        pools.append(pool)
        with trio.fail_after(60), pytest.raises(ysactor.ConnectFailed, match="its own on_connect"):
            await pool.fetchval("SELECT 1")


async def test_on_connect_and_password_functions_are_interrupted_at_once(open_pool: OpenPool) -> None:
    seen: list[bool] = []

    def password() -> str:
        seen.append(trio.lowlevel.currently_ki_protected())
        return "secret"

    async def prepare(_: ysactor.Connection) -> None:
        seen.append(trio.lowlevel.currently_ki_protected())

    async with open_pool(pool_size=1, on_connect=prepare, password=password) as pool:
        await pool.fetchval("SELECT 1")
    assert seen
    assert not any(seen)


@pytest.mark.parametrize(
    ("sqlstate", "marked"), [("22012", False), ("42601", False), ("55P03", False), ("53200", True), ("57P03", True)]
)
async def test_an_sql_error_in_on_connect_tells_of_its_server_only_where_that_cannot_serve(
    world: FakeCluster, open_pool: OpenPool, sqlstate: str, marked: bool
) -> None:
    async def on_connect(conn: ysactor.Connection) -> None:
        await conn.execute("SELECT set_up")

    world.answer("SELECT set_up", error(sqlstate, "the message"))
    async with open_pool(pool_size=1, on_connect=on_connect) as pool:
        with pytest.raises(ysactor.ConnectFailed, match="the message") as caught:
            await pool.fetchval("SELECT 1")
        info = pool.cluster.info()
        assert bool(info.failed or info.rejected) is marked
        assert ("on_connect raised" in str(caught.value)) is not marked
