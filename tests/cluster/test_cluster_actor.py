"""The cluster's actor on a fake cluster: placing, failing over, refreshing, in virtual time."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from ysactor.actor import Ended
from ysactor.cluster.messages import Released
from ysactor.config import LoadBalance, TopologyKey
from ysactor.errors import ConnectFailed, ConnectionLost, NoNodeAvailable
from ysactor.servers import HostPort, Server
from ysactor.testing import FakeCluster, FakeServer, error

ONE, TWO, THREE = (f"10.0.0.{n}:5433" for n in (1, 2, 3))


def zone(number: int, level: int = 1) -> TopologyKey:
    return TopologyKey("cloud", "region", f"zone-{number}", level)


def discoveries(world: FakeCluster) -> list[float]:
    """When yb_servers() was asked."""
    return [asked.time for asked in world.journal.asked() if "yb_servers" in asked.sql]


def dials(world: FakeCluster, server: FakeServer) -> list[float]:
    return [dialled.time for dialled in world.journal.dials(server)]


# Placing


async def test_nine_connections_are_spread_three_to_a_server(world: FakeCluster, open_client: Any) -> None:
    async with open_client() as client:
        for _ in range(9):
            await client.open()

        assert client.info.counts == {ONE: 3, TWO: 3, THREE: 3}


async def test_c40_thirty_openings_at_once_are_spread_ten_to_a_server(world: FakeCluster, open_client: Any) -> None:
    for server in world.servers:
        server.slow(connect=1)
    async with open_client() as client:
        places = await client.open_many(30)
        assert sorted(places.values()) in ([9, 10, 11], [10, 10, 10])

        world.servers[1].kill_sessions()
        await client.close()
        assert set(client.info.counts.values()) == {0}

        places = await client.open_many(30)
        assert sorted(places.values()) in ([9, 10, 11], [10, 10, 10])


async def test_connections_wait_for_the_first_discovery_and_do_not_all_land_on_the_seed(
    world: FakeCluster, open_client: Any
) -> None:
    world.servers[0].slow(query=3)
    async with open_client() as client:
        assert client.info.discovered is False

        assert await client.open_many(3) == Counter({ONE: 1, TWO: 1, THREE: 1})
        assert trio.current_time() >= 3


async def test_ties_are_broken_by_the_given_randomness_alone(world: FakeCluster, open_client: Any) -> None:
    async def first(seed: int) -> str:
        async with open_client(seed=seed) as client:
            return str(await client.open())

    places = [await first(seed) for seed in range(20)]

    assert set(places) == {ONE, TWO, THREE}
    assert places == [await first(seed) for seed in range(20)]


async def test_a_zone_is_preferred_and_the_next_level_is_used_when_it_fails(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(topology_keys=(zone(2), zone(3, 2))) as client:
        assert await client.open_many(3) == Counter({TWO: 3})

        world.servers[1].crash()

        assert await client.open() == THREE
        assert client.hosts("failed") == [TWO]
        assert client.hosts("placement") == [THREE]
        assert client.hosts("allowed") == [TWO, THREE]


async def test_a_failed_opening_gives_its_count_back(world: FakeCluster, open_client: Any) -> None:
    world.servers[1].refuse()
    async with open_client() as client:
        await client.open_many(10)

        assert client.info.counts == {ONE: 5, TWO: 0, THREE: 5}
        assert set(client.info.pending.values()) == {0}


async def test_with_balancing_off_every_connection_goes_to_the_first_host_that_works(
    world: FakeCluster, open_client: Any
) -> None:
    hosts = tuple(server.at for server in world.servers)
    async with open_client(load_balance=LoadBalance.OFF, hosts=hosts) as client:
        assert await client.open_many(4) == Counter({ONE: 4})

        world.servers[0].crash()

        assert await client.open_many(4) == Counter({TWO: 4})
        assert discoveries(world) == []
        assert client.info.mode == "static"
        assert client.hosts("allowed") == [ONE, TWO]


async def test_on_postgresql_every_mode_uses_the_hosts_in_their_order(world: FakeCluster, open_client: Any) -> None:
    world.not_yugabyte()
    hosts = (world.servers[2].at, world.servers[0].at)
    for mode in LoadBalance:
        async with open_client(load_balance=mode, hosts=hosts, topology_keys=(zone(1),)) as client:
            assert await client.open_many(3) == Counter({THREE: 3})
            assert (client.info.mode, client.info.discovered) == ("static", False)


async def test_what_is_being_opened_is_told_with_how_long_it_has_taken(world: FakeCluster, open_client: Any) -> None:
    hosts = tuple(server.at for server in world.servers[:2])
    world.servers[0].hang()
    world.servers[1].slow(connect=3)
    async with open_client(load_balance=LoadBalance.OFF, hosts=hosts, connect_timeout=4) as client:
        assert client.actor.waits_for() == ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.open)
            await trio.sleep(2.5)
            nursery.start_soon(client.open)
            await trio.sleep(0.5)
            assert client.actor.waits_for() == f"; opening to {ONE} for 3 s"  # the older of the two
            await trio.sleep(1.5)
            assert client.actor.waits_for() == f"; opening to {ONE} for 2 s, {TWO} for 0.5 s"
        assert client.actor.waits_for() == ""


async def test_while_the_first_list_is_read_that_is_what_is_waited_for(world: FakeCluster, open_client: Any) -> None:
    world.servers[0].hang()
    async with open_client(connect_timeout=4) as client:
        await trio.sleep(2)
        assert client.actor.waits_for() == "; reading the first list of servers for 2 s"
        await trio.sleep(3)
        assert client.actor.waits_for() == ""


async def test_of_many_servers_that_are_being_connected_to_three_are_named(
    world: FakeCluster, open_client: Any
) -> None:
    for number in range(4, 7):
        world.add(f"10.0.0.{number}")
    async with open_client() as client:
        await client.actor.refresh()
        for server in world.servers:
            server.hang()
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(client.open)
            await trio.sleep(1)
            told = client.actor.waits_for()
            nursery.cancel_scope.cancel()
        assert told.startswith("; opening to 10.0.0.")
        assert (told.count("for 1 s"), told.endswith(", 3 more")) == (3, True)


async def test_c13_a_host_that_accepts_and_says_nothing_takes_only_its_own_share_of_time(
    world: FakeCluster, open_client: Any
) -> None:
    world.servers[0].hang()
    hosts = tuple(server.at for server in world.servers)
    async with open_client(load_balance=LoadBalance.OFF, hosts=hosts, connect_timeout=2) as client:
        start = trio.current_time()

        assert await client.open() == TWO
        assert trio.current_time() - start == pytest.approx(2)

        assert await client.open() == TWO
        assert trio.current_time() - start == pytest.approx(2)


async def test_c15_a_name_that_does_not_resolve_is_down_and_one_that_never_answers_takes_its_limit(
    world: FakeCluster, open_client: Any
) -> None:
    nowhere, slow = HostPort("nosuch.invalid", 5433), HostPort("slow.invalid", 5433)
    world.stuck_names.add("slow.invalid")
    async with open_client(
        load_balance=LoadBalance.OFF, hosts=(nowhere, slow, world.servers[2].at), connect_timeout=2
    ) as client:
        assert await client.open() == THREE
        assert client.hosts("failed") == ["nosuch.invalid:5433", "slow.invalid:5433"]
        assert trio.current_time() == pytest.approx(2)


# Errors


async def test_when_every_server_has_failed_the_last_error_comes_out_with_the_drivers_as_its_cause(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(load_balance=LoadBalance.OFF, hosts=tuple(s.at for s in world.servers)) as client:
        world.servers[0].crash()
        world.servers[1].crash()
        world.servers[2].reject("53300", "sorry, too many clients already")

        with pytest.raises(ConnectFailed) as caught:
            await client.open()

    assert (caught.value.server, caught.value.kind) == (world.servers[2].at, "rejected")
    assert getattr(caught.value.__cause__, "sqlstate", None) == "53300"
    assert "too many clients" in str(caught.value)


async def test_trap_6_where_the_seeds_are_refused_running_out_is_no_node_available_even_after_a_telling_error(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(load_balance=LoadBalance.ONLY_PRIMARY) as client:
        await client.open()
        for server in world.servers:
            server.reject("28P01", "password authentication failed")

        with pytest.raises(NoNodeAvailable) as caught:
            await client.open()
        assert caught.value.node_type == "primary"
        assert isinstance(caught.value.__cause__, ConnectFailed)

        with pytest.raises(NoNodeAvailable) as again:
            await client.open()
        assert again.value.__cause__ is None


async def test_a_mode_that_refuses_takes_the_seeds_as_long_as_nothing_was_discovered(
    world: FakeCluster, open_client: Any
) -> None:
    world.servers[0].lists([])
    async with open_client(load_balance=LoadBalance.ONLY_RR) as client:
        assert await client.open() == ONE
        assert client.info.discovered is False


async def test_a_connection_that_finds_no_server_brings_no_refresh_forward(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(load_balance=LoadBalance.ONLY_RR) as client:
        await trio.sleep(5)

        for _ in range(3):
            with pytest.raises(NoNodeAvailable):
                await client.open()
        await trio.sleep(5)

        assert len(discoveries(world)) == 1


async def test_trap_5_with_the_listed_servers_as_seeds_and_all_dead_a_connection_tries_each_once(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(hosts=tuple(server.at for server in world.servers)) as client:
        await client.open()
        await trio.sleep(0.5)  # what fails now brings no refresh forward
        for server in world.servers:
            server.crash()
        world.journal.clear()

        with pytest.raises(ConnectFailed):
            await client.open()

        assert [len(dials(world, server)) for server in world.servers] == [1, 1, 1]


# Failures, probes and refreshes


async def test_trap_7_a_refresh_brought_forward_within_a_second_of_another_is_dropped(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(failed_host_reconnect_delay_secs=60) as client:
        await client.open()
        world.servers[1].refuse()
        await trio.sleep(0.5)
        await client.open_many(6)  # fails within a second of the start
        assert client.hosts("failed") == [TWO]
        await trio.sleep(20)
        assert len(discoveries(world)) == 1

        world.servers[2].refuse()
        await client.open_many(6)
        assert client.hosts("failed") == [TWO, THREE]
        await trio.sleep(20)
        assert discoveries(world) == pytest.approx([0, 20.5])


async def test_trap_7_the_second_counts_from_the_start_of_a_slow_discovery(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client() as client:
        await client.open()
        world.servers[0].slow(query=1.5)
        client.nursery.start_soon(client.actor.refresh)
        await trio.sleep(1.7)  # it ended 0.2 s ago, and began 1.7 s ago
        world.servers[0].slow(query=0)
        world.servers[1].refuse()
        world.servers[2].refuse()

        await client.open_many(6)
        await trio.sleep(0.1)

        assert discoveries(world) == pytest.approx([0, 0, 1.7], abs=0.01)


async def test_trap_8_a_refresh_asked_for_while_a_discovery_runs_probes_and_starts_no_second_one(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(failed_host_reconnect_delay_secs=2) as client:
        await client.open()
        world.servers[1].refuse()
        await client.open_many(6)
        assert client.hosts("failed") == [TWO]
        world.servers[0].slow(query=8)
        await trio.sleep(1.5)
        client.nursery.start_soon(client.actor.refresh)  # at 1.5: nothing is due yet; its discovery ends at 9.5
        await trio.sleep(3)
        world.servers[1].recover()
        asked = len(discoveries(world))

        client.nursery.start_soon(client.actor.refresh)
        await trio.sleep(0.1)

        assert client.hosts("failed") == []
        assert len(discoveries(world)) == asked == 2


async def test_trap_8_a_discovery_that_outlasts_a_delay_probes_again_as_it_ends(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(failed_host_reconnect_delay_secs=2) as client:
        await client.open()
        world.servers[1].refuse()
        await client.open_many(6)
        world.servers[0].slow(query=5)
        await trio.sleep(1)

        client.nursery.start_soon(client.actor.refresh)
        await trio.sleep(0.1)
        world.servers[1].recover()
        await trio.sleep(4)
        assert client.hosts("failed") == [TWO]
        await trio.sleep(1)
        assert client.hosts("failed") == []


async def test_trap_8_with_a_delay_of_zero_a_server_returns_within_moments(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(failed_host_reconnect_delay_secs=0) as client:
        await client.open()
        await trio.sleep(2)
        world.servers[0].slow(query=0.5)
        world.servers[1].refuse()
        await client.open_many(4)
        assert client.hosts("failed") == [TWO]

        world.servers[1].recover()
        await trio.sleep(0.6)

        assert client.hosts("failed") == []


async def test_trap_8_with_no_discovery_to_do_refreshes_probe_all_the_same(
    world: FakeCluster, open_client: Any
) -> None:
    hosts = tuple(server.at for server in world.servers)
    async with open_client(load_balance=LoadBalance.OFF, hosts=hosts, yb_servers_refresh_interval=30) as client:
        world.servers[0].crash()
        assert await client.open() == TWO
        world.servers[0].recover()
        await trio.sleep(29)
        assert client.hosts("failed") == [ONE]

        await trio.sleep(2)

        assert client.hosts("failed") == []
        assert await client.open() == ONE
        assert client.hosts("allowed") == [ONE]


async def test_a_server_that_stays_failed_is_dialled_once_per_refresh_and_never_by_connections(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(yb_servers_refresh_interval=10) as client:
        await client.open()
        await trio.sleep(5)
        world.servers[1].crash()
        await client.open_many(6)  # at 5, and it brings a refresh forward
        world.journal.clear()

        for _ in range(40):
            await client.open()
            await trio.sleep(1)

        assert dials(world, world.servers[1]) == pytest.approx([15, 25, 35, 45][: len(dials(world, world.servers[1]))])
        assert len(dials(world, world.servers[1])) in (3, 4)


async def test_trap_9_discovery_asks_the_seeds_first_whatever_their_state_and_passes_over_servers_that_are_down(
    world: FakeCluster, open_client: Any
) -> None:
    seed = world.add("10.0.0.9", listed=False)
    async with open_client(hosts=(seed.at,), failed_host_reconnect_delay_secs=60) as client:
        await client.open()
        seed.refuse()
        world.servers[0].refuse()
        world.servers[1].reject("57P03")
        await client.open_many(6)
        assert (client.hosts("failed"), client.hosts("rejected")) == ([ONE], [TWO])
        await trio.sleep(2)
        world.journal.clear()

        await client.actor.refresh()

        assert [str(dialled.dialled) for dialled in world.journal.dials()] == ["10.0.0.9:5433", TWO, THREE]
        assert client.hosts("failed") == [ONE]  # the seed was not marked


async def test_trap_9_a_server_that_answers_a_discovery_is_not_unmarked_by_it(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(failed_host_reconnect_delay_secs=60) as client:
        await client.open()
        world.servers[0].refuse()
        await client.open_many(6)
        assert client.hosts("failed") == [ONE]
        world.servers[0].recover()
        await trio.sleep(5)

        await client.actor.refresh()

        assert client.hosts("failed") == [ONE]
        assert client.info.counts[ONE] == len([1 for r, _ in client.held if str(r.at) == ONE])


async def test_trap_9_a_standby_may_answer_a_discovery(world: FakeCluster, open_client: Any) -> None:
    world.servers[0].demote()
    async with open_client(target_session_attrs="read-write") as client:
        assert await client.open_many(4) == Counter({TWO: 2, THREE: 2})
        assert client.info.discovered
        assert client.hosts("read_only") == [ONE]
        assert client.hosts("failed") == []


async def test_trap_10_no_such_function_ends_the_search_at_once_and_for_good(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(yb_servers_refresh_interval=10, hosts=(world.servers[0].at, world.servers[1].at)) as client:
        await client.open()
        world.not_yugabyte()
        await trio.sleep(11)
        assert client.info.mode == "static"
        assert len(discoveries(world)) == 2

        await trio.sleep(100)

        assert len(discoveries(world)) == 2
        # The servers already known stay.
        assert client.hosts("placement") == [ONE, TWO, THREE]


async def test_trap_10_any_other_error_goes_on_to_the_next_server(world: FakeCluster, open_client: Any) -> None:
    world.servers[0].answer(
        "SELECT host, port, node_type, cloud, region, zone, public_ip FROM yb_servers()", error("42501", "no")
    )
    async with open_client(hosts=(world.servers[0].at, world.servers[1].at)) as client:
        await client.open()

        assert client.info.discovered
        assert len(client.info.servers) == 3


async def test_trap_10_no_rows_keep_the_servers_known_and_are_no_failure(world: FakeCluster, open_client: Any) -> None:
    async with open_client() as client:
        await client.open()
        world.servers[0].lists([])
        await client.actor.refresh()
        await trio.sleep(5)
        asked = len(discoveries(world))

        await client.open_many(6)

        assert client.info.mode == "discovering"
        assert sorted(client.info.counts.values()) == [2, 2, 3]
        assert len(client.info.servers) == 3
        assert len(discoveries(world)) == asked == 2


async def test_rows_without_a_host_or_port_are_left_out_with_one_warning(
    world: FakeCluster, open_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bad = {**world.servers[1].row(), "host": None}
    world.servers[0].lists([world.servers[0], bad, {**bad, "host": "x", "port": 0}, world.servers[2]])
    async with open_client() as client:
        await client.open()
        await client.actor.refresh()

        assert [str(server.at) for server in client.info.servers] == [ONE, THREE]
        assert len([r for r in caplog.records if "unusable" in r.getMessage()]) == 1


async def test_a_listing_of_nothing_but_malformed_rows_is_an_error_and_the_next_server_is_asked(
    world: FakeCluster, open_client: Any
) -> None:
    world.servers[0].lists([{**world.servers[0].row(), "port": None}])
    async with open_client(hosts=(world.servers[0].at, world.servers[1].at)) as client:
        await client.open()

        assert len(client.info.servers) == 3


async def test_trap_11_a_probe_that_times_out_counts_as_unreachable_and_starts_another_delay(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(connect_timeout=2, failed_host_reconnect_delay_secs=3) as client:
        await client.open()
        world.servers[1].reject("57P03")
        await client.open_many(4)
        assert client.hosts("rejected") == [TWO]
        world.servers[1].hang()
        await trio.sleep(4)

        start = trio.current_time()
        await client.actor.refresh()

        assert trio.current_time() - start == pytest.approx(2)
        assert (client.hosts("rejected"), client.hosts("failed")) == ([], [TWO])
        world.journal.clear()
        await trio.sleep(2)
        await client.actor.refresh()
        assert dials(world, world.servers[1]) == []  # its new delay has not passed


async def test_trap_11_a_failed_probe_brings_no_refresh_forward(world: FakeCluster, open_client: Any) -> None:
    async with open_client(failed_host_reconnect_delay_secs=3, yb_servers_refresh_interval=60) as client:
        await client.open()
        world.servers[1].refuse()
        await client.open_many(4)
        await trio.sleep(10)
        world.journal.clear()

        await client.actor.refresh()
        await trio.sleep(40)

        assert len(dials(world, world.servers[1])) == 1
        assert len(discoveries(world)) == 1


async def test_trap_12_a_connection_that_opens_ends_the_failure_and_the_probe_that_runs(
    world: FakeCluster, open_client: Any
) -> None:
    hosts = (world.servers[0].at,)
    async with open_client(load_balance=LoadBalance.OFF, hosts=hosts, failed_host_reconnect_delay_secs=1) as client:
        world.servers[0].refuse()
        with pytest.raises(ConnectFailed):
            await client.open()
        world.servers[0].recover()
        world.servers[0].hang()
        await trio.sleep(2)
        client.nursery.start_soon(client.actor.refresh)  # its probe hangs
        await trio.sleep(0.1)
        world.servers[0].recover()
        # Whichever of the two opens first: the server is up, and stays so.
        assert await client.open() == ONE
        assert client.hosts("failed") == []

        await trio.sleep(30)

        assert client.hosts("failed") == []
        assert len(world.servers[0].sessions) == 1


async def test_trap_13_a_server_that_is_not_listed_any_more_shows_as_failed_and_is_forgotten_undialled(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(failed_host_reconnect_delay_secs=0, yb_servers_refresh_interval=60) as client:
        await client.open()
        await trio.sleep(1)
        world.servers[1].slow(connect=5)
        client.nursery.start_soon(client.open_many, 5)
        await trio.sleep(0.5)
        world.unlist(world.servers[1])
        await client.actor.refresh()
        await trio.sleep(1.2)
        world.servers[0].slow(query=2)
        world.servers[1].crash()
        await trio.sleep(0.1)
        # Its failure came after it had left the listing; the refresh that it brought forward still runs.
        assert client.hosts("failed") == [TWO]
        world.journal.clear()

        await trio.sleep(3)

        assert client.hosts("failed") == []
        assert dials(world, world.servers[1]) == []


async def test_c34_a_server_that_is_starting_up_is_rejected_and_back_within_a_refresh(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(yb_servers_refresh_interval=10) as client:
        world.servers[1].reject("57P03", "the database system is shutting down")
        await client.open_many(4)
        assert (client.hosts("rejected"), client.hosts("failed")) == ([TWO], [])

        world.servers[1].crash()
        await trio.sleep(11)
        assert (client.hosts("rejected"), client.hosts("failed")) == ([], [TWO])

        world.servers[1].recover()
        world.servers[1].reject("57P03", "the database system is starting up")
        await trio.sleep(10)
        assert (client.hosts("rejected"), client.hosts("failed")) == ([TWO], [])

        world.servers[1].recover()
        await trio.sleep(10)
        assert (client.hosts("rejected"), client.hosts("failed")) == ([], [])
        await client.open_many(2)
        assert client.info.counts[TWO] == 2


async def test_c42_counts_follow_connections_of_a_server_that_leaves_the_listing_and_comes_back(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client() as client:
        await client.open_many(12)
        world.unlist(world.servers[1])
        await client.actor.refresh()
        assert client.info.counts == {ONE: 4, TWO: 4, THREE: 4}
        assert client.hosts("placement") == [ONE, THREE]

        reservation, session = next(pair for pair in client.held if str(pair[0].at) == TWO)
        client.held.remove((reservation, session))
        session.terminate("closed")
        client.actor.ref.cast(Released(reservation))
        client.actor.ref.cast(Released(reservation))
        await trio.testing.wait_all_tasks_blocked()
        assert client.info.counts[TWO] == 3

        world.list(world.servers[1])
        await client.actor.refresh()
        assert await client.open() == TWO
        await client.close(TWO)
        assert client.info.counts[TWO] == 0
        assert client.info.counts == {ONE: 4, TWO: 0, THREE: 4}


async def test_c44_a_preferred_server_that_comes_back_takes_connections_after_a_probe_and_not_before(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(topology_keys=(zone(1), zone(2, 2)), yb_servers_refresh_interval=20) as client:
        await client.open_many(3)
        world.servers[0].crash()
        assert await client.open_many(2) == Counter({TWO: 2})
        assert client.hosts("allowed") == [ONE, TWO]

        await trio.sleep(21)
        assert client.hosts("allowed") == [ONE, TWO]  # its delay is over, and it is still down

        world.servers[0].recover()
        await trio.sleep(20)
        assert client.hosts("allowed") == [ONE]
        assert await client.open_many(2) == Counter({ONE: 2})


async def test_a_lone_postgresql_that_comes_back_takes_connections_before_any_probe(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(load_balance=LoadBalance.OFF) as client:
        world.servers[0].crash()
        with pytest.raises(ConnectFailed):
            await client.open()
        assert client.hosts("placement") == [ONE]  # the last resort

        world.servers[0].recover()

        assert await client.open() == ONE
        assert client.hosts("failed") == []


async def test_a_standby_promoted_when_the_primary_fails_is_found_through_the_last_resort(
    world: FakeCluster, open_client: Any
) -> None:
    world.servers[1].demote()
    hosts = (world.servers[0].at, world.servers[1].at)
    async with open_client(load_balance=LoadBalance.OFF, hosts=hosts, target_session_attrs="read-write") as client:
        assert await client.open() == ONE
        world.servers[0].crash()
        with pytest.raises(ConnectFailed) as caught:
            await client.open()
        assert caught.value.kind == "read_only"
        assert (client.hosts("failed"), client.hosts("read_only")) == ([ONE], [TWO])

        world.servers[1].promote()

        assert await client.open() == TWO
        assert client.hosts("read_only") == []


async def test_a_probe_checks_the_role_so_a_standby_is_back_only_once_it_was_promoted(
    world: FakeCluster, open_client: Any
) -> None:
    world.servers[1].demote()
    async with open_client(target_session_attrs="read-write", yb_servers_refresh_interval=10) as client:
        await client.open_many(4)
        assert client.hosts("read_only") == [TWO]

        await trio.sleep(25)
        assert client.hosts("read_only") == [TWO]

        world.servers[1].promote()
        await trio.sleep(10)
        assert client.hosts("read_only") == []
        assert client.hosts("placement") == [ONE, TWO, THREE]


async def test_c32_an_old_primary_that_was_closed_to_writes_is_left_for_the_promoted_standby(
    world: FakeCluster, open_client: Any
) -> None:
    world.servers[0].close_to_writes()
    hosts = (world.servers[0].at, world.servers[1].at)
    async with open_client(
        load_balance=LoadBalance.OFF,
        hosts=hosts,
        target_session_attrs="read-write",
        yb_servers_refresh_interval=10,
    ) as client:
        assert await client.open() == TWO
        assert (client.hosts("failed"), client.hosts("read_only")) == ([], [ONE])

        await trio.sleep(25)
        assert client.hosts("read_only") == [ONE]  # probes ask the same question

        world.servers[0].open_to_writes()
        await trio.sleep(10)
        assert client.hosts("read_only") == []
        assert await client.open() == ONE


async def test_during_an_outage_discovery_is_retried_once_a_second_while_connections_are_opened(
    world: FakeCluster, open_client: Any
) -> None:
    seed = world.add("10.0.0.9", listed=False)
    async with open_client(hosts=(seed.at,), failed_host_reconnect_delay_secs=60) as client:
        await client.open()
        seed.crash()
        for server in world.servers:
            server.crash()
        await trio.sleep(2)
        world.journal.clear()

        for _ in range(50):
            with pytest.raises(ConnectFailed):
                await client.open()
            await trio.sleep(0.1)

        # Each opening dials the seed once, and each discovery once more.
        assert len(dials(world, seed)) - 50 in (5, 6)


async def test_after_a_full_outage_connections_are_back_within_seconds(world: FakeCluster, open_client: Any) -> None:
    async with open_client(failed_host_reconnect_delay_secs=5) as client:
        await client.open()
        await trio.sleep(2)
        for server in world.servers:
            server.crash()
        for _ in range(10):
            with pytest.raises(ConnectFailed):
                await client.open()
            await trio.sleep(1)
        for server in world.servers:
            server.recover()

        for _ in range(8):
            await client.open()
            await trio.sleep(1)

        assert client.hosts("failed") == []
        assert client.hosts("placement") == [ONE, TWO, THREE]


async def test_an_interval_of_zero_has_no_timer_and_refreshes_as_each_connection_is_opened(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(yb_servers_refresh_interval=0) as client:
        await client.open()
        await trio.sleep(1000)
        assert len(discoveries(world)) == 2

        await client.open()
        await trio.sleep(0.1)
        await client.open()
        await trio.sleep(1000)

        assert len(discoveries(world)) == 4


async def test_a_manual_refresh_leaves_one_timer(world: FakeCluster, open_client: Any) -> None:
    async with open_client(yb_servers_refresh_interval=10) as client:
        await trio.sleep(4)
        await client.actor.refresh()
        await client.actor.refresh()
        await trio.sleep(9)
        assert len(discoveries(world)) == 3
        await trio.sleep(22)
        assert discoveries(world) == pytest.approx([0, 4, 4, 14, 24, 34])


async def test_a_manual_refresh_returns_when_its_discovery_and_probes_have_ended_even_if_they_failed(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(connect_timeout=3) as client:
        await client.open()
        for server in world.servers:
            server.crash()
        with pytest.raises(ConnectFailed):
            await client.open()
        for server in world.servers:
            server.hang()
        await trio.sleep(6)
        start = trio.current_time()

        await client.actor.refresh()

        # The seed's discovery connection and the three probes time out side by side.
        assert trio.current_time() - start == pytest.approx(3)


async def test_a_dropped_caller_of_refresh_does_no_harm(world: FakeCluster, open_client: Any) -> None:
    world.servers[0].slow(query=3)
    async with open_client() as client:
        with trio.move_on_after(1):
            await client.actor.refresh()
        await client.actor.refresh()
        assert client.info.discovered


# Cancellation, bugs, the end


async def test_a_cancelled_opening_gives_its_place_back_and_marks_nothing(world: FakeCluster, open_client: Any) -> None:
    async with open_client() as client:
        await client.open()
        for server in world.servers:
            server.hang()

        with trio.move_on_after(1):
            await client.open_many(9)
        await trio.testing.wait_all_tasks_blocked()

        assert set(client.info.pending.values()) == {0}
        assert sum(client.info.counts.values()) == 1
        assert client.hosts("failed") == []


async def test_a_caller_cancelled_while_the_first_discovery_runs_leaves_no_place_behind(
    world: FakeCluster, open_client: Any
) -> None:
    world.servers[0].slow(query=5)
    async with open_client() as client:
        with trio.move_on_after(1):
            await client.open()
        await trio.sleep(10)

        assert set(client.info.pending.values()) == {0}


async def test_an_opening_cancelled_at_any_moment_leaves_the_counts_right(world: FakeCluster, open_client: Any) -> None:
    async with open_client(target_session_attrs="read-write") as client:
        for server in world.servers:
            server.slow(connect=0.3, query=0.3)
        for tenth in range(20):
            with trio.move_on_after(tenth / 10):
                await client.open()
        await trio.sleep(1)

        assert set(client.info.pending.values()) == {0}
        assert sum(client.info.counts.values()) == len(client.held) == world.sessions > 0


async def test_a_cancellation_that_comes_as_the_session_opens_leaves_it_to_the_caller(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client() as client:
        with trio.CancelScope() as scope:

            async def last_step(session: object) -> None:
                scope.cancel()

            await client.open(last_step)

        assert len(client.held) == world.sessions == 1
        assert sum(client.info.counts.values()) == 1
        await client.close()
        assert sum(client.info.counts.values()) == 0


async def test_a_bug_in_the_set_up_of_a_session_propagates_and_gives_the_place_back(
    world: FakeCluster, open_client: Any
) -> None:
    async def broken(session: object) -> None:
        raise ZeroDivisionError

    async with open_client() as client:
        with pytest.raises(ZeroDivisionError):
            await client.open(broken)
        await trio.testing.wait_all_tasks_blocked()

        assert set(client.info.pending.values()) == {0}
        assert (client.hosts("failed"), client.hosts("rejected")) == ([], [])
        assert world.sessions == 0


@pytest.mark.parametrize(
    ("raised", "where"), [(ConnectionLost("closed"), "failed"), (error("42601", "syntax error"), "rejected")]
)
async def test_a_set_up_that_the_server_fails_counts_as_a_failed_connect(
    world: FakeCluster, open_client: Any, raised: Exception, where: str
) -> None:
    async def refused(session: object) -> None:
        raise raised

    async with open_client() as client:
        with pytest.raises(ConnectFailed):
            await client.open(refused)

        assert client.hosts(where) == [ONE, TWO, THREE]
        assert world.sessions == 0


async def test_the_set_up_is_part_of_the_time_an_attempt_has(world: FakeCluster, open_client: Any) -> None:
    async def slow(session: object) -> None:
        await trio.sleep(60)

    async with open_client(connect_timeout=2) as client:
        with pytest.raises(ConnectFailed) as caught:
            await client.open(slow)

        assert caught.value.kind == "unreachable"
        assert trio.current_time() == pytest.approx(6)
        assert world.sessions == 0


async def test_whoever_waits_when_the_cluster_ends_is_told(world: FakeCluster, open_client: Any) -> None:
    world.servers[0].hang()
    told: list[type[BaseException]] = []

    async def waiting(call: Any) -> None:
        try:
            await call()
        except Ended as ended:
            told.append(type(ended))

    async with trio.open_nursery() as nursery:
        async with open_client() as client:
            nursery.start_soon(waiting, client.open)
            nursery.start_soon(waiting, client.actor.refresh)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Ended):
            await client.open()

    assert told == [Ended, Ended]


async def test_probes_and_discoveries_end_with_the_cluster_and_leave_no_session(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(failed_host_reconnect_delay_secs=0) as client:
        world.servers[1].refuse()
        await client.open_many(3)
        world.servers[1].recover()
        for server in world.servers:
            server.slow(query=50)
        client.nursery.start_soon(client.actor.refresh)
        await trio.sleep(1)
        await client.close()

    assert world.sessions == 0


# Addresses


async def test_a_client_outside_the_clusters_network_connects_to_the_public_addresses(
    open_client: Any, world: FakeCluster
) -> None:
    for number, server in enumerate(world.servers, 1):
        server.public_ip = f"203.0.113.{number}"
    world.outside = True
    async with open_client(hosts=(HostPort("203.0.113.2", 5433),)) as client:
        places = await client.open_many(3)

        assert set(places) == {f"203.0.113.{n}:5433" for n in (1, 2, 3)}
        assert client.info.servers[0].public_ip == "203.0.113.1"


async def test_a_seed_whose_name_does_not_resolve_fails_that_target_and_the_next_one_is_asked(
    open_client: Any, world: FakeCluster
) -> None:
    async with open_client(hosts=(HostPort("nosuch.invalid", 5433), world.servers[1].at), connect_timeout=1) as client:
        await client.open()

        assert client.info.discovered


# Log


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("ysactor") and r.levelno >= level]


async def test_c88_ten_minutes_of_outage_and_flapping_give_one_warning_and_one_line_on_recovery(
    world: FakeCluster, open_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ysactor")
    async with open_client(yb_servers_refresh_interval=2, failed_host_reconnect_delay_secs=0) as client:
        await client.open()
        for _ in range(150):
            world.servers[1].refuse()
            await trio.sleep(2)
            world.servers[1].recover()
            await trio.sleep(2)
            await client.open_many(2)
        assert [line for line in lines(caplog) if TWO in line] == []  # between refreshes nobody met it

        world.servers[1].refuse()
        await client.open_many(3)
        await trio.sleep(600)
        world.servers[1].recover()
        await trio.sleep(120)

        told = [line for line in lines(caplog) if TWO in line]
        assert len(told) == 2
        assert "is down" in told[0]
        assert "refused" in told[0]
        assert "is back" in told[1]


async def test_a_line_at_the_end_of_a_run_comes_a_minute_after_the_last_failure(
    world: FakeCluster, open_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ysactor")
    async with open_client(yb_servers_refresh_interval=10) as client:
        await trio.sleep(1)
        world.servers[1].reject("28P01", "password authentication failed")
        await client.open_many(3)  # fails at 1
        world.servers[1].recover()
        await trio.sleep(15)
        assert client.hosts("rejected") == []  # the probe found it back at 11 or so
        assert len(lines(caplog)) == 1

        await trio.sleep(44)
        assert len(lines(caplog)) == 1
        await trio.sleep(2)
        assert len(lines(caplog)) == 2
        assert "takes connections again" in lines(caplog)[1]


async def test_a_run_of_failed_discoveries_is_one_warning(
    world: FakeCluster, open_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ysactor")
    seed = world.add("10.0.0.9", listed=False)
    async with open_client(hosts=(seed.at,), yb_servers_refresh_interval=5) as client:
        await client.open()
        seed.answer(
            "SELECT host, port, node_type, cloud, region, zone, public_ip FROM yb_servers()", error("57014", "slow")
        )
        for server in world.servers:
            server.answer(
                "SELECT host, port, node_type, cloud, region, zone, public_ip FROM yb_servers()", error("57014", "slow")
            )
        await trio.sleep(60)
        warnings = lines(caplog, logging.WARNING)
        assert len(warnings) == 1
        assert "the list of servers could not be read" in warnings[0]


async def test_keys_that_name_no_server_are_told_once(
    world: FakeCluster, open_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_client(topology_keys=(TopologyKey("aws", "x", "y"),), yb_servers_refresh_interval=5) as client:
        assert await client.open_many(3) == Counter({ONE: 1, TWO: 1, THREE: 1})
        await trio.sleep(60)

        assert len([line for line in lines(caplog, logging.WARNING) if "topology_keys" in line]) == 1


async def test_a_snapshot_before_the_first_discovery_shows_the_seeds(world: FakeCluster, open_client: Any) -> None:
    world.servers[0].hang()
    hosts = (HostPort("zzz", 5433), HostPort("aaa", 5433))
    async with open_client(hosts=hosts) as client:
        info = client.info

        assert info.servers == (Server("aaa", 5433), Server("zzz", 5433))
        assert info.placement == (Server("zzz", 5433),)
        assert (info.mode, info.discovered) == ("discovering", False)
        assert info.counts == {"aaa:5433": 0, "zzz:5433": 0}


async def test_a_server_that_is_only_looked_at_again_and_is_full_has_not_failed(
    world: FakeCluster, open_client: Any
) -> None:
    async with open_client(target_session_attrs="read-write") as client:
        await client.open()
        world.servers[0].max_connections = 0
        assert not await client.actor.recheck(world.servers[0].at)
        assert (client.hosts("failed"), client.hosts("rejected"), client.hosts("read_only")) == ([], [], [])
        world.servers[0].max_connections = None
        world.servers[0].close_to_writes()
        assert await client.actor.recheck(world.servers[0].at)
        assert client.hosts("read_only") == [ONE]
