"""One discovery: who is asked, what counts as an answer, and how long it may take."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing

from ysactor.cluster.discovery import discover
from ysactor.cluster.listing import QUERY, parse
from ysactor.cluster.messages import Discovered, Listing, NoListing, NotYugabyte
from ysactor.config import Config
from ysactor.driver.protocol import Session
from ysactor.policy.addresses import Choice, Column
from ysactor.servers import HostPort, Server
from ysactor.testing import FakeCluster, FakeDriver, error

Discover: TypeAlias = Callable[..., Awaitable[Discovered]]


@pytest.fixture
async def ask(world: FakeCluster) -> AsyncIterator[Discover]:
    """A discovery of this world."""
    driver = FakeDriver(world)
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)

        async def ask(
            *seeds: HostPort, others: tuple[HostPort, ...] = (), down: frozenset[HostPort] = frozenset(), **options: Any
        ) -> Discovered:
            choice = options.pop("choice", Choice())
            config = Config(hosts=seeds, **options)
            return await discover(driver, config, seeds, others, choice, down.__contains__)

        yield ask
        nursery.cancel_scope.cancel()


async def test_it_asks_in_order_and_stops_at_the_first_answer(world: FakeCluster, ask: Discover) -> None:
    one, two, three = world.servers
    one.crash()

    result = await ask(one.at, two.at, others=(three.at,))

    assert isinstance(result, Listing)
    assert result.by == two.at
    assert [dialled.dialled for dialled in world.journal.dials()] == [one.at, two.at]
    assert world.sessions == 0


async def test_a_listed_server_that_goes_down_before_its_turn_is_passed_over(world: FakeCluster, ask: Discover) -> None:
    one, two, three = world.servers
    one.crash()

    result = await ask(one.at, others=(two.at, three.at), down=frozenset({two.at}))

    assert isinstance(result, Listing)
    assert result.by == three.at
    assert two.at not in [dialled.dialled for dialled in world.journal.dials()]


async def test_a_seed_is_asked_even_if_it_is_down(world: FakeCluster, ask: Discover) -> None:
    one = world.servers[0]

    assert isinstance(await ask(one.at, down=frozenset({one.at})), Listing)


async def test_no_such_function_ends_it_at_the_first_server_that_says_so(world: FakeCluster, ask: Discover) -> None:
    world.not_yugabyte()

    assert await ask(*(server.at for server in world.servers)) == NotYugabyte(world.servers[0].at)
    assert len(world.journal.dials()) == 1
    assert world.sessions == 0


async def test_it_names_the_reasons_of_the_servers_that_gave_no_list(world: FakeCluster, ask: Discover) -> None:
    one, two, three = world.servers
    one.crash()
    two.answer(QUERY, error("42501", "permission denied"))
    three.lists([{**three.row(), "host": ""}])

    result = await ask(one.at, two.at, three.at)

    assert isinstance(result, NoListing)
    for reason in ("10.0.0.1:5433: ", "permission denied", "no row of its yb_servers() has a usable host and port"):
        assert reason in result.detail


async def test_a_server_that_never_answers_the_query_takes_its_bound_and_no_more(
    world: FakeCluster, ask: Discover
) -> None:
    one, two, _ = world.servers
    one.slow(query=1000)

    result = await ask(one.at, two.at, connect_timeout=4)

    assert isinstance(result, Listing)
    assert result.by == two.at
    assert trio.current_time() == pytest.approx(4)


async def test_a_server_that_dies_during_the_query_is_passed_over(world: FakeCluster, ask: Discover) -> None:
    one, two, _ = world.servers
    one.slow(query=2)

    async with trio.open_nursery() as nursery:

        async def crash() -> None:
            await trio.sleep(1)
            one.crash()

        nursery.start_soon(crash)
        result = await ask(one.at, two.at)

    assert isinstance(result, Listing)
    assert result.by == two.at


async def test_look_ups_run_all_at_once_and_one_that_never_ends_counts_as_unresolved(
    world: FakeCluster, ask: Discover
) -> None:
    rows = [{**world.servers[0].row(), "host": f"slow-{n}", "public_ip": f"public-{n}"} for n in range(5)]
    world.servers[0].lists(rows)
    world.stuck_names.update(f"slow-{n}" for n in range(5))
    world.resolver.update({f"public-{n}": f"9.9.9.{n}" for n in range(5)})

    result = await ask(world.servers[0].at, connect_timeout=3)

    assert trio.current_time() == pytest.approx(3)
    assert isinstance(result, Listing)
    assert result.choice == Choice(Column.PUBLIC_IP)  # a guess: every public address resolves


async def test_once_decided_only_the_dialled_name_is_looked_up(world: FakeCluster, ask: Discover) -> None:
    world.servers[0].lists([{**world.servers[0].row(), "host": "slow", "public_ip": ""}])
    world.stuck_names.add("slow")

    result = await ask(world.servers[0].at, choice=Choice(Column.PUBLIC_IP, True))

    assert trio.current_time() == 0
    assert isinstance(result, Listing)
    assert result.choice == Choice(Column.PUBLIC_IP, True)


@pytest.mark.parametrize("choice", [Choice(), Choice(Column.HOST, True)])
async def test_a_dialled_name_that_does_not_resolve_fails_its_target_decided_or_not(
    world: FakeCluster, choice: Choice
) -> None:
    class Forgetful(FakeDriver):
        """Its look-ups fail, as those of a resolver that the connection itself did not need."""

        async def resolve(self, host: str) -> str | None:
            return None

    driver = Forgetful(world)
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        at = world.servers[0].at
        result = await discover(driver, Config(hosts=(at,)), (at,), (), choice, lambda at: False)
        nursery.cancel_scope.cancel()

    assert result == NoListing("10.0.0.1:5433: its name does not resolve")


async def test_it_ends_even_if_a_step_outlasts_its_own_bound(world: FakeCluster) -> None:
    class Lingering:
        """A session whose goodbye never ends."""

        def __init__(self, session: Session) -> None:
            self._session = session

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

        async def close(self, timeout: float) -> None:
            try:
                await trio.sleep_forever()
            finally:
                self._session.terminate("cancelled")

    class Polite(FakeDriver):
        async def connect(self, host: HostPort, config: Config) -> Any:
            return Lingering(await super().connect(host, config))

    driver = Polite(world)
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        at = world.servers[0].at
        result = await discover(driver, Config(hosts=(at,), connect_timeout=10), (at,), (), Choice(), lambda at: False)
        nursery.cancel_scope.cancel()

    assert result == NoListing("it took too long")
    assert trio.current_time() == pytest.approx(31)
    assert world.sessions == 0


async def test_a_cancelled_discovery_leaves_nothing_open(world: FakeCluster, ask: Discover) -> None:
    world.servers[0].slow(connect=1, query=1)
    for tenths in range(0, 25, 3):
        with trio.move_on_after(tenths / 10):
            await ask(world.servers[0].at)
        assert world.sessions == 0


async def test_a_bug_propagates(world: FakeCluster, ask: Discover) -> None:
    world.servers[0].answer(QUERY, ZeroDivisionError())

    with pytest.raises(ZeroDivisionError):
        await ask(world.servers[0].at)


def row(**changes: Any) -> dict[str, Any]:
    return {
        "host": "h",
        "port": 5433,
        "node_type": "primary",
        "cloud": "c",
        "region": "r",
        "zone": "z",
        "public_ip": "",
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "server"),
    [
        ({}, Server("h", 5433, "c", "r", "z")),
        ({"node_type": "read_replica"}, Server("h", 5433, "c", "r", "z", "read_replica")),
        ({"node_type": "READ_REPLICA"}, Server("h", 5433, "c", "r", "z", "read_replica")),
        ({"node_type": None}, Server("h", 5433, "c", "r", "z", "primary")),
        ({"node_type": "readreplica"}, Server("h", 5433, "c", "r", "z", "primary")),
        ({"cloud": None, "region": None, "zone": None, "public_ip": None}, Server("h", 5433)),
        ({"num_connections": 0, "uuid": "u"}, Server("h", 5433, "c", "r", "z")),
    ],
)
def test_a_row_is_read_by_column_name(changes: dict[str, Any], server: Server) -> None:
    assert parse([row(**changes)]) == ((server,), 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"host": None},
        {"host": " "},
        {"host": 7},
        {"port": None},
        {"port": 0},
        {"port": 65536},
        {"port": True},
        {"port": "5433"},
    ],
)
def test_a_row_without_a_usable_host_or_port_is_skipped(changes: dict[str, Any]) -> None:
    assert parse([row(**changes), row()]) == ((Server("h", 5433, "c", "r", "z"),), 1)
