"""Which connections a rebalance moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ysactor.policy.rebalance import Held, Plan, plan
from ysactor.servers import HostPort

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
    opening: dict[HostPort, int] | None = None,
) -> Plan:
    return plan(
        connections,
        placement=kept if placement is None else placement,
        kept=kept,
        out=out or set(),
        batch=batch,
        opening=opening,
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
    assert moves(held((A, "i"), (A, "i"), (A, "i")), kept={A, B}, opening={B: 2}) == Plan()


def test_of_two_that_are_equally_busy_the_one_with_idle_connections_gives() -> None:
    assert moves(held((A, "l"), (A, "l"), (B, "i"), (B, "l")), kept={A, B, C}) == Plan(close=(3,))


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
