"""Placement against an oracle that was written from the rule alone.

A case is decoded from one draw of bytes, in which zeros are the simplest choice everywhere: Hypothesis draws and
shrinks that many times faster than nested strategies, and a case is a few dozen small choices of equal weight anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import given, note, settings
from hypothesis import strategies as st

from ysactor.cluster.listing import parse
from ysactor.cluster.messages import Discovered, Failure, Listing, NoListing, NotYugabyte, Nowhere
from ysactor.cluster.opening import _failed, _nowhere
from ysactor.cluster.state import ClusterState
from ysactor.config import Config
from ysactor.errors import ConnectFailed, NoNodeAvailable
from ysactor.options.placement import load_balance, topology_keys
from ysactor.policy.addresses import Choice, dialled
from ysactor.servers import HostPort, Kind, Server

from .oracle import Address, LastError, Refusal, Row, World, kept, may_go, placement

EXAMPLES: Final = 20_000

MODES = (True, "any", "only-primary", "prefer-primary", "ONLY_RR", "Prefer-RR", False)
"""The seven modes, in spellings of all sorts."""
TYPES = ("primary", "read_replica", "primary", "read_replica", None, "tserver", "", "readreplica")
CLOUDS = ("gcp", "gcp", "GCP", "Straße")
KEY_CLOUDS = ("gcp", "gcp", "gCp", "STRASSE")
REGIONS = ("east", "east", "East", "west", "οδός", "*", None, "")
KEY_REGIONS = ("east", "east", "EAST", "west", "ΟΔΌΣ", "*", "east", "west")
ZONES = ("a", "b", "A", "c", "ﬁ", "*", None, "")
KEY_ZONES = ("a", "*", "B", "c", "FI", "*", "a", "nowhere")
KINDS = (None, None, None, None, None, None, None, None, None, Kind.UNREACHABLE, Kind.REJECTED, Kind.READ_ONLY)
SIZES = (1, 2, 3, 4, 5, 6, 3, 4, 6, 0)
"""How many servers are listed."""
COURSES = ("listed",) * 9 + ("listed twice", "listed, then none", "listed, then lost", "none", "failed", "postgresql")
"""What discovery has met so far."""
EARLIER: Sequence[Row] = tuple(
    {"host": host, "port": 5433, "node_type": None, "cloud": "gcp", "region": "east", "zone": "a", "public_ip": ""}
    for host in ("10.0.0.9", "10.0.0.1")
)
"""What is listed first where two listings follow one another: it is gone again, unless the second is empty."""

ran = Counter[str]()
"""What the big property has really seen."""


class Choices:
    """Choices out of a number: zero is the first of everything."""

    def __init__(self, drawn: bytes) -> None:
        self.left = int.from_bytes(drawn, "big")

    def below(self, limit: int) -> int:
        self.left, choice = divmod(self.left, limit)
        return choice

    def of(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]


@dataclass(frozen=True)
class Case:
    """A cluster and what a client knows of it, with the real state beside the oracle's world."""

    world: World
    config: Config
    state: ClusterState
    course: str
    ties: Sequence[int]


def cases() -> st.SearchStrategy[Case]:
    return st.binary(min_size=26, max_size=26).map(lambda drawn: decode(Choices(drawn)))


def decode(choices: Choices) -> Case:
    mode = choices.of(MODES)
    course = "listed" if mode is False else choices.of(COURSES)
    rows = list(_rows(choices))
    listed = [(row["host"], row["port"]) for row in rows]
    hosts = _hosts(choices, listed)
    keys = ",".join(_keys(choices))
    keys_only = choices.below(2) == 1
    # By the readers of these options, which is quicker than reading all of them.
    config = Config(
        hosts=tuple(HostPort(*host) for host in hosts),
        load_balance=load_balance(mode),
        topology_keys=topology_keys(keys),
        fallback_to_topology_keys_only=keys_only,
    )
    discovered = rows if course.startswith("listed") and mode is not False else []
    if course == "listed twice" and mode is not False and not rows:
        discovered = EARLIER
    known = sorted({(row["host"], row["port"]) for row in discovered} | {*listed, *hosts})
    kinds = {at: kind for at in known if (kind := choices.of(KINDS)) is not None}
    load = {at: choices.below(3) for at in known}
    tried = frozenset(at for at in known if choices.below(8) == 7)
    world = World(
        hosts=hosts,
        mode=_named(mode),
        keys=keys,
        keys_only=keys_only,
        rows=discovered,
        out=frozenset(kinds),
        load=load,
        tried=tried,
    )
    state = ClusterState(config)
    state.start(0.0)
    if mode is not False:
        _discover(state, course, rows, hosts)
    for at, kind in kinds.items():
        state.open_failed(state._ledger.reserve(Server(*at), 0.0), _failure(kind), 1.0)
    for at, count in load.items():
        # Half of them are still being opened: those count as well.
        for number in range(count):
            reservation = state._ledger.reserve(Server(*at), 0.0)
            if number % 2 and at not in kinds:
                state.opened(reservation, 1.0)
    return Case(world, config, state, course, [choices.below(6) for _ in range(9)])


def _named(mode: bool | str) -> str:
    return {"true": "any"}.get(name := str(mode).lower().replace("_", "-"), name)


def _rows(choices: Choices) -> Iterator[Row]:
    for number in range(choices.of(SIZES)):
        row = {
            "host": f"10.0.0.{number // 2 + 1}",
            "port": 5433 + number % 2,
            "node_type": choices.of(TYPES),
            "cloud": choices.of(CLOUDS),
            "region": choices.of(REGIONS),
            "zone": choices.of(ZONES),
            "public_ip": None,
        }
        yield row
        if choices.below(16) == 15:
            yield dict(row)


def _hosts(choices: Choices, listed: Sequence[Address]) -> list[Address]:
    """One to three hosts, each once; some of them listed."""
    names = [*listed, ("seed-1", 5433), ("seed-2", 5433), ("seed-2", 5434)]
    return list(dict.fromkeys(names[-1 - choices.below(len(names))] for _ in range(choices.of((1, 2, 3)))))


def _keys(choices: Choices) -> Iterator[str]:
    for _ in range(choices.below(5)):
        place = f"{choices.of(KEY_CLOUDS)}.{choices.of(KEY_REGIONS)}.{choices.of(KEY_ZONES)}"
        level = choices.below(12)
        yield place if level == 0 else "" if level == 11 else f"{place}:{level}"


def _discover(state: ClusterState, course: str, rows: Sequence[Row], hosts: Sequence[Address]) -> None:
    by = HostPort(*hosts[0])

    def listing(rows: Sequence[Row]) -> Listing:
        return Listing(by, dialled(parse(rows)[0], Choice().column), Choice())

    results: list[Discovered] = []
    match course:
        case "listed":
            results = [listing(rows)]
        case "listed twice":
            results = [listing(EARLIER), listing(rows)]
        case "listed, then none":
            results = [listing(rows), listing(())]
        case "listed, then lost":
            results = [listing(rows), NoListing("lost")]
        case "none":
            results = [listing(())]
        case "failed":
            results = [NoListing("failed")]
        case "postgresql":
            results = [NotYugabyte(by)]
    for result in results:
        state.refresh_asked(0.0)
        state.discovery_ended(result, 0.0)


def _failure(kind: Kind) -> Failure:
    return Failure(kind, OSError("scripted"), "scripted")


def _where(case: Case, tried: frozenset[Address], tie: int) -> tuple[frozenset[Address], Any]:
    """All servers that the software holds to be tied, and the place or refusal that it gave out."""
    tied: list[Server] = []

    def choose(servers: Sequence[Server]) -> Server:
        tied.extend(servers)
        return sorted(servers, key=lambda server: server.at)[tie % len(servers)]

    place, _ = case.state.place(frozenset(HostPort(*at) for at in tried), 2.0, choose)
    if isinstance(place, Nowhere):
        return frozenset(), place
    assert len(tied) == len({server.at for server in tied}), "a server twice among those tied"
    return frozenset(server.at for server in tied) or frozenset({place.at}), place


def _ending(error: ConnectFailed | NoNodeAvailable) -> Refusal | LastError:
    return Refusal(error.node_type) if isinstance(error, NoNodeAvailable) else LastError()


def test_the_software_places_and_keeps_as_the_oracle_says_over_twenty_thousand_clusters() -> None:
    ran.clear()
    _agrees()
    assert ran["examples"] >= EXAMPLES
    # The cases are about what they are meant to be about.
    assert min(ran[f"mode {_named(mode)}"] for mode in MODES) > EXAMPLES / 20
    assert min(ran[f"course {course}"] for course in COURSES) > EXAMPLES / 50
    assert min(ran[f"ends in {end}"] for end in ("primary", "read_replica", "cluster", "last error")) > EXAMPLES / 50
    assert min(ran[what] for what in ("ties", "by level", "seeds", "a listed seed")) > EXAMPLES / 10
    assert ran["nowhere"] > EXAMPLES / 50
    assert ran["most tried"] >= 8


@settings(max_examples=EXAMPLES)
@given(cases())
def _agrees(case: Case) -> None:
    world = case.world
    note(world)
    now = placement(world)
    _count(case, now)
    view = case.state.view()
    assert (view.placement, view.kept) == (now, kept(world))
    tried, visited = world.tried, list[Address]()
    last = next((_failed(HostPort(*at), _failure(Kind.REJECTED)) for at in sorted(tried)), None)
    while True:
        tie = case.ties[len(visited)] if len(visited) < len(case.ties) else 0
        tied, place = _where(case, tried, tie)
        expected = may_go(world)
        if isinstance(place, Nowhere):
            break
        assert tied == expected
        ran["ties"] += len(tied) > 1
        visited.append(place.at)
        tried |= {place.at}
        failure = _failure(Kind.UNREACHABLE)
        last = _failed(place.at, failure)
        case.state.open_failed(place, failure, 2.0)
        world = replace(world, out=world.out | {place.at}, tried=tried)
    error = _nowhere(place, last)
    assert _ending(error) == expected
    assert (error.__cause__ if isinstance(error, NoNodeAvailable) else error) is last
    assert len(visited) == len(set(visited))
    info = case.state.info()
    assert {server.at for server in info.placement} == placement(world)
    assert {server.at for server in info.allowed} == kept(world)
    ran[f"ends in {expected.node_type if isinstance(expected, Refusal) else 'last error'}"] += 1
    ran["most tried"] = max(ran["most tried"], len(visited))


def _count(case: Case, now: frozenset[Address]) -> None:
    world = case.world
    ran["examples"] += 1
    ran[f"mode {world.mode}"] += 1
    ran[f"course {case.course}"] += 1
    ran["a listed seed"] += any((row["host"], row["port"]) in world.hosts for row in world.rows)
    ran["seeds"] += bool(now) and now <= set(world.hosts)
    ran["nowhere"] += not now
    ran["by level"] += bool(world.keys and world.rows) and now != placement(replace(world, keys=""))
