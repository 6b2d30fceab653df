"""The cluster's state by itself: what each event asks for, at exact times."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ysactor.cluster.effects import (
    ArmNotice,
    ArmRefresh,
    Effects,
    Log,
    RefreshEnded,
    StartDiscovery,
    StartProbe,
    StopProbe,
)
from ysactor.cluster.messages import Failure, Listing, NoListing, NotYugabyte, Nowhere, Reservation
from ysactor.cluster.state import ClusterState
from ysactor.config import Config, LoadBalance, TopologyKey
from ysactor.policy.addresses import Choice
from ysactor.servers import HostPort, Kind, Server

SEED = HostPort("seed", 5433)
A, B, C = (Server(f"10.0.0.{n}", 5433, "c", "r", f"z{n}") for n in (1, 2, 3))
REFUSED = Failure(Kind.UNREACHABLE, ConnectionRefusedError(), "connection refused")
STARTING = Failure(Kind.REJECTED, Exception(), "starting up")


def state(**options: Any) -> ClusterState:
    return ClusterState(Config(**{"hosts": (SEED,), "load_balance": LoadBalance.ANY, **options}))


def listing(*servers: Server) -> Listing:
    return Listing(SEED, servers, Choice())


def discovered(*servers: Server, **options: Any) -> ClusterState:
    """At time 0: these servers are known."""
    world = state(**options)
    world.start(0)
    world.discovery_ended(listing(*servers), 0)
    return world


def kinds(effects: Effects) -> list[type]:
    return [type(effect) for effect in effects]


def place(world: ClusterState, now: float = 0, tried: frozenset[HostPort] = frozenset()) -> Reservation:
    reservation, _ = world.place(tried, now, lambda tied: tied[0])
    assert isinstance(reservation, Reservation)
    return reservation


def fail(world: ClusterState, at: HostPort, now: float, failure: Failure = REFUSED) -> Effects:
    """A connection to this server fails, wherever placement would send it."""
    tried = frozenset(server.at for server in (A, B, C)) | {SEED}
    return world.open_failed(place(world, now, tried - {at}), failure, now)


# Start and refreshes


def test_with_something_to_discover_connections_wait_for_the_first_discovery_to_end_either_way() -> None:
    world = state()

    assert world.start(0) == (StartDiscovery((SEED,), (), Choice()),)
    assert not world.ready

    world.discovery_ended(NoListing("refused"), 3)
    assert world.ready


def test_with_balancing_off_nothing_is_waited_for_and_only_the_timer_is_set() -> None:
    world = state(load_balance=LoadBalance.OFF)

    assert world.ready
    assert world.start(0) == (ArmRefresh(1, 300),)


def test_the_timer_is_set_for_the_full_interval_when_a_discovery_ends_even_a_failed_one() -> None:
    world = state(yb_servers_refresh_interval=60)
    world.start(0)

    assert world.discovery_ended(NoListing("refused"), 30)[-1] == ArmRefresh(1, 60)


def test_a_timer_that_was_replaced_is_ignored() -> None:
    world = state(load_balance=LoadBalance.OFF)
    world.start(0)
    world.refresh_asked(5)

    assert world.refresh_due(1, 300) == ()
    assert kinds(world.refresh_due(2, 305)) == [ArmRefresh]


def test_an_interval_of_zero_sets_no_timer() -> None:
    world = state(yb_servers_refresh_interval=0)
    world.start(0)

    assert world.discovery_ended(listing(A), 1) == ()


@pytest.mark.parametrize(("now", "starts"), [(0.0, False), (0.999, False), (1.0, True), (7.0, True)])
def test_trap_7_a_failure_starts_a_refresh_unless_one_started_within_the_last_second(now: float, starts: bool) -> None:
    world = discovered(A, B)

    effects = fail(world, A.at, now)

    assert (StartDiscovery in kinds(effects)) is starts


def test_trap_7_what_fails_half_a_second_after_another_failure_brings_nothing_forward() -> None:
    world = discovered(A, B)
    assert StartDiscovery in kinds(fail(world, A.at, 10))
    world.discovery_ended(listing(A, B), 10.1)

    assert StartDiscovery not in kinds(fail(world, B.at, 10.5))
    assert world.refresh_due(99, 11.5) == ()  # and none follows later


def test_trap_7_start_up_counts_as_a_refresh_where_there_is_nothing_to_discover() -> None:
    world = state(load_balance=LoadBalance.OFF, failed_host_reconnect_delay_secs=0)
    world.start(0)

    assert StartProbe not in kinds(world.open_failed(place(world), REFUSED, 0.9))
    assert StartProbe in kinds(world.open_failed(place(world), REFUSED, 1.0))


def test_trap_8_a_refresh_asked_for_while_a_discovery_runs_probes_what_is_due() -> None:
    world = discovered(A, B, failed_host_reconnect_delay_secs=2)
    fail(world, A.at, 0.5)
    assert kinds(world.refresh_asked(1)[1]) == [StartDiscovery]

    _, effects = world.refresh_asked(3)

    assert [effect.at for effect in effects if isinstance(effect, StartProbe)] == [A.at]
    assert StartDiscovery not in kinds(effects)


def test_trap_8_a_discovery_that_succeeds_probes_what_has_become_due_and_one_that_fails_does_not() -> None:
    for result, probes in ((listing(A, B), True), (listing(), True), (NoListing("x"), False)):
        world = discovered(A, B, failed_host_reconnect_delay_secs=2)
        fail(world, A.at, 0.5)
        world.refresh_asked(1)

        assert (StartProbe in kinds(world.discovery_ended(result, 4))) is probes


def test_a_failed_discovery_is_tried_again_by_connections_at_most_once_a_second() -> None:
    world = discovered(A)
    world.refresh_asked(10)
    world.discovery_ended(NoListing("x"), 10)

    started = [
        now / 10 for now in range(100, 131) if kinds(world.place(frozenset(), now / 10, lambda tied: tied[0])[1])
    ]
    assert started == [11.0]

    world.discovery_ended(NoListing("x"), 13)
    assert kinds(world.place(frozenset(), 13.0, lambda tied: tied[0])[1]) == [StartDiscovery]


def test_with_an_interval_of_zero_a_failed_discovery_is_tried_again_at_most_once_a_second_too() -> None:
    world = discovered(A, yb_servers_refresh_interval=0)
    started: list[float] = []
    for now in range(100, 131):
        if StartDiscovery in kinds(world.place(frozenset(), now / 10, lambda tied: tied[0])[1]):
            started.append(now / 10)
            world.discovery_ended(NoListing("x"), now / 10)

    assert started == [10.0, 11.0, 12.0, 13.0]


def test_a_discovery_that_succeeds_is_not_due_again() -> None:
    world = discovered(A)

    assert world.place(frozenset(), 200, lambda tied: tied[0])[1] == ()


def test_only_the_first_place_of_a_connection_retries_a_discovery() -> None:
    world = discovered(A, B)
    world.refresh_asked(10)
    world.discovery_ended(NoListing("x"), 10)

    assert world.place(frozenset({A.at}), 20, lambda tied: tied[0])[1] == ()


def test_trap_10_no_such_function_leaves_the_servers_known_or_else_the_hosts() -> None:
    fresh, old = state(), discovered(A, B)
    fresh.start(0)
    old.refresh_asked(10)
    for world in (fresh, old):
        world.discovery_ended(NotYugabyte(SEED), 10)
        assert world.info().mode == "static"
        assert StartDiscovery not in kinds(world.refresh_asked(20)[1])

    assert fresh.info().placement == (Server("seed", 5433),)
    assert old.info().placement == (A, B)


def test_trap_10_an_empty_first_answer_leaves_the_seeds_in_use_in_every_mode() -> None:
    world = discovered(load_balance=LoadBalance.ONLY_PRIMARY)

    assert world.info().discovered is False
    assert place(world).at == SEED


# Failures and probes


def test_trap_11_the_kind_is_what_the_last_attempt_met() -> None:
    world = discovered(A, B, failed_host_reconnect_delay_secs=1)
    fail(world, A.at, 0.5)
    assert world.info().failed == (A,)

    probe = next(effect for effect in world.refresh_asked(5)[1] if isinstance(effect, StartProbe))
    effects = world.probe_ended(probe.at, probe.number, STARTING, 5)

    assert (world.info().failed, world.info().rejected) == ((), (A,))
    assert StartDiscovery not in kinds(effects)
    assert kinds(effects) == [Log]


def test_there_is_one_probe_at_a_time_for_a_server() -> None:
    world = discovered(A, B, failed_host_reconnect_delay_secs=0)
    fail(world, A.at, 0.5)

    assert StartProbe in kinds(world.refresh_asked(1)[1])
    assert StartProbe not in kinds(world.refresh_asked(2)[1])


def test_trap_12_an_opened_connection_stops_the_probe_whose_end_is_then_no_failure() -> None:
    world = discovered(A, B, failed_host_reconnect_delay_secs=0)
    reservation = place(world)
    late = place(world, tried=frozenset({B.at}))
    fail(world, A.at, 0.5)
    probe = next(effect for effect in world.refresh_asked(1)[1] if isinstance(effect, StartProbe))

    effects = world.opened(reservation, 1)
    assert StopProbe(A.at, probe.number) in effects
    assert world.info().failed == ()

    assert world.probe_ended(probe.at, probe.number, REFUSED, 1) == ()
    assert world.info().failed == ()

    # A late report of a connect that began before still marks it again.
    world.open_failed(late, REFUSED, 1)
    assert world.info().failed == (A,)


def test_a_probe_that_opens_ends_the_failure_at_once_and_runs_on_to_close() -> None:
    world = discovered(A, B, failed_host_reconnect_delay_secs=0)
    fail(world, A.at, 0.5)
    probe = next(effect for effect in world.refresh_asked(1)[1] if isinstance(effect, StartProbe))

    assert StopProbe not in kinds(world.probe_opened(probe.at, probe.number, 2))
    assert world.info().failed == ()
    world.probe_ended(probe.at, probe.number, None, 3)
    assert world.info().failed == ()


def test_trap_13_a_failure_of_a_server_that_is_not_listed_is_shown_undialled_and_forgotten() -> None:
    world = discovered(A, B, failed_host_reconnect_delay_secs=0)
    late = place(world, tried=frozenset({B.at}))
    world.refresh_asked(5)
    world.discovery_ended(listing(B), 5)

    effects = world.open_failed(late, REFUSED, 5.5)
    assert kinds(effects) == [Log]
    assert world.info().failed == (Server(A.host, A.port),)
    assert StartProbe not in kinds(world.refresh_asked(6)[1])

    world.discovery_ended(listing(B), 6)
    assert world.info().failed == ()


def test_trap_13_a_server_that_leaves_and_comes_back_starts_afresh_and_its_probe_is_stopped() -> None:
    world = discovered(A, B, failed_host_reconnect_delay_secs=0)
    fail(world, A.at, 0.5)
    probe = next(effect for effect in world.refresh_asked(1)[1] if isinstance(effect, StartProbe))

    assert StopProbe(A.at, probe.number) in world.discovery_ended(listing(B), 2)
    world.refresh_asked(3)
    world.discovery_ended(listing(A, B), 3)

    assert world.info().failed == ()
    assert Log in kinds(fail(world, A.at, 3.5))  # its run was forgotten as well


def test_trap_13_seeds_are_never_forgotten() -> None:
    world = discovered(A, B)
    world.open_failed(place(world, tried=frozenset({A.at, B.at})), REFUSED, 0.5)
    world.refresh_asked(2)
    world.discovery_ended(listing(A, B), 2)

    assert world.info().failed == (Server("seed", 5433),)


def test_trap_9_of_the_listed_servers_only_those_that_are_down_are_passed_over() -> None:
    world = discovered(A, B, C)
    fail(world, A.at, 0.1)
    fail(world, B.at, 0.1, STARTING)
    fail(world, C.at, 0.1, Failure(Kind.READ_ONLY, Exception(), ""))

    _, effects = world.refresh_asked(0.5)

    assert effects[0] == StartDiscovery((SEED,), (A.at, B.at, C.at), Choice())
    assert [world.is_down(server.at) for server in (A, B, C)] == [True, False, False]


def test_a_doubling_delay_is_not_driven_up_by_openings_that_failed_together() -> None:
    world = discovered(A, failed_host_reconnect_delay_secs=1, failed_host_max_delay_secs=60)
    together = [place(world) for _ in range(10)]
    for reservation in together:
        world.open_failed(reservation, REFUSED, 0.5)

    assert StartProbe not in kinds(world.refresh_asked(1.4)[1])
    assert StartProbe in kinds(world.refresh_asked(1.5)[1])


# What is waited for


def test_a_refresh_that_was_asked_for_ends_with_its_discovery_and_its_probes() -> None:
    world = discovered(A, B, failed_host_reconnect_delay_secs=0)
    fail(world, A.at, 0.5)
    ticket, effects = world.refresh_asked(1)
    probe = next(effect for effect in effects if isinstance(effect, StartProbe))

    assert RefreshEnded(ticket) not in world.discovery_ended(listing(A, B), 2)
    assert RefreshEnded(ticket) in world.probe_ended(probe.at, probe.number, REFUSED, 3)


def test_the_probes_that_a_discovery_starts_as_it_ends_belong_to_the_refresh() -> None:
    world = discovered(A, B, failed_host_reconnect_delay_secs=2)
    fail(world, A.at, 0.5)
    ticket, _ = world.refresh_asked(1)

    effects = world.discovery_ended(listing(A, B), 4)
    probe = next(effect for effect in effects if isinstance(effect, StartProbe))
    assert RefreshEnded(ticket) not in effects

    assert RefreshEnded(ticket) in world.probe_ended(probe.at, probe.number, None, 5)


def test_a_refresh_with_nothing_to_do_has_ended_at_once() -> None:
    world = state(load_balance=LoadBalance.OFF)
    world.start(0)

    ticket, effects = world.refresh_asked(1)

    assert RefreshEnded(ticket) in effects


def test_a_probe_that_is_stopped_is_not_waited_for() -> None:
    world = state(load_balance=LoadBalance.OFF, failed_host_reconnect_delay_secs=0)
    world.start(0)
    world.open_failed(place(world), REFUSED, 0.5)
    reservation = place(world)
    ticket, effects = world.refresh_asked(1)
    assert RefreshEnded(ticket) not in effects

    assert RefreshEnded(ticket) in world.opened(reservation, 1.1)


# Log runs


def test_a_run_ends_a_minute_after_its_last_failure_by_a_timer() -> None:
    world = discovered(A, B)
    late = place(world, tried=frozenset({B.at}))
    fail(world, A.at, 10)

    effects = world.opened(late, 15)

    assert ArmNotice(A.at, 10, 55) in effects
    assert kinds(world.notice_due(A.at, 10)) == [Log]
    assert world.notice_due(A.at, 10) == ()


def test_a_run_whose_timer_finds_a_later_failure_goes_on() -> None:
    world = discovered(A, B)
    early, late = place(world, tried=frozenset({B.at})), place(world, tried=frozenset({B.at}))
    fail(world, A.at, 10)
    world.opened(early, 15)
    assert Log not in kinds(world.open_failed(late, REFUSED, 30))

    assert world.notice_due(A.at, 10) == ()


def test_the_timer_of_an_earlier_failure_does_not_end_a_run_that_has_failed_and_opened_since() -> None:
    world = discovered(A, B)
    first, failing, second = (place(world, tried=frozenset({B.at})) for _ in range(3))
    fail(world, A.at, 10)
    world.opened(first, 15)
    world.open_failed(failing, REFUSED, 30)
    assert ArmNotice(A.at, 30, 55) in world.opened(second, 35)

    assert world.notice_due(A.at, 10) == ()
    assert kinds(world.notice_due(A.at, 30)) == [Log]


def test_a_connection_that_opens_long_after_the_last_failure_ends_the_run_at_once() -> None:
    world = discovered(A, B)
    late = place(world, tried=frozenset({B.at}))
    fail(world, A.at, 10)

    assert kinds(world.opened(late, 100)) == [Log]


# What it shows


def test_the_view_tells_the_rebalancer_where_connections_go_and_stay_and_how_many_there_are() -> None:
    keys = (TopologyKey("c", "r", "z1", 1), TopologyKey("c", "r", "z2", 2))
    world = discovered(A, B, C, topology_keys=keys)
    fail(world, A.at, 0.5)
    world.opened(place(world), 1)
    place(world)

    view = world.view()

    assert view.placement == {B.at}
    assert view.kept == {A.at, B.at}
    assert view.out == {A.at}
    assert view.load == {B.at: 2}


def test_the_snapshot_is_sorted_by_host_and_port_and_shows_an_unlisted_seed_as_a_bare_server() -> None:
    other = Server("10.0.0.1", 5434, "c", "r", "z")
    world = discovered(C, other, A)
    for tried in ({A.at, other.at}, {other.at}, {other.at, A.at, C.at}):  # C, then A, then the seed
        world.open_failed(place(world, tried=frozenset(tried)), REFUSED, 0.5)

    info = world.info()

    assert info.servers == (A, other, C)
    assert info.failed == (A, C, Server("seed", 5433))
    assert info.counts == {"10.0.0.1:5433": 0, "10.0.0.1:5434": 0, "10.0.0.3:5433": 0}
    assert info.counts[A] == info.counts[A.at] == 0


def test_nothing_secret_is_in_the_snapshot() -> None:
    from ysactor.secret import Secret

    world = discovered(A, password=Secret("hunter2"))
    fail(world, A.at, 0.5)

    assert "hunter2" not in repr(world.info()) + repr(world.view())


class Counting(RuleBasedStateMachine):
    """Whatever comes in whatever order, twice or late: counts are what is really held, and never below zero."""

    def __init__(self) -> None:
        super().__init__()
        self.world = discovered(A, B, C)
        self.now = 0.0
        self.pending: list[Reservation] = []
        self.open: list[Reservation] = []
        self.old: list[Reservation] = []

    def _take(self, data: st.DataObject, from_: list[Reservation]) -> Reservation:
        reservation = data.draw(st.sampled_from(from_))
        from_.remove(reservation)
        return reservation

    @rule(seconds=st.floats(0, 5))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        reservation, _ = self.world.place(frozenset(), self.now, lambda tied: data.draw(st.sampled_from(list(tied))))
        if not isinstance(reservation, Nowhere):
            self.pending.append(reservation)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def opens(self, data: st.DataObject) -> None:
        reservation = self._take(data, self.pending)
        self.world.opened(reservation, self.now)
        self.open.append(reservation)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), failure=st.sampled_from([REFUSED, STARTING]))
    def fails(self, data: st.DataObject, failure: Failure) -> None:
        reservation = self._take(data, self.pending)
        self.world.open_failed(reservation, failure, self.now)
        self.old.append(reservation)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def is_given_up(self, data: st.DataObject) -> None:
        reservation = self._take(data, self.pending)
        self.world.gave_up(reservation)
        self.old.append(reservation)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def is_released(self, data: st.DataObject) -> None:
        reservation = self._take(data, self.open)
        self.world.released(reservation)
        self.old.append(reservation)

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def something_comes_twice(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(self.old))
        self.world.opened(reservation, self.now)
        self.world.open_failed(reservation, REFUSED, self.now)
        self.world.gave_up(reservation)
        self.world.released(reservation)

    @rule(servers=st.sets(st.sampled_from([A, B, C])))
    def a_discovery_ends(self, servers: set[Server]) -> None:
        self.world.discovery_ended(listing(*sorted(servers, key=lambda server: server.at)), self.now)

    @invariant()
    def counts_are_what_is_held(self) -> None:
        info = self.world.info()
        assert {at: n for at, n in info.counts.items() if n} == Counter(str(held.at) for held in self.open)
        assert {at: n for at, n in info.pending.items() if n} == Counter(str(held.at) for held in self.pending)
        assert min(info.counts.values()) >= 0

    @invariant()
    def placement_holds_no_server_that_is_out_but_a_seed(self) -> None:
        info, view = self.world.info(), self.world.view()
        assert view.placement & view.out <= {SEED}
        assert info.placement


TestCounting = Counting.TestCase
TestCounting.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
