"""Why a connection goes where it goes."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from ysactor.config import Config, LoadBalance, TopologyKey
from ysactor.policy import fallback, placement
from ysactor.policy.explain import Explanation, Reason, explain
from ysactor.servers import HostPort, Kind, Server

SEED = HostPort("yb", 5433)
A1, A2 = (Server(f"10.0.1.{n}", 5433, "c", "r", "a") for n in (1, 2))
B1 = Server("10.0.2.1", 5433, "c", "r", "b")
X1 = Server("10.0.3.1", 5433, "c", "r", "x")
R1 = Server("10.0.1.9", 5433, "c", "r", "a", "read_replica")
KEYS = (TopologyKey("c", "r", "a", 1), TopologyKey("c", "r", "b", 2))
CONFIG = Config(hosts=(SEED,), load_balance=LoadBalance.ONLY_PRIMARY, topology_keys=KEYS)


def reasons(found: Explanation) -> dict[str, Reason]:
    return {finding.server.host: finding.reason for finding in found.findings}


def none(at: HostPort) -> int:
    return 0


def test_every_server_gets_its_level_its_load_and_the_reason() -> None:
    loads = {A1.at: 3, A2.at: 1}

    found = explain(CONFIG, (A1, A2, B1, X1, R1), {}, lambda at: loads.get(at, 0))

    assert reasons(found) == {
        A1.host: Reason.BUSIER,
        A2.host: Reason.TAKEN,
        B1.host: Reason.LESS_PREFERRED,
        X1.host: Reason.OUTSIDE_KEYS,
        R1.host: Reason.WRONG_TYPE,
        "yb": Reason.SEED_REFUSED,
    }
    assert [(f.level, f.load) for f in found.findings] == [(1, 3), (1, 1), (2, 0), (None, 0), (1, 0), (None, 0)]
    assert (found.taken, found.refused, found.level) == ((A2,), None, 1)


def test_a_level_that_is_out_gives_way_to_the_next() -> None:
    failed = {A1.at: Kind.UNREACHABLE, A2.at: Kind.REJECTED}

    found = explain(CONFIG, (A1, A2, B1), failed, none)

    assert reasons(found) == {
        A1.host: Reason.OUT,
        A2.host: Reason.OUT,
        B1.host: Reason.TAKEN,
        "yb": Reason.SEED_REFUSED,
    }
    assert [finding.kind for finding in found.findings] == [Kind.UNREACHABLE, Kind.REJECTED, None, None]
    assert found.level == 2


def test_a_refusal_says_what_was_wanted() -> None:
    found = explain(CONFIG, (R1,), {}, none)

    assert (found.taken, found.refused) == ((), "primary")
    assert reasons(found) == {R1.host: Reason.WRONG_TYPE, "yb": Reason.SEED_REFUSED}


def test_with_nothing_discovered_the_first_seed_is_taken_and_the_others_wait() -> None:
    cfg = Config(hosts=(SEED, HostPort("other", 5433)))

    assert reasons(explain(cfg, (), {}, none)) == {"yb": Reason.SEED_TAKEN, "other": Reason.SEED_IN_RESERVE}
    assert reasons(explain(cfg, (), {SEED: Kind.READ_ONLY}, none)) == {"yb": Reason.OUT, "other": Reason.SEED_TAKEN}


def test_a_listed_seed_that_is_tried_as_the_last_resort_says_so() -> None:
    cfg = Config(hosts=(A1.at,), load_balance=LoadBalance.ANY)

    found = explain(cfg, (A1, B1), {A1.at: Kind.UNREACHABLE, B1.at: Kind.UNREACHABLE}, none)

    assert reasons(found) == {A1.host: Reason.SEED_LAST_RESORT, B1.host: Reason.OUT}


@given(
    st.sampled_from(list(LoadBalance)),
    st.booleans(),
    st.sets(st.sampled_from([A1, A2, B1, X1, R1])),
    st.dictionaries(st.sampled_from([A1.at, A2.at, B1.at, X1.at, R1.at, SEED]), st.sampled_from(list(Kind))),
)
def test_the_explanation_agrees_with_where_connections_go(
    mode: LoadBalance, only: bool, listed: set[Server], failed: Mapping[HostPort, Kind]
) -> None:
    servers = tuple(sorted(listed, key=lambda server: server.at))
    cfg = Config(hosts=(SEED, A1.at), load_balance=mode, topology_keys=KEYS, fallback_to_topology_keys_only=only)

    found = explain(cfg, servers, failed, none)

    places = fallback.places(cfg, servers, failed)
    assert found.taken == placement.least_loaded(places, none)
    marked = {Reason.TAKEN, Reason.SEED_TAKEN, Reason.SEED_LAST_RESORT}
    assert {f.server for f in found.findings if f.reason in marked} == set(places)
    assert len(found.findings) == len(
        listed | {Server(SEED.host, SEED.port)} | ({A1} if A1 in listed else {Server(*A1.at)})
    )
