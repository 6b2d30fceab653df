"""Placement from what is kept is placement computed anew, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ysactor.cluster.ledger import Ledger
from ysactor.cluster.messages import Failure, Listing, NoListing, NotYugabyte, Reservation
from ysactor.cluster.quietest import Quietest
from ysactor.cluster.state import ClusterState
from ysactor.config import Config, LoadBalance
from ysactor.options.placement import topology_keys
from ysactor.policy import fallback, placement
from ysactor.policy.addresses import Choice
from ysactor.servers import HostPort, Kind, Server

SEED = HostPort("10.0.0.1", 5433)
OTHER = HostPort("seed", 5433)
SERVERS = tuple(
    Server(f"10.0.0.{n}", 5433, "c", "r", f"z{n % 3}", "read_replica" if n % 4 == 3 else "primary")
    for n in range(1, 10)
)
ANSWERED = NotYugabyte(SEED)


def first(servers: Sequence[Server]) -> Server:
    return servers[0]


class CachedPlacement(RuleBasedStateMachine):
    """Events of every kind, and a placement after any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.state: ClusterState
        self.config: Config
        self.now = 0.0
        self.pending: list[Reservation] = []
        self.open: list[Reservation] = []
        self.old: list[Reservation] = []
        self.probes: dict[HostPort, int] = {}

    @precondition(lambda self: not hasattr(self, "state"))
    @rule(
        mode=st.sampled_from(LoadBalance),
        keys=st.sampled_from(["", "c.r.z0", "c.r.z1:1,c.r.*:2", "c.r.nowhere"]),
        keys_only=st.booleans(),
        hosts=st.sampled_from([(SEED,), (OTHER,), (OTHER, SEED)]),
    )
    def begin(self, mode: LoadBalance, keys: str, keys_only: bool, hosts: tuple[HostPort, ...]) -> None:
        self.config = Config(
            hosts=hosts,
            load_balance=mode,
            topology_keys=topology_keys(keys),
            fallback_to_topology_keys_only=keys_only,
        )
        self.state = ClusterState(self.config)
        self._note(self.state.start(self.now))

    def _note(self, effects: Any) -> None:
        for effect in effects:
            if type(effect).__name__ == "StartProbe":
                self.probes[effect.at] = effect.number

    def _pass(self) -> float:
        self.now += 0.5
        return self.now

    @precondition(lambda self: hasattr(self, "state"))
    @rule(servers=st.lists(st.sampled_from(SERVERS), unique=True))
    def listed(self, servers: list[Server]) -> None:
        self._note(self.state.discovery_ended(Listing(SEED, tuple(servers), Choice()), self._pass()))

    @precondition(lambda self: hasattr(self, "state"))
    @rule(result=st.sampled_from([NoListing("nobody"), ANSWERED]))
    def not_listed(self, result: Any) -> None:
        self._note(self.state.discovery_ended(result, self._pass()))

    @precondition(lambda self: hasattr(self, "state"))
    @rule(random=st.randoms(use_true_random=False), tried=st.sets(st.sampled_from(SERVERS), max_size=2))
    def place(self, random: Random, tried: set[Server]) -> None:
        """The software may choose among exactly the servers that the pure functions name, in their order."""
        seen: list[Server] = []

        def choose(servers: Sequence[Server]) -> Server:
            seen.extend(servers)
            return random.choice(servers)

        before = frozenset(server.at for server in tried)
        places = fallback.places(self.config, self.state.servers, self.state.failed, before)
        expected = placement.least_loaded(places, self.state.load)
        answer, effects = self.state.place(before, self._pass(), choose)
        assert tuple(seen) == expected
        assert isinstance(answer, Reservation) is bool(expected)
        if isinstance(answer, Reservation):
            assert answer.server in expected
            self.pending.append(answer)
        self._note(effects)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), kind=st.sampled_from([None, "gave up", *Kind]))
    def attempt_ended(self, data: st.DataObject, kind: Any) -> None:
        one = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        now = self._pass()
        if kind is None:
            self._note(self.state.opened(one, now))
            self.open.append(one)
        elif kind == "gave up":
            self._note(self.state.gave_up(one))
            self.old.append(one)
        else:
            self._note(self.state.open_failed(one, Failure(kind, OSError(), "failed"), now))
            self.old.append(one)

    @precondition(lambda self: self.open or self.pending)
    @rule(data=st.data())
    def released(self, data: st.DataObject) -> None:
        """Also one whose opening was never told."""
        held = self.open or self.pending
        one = held.pop(data.draw(st.integers(0, len(held) - 1)))
        self._note(self.state.released(one))
        self.old.append(one)

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def told_twice(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.old))
        tell: list[Callable[[], Any]] = [
            lambda: self.state.opened(one, self.now),
            lambda: self.state.gave_up(one),
            lambda: self.state.released(one),
            lambda: self.state.open_failed(one, Failure(Kind.REJECTED, OSError(), "late"), self.now),
        ]
        self._note(data.draw(st.sampled_from(tell))())

    @precondition(lambda self: self.probes)
    @rule(data=st.data(), healed=st.booleans())
    def probed(self, data: st.DataObject, healed: bool) -> None:
        at = data.draw(st.sampled_from(sorted(self.probes)))
        number, now = self.probes.pop(at), self._pass()
        if healed:
            self._note(self.state.probe_opened(at, number, now))
        failure = None if healed else Failure(Kind.UNREACHABLE, OSError(), "still down")
        self._note(self.state.probe_ended(at, number, failure, now))

    @precondition(lambda self: hasattr(self, "state"))
    @rule()
    def refreshed(self) -> None:
        self.now += 20
        _, effects = self.state.refresh_asked(self.now)
        self._note(effects)

    @invariant()
    def what_is_kept_is_what_is_true(self) -> None:
        if not hasattr(self, "state"):
            return
        hosts = [server.at for server in self.state.servers] + list(self.config.hosts)
        for tried in (frozenset[HostPort](), *(frozenset({at}) for at in hosts), frozenset(self.config.hosts)):
            self._is_true_of(tried)

    def _is_true_of(self, tried: frozenset[HostPort]) -> None:
        places = fallback.places(self.config, self.state.servers, self.state.failed, tried)
        seen: list[Server] = []

        def choose(servers: Sequence[Server]) -> Server:
            seen.extend(servers)
            return servers[0]

        # At the time of the last event: a refresh that is due is started by whoever asks, not by asking.
        answer, effects = self.state.place(tried, self.now, choose)
        assert tuple(seen) == (self._before_it(answer, places) if isinstance(answer, Reservation) else ())
        self._note(effects)
        if isinstance(answer, Reservation):
            self.state.gave_up(answer)

    def _before_it(self, answer: Reservation, places: tuple[Server, ...]) -> tuple[Server, ...]:
        """The least loaded when the place that was just given was not counted yet."""
        return placement.least_loaded(places, lambda at: self.state.load(at) - (at == answer.at))


CachedPlacement.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
test_a_placement_that_is_kept_equals_one_that_is_computed = pytest.mark.filterwarnings("ignore::UserWarning")(
    CachedPlacement.TestCase
)


class CountingLoads:
    """Says what a server holds, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, at: HostPort) -> int:
        self.asked += 1
        return at.port % 3


def test_those_with_the_fewest_are_in_the_order_given_and_follow_what_is_told() -> None:
    a, b, c, d = servers = tuple(Server(name, 5433) for name in "dbca")
    kept = Quietest(servers, lambda at: 1 if at.host == "b" else 0)
    assert list(kept.servers) == [a, c, d]
    kept.moved(c.at, 1)
    kept.moved(a.at, 1)
    assert list(kept.servers) == [d]
    kept.moved(d.at, 1)
    assert list(kept.servers) == [a, b, c, d]
    kept.moved(b.at, -1)
    assert list(kept.servers) == [b]
    kept.moved(HostPort("elsewhere", 5433), -1)
    assert list(kept.servers) == [b]


def test_no_server_is_looked_at_once_the_order_is_kept() -> None:
    servers = tuple(Server("10.0.0.1", port) for port in range(5000, 5200))
    load = CountingLoads()
    kept = Quietest(servers, load)
    assert load.asked == len(servers)
    for server in servers:
        kept.moved(server.at, 1)
        assert kept.servers
    assert load.asked == len(servers)


class CountingServers(tuple[Server, ...]):
    """Counts how often all of them are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Server]:
        self.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("down", [60, 100])
def test_when_servers_fail_all_are_looked_at_for_each_server_that_failed_and_not_for_each_connection(down: int) -> None:
    """Ten connections to each of a hundred servers fail in the same moment: the actor takes up all of that at once."""
    servers = CountingServers(Server("10.0.0.1", port) for port in range(5000, 5100))
    hosts = tuple(server.at for server in servers[:3])
    state = ClusterState(Config(hosts=hosts, load_balance=LoadBalance.ANY))
    state.start(0.0)
    state.discovery_ended(Listing(hosts[0], servers, Choice()), 0.0)
    refused = Failure(Kind.UNREACHABLE, ConnectionRefusedError(), "connection refused")
    failing = {server.at for server in servers[:down]}
    under_way: list[tuple[Reservation, frozenset[HostPort]]] = []
    for _ in range(1000):
        answer, _ = state.place(frozenset(), 1.0, lambda tied: tied[0])
        assert isinstance(answer, Reservation)
        under_way.append((answer, frozenset({answer.at})))
    servers.looks = 0

    ended = 0
    while under_way:
        for one, _ in under_way:
            if one.at in failing:
                state.open_failed(one, refused, 1.0)
            else:
                state.opened(one, 1.0)
        again: list[tuple[Reservation, frozenset[HostPort]]] = []
        for one, tried in under_way:
            if one.at not in failing:
                continue
            answer, _ = state.place(tried, 1.0, lambda tied: tied[0])
            if isinstance(answer, Reservation):
                again.append((answer, tried | {answer.at}))
            else:
                ended += 1
        under_way = again

    assert ended == (1000 if down == 100 else 0)
    assert servers.looks <= 20


def test_the_ledger_keeps_one_order_and_takes_another_up_from_the_truth() -> None:
    a, b, c = (Server(name, 5433) for name in "abc")
    ledger, some, others = Ledger(), (a, b), (b, c)
    first_one = ledger.reserve(a, 0.0)
    assert list(ledger.quietest(some)) == [b]
    ledger.reserve(b, 0.0)
    assert list(ledger.quietest(others)) == [c]
    ledger.reserve(c, 0.0)
    assert list(ledger.quietest(others)) == [b, c]
    assert ledger.opened(first_one)
    assert list(ledger.quietest(some)) == [a, b]
    assert ledger.released(first_one)
    assert not ledger.released(first_one)
    assert list(ledger.quietest(some)) == [a]
