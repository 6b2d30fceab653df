"""Which connections a rebalance moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ysactor.policy.placement import pick
from ysactor.policy.rebalance import Held, Plan, plan
from ysactor.servers import HostPort, Server

A, B, C = (HostPort(f"10.0.0.{n}", 5433) for n in (1, 2, 3))


def held(*spec: tuple[HostPort, str]) -> list[Held]:
    """Connections numbered from 1: i idle, l leased, m leased and marked."""
    return [Held(n, at, state != "i", state == "m") for n, (at, state) in enumerate(spec, 1)]


def moves(
    connections: list[Held],
    *,
    kept: set[HostPort],
    placement: set[HostPort] | None = None,
    out: set[HostPort] | None = None,
    batch: int = 2,
    others: dict[HostPort, int] | None = None,
    unplaced: int = 0,
) -> Plan:
    """`others` are the client's connections that are not among these: being opened, or of no pool."""
    load = Counter(others or {})
    load.update(one.at for one in connections)
    return plan(
        connections,
        placement=kept if placement is None else placement,
        kept=kept,
        out=out or set(),
        batch=batch,
        load=load,
        unplaced=unplaced,
    )


def test_draining_closes_idle_strays_first_and_marks_leased_ones_the_batch_counting_both() -> None:
    connections = held((A, "l"), (A, "i"), (A, "l"), (B, "i"))

    assert moves(connections, kept={B}, batch=2) == Plan(close=(2,), mark=(1,))
    assert moves(connections, kept={B}, batch=1) == Plan(close=(2,))
    assert moves(connections, kept={B}, batch=9) == Plan(close=(2,), mark=(1, 3))


def test_a_stray_that_is_marked_already_does_not_count_again() -> None:
    assert moves(held((A, "m"), (A, "m"), (A, "l"), (A, "l")), kept={B}, batch=1) == Plan(mark=(3,))


def test_trap_16_a_mark_lapses_when_its_server_is_kept_again() -> None:
    assert moves(held((A, "m"), (B, "m"), (C, "l")), kept={A}, placement={A}, batch=1) == Plan(mark=(3,), unmark=(1,))
    assert moves(held((A, "m"), (B, "m")), kept={A, B}) == Plan(unmark=(1, 2))


def test_trap_2_an_empty_kept_set_moves_nothing() -> None:
    assert moves(held((A, "i"), (B, "m")), kept=set(), placement={A, B}) == Plan()


def test_nothing_moves_while_no_server_is_up() -> None:
    # Every seed and server is out; the placement is the first seed, as the last resort.
    assert moves(held((A, "i"), (C, "i")), kept={A, B}, placement={B}, out={A, B, C}) == Plan()


def test_levelling_needs_a_gap_of_two_leased_connections_included() -> None:
    assert moves(held((A, "i"), (A, "l"), (B, "l")), kept={A, B}) == Plan()
    assert moves(held((A, "i"), (A, "l"), (A, "l"), (B, "l")), kept={A, B}) == Plan(close=(1,))


def test_levelling_takes_idle_connections_only_and_says_how_many_more_there_should_have_been() -> None:
    assert moves(held((A, "l"), (A, "l"), (A, "l")), kept={A, B}) == Plan(level={A: 1})
    assert moves(held((A, "l"), (A, "i"), (A, "l"), (A, "l")), kept={A, B}) == Plan(close=(2,), level={A: 1})
    assert moves(held((A, "l"), (A, "i"), (A, "l"), (A, "l")), kept={A, B}, batch=1) == Plan(close=(2,))


def test_levelling_happens_only_when_nothing_strays() -> None:
    connections = held((A, "i"), (A, "i"), (A, "i"), (C, "m"))

    assert moves(connections, kept={A, B}) == Plan()


def test_levelling_never_goes_towards_a_server_that_is_out_or_not_in_placement() -> None:
    connections = held((A, "i"), (A, "i"), (A, "i"))

    assert moves(connections, kept={A, B}, placement={A, B}, out={B}) == Plan()
    assert moves(connections, kept={A, B}, placement={A}) == Plan()


def test_trap_15_nothing_levels_towards_a_seed_that_is_in_placement_only_as_the_last_resort() -> None:
    assert moves(held((A, "i"), (A, "i"), (A, "i")), kept={A, B}, placement={B}, out={A, B}) == Plan()


def test_levelling_moves_half_the_gap_at_most_and_no_more_than_the_batch() -> None:
    six = held(*[(A, "i")] * 6)

    assert moves(six, kept={A, B}, batch=10) == Plan(close=(1, 2, 3))
    assert moves(six, kept={A, B}, batch=2) == Plan(close=(1, 2))


def test_a_pool_that_is_filling_up_is_not_out_of_balance() -> None:
    three = held((A, "i"), (A, "i"), (A, "i"))

    assert moves(three, kept={A, B}, others={B: 2}) == Plan()
    assert moves(three, kept={A, B}, unplaced=2) == Plan()
    assert moves(three, kept={A, B}, unplaced=1) == moves(three, kept={A, B}, others={B: 1}) == Plan(close=(1,))


def test_what_is_yet_to_be_placed_fills_the_quietest_up() -> None:
    six = held(*[(A, "i")] * 6)

    assert moves(six, kept={A, B, C}, others={B: 2}, unplaced=2) == Plan(close=(1, 2))
    assert moves(six, kept={A, B, C}, others={B: 2}, unplaced=5) == Plan(close=(1,))
    assert moves(six, kept={A, B, C}, others={B: 2}, unplaced=8) == Plan()
    assert moves(six, kept={A, B, C}, others={B: 2}, unplaced=70) == Plan()


def test_connections_of_no_pool_weigh_as_they_do_in_placement() -> None:
    four = held(*[(B, "i")] * 4)

    assert moves(four, kept={A, B}, others={A: 4}) == Plan(), "placement would open them on the same server again"
    assert moves(four, kept={A, B}, others={A: 1}) == Plan(close=(1,))
    assert moves(held((A, "i"), (B, "i")), kept={A, B}, others={A: 4}) == Plan(close=(1,))


def test_a_server_that_the_pool_has_nothing_on_does_not_stand_in_the_way_of_its_own() -> None:
    assert moves(held((B, "i"), (B, "i"), (C, "i")), kept={A, B, C}, others={A: 9, B: 1}) == Plan(close=(1,))


def test_of_two_that_are_equally_busy_the_one_with_idle_connections_gives() -> None:
    assert moves(held((A, "l"), (A, "l"), (B, "i"), (B, "l")), kept={A, B, C}) == Plan(close=(3,))


@dataclass
class World:
    """What levelling works in: servers that are up, the pool's connections, and others of the same client."""

    placed: list[Held]
    others: Counter[HostPort]
    up: list[HostPort]
    batch: int
    chance: Random
    unplaced: int = 0

    def load(self) -> Counter[HostPort]:
        return self.others + Counter(one.at for one in self.placed)

    def place(self, count: int) -> None:
        """Open so many of those that are missing where placement says, one after the other."""
        servers = [Server(*at) for at in self.up]
        for _ in range(min(count, self.unplaced)):
            server = pick(servers, self.load().__getitem__, self.chance.choice)
            self.placed.append(Held(FIRST + self.chance.getrandbits(60), server.at, False))
            self.unplaced -= 1

    def tick(self) -> Plan:
        return plan(
            self.placed,
            placement=self.up,
            kept={*self.up, OUT},
            out={OUT},
            batch=self.batch,
            load=self.load(),
            unplaced=self.unplaced,
        )

    def close(self, numbers: Collection[int]) -> None:
        before = len(self.placed)
        self.placed = [one for one in self.placed if one.number not in numbers]
        self.unplaced += before - len(self.placed)

    def move(self, *, handed_on: bool) -> list[int]:
        """One tick: what it closes, and, where leased ones are handed from holder to holder, what levelling lacked."""
        planned = self.tick()
        lacking = [
            one.number
            for at, count in planned.level.items()
            for one in [one for one in self.placed if one.at == at and one.leased][:count]
        ]
        closed = [*planned.close, *(lacking if handed_on else ())]
        self.close(closed)
        return closed

    def spread(self) -> int:
        load = self.load()
        return sum(load[at] ** 2 for at in self.up)


OUT = HostPort("10.0.0.9", 5433)
FIRST = 1000
"""Where the numbers begin of the connections that placement has put where they are."""


@st.composite
def worlds(draw: st.DrawFn) -> World:
    up = draw(st.lists(st.sampled_from([A, B, C, HostPort("10.0.0.4", 5433)]), min_size=1, unique=True))
    anywhere = st.sampled_from([*up, OUT])
    spec = draw(st.lists(st.tuples(anywhere, st.sampled_from("iiil")), max_size=14))
    others = draw(st.dictionaries(anywhere, st.integers(0, 9)))
    return World(held(*spec), Counter(others), up, draw(st.integers(1, 4)), draw(st.randoms(use_true_random=False)))


@settings(max_examples=200)
@given(worlds(), st.booleans())
def test_each_connection_that_is_moved_is_placed_on_another_server_and_the_spread_gets_better(
    world: World, handed_on: bool
) -> None:
    at = {one.number: one.at for one in world.placed}
    before, known = world.spread(), set(at)

    left = {at[number] for number in world.move(handed_on=handed_on)}
    moved = world.unplaced
    world.place(moved)

    assert moved <= world.batch
    assert not left & {one.at for one in world.placed if one.number not in known}
    assert world.spread() <= before - 2 * moved


@settings(max_examples=200)
@given(worlds(), st.booleans(), st.data())
def test_levelling_comes_to_rest_and_moves_nothing_that_placement_has_put_where_it_is(
    world: World, handed_on: bool, data: st.DataObject
) -> None:
    """Whatever else ends meanwhile, a lifetime say, and however late what was closed is opened again."""
    original = {one.number for one in world.placed}
    for _ in range(data.draw(st.integers(0, 8), label="ticks")):
        idle = [one.number for one in world.placed if not one.leased]
        world.close(data.draw(st.sets(st.sampled_from(idle), max_size=3), label="expired") if idle else ())
        assert original.issuperset(world.move(handed_on=handed_on))
        world.place(data.draw(st.integers(0, 4), label="opened"))
    for _ in range(len(world.placed) + 1):
        world.place(world.unplaced)
        moved = world.move(handed_on=handed_on)
        assert original.issuperset(moved)
        if not moved:
            break

    assert not world.unplaced
    assert world.tick().close == ()
    load = world.load()
    least = min(load[at] for at in world.up)
    uneven = [one for one in world.placed if one.at in world.up and load[one.at] - least >= 2]
    busiest = max((load[one.at] for one in uneven), default=0)
    assert all(one.leased for one in uneven if load[one.at] == busiest)
    assert not (handed_on and uneven)


places = st.sampled_from([A, B, C])
sets = st.sets(places)


@given(st.lists(st.tuples(places, st.sampled_from("ilm")), max_size=12), sets, sets, sets, st.integers(1, 4))
def test_a_rebalance_moves_at_most_its_batch_never_a_leased_one_at_once_and_never_towards_a_failed_server(
    spec: list[tuple[HostPort, str]],
    kept: set[HostPort],
    placement: set[HostPort],
    out: set[HostPort],
    batch: int,
) -> None:
    connections = held(*spec)
    by_number = {one.number: one for one in connections}

    chosen = moves(connections, kept=kept, placement=placement, out=out, batch=batch)

    assert len(chosen.close) + len(chosen.mark) <= batch
    assert not any(by_number[number].leased for number in chosen.close)
    assert all(by_number[number].leased and not by_number[number].marked for number in chosen.mark)
    assert all(by_number[number].marked and by_number[number].at in kept for number in chosen.unmark)
    assert not any(by_number[number].at in kept for number in chosen.mark)
    if chosen.close or chosen.mark:
        assert kept
        assert placement - out
    loads = Counter(one.at for one in connections)
    for number in chosen.close:
        if by_number[number].at in kept:
            usable = placement - out
            assert by_number[number].at in usable
            assert loads[by_number[number].at] - min(loads[at] for at in usable) >= 2
