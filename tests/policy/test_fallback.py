"""The seeds: in what order, when refused, and which are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ysactor.config import Config, LoadBalance, TopologyKey
from ysactor.policy import fallback
from ysactor.servers import HostPort, Server

ONE, TWO, THREE = (HostPort(f"seed-{n}", 5433) for n in (1, 2, 3))
A, B = Server("10.0.0.1", 5433, "c", "r", "a"), Server("10.0.0.2", 5433, "c", "r", "b")
R = Server("10.0.0.3", 5433, "c", "r", "a", "read_replica")
KEY = TopologyKey("c", "r", "a", 1)
NOWHERE = TopologyKey("x", "y", "z", 1)


def config(mode: LoadBalance = LoadBalance.ANY, *keys: TopologyKey, only: bool = False) -> Config:
    return Config(hosts=(ONE, TWO, THREE), load_balance=mode, topology_keys=keys, fallback_to_topology_keys_only=only)


def ats(servers: tuple[Server, ...]) -> list[HostPort]:
    return [server.at for server in servers]


def order(cfg: Config, servers: tuple[Server, ...], out: set[HostPort]) -> list[HostPort]:
    """What one connection tries when each fails it, the first of several that would do being taken."""
    tried: list[HostPort] = []
    while places := fallback.places(cfg, servers, out | set(tried), tried):
        tried.append(places[0].at)
    return tried


def test_with_nothing_discovered_the_seeds_are_tried_in_order_each_once_in_every_mode() -> None:
    for mode in LoadBalance:
        assert order(config(mode, KEY, only=True), (), set()) == [ONE, TWO, THREE]


def test_the_first_seed_that_has_not_failed_comes_first_and_then_the_failed_ones_regardless() -> None:
    assert order(config(), (), {ONE}) == [TWO, THREE, ONE]
    assert order(config(), (), {ONE, TWO, THREE}) == [ONE, TWO, THREE]


def test_the_seeds_follow_when_no_listed_server_is_left() -> None:
    assert order(config(), (A, B), {B.at}) == [A.at, ONE, TWO, THREE]


def test_trap_5_a_server_that_is_also_a_seed_is_tried_once() -> None:
    cfg = Config(hosts=(A.at, B.at), load_balance=LoadBalance.ANY)

    assert order(cfg, (A, B), set()) == [A.at, B.at]
    assert order(cfg, (A, B), {A.at, B.at}) == [A.at, B.at]


def test_a_listed_server_that_failed_is_tried_only_if_it_is_a_seed() -> None:
    assert A.at not in order(config(), (A, B), {A.at})


def test_prefer_tries_the_other_type_before_the_seeds() -> None:
    assert order(config(LoadBalance.PREFER_RR, KEY, only=True), (A, R), set()) == [R.at, A.at, ONE, TWO, THREE]


@pytest.mark.parametrize(
    ("cfg", "refused"),
    [
        (config(LoadBalance.ONLY_PRIMARY), "primary"),
        (config(LoadBalance.ONLY_RR), "read_replica"),
        (config(LoadBalance.ONLY_RR, KEY, only=True), "read_replica"),
        (config(LoadBalance.ANY, KEY, only=True), "cluster"),
        (config(LoadBalance.ANY, only=True), None),
        (config(LoadBalance.ANY, KEY), None),
        (config(LoadBalance.PREFER_PRIMARY, KEY, only=True), None),
        (config(LoadBalance.PREFER_RR, KEY, only=True), None),
        (config(LoadBalance.ANY), None),
    ],
)
def test_trap_6_the_mode_decides_whether_the_seeds_are_refused(cfg: Config, refused: str | None) -> None:
    assert fallback.refusal(cfg, (A,)) == refused
    assert fallback.refusal(cfg, ()) is None


def test_where_the_seeds_are_refused_none_is_tried() -> None:
    assert order(config(LoadBalance.ONLY_PRIMARY), (A, R), set()) == [A.at]
    assert order(config(LoadBalance.ANY, KEY, only=True), (A, B), set()) == [A.at]


def test_trap_4_only_one_seed_is_a_place_at_a_time() -> None:
    assert ats(fallback.places(config(), (), set())) == [ONE]
    assert ats(fallback.places(config(), (), {ONE})) == [TWO]


def test_trap_4_of_the_seeds_the_very_first_and_the_first_that_is_up_are_kept() -> None:
    assert fallback.kept(config(), (), set()) == {ONE}
    assert fallback.kept(config(), (), {ONE}) == {ONE, TWO}
    assert fallback.kept(config(), (), {ONE, TWO}) == {ONE, THREE}
    assert fallback.kept(config(), (), {ONE, TWO, THREE}) == {ONE, TWO, THREE}


def test_trap_1_with_three_levels_down_the_first_level_and_the_seed_are_kept() -> None:
    keys = tuple(TopologyKey("c", "r", zone, level) for level, zone in enumerate("abd", 1))
    servers = (A, B, Server("10.0.0.9", 5433, "c", "r", "d"))
    cfg = Config(hosts=(ONE,), load_balance=LoadBalance.ANY, topology_keys=keys)

    assert fallback.kept(cfg, servers, {server.at for server in servers}) == {A.at, ONE}


def test_no_seed_is_kept_while_a_listed_server_is_up_or_where_they_are_refused() -> None:
    assert fallback.kept(config(), (A, B), {A.at}) == {A.at, B.at}
    assert fallback.kept(config(LoadBalance.ONLY_PRIMARY), (A, R), {A.at}) == {A.at}


def test_trap_2_the_kept_set_can_be_empty() -> None:
    assert fallback.kept(config(LoadBalance.ANY, NOWHERE, only=True), (A, B), set()) == frozenset()


@given(
    st.sampled_from(list(LoadBalance)),
    st.booleans(),
    st.sets(st.sampled_from([A, B, R])),
    st.sets(st.sampled_from([A.at, B.at, R.at, ONE, TWO, THREE])),
)
def test_a_connection_tries_each_place_once_and_a_failed_one_only_after_every_other(
    mode: LoadBalance, only: bool, listed: set[Server], out: set[HostPort]
) -> None:
    servers = tuple(sorted(listed, key=lambda server: server.at)) if mode is not LoadBalance.OFF else ()
    cfg = config(mode, KEY, only=only)

    tried = order(cfg, servers, out)

    assert len(tried) == len(set(tried))
    assert sorted(tried, key=lambda at: at in out) == tried
    assert {at for at in tried if at in out} <= set(cfg.hosts)
