"""What `check` says of each server, for every reason there is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ysactor.cli.findings import Findings, Made, Source, Visit, as_json, words
from ysactor.config import Config
from ysactor.policy.explain import explain
from ysactor.servers import HostPort, Kind, Server

A = Server("10.0.0.1", 5433, "aws", "east", "a")
B = Server("10.0.0.2", 5433, "aws", "east", "b")
R = Server("10.0.0.3", 5433, "aws", "east", "b", "read_replica")
UP = Visit(seconds=0.0123, sessions=4)
DOWN = Visit(Kind.UNREACHABLE, "Connection refused")
REJECTED = Visit(Kind.REJECTED, "no such database")
STANDBY = Visit(Kind.READ_ONLY)


def found(
    servers: list[Server],
    visits: dict[Server, Visit],
    *,
    source: Source = "yb_servers",
    made: Made | None = None,
    error: str | None = None,
    **options: Any,
) -> Findings:
    config = Config.of(None, {"hosts": ["seed"], **options}, environ={})
    by_host = {server.at: visit for server, visit in visits.items()}
    failed = {at: visit.kind for at, visit in by_host.items() if visit.kind is not None}
    return Findings(config, source, explain(config, servers, failed, lambda _: 0), by_host, made, error)


def line_of(findings: Findings, server: Server) -> str:
    return next(line for line in words(findings) if line.startswith(str(server)))


KEYS = "aws.east.a:1,aws.east.b:2"
SEED = Server("seed", 5433)


@pytest.mark.parametrize(
    ("server", "findings", "end"),
    [
        (A, found([A, B], {A: UP, B: UP}, load_balance=True, topology_keys=KEYS), "  yes"),
        (
            B,
            found([A, B], {A: UP, B: UP}, load_balance=True, topology_keys=KEYS),
            "no: level 2 waits until level 1 has no server",
        ),
        (B, found([A, B], {A: DOWN, B: UP}, load_balance=True, topology_keys=KEYS), "  yes"),
        (
            A,
            found([A, B], {A: DOWN, B: UP}, load_balance=True, topology_keys=KEYS),
            "down   -         -          no: it could not be reached: Connection refused",
        ),
        (
            A,
            found([A, B], {A: REJECTED, B: UP}, load_balance=True),
            "no: it turned the connection away: no such database",
        ),
        (A, found([A, B], {A: UP, B: UP}, load_balance=True), "yes: one of 2 that tie, at random"),
        (
            B,
            found([A, B], {A: UP, B: UP}, load_balance=True, topology_keys="aws.east.a"),
            "no: not in topology_keys, and level 1 has a server",
        ),
        (
            B,
            found([B], {B: UP}, load_balance=True, topology_keys="aws.east.a", fallback_to_topology_keys_only=True),
            "no: not in topology_keys, and only those may be used",
        ),
        (R, found([A, R], {A: UP, R: UP}, load_balance="only-primary"), "takes primaries only"),
        (A, found([A, R], {A: UP, R: UP}, load_balance="prefer-rr"), "takes read replicas while there are any"),
        (
            SEED,
            found([A, R], {A: UP}, load_balance="only-primary"),
            "no: it is not in the list of servers, and load_balance=only-primary uses no others",
        ),
        (SEED, found([A], {A: UP, SEED: UP}, load_balance=True), "only if everything before it fails"),
        (SEED, found([], {SEED: UP}, source="off"), "yes: the first host that works"),
        (
            SEED,
            found([], {}, source="off"),
            "?      -         -          not known: there was no answer before the time was over",
        ),
        (A, found([A, B], {B: UP}, load_balance=True), "not known: there was no answer before the time was over"),
        (B, found([A, B], {B: UP}, load_balance=True), "  yes"),
        (
            SEED,
            found([], {SEED: DOWN}, source="off"),
            "as the last resort, since every host has failed: Connection refused",
        ),
        (
            SEED,
            found(
                [],
                {SEED: STANDBY, Server("other", 5433): UP},
                source="off",
                hosts=["seed", "other"],
                target_session_attrs="read-write",
            ),
            "no: it accepts no writes, and target_session_attrs asks for a server that does",
        ),
    ],
)
def test_every_server_has_its_reason(server: Server, findings: Findings, end: str) -> None:
    assert line_of(findings, server).endswith(end)


@pytest.mark.parametrize(
    ("visit", "state"),
    [
        (UP, "up"),
        (DOWN, "down"),
        (REJECTED, "rejected"),
        (STANDBY, "read-only"),
        (Visit(seconds=0.1, standby=True), "standby"),
        (Visit(), "?"),
    ],
)
def test_the_state_is_what_the_visit_showed(visit: Visit, state: str) -> None:
    assert found([A], {A: visit}, load_balance=True).state(A) == state


def test_the_columns_begin_at_the_same_place() -> None:
    lines = words(found([A, B, R], {A: UP, B: DOWN, R: UP}, load_balance=True, topology_keys=KEYS))
    header, *rows = [line for line in lines if line.startswith(("server", "10.", "seed"))]
    start = header.index("a new connection")
    assert len(rows) == 4
    assert all(row[start - 2 : start] == "  " and row[start] != " " for row in rows)


def test_the_heading_says_where_the_servers_are_from() -> None:
    assert words(found([A, B], {}, load_balance=True, topology_keys=KEYS))[0] == (
        "yb_servers() lists 2 servers; load_balance=any, level 1 of topology_keys in use"
    )
    assert words(found([B], {}, load_balance=True, topology_keys="aws.west.*"))[0] == (
        "yb_servers() lists 1 server; load_balance=any, and no level of topology_keys has a server"
    )
    assert "not YugabyteDB" in words(found([], {}, source="not yugabyte", load_balance=True))[0]
    assert "could not be read" in words(found([], {}, source="unknown", load_balance=True))[0]


def test_the_end_tells_of_the_connection_or_of_its_failure() -> None:
    made = Made(A, 0.0042, "18.6", "TLSv1.3")
    assert words(found([A], {A: UP}, load_balance=True, made=made))[-1] == (
        "Connected to 10.0.0.1:5433 (aws.east.a) in 4.2 ms: PostgreSQL 18.6, TLSv1.3"
    )
    assert words(found([A], {A: DOWN}, load_balance=True, error="it is gone"))[-1] == "No connection: it is gone"


def test_json_says_the_same() -> None:
    findings = found([A, B], {A: DOWN, B: UP}, load_balance=True, topology_keys=KEYS, made=Made(B, 0.1, "18.6", None))
    told = json.loads(json.dumps(as_json(findings)))
    first, second, seed = told["servers"]
    assert (told["ok"], told["level"], told["connection"]["host"]) == (True, 2, "10.0.0.2")
    assert (first["state"], first["candidate"], first["detail"]) == ("down", False, "Connection refused")
    assert (second["state"], second["candidate"], second["why"], second["sessions"]) == ("up", True, "yes", 4)
    assert (seed["listed"], seed["node_type"], seed["state"]) == (False, None, "?")


def test_nothing_that_is_shown_holds_the_password() -> None:
    findings = found([A], {A: UP}, load_balance=True, password="s3cret")
    assert "s3cret" not in "\n".join([*words(findings), json.dumps(as_json(findings)), repr(findings)])


def test_the_last_column_may_be_of_any_length_and_addresses_may_be_ipv6() -> None:
    six = Server("::1", 5433, "aws", "east", "a")
    findings = found([six], {six: Visit(Kind.UNREACHABLE, "x" * 300)}, load_balance=True)
    assert line_of(findings, six).endswith("x" * 300)
    assert HostPort("::1", 5433) in findings.visits
