"""The ledger's rules: tables for each, and a state machine that tries every order of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from trio.testing import wait_all_tasks_blocked

from ysactor.actor import Ref
from ysactor.connection.messages import ConnectionMessage
from ysactor.connection.record import Place, Record
from ysactor.driver.protocol import Status
from ysactor.pool.ledger import Ledger


class Session:
    """As much of a session as the ledger asks for."""

    def __init__(self) -> None:
        self.status = Status.IDLE
        self.forgotten: list[bool] = []
        """For each time that it was told to forget its statements, whether types too."""
        self.on_outdated: list[Callable[[bool], None]] = []

    def forget_statements(self, *, types: bool = False) -> None:
        self.forgotten.append(types)

    def meet(self, types: bool) -> None:
        """A call meets what is from before the schema changed."""
        for tell in self.on_outdated:
            tell(types)

    def is_clean(self) -> bool:
        return self.status is Status.IDLE


def no_mailbox() -> Ref[ConnectionMessage]:
    return cast("Ref[ConnectionMessage]", None)


class Bench:
    """A ledger, and what it has had closed."""

    def __init__(self, min_size: int = 3, max_size: int = 3) -> None:
        self.closed: list[tuple[int, str]] = []
        self.ledger = Ledger(min_size=min_size, max_size=max_size, close=self.close)
        self.numbers = 0

    def close(self, record: Record, reason: str) -> None:
        self.closed.append((record.number, reason))

    def open(self, now: float = 0.0, expires: float | None = None) -> Record:
        self.numbers += 1
        record = Record(self.numbers, no_mailbox())
        self.ledger.opening(record)
        record.session = cast("Any", Session())
        record.expires = expires
        self.ledger.opened(record, now)
        return record


def session_of(record: Record) -> Session:
    return cast("Session", record.session)


def test_a_fixed_pool_takes_the_one_that_has_rested_longest() -> None:
    bench = Bench()
    first, second, third = bench.open(), bench.open(), bench.open()

    taken = [bench.ledger.take(0), bench.ledger.take(0), bench.ledger.take(0), bench.ledger.take(0)]

    assert taken == [first, second, third, None]


def test_a_schema_that_one_finds_changed_is_forgotten_by_all_others_whoever_has_them() -> None:
    bench = Bench()
    records = [bench.open() for _ in range(3)]
    assert bench.ledger.take(0) is records[0]
    assert bench.ledger.take(0) is records[1]

    session_of(records[0]).meet(False)
    session_of(records[0]).meet(True)

    assert [session_of(record).forgotten for record in records] == [[], [False, True], [False, True]]
    assert (bench.ledger.leased, bench.ledger.idle, bench.closed) == (2, 1, [])


def test_one_whose_opening_began_before_the_schema_changed_forgets_what_it_prepared_and_a_later_one_does_not() -> None:
    bench = Bench()
    first = bench.open()
    slow, failed = Record(8, no_mailbox()), Record(9, no_mailbox())
    bench.ledger.opening(slow)
    bench.ledger.opening(failed)

    session_of(first).meet(False)
    slow.session = cast("Any", Session())
    bench.ledger.opened(slow, 0)
    bench.ledger.gone(failed.number)
    later = bench.open()

    assert [session_of(record).forgotten for record in (first, slow, later)] == [[], [True], []]


def test_one_that_died_before_it_was_heard_to_be_open_is_nobodys() -> None:
    bench = Bench()
    record = Record(9, no_mailbox())
    bench.ledger.opening(record)
    record.session = cast("Any", Session())
    record.end("closed by the server")

    bench.ledger.opened(record, 0)

    assert bench.closed == [(9, "lost")]
    assert (bench.ledger.idle, bench.ledger.leased, bench.ledger.take(0)) == (0, 0, None)


def test_an_elastic_pool_takes_the_one_that_was_used_last() -> None:
    bench = Bench(min_size=0, max_size=3)
    first, second = bench.open(), bench.open()

    assert bench.ledger.take(0) is second
    assert bench.ledger.take(0) is first


def test_what_comes_back_late_names_an_older_lease_and_is_ignored() -> None:
    bench = Bench()
    record = bench.open()
    assert bench.ledger.take(0) is record
    old = record.lease
    bench.ledger.give_back(record, old, 0)
    assert bench.ledger.take(0) is record

    bench.ledger.give_back(record, old, 0)
    bench.ledger.discard(record, old)

    assert record.place is Place.LEASED
    assert bench.closed == []


def test_one_that_comes_back_in_a_transaction_is_closed() -> None:
    bench = Bench()
    record = bench.open()
    bench.ledger.take(0)
    session_of(record).status = Status.IN_TRANSACTION

    bench.ledger.give_back(record, record.lease, 0)

    assert bench.closed == [(record.number, "in_transaction")]
    assert record.place is Place.CLOSING


def test_one_that_died_while_idle_is_never_handed_out() -> None:
    bench = Bench()
    dead, alive = bench.open(), bench.open()
    session_of(dead).status = Status.CLOSED

    assert bench.ledger.take(0) is alive
    assert bench.closed == [(dead.number, "lost")]


def test_an_expired_one_closes_when_a_checkout_meets_it_and_when_it_comes_back() -> None:
    bench = Bench()
    idle, leased = bench.open(expires=10), bench.open(expires=20)

    assert bench.ledger.take(10) is leased
    assert bench.closed == [(idle.number, "expired")]
    bench.ledger.give_back(leased, leased.lease, 20)
    assert bench.closed[1:] == [(leased.number, "expired")]


def test_a_marked_one_closes_when_it_comes_back() -> None:
    bench = Bench()
    record = bench.open()
    bench.ledger.take(0)
    record.marked = "rebalanced"

    bench.ledger.give_back(record, record.lease, 0)

    assert bench.closed == [(record.number, "rebalanced")]


def test_one_that_is_being_settled_goes_on_when_it_has_been() -> None:
    bench = Bench()
    record = bench.open()
    bench.ledger.take(0)
    session_of(record).status = Status.ABANDONED
    record.gate = trio.Event()
    bench.ledger.give_back(record, record.lease, 0)
    assert record.settling
    assert bench.ledger.take(0) is None

    session_of(record).status = Status.IDLE
    record.gate = None
    bench.ledger.settled(record, 0)

    assert bench.ledger.take(0) is record


def test_what_is_missing_is_bounded_by_the_sockets_that_are_not_gone_yet() -> None:
    bench = Bench()
    records = [bench.open() for _ in range(3)]
    bench.ledger.close_idle(records[0].number, "idle")
    assert bench.ledger.missing() == 0

    bench.ledger.gone(records[0].number)

    assert bench.ledger.missing() == 1


def test_an_elastic_pool_shrinks_to_its_minimum_and_says_when_to_look_again() -> None:
    bench = Bench(min_size=1, max_size=4)
    for now in (0, 1, 2):
        bench.open(now=now)

    assert bench.ledger.shrink(10, idle_timeout=10) == 11
    assert bench.closed == [(1, "idle")]
    assert bench.ledger.shrink(50, idle_timeout=10) is None
    assert bench.closed == [(1, "idle"), (2, "idle")]


async def test_the_longest_waiting_caller_is_served_first_and_nobody_is_lost_to_a_cancellation() -> None:
    bench = Bench()
    got: list[tuple[str, object]] = []
    scopes: dict[str, trio.CancelScope] = {}

    async def wait(name: str) -> None:
        with trio.CancelScope() as scopes[name]:
            got.append((name, await bench.ledger.line.wait()))

    async with trio.open_nursery() as nursery:
        for name in ("first", "second", "third"):
            nursery.start_soon(wait, name)
            await wait_all_tasks_blocked()
        assert bench.ledger.waiting == 3
        scopes["first"].cancel()
        await wait_all_tasks_blocked()

        record = bench.open()
        scopes["second"].cancel()
        await wait_all_tasks_blocked()
        assert got == [("second", record)], "who was handed one has it, though cancelled in the same pass"
        assert record.place is Place.LEASED
        bench.ledger.give_back(record, record.lease, 0)
        await wait_all_tasks_blocked()
        assert got[1:] == [("third", record)]


async def test_the_line_is_refused_to_the_last() -> None:
    bench = Bench()
    errors: list[object] = []

    async def wait() -> None:
        errors.append(await bench.ledger.line.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert bench.ledger.refuse_line(lambda: ValueError("no")) == 2
    assert [str(error) for error in errors] == ["no", "no"]
    assert errors[0] is not errors[1]


class LedgerMachine(RuleBasedStateMachine):
    """Every order of openings, checkouts, give-backs, deaths, marks and time."""

    connections = Bundle("connections")
    leases = Bundle("leases")

    @initialize(sizes=st.sampled_from([(3, 3), (0, 4), (2, 5)]))
    def start(self, sizes: tuple[int, int]) -> None:
        self.bench = Bench(*sizes)
        self.max_size = sizes[1]
        self.now = 0.0

    @rule(target=connections, life=st.none() | st.floats(1, 50))
    def open(self, life: float | None) -> Record:
        if self.bench.ledger.sockets >= self.max_size:
            return Record(0, no_mailbox())
        return self.bench.open(self.now, None if life is None else self.now + life)

    @rule(target=leases)
    def take(self) -> tuple[Record, int]:
        record = self.bench.ledger.take(self.now)
        if record is None:
            return Record(0, no_mailbox()), 0
        assert session_of(record).is_clean()
        assert record.expires is None or record.expires > self.now
        return record, record.lease

    @rule(lease=leases, status=st.sampled_from(Status))
    def give_back(self, lease: tuple[Record, int], status: Status) -> None:
        record, number = lease
        if record.number and record.lease == number and record.place is Place.LEASED and not record.settling:
            session_of(record).status = status
            if status is Status.ABANDONED:
                record.gate = trio.Event()
        self.bench.ledger.give_back(record, number, self.now)

    @rule(lease=leases)
    def discard(self, lease: tuple[Record, int]) -> None:
        self.bench.ledger.discard(*lease)

    @rule(record=connections, clean=st.booleans())
    def settle(self, record: Record, clean: bool) -> None:
        if record.settling:
            record.gate = None
            session_of(record).status = Status.IDLE if clean else Status.IN_TRANSACTION
        self.bench.ledger.settled(record, self.now)

    @rule(record=consumes(connections))
    def die(self, record: Record) -> None:
        if record.session is not None:
            session_of(record).status = Status.CLOSED
        self.bench.ledger.gone(record.number)
        assert record.place in (Place.GONE, Place.OPENING)

    @rule(record=connections, marked=st.booleans())
    def mark(self, record: Record, marked: bool) -> None:
        record.marked = marked

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.bench.ledger.close_expired(self.now)

    @invariant()
    def every_connection_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "bench"):
            return
        ledger = self.bench.ledger
        places = [record.place for record in ledger]
        assert ledger.idle == places.count(Place.IDLE)
        assert ledger.leased == places.count(Place.LEASED)
        assert ledger.opening_count == places.count(Place.OPENING)
        assert ledger.closing == places.count(Place.CLOSING)
        assert ledger.sockets == len(places) <= self.max_size
        assert Place.GONE not in places

    @invariant()
    def one_is_closed_once(self) -> None:
        if hasattr(self, "bench"):
            numbers = [number for number, _ in self.bench.closed]
            assert len(numbers) == len(set(numbers))


TestLedgerMachine: Callable[..., Any] = LedgerMachine.TestCase
LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
