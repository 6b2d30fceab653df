"""Transactions while everything around them breaks: what was reported, and what is there afterwards."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import asyncpg
import pytest
import trio

import ysactor
from integration.scenario import Case, Transport, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import PostgresServer, Replicated, SharedData, ThreeZones
from ysactor.testing.proxy import FaultProxy, open_fault_proxy

pytestmark = watched


class Book:
    """What was tried, and what the caller was told about each."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.done: set[int] = set()
        self.unknown: set[int] = set()
        self.failed: dict[int, Exception] = {}
        self.done_at: list[float] = []

    async def enter(self, pool: ysactor.Pool, fn: Callable[..., object], *args: object) -> None:
        number = next(self.numbers)
        try:
            await pool.transaction(fn, number, *args, attempts=5, max_backoff=0.02)  # type: ignore[arg-type]
        except ysactor.CommitOutcomeUnknown:
            self.unknown.add(number)
        except Exception as error:  # what it is, the test checks
            self.failed[number] = error
        else:
            self.done.add(number)
            self.done_at.append(trio.current_time())

    async def more(self, number: int, what: str) -> None:
        """Wait until so many more are done."""
        done = len(self.done)
        await until(lambda: len(self.done) > done + number, what)

    def check(self, there: Counter[int]) -> None:
        """Done: once. Unknown: once or not at all. Everything else: not at all."""
        missing = [number for number in self.done if there[number] != 1]
        assert not missing, f"reported as done, but not there once: {missing}"
        wrong = [number for number in self.failed if there[number]]
        assert not wrong, f"reported as failed, but there: {wrong}"
        assert all(there[number] <= 1 for number in self.unknown)
        assert not set(there) - self.done - self.unknown - set(self.failed)
        others = {type(error) for error in self.failed.values()}
        known = {ysactor.ConnectionLost, ysactor.ConnectFailed, ysactor.CheckoutTimeout, ysactor.NoNodeAvailable}
        assert others <= known, self.failed


def entries(servers: list[PostgresServer]) -> Counter[int]:
    return Counter(int(number or 0) for server in servers for (number,) in server.sql("select number from entries"))


BANK = (
    "create table accounts(id int primary key, balance int not null)",
    "insert into accounts select n, 1000 from generate_series(1, 10) n",
    "create table entries(number int not null)",
)


async def transfer(conn: ysactor.Connection, number: int, source: int, target: int, amount: int) -> None:
    await conn.execute("INSERT INTO entries VALUES ($1)", number)
    # In one order always: deadlocks are not what is looked for here.
    for account, change in sorted([(source, -amount), (target, amount)]):
        await conn.execute("UPDATE accounts SET balance = balance + $2 WHERE id = $1", account, change)


async def write(conn: ysactor.Connection, number: int) -> None:
    await conn.execute("INSERT INTO entries VALUES ($1)", number)


def _has_cut(proxy: FaultProxy, before: int) -> bool:
    return proxy.commits_cut > before


@on_both_transports
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_bank_whose_commits_are_cut_keeps_its_books(
    shared_data: SharedData, transport: Transport, seed: int
) -> None:
    """Commits are cut before the server sees them and after it has answered; sessions are reset; a server goes down."""
    bed = shared_data
    rng = random.Random(seed)
    bed.server.sql(*BANK)
    book = Book()
    async with open_case(
        bed, transport, load_balance=True, pool_size=9, rebalance_interval=0.05, failed_host_reconnect_delay_secs=0
    ) as case:
        pool = case.pool
        await pool.ready(9)
        stop = trio.Event()

        async def teller() -> None:
            while not stop.is_set():
                source, target = rng.sample(range(1, 11), 2)
                await book.enter(pool, transfer, source, target, rng.randrange(1, 50))

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(teller)
            for step in range(40):
                proxy = bed.proxies[step % 3]
                if step == 19:
                    await bed.kill(1)
                elif step == 28:
                    await bed.start(1)
                    await pool.cluster.refresh()
                elif step % 6 == 5 and proxy.live:
                    rng.choice(proxy.live).reset()
                elif proxy.mode == "pass":
                    before = proxy.commits_cut
                    proxy.cut_next_commit(rng.choice(["before", "after"]))
                    await until(partial(_has_cut, proxy, before), "a commit is cut")
                await trio.sleep(0.005)
            stop.set()
        await case.at_rest()
        cut = sum(proxy.commits_cut for proxy in bed.proxies)
        assert cut > 15
        assert len(book.done) > 30
        # Every commit that was cut is unknown to its caller, whichever way it was cut.
        assert len(book.unknown) >= cut
        there = entries([bed.server])
        book.check(there)
        outcomes = {there[number] for number in book.unknown}
        assert outcomes == {0, 1}, "both have happened, and the caller could not tell"
        assert bed.server.value("select sum(balance) from accounts") == "10000"
        s = pool.statistics()
        assert s.transactions_committed == len(book.done)
        assert s.commits_unknown == len(book.unknown)


@on_both_transports
async def test_a_commit_sent_by_hand_is_reported_as_unknown_as_well(
    shared_data: SharedData, transport: Transport
) -> None:
    bed = shared_data
    bed.server.sql(*BANK)
    async with open_case(bed, transport, dsn=bed.dsn(0), pool_size=1) as case:
        for when, number in (("before", 1), ("after", 2)):
            async with case.pool.acquire() as conn:
                await conn.execute("BEGIN")
                await write(conn, number)
                bed.proxies[0].cut_next_commit(when)  # type: ignore[arg-type]
                with pytest.raises(ysactor.CommitOutcomeUnknown):
                    await conn.execute("COMMIT")
                assert conn.is_closed()
                with pytest.raises(ysactor.CommitOutcomeUnknown):
                    await conn.fetchval("SELECT 1")  # nothing milder, which somebody might run the whole again for
        assert entries([bed.server]) == Counter([2])


@on_both_transports
@pytest.mark.parametrize("victim", range(3))
async def test_a_server_that_is_killed_in_the_middle_has_what_was_reported_when_it_is_back(
    three_zones: ThreeZones, transport: Transport, victim: int
) -> None:
    """Each server has its own rows; what was lost with one before COMMIT is run again on another."""
    bed = three_zones
    name = str(bed.members[victim])
    for server in bed.servers:
        server.sql("create table entries(number int not null)")
    book = Book()
    async with open_case(
        bed,
        transport,
        load_balance=True,
        pool_size=9,
        rebalance_interval=0.05,
        failed_host_reconnect_delay_secs=0,
        # A killed server keeps what it had answered for.
        server_settings={"synchronous_commit": "on"},
    ) as case:
        pool = case.pool
        await pool.ready(9)
        stop = trio.Event()

        async def teller() -> None:
            while not stop.is_set():
                await book.enter(pool, write)

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(teller)
            for _ in range(2):
                await book.more(100, "they work")
                await bed.kill(victim)
                await book.more(100, "they work without it")
                await bed.start(victim)
                await pool.cluster.refresh()
                await until(lambda: pool.statistics().by_host.get(name, 0) >= 2, "it has connections again")
            stop.set()
        await case.at_rest()
        book.check(entries(bed.servers))
        # Nobody had to be told of a failure: there was always another server to run it again on.
        assert not book.failed
        assert len(book.unknown) <= 6
        assert pool.statistics().transactions_retried > 0 or book.unknown


class Writers:
    """Ten callers who write without a pause, each its own rows."""

    def __init__(self, case: Case, book: Book) -> None:
        self.case = case
        self.book = book
        self.stop = trio.Event()

    async def one(self) -> None:
        while not self.stop.is_set():
            await self.book.enter(self.case.pool, write)
            await trio.sleep(0.001)


@on_both_transports
async def test_writes_go_on_on_the_standby_that_is_promoted(replicated: Replicated, transport: Transport) -> None:
    """The primary is killed under load, standby 1 promoted. What was reported as done is on the new primary."""
    bed = replicated
    bed.servers[0].sql("create table entries(number int not null)")
    # So that nothing which was answered for is lost with the primary.
    bed.synchronous(0, 2)
    book = Book()
    async with open_case(
        bed,
        transport,
        pool_size=5,
        target_session_attrs="read-write",
        failed_host_reconnect_delay_secs=0,
        rebalance_interval=0.1,
    ) as case:
        pool = case.pool
        writers = Writers(case, book)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(writers.one)
            await book.more(50, "they write")
            assert pool.statistics().by_host == {str(bed.members[0]): 5}
            await bed.kill(0)
            killed = trio.current_time()
            await trio.to_thread.run_sync(bed.fail_over, 1)
            promoted = trio.current_time()
            await book.more(50, "they write on the new primary")
            first = next(when for when in book.done_at if when > killed)
            print("write_gap_s", round(first - killed, 3))  # shown by -rP
            # A pool that could open nothing knocks again every 2.2 seconds at most.
            assert first - promoted < 3.5
            writers.stop.set()
        await case.at_rest()
        assert pool.statistics().by_host == {str(bed.members[1]): 5}
        info = pool.cluster.info()
        assert [str(one) for one in info.failed] == [str(bed.members[0])]
        book.check(entries([bed.servers[1]]))

        # The old primary comes back as a standby; nothing moves there.
        await trio.to_thread.run_sync(bed.rejoin, 0, 1)
        await pool.cluster.refresh()
        await until(
            lambda: str(bed.members[0]) in map(str, pool.cluster.info().read_only), "it is known to be a standby"
        )
        assert not await pool.fetchval("SELECT pg_is_in_recovery()")
        assert pool.statistics().by_host == {str(bed.members[1]): 5}


async def promote_and_fence(bed: Replicated) -> None:
    """Standby 1 takes over, and the old primary refuses every write, its sessions alive."""
    await trio.to_thread.run_sync(bed.servers[1].promote)
    bed.servers[0].sql("alter system set default_transaction_read_only = on", "select pg_reload_conf()")
    await until(lambda: bed.servers[0].value("show transaction_read_only") == "on", "the old primary is fenced")


@on_both_transports
async def test_an_old_primary_that_is_fenced_by_its_settings_is_left_for_the_promoted_standby(
    replicated: Replicated, transport: Transport
) -> None:
    """C32: it is no standby, and refuses every write all the same."""
    bed = replicated
    bed.servers[0].sql("create table entries(number int not null)")
    await trio.to_thread.run_sync(bed.catch_up, 0)
    await promote_and_fence(bed)
    async with open_case(
        bed,
        transport,
        rest=False,
        dsn=bed.dsn(0, 1),
        pool_size=2,
        target_session_attrs="read-write",
        failed_host_reconnect_delay_secs=0,
        rebalance_interval=0.1,
    ) as case:
        pool = case.pool
        await pool.transaction(write, 1)
        info = pool.cluster.info()
        assert ([str(one) for one in info.read_only], info.failed) == ([str(bed.members[0])], ())

        await pool.cluster.refresh()  # its probe asks the same question
        assert [str(one) for one in pool.cluster.info().read_only] == [str(bed.members[0])]
        await pool.ready(2)
        assert pool.statistics().by_host == {str(bed.members[1]): 2}
    assert entries([bed.servers[1]]) == Counter([1])


@on_both_transports
async def test_an_old_primary_whose_sessions_live_on_is_left_at_the_first_write_it_refuses(
    replicated: Replicated, transport: Transport
) -> None:
    """C32: nothing is lost, so nothing but the refusal tells."""
    bed = replicated
    old, new = (str(member) for member in bed.members[:2])
    bed.servers[0].sql("create table entries(number int not null)")
    await trio.to_thread.run_sync(bed.catch_up, 0)
    async with open_case(
        bed, transport, dsn=bed.dsn(0, 1), pool_size=4, target_session_attrs="read-write", rebalance_interval=3600
    ) as case:
        pool = case.pool
        await pool.ready(4)
        assert pool.statistics().by_host == {old: 4}
        await promote_and_fence(bed)
        refused = 0

        async def written() -> bool:
            nonlocal refused
            try:
                await pool.transaction(write, 1)
            except asyncpg.ReadOnlySQLTransactionError:
                refused += 1
                return False
            return True

        await until(written, "a write is accepted")
        await until(lambda: pool.statistics().by_host == {new: 4}, "all have moved")
        assert await written()
        assert pool.statistics().connections_closed == {"read_only": 4}
        assert 1 <= refused < 30
    assert entries([bed.servers[1]]) == Counter([1, 1])


@on_both_transports
async def test_one_address_that_leads_to_the_new_primary_costs_one_refused_write(
    replicated: Replicated, transport: Transport
) -> None:
    """C32: behind a relay, or a name that moves, a probe of the address says nothing of the sessions that are there."""
    bed = replicated
    old, new = bed.servers[:2]
    old.sql("create table entries(number int not null)")
    await trio.to_thread.run_sync(bed.catch_up, 0)
    async with (
        open_fault_proxy((old.host, old.port)) as relay,
        ysactor.open_pool(
            f"postgresql://yugabyte@{relay.address[0]}:{relay.address[1]}/yugabyte",
            driver=transport,
            pool_size=4,
            target_session_attrs="read-write",
            rebalance_interval=3600,
        ) as pool,
    ):
        await pool.ready(4)
        held = await pool.checkout()
        relay.upstream = (new.host, new.port)
        await promote_and_fence(bed)
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await pool.transaction(write, 1)
        await until(
            lambda: pool.statistics().connections_closed == {"read_only": 3}, "those that nobody holds have moved"
        )
        await pool.transaction(write, 2)
        pool.checkin(held)
        await until(lambda: pool.statistics().connections_closed == {"read_only": 4}, "the last has moved")
        for number in range(3, 9):
            await pool.transaction(write, number)
    assert entries([new]) == Counter(range(2, 9))


@on_both_transports
async def test_a_commit_that_is_given_up_leaves_no_session_behind(replicated: Replicated, transport: Transport) -> None:
    """The synchronous standby is gone: each COMMIT waits for it, and each caller is cancelled."""
    bed = replicated
    bed.servers[0].sql("create table entries(number int not null)")
    await trio.to_thread.run_sync(bed.catch_up, 0)
    await trio.to_thread.run_sync(bed.synchronous, 0, 1)
    unknown = 0

    async def give_up(pool: ysactor.Pool, number: int) -> None:
        nonlocal unknown
        try:
            with trio.move_on_after(0.2):
                await pool.transaction(write, number)
        except ysactor.CommitOutcomeUnknown:
            unknown += 1

    async with open_case(bed, transport, dsn=bed.dsn(0), pool_size=3) as case:
        await case.pool.ready(3)
        standbys = range(1, len(bed.servers))
        for standby in standbys:
            await bed.freeze(standby)
        try:
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(give_up, case.pool, number)
            assert unknown == 3
            await case.pool.ready(3)

            async def as_many_as_the_pool() -> bool:
                return await case.truth.count() == 3

            await until(as_many_as_the_pool, "the sessions that were given up have ended")
        finally:
            for standby in standbys:
                await bed.thaw(standby)
        assert case.pool.statistics().commits_unknown == 3


@on_both_transports
async def test_a_user_who_makes_every_session_read_only_and_asks_for_read_write_gets_none(
    three_zones: ThreeZones, transport: Transport
) -> None:
    async with open_case(
        three_zones,
        transport,
        rest=False,
        pool_size=1,
        target_session_attrs="read-write",
        server_settings={"default_transaction_read_only": "on"},
    ) as case:
        with pytest.raises(ysactor.ConnectFailed, match="default_transaction_read_only is on") as caught:
            await case.pool.fetch("SELECT 1")
        assert caught.value.kind == "read_only"
        assert len(case.pool.cluster.info().read_only) == 3


async def test_two_primaries_are_not_told_apart_and_the_order_of_the_hosts_decides(replicated: Replicated) -> None:
    """Split brain: the old primary comes back as if nothing had happened, and accepts writes as the new one does.

    No client can know which of the two is right. The pool goes by the rule for hosts in order: once a probe has found
    the first one in working order, connections return to it. To keep an old primary from coming back (to fence it) is
    the operator's business, as it is with libpq's and JDBC's lists of hosts.
    """
    bed = replicated
    bed.servers[0].sql("create table entries(number int not null)")
    bed.synchronous(0, 2)
    async with open_case(
        bed, pool_size=3, target_session_attrs="read-write", failed_host_reconnect_delay_secs=0, rebalance_interval=0.1
    ) as case:
        pool = case.pool
        await pool.transaction(write, 1)
        await bed.kill(0)
        await trio.to_thread.run_sync(bed.servers[1].promote)
        await pool.ready(3, timeout=5)
        await pool.transaction(write, 2)
        assert pool.statistics().by_host == {str(bed.members[1]): 3}

        bed.servers[0].settings.pop("synchronous_standby_names")
        await bed.start(0)
        await pool.cluster.refresh()
        await until(
            lambda: pool.statistics().by_host == {str(bed.members[0]): 3},
            lambda: f"the first host has the connections again: {pool.statistics().by_host}",
        )
        await pool.transaction(write, 3)
    assert entries([bed.servers[0]]) == Counter([1, 3])
    assert entries([bed.servers[1]]) == Counter([1, 2])


@on_both_transports
async def test_a_standby_alone_is_refused_for_writing_and_the_reason_is_given(
    replicated: Replicated, transport: Transport
) -> None:
    bed = replicated
    async with open_case(
        bed,
        transport,
        rest=False,
        dsn=bed.dsn(1, 2),
        pool_size=2,
        target_session_attrs="read-write",
        failed_host_reconnect_delay_secs=0,
    ) as case:
        pool = case.pool
        with pytest.raises(ysactor.ConnectFailed) as caught:
            await pool.fetch("SELECT 1")
        assert caught.value.kind == "read_only"
        assert not pool.statistics().by_host
        await until(lambda: len(pool.cluster.info().read_only) == 2, "both are known as standbys")
        await trio.to_thread.run_sync(bed.servers[2].promote)
        await pool.ready(2, timeout=5)
        await until(lambda: pool.statistics().by_host == {str(bed.members[2]): 2}, "the one that was promoted is used")
        assert not await pool.fetchval("SELECT pg_is_in_recovery()")
