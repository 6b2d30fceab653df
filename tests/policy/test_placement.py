"""Levels, modes, and which server is taken."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ysactor.config import Config, LoadBalance, TopologyKey
from ysactor.policy import placement, topology
from ysactor.servers import HostPort, NodeType, Server

A, B, C = (
    Server(f"10.0.0.{n}", 5433, "gcp", "us-east1", f"us-east1-{zone}") for n, zone in ((1, "b"), (2, "c"), (3, "d"))
)
R = Server("10.0.0.4", 5433, "gcp", "us-east1", "us-east1-b", "read_replica")
S = Server("10.0.0.5", 5433, "aws", "eu-west-1", "eu-west-1a", "read_replica")
B1, C2 = TopologyKey("gcp", "us-east1", "us-east1-b", 1), TopologyKey("gcp", "us-east1", "us-east1-c", 2)
EAST2 = TopologyKey("gcp", "us-east1", "*", 2)
NOWHERE = TopologyKey("azure", "x", "y", 1)


def config(mode: LoadBalance = LoadBalance.ANY, *keys: TopologyKey, only: bool = False) -> Config:
    return Config(load_balance=mode, topology_keys=keys, fallback_to_topology_keys_only=only)


@pytest.mark.parametrize(
    ("key", "server", "named"),
    [
        (B1, A, True),
        (B1, B, False),
        (EAST2, B, True),
        (B1, Server("h", 1, "GCP", "US-East1", "US-EAST1-B"), True),
        (TopologyKey("strasse", "r", "z"), Server("h", 1, "Straße", "R", "Z"), True),
        (TopologyKey("gcp", "*", "us-east1-b"), A, False),
        (TopologyKey("*", "us-east1", "us-east1-b"), A, False),
        (B1, Server("h", 1), False),
        (TopologyKey("gcp", "us-east1", "us-east1-b"), Server("h", 1, "gcp", "us-east1", ""), False),
    ],
)
def test_a_key_names_a_placement_without_regard_to_case_and_only_a_zone_has_a_wildcard(
    key: TopologyKey, server: Server, named: bool
) -> None:
    assert topology.matches(key, server) is named


def test_a_key_that_repeats_at_several_levels_counts_at_the_lowest() -> None:
    keys = (TopologyKey("gcp", "us-east1", "us-east1-b", 7), TopologyKey("gcp", "us-east1", "*", 3))

    assert topology.level_of(A, keys) == 3
    assert topology.level_of(S, keys) is None


ALL = (A, B, C, R, S)


@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        (config(), ALL),
        (config(LoadBalance.ONLY_PRIMARY), (A, B, C)),
        (config(LoadBalance.ONLY_RR), (R, S)),
        (config(LoadBalance.PREFER_PRIMARY), (A, B, C)),
        (config(LoadBalance.PREFER_RR), (R, S)),
        (config(LoadBalance.ANY, B1, C2), (A, R)),
        (config(LoadBalance.ONLY_PRIMARY, B1, C2), (A,)),
        (config(LoadBalance.PREFER_RR, B1, C2), (R,)),
        (config(LoadBalance.ANY, NOWHERE), ALL),
        (config(LoadBalance.ANY, NOWHERE, only=True), ()),
        (config(LoadBalance.ANY, only=True), ALL),
        (config(LoadBalance.ONLY_RR, NOWHERE, only=True), ()),
        (config(LoadBalance.PREFER_RR, NOWHERE, only=True), (R, S)),
        (config(LoadBalance.PREFER_PRIMARY, NOWHERE, only=True), (A, B, C)),
    ],
)
def test_each_mode_takes_its_types_by_level(cfg: Config, expected: tuple[Server, ...]) -> None:
    assert placement.candidates(cfg, ALL) == expected


def test_trap_3_a_zone_that_holds_only_the_other_type_is_no_match() -> None:
    # Level 1 holds a replica only: for primaries it does not exist, and level 2 is used.
    assert placement.candidates(config(LoadBalance.ONLY_PRIMARY, B1, C2), (R, B, C)) == (B,)


def test_trap_3_the_type_that_prefer_falls_back_to_is_taken_anywhere_in_the_cluster() -> None:
    # R is in the first level and S is not: the keys are not looked at.
    assert placement.candidates(config(LoadBalance.PREFER_PRIMARY, B1, only=True), (R, S)) == (R, S)


def test_a_gap_between_levels_is_no_end() -> None:
    keys = (TopologyKey("gcp", "us-east1", "us-east1-c", 1), TopologyKey("gcp", "us-east1", "us-east1-d", 9))

    assert placement.candidates(config(LoadBalance.ANY, *keys), (A, C)) == (C,)


def test_the_server_with_the_fewest_connections_is_taken() -> None:
    loads = {A.at: 2, B.at: 1, C.at: 3}

    assert placement.pick((A, B, C), loads.__getitem__, lambda tied: tied[0]) == B


def test_ties_are_spread_over_all_that_tie() -> None:
    rng = Random(7)

    drawn = Counter(placement.pick((A, B, C), lambda at: 0, rng.choice).host for _ in range(300))

    assert all(drawn[server.host] > 60 for server in (A, B, C))


def kept(cfg: Config, servers: tuple[Server, ...], *out: Server) -> set[Server]:
    return set(placement.kept(cfg, servers, lambda at: at not in {server.at for server in out}))


LEVELS = config(LoadBalance.ANY, B1, C2, TopologyKey("gcp", "us-east1", "us-east1-d", 3))


def test_trap_1_with_nothing_up_only_the_level_that_would_be_used_is_kept() -> None:
    assert kept(LEVELS, (A, B, C), A, B, C) == {A}


def test_a_failure_keeps_both_the_failed_level_and_the_one_in_use() -> None:
    assert kept(LEVELS, (A, B, C), A) == {A, B}
    assert kept(LEVELS, (A, B, C), A, B) == {A, C}


def test_a_level_is_kept_whole_its_failed_members_included() -> None:
    twin = Server("10.0.0.9", 5433, "gcp", "us-east1", "us-east1-b")

    assert kept(LEVELS, (A, twin, B), twin) == {A, twin}


def test_once_the_preferred_server_is_back_the_fallback_is_not_kept() -> None:
    assert kept(LEVELS, (A, B, C)) == {A}


def test_with_the_keys_only_and_no_listed_server_in_them_nothing_is_kept() -> None:
    assert kept(config(LoadBalance.ANY, NOWHERE, only=True), (A, B)) == set()


zones = st.sampled_from(["us-east1-b", "us-east1-c", "us-east1-d", ""])
types: st.SearchStrategy[NodeType] = st.sampled_from(["primary", "read_replica"])
clusters = st.lists(st.tuples(zones, types), max_size=6).map(
    lambda rows: tuple(
        Server(f"10.0.0.{n}", 5433, "gcp", "us-east1", zone, node_type) for n, (zone, node_type) in enumerate(rows)
    )
)
configs = st.builds(
    config,
    st.sampled_from(list(LoadBalance)),
    st.sampled_from([B1, NOWHERE]),
    st.sampled_from([C2, EAST2]),
    only=st.booleans(),
)


@given(configs, clusters)
def test_candidates_are_servers_that_were_given_in_their_order_of_one_type_where_the_mode_says_so(
    cfg: Config, servers: tuple[Server, ...]
) -> None:
    chosen = placement.candidates(cfg, servers)

    assert chosen == tuple(server for server in servers if server in chosen)
    if cfg.load_balance is not LoadBalance.ANY and cfg.load_balance is not LoadBalance.OFF:
        assert len({server.node_type for server in chosen}) <= 1


@given(configs, clusters, st.sets(st.integers(0, 5)))
def test_whatever_is_out_candidates_are_kept_and_the_failures_of_others_never_shrink_what_is_kept(
    cfg: Config, servers: tuple[Server, ...], numbers: set[int]
) -> None:
    out = {server.at for number, server in enumerate(servers) if number in numbers}
    alive = [server for server in servers if server.at not in out]
    whole = set(placement.kept(cfg, servers, lambda at: True))

    now = set(placement.kept(cfg, servers, lambda at: at not in out))

    assert whole <= now
    assert set(placement.candidates(cfg, alive)) <= now


@given(st.dictionaries(st.integers(0, 5), st.integers(0, 9), min_size=1))
def test_what_ties_is_exactly_the_minimum(loads: dict[int, int]) -> None:
    servers = tuple(Server("h", number) for number in loads)

    tied = placement.least_loaded(servers, lambda at: loads[HostPort(*at).port])

    assert {server.port for server in tied} == {n for n, load in loads.items() if load == min(loads.values())}
