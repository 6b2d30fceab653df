"""Whole beds: built, broken, and made as new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from ysactor.testing.postgres import (
    Backing,
    Placement,
    Replicated,
    ServerRow,
    SqlError,
    ThreeZones,
    backing,
    open_shared_data,
    open_three_zones,
    replicated,
    three_zones,
)
from ysactor.testing.postgres.server import until


@pytest.fixture(scope="module")
def zones_of_module() -> Iterator[ThreeZones]:
    with three_zones(node_types=["primary", "primary", "read_replica"]) as bed:
        yield bed


@pytest.fixture
def zones(zones_of_module: ThreeZones) -> Iterator[ThreeZones]:
    yield zones_of_module
    zones_of_module.reset()


def listed(bed: ThreeZones, index: int) -> list[tuple[str | None, ...]]:
    return bed.servers[index].sql("select host, zone, node_type from yb_servers()")


def test_every_server_lists_all_with_a_zone_each(zones: ThreeZones) -> None:
    expected = [
        (zones.members[0].host, "us-east-1a", "primary"),
        (zones.members[1].host, "us-east-1b", "primary"),
        (zones.members[2].host, "us-east-1c", "read_replica"),
    ]
    assert [listed(zones, index) for index in range(3)] == [expected] * 3
    assert len({member.port for member in zones.members}) == 1
    assert [server.value("show listen_addresses") for server in zones.servers] == [m.host for m in zones.members]


def test_servers_can_be_made_to_disagree(zones: ThreeZones) -> None:
    row = ServerRow("10.0.0.1", 5433, node_type=None, zone=None)
    zones.write_topology([row], on=[1])
    assert listed(zones, 1) == [("10.0.0.1", None, None)]
    assert len(listed(zones, 0)) == 3

    zones.write_topology([])

    assert [listed(zones, index) for index in range(3)] == [[], [], []]


def test_an_ordinary_role_may_ask_for_the_servers(zones: ThreeZones) -> None:
    server = zones.servers[0]
    assert server.sql("set role app", "select count(*) from yb_servers()") == [("3",)]


def test_a_reset_makes_everything_as_new(zones: ThreeZones) -> None:
    zones.servers[0].kill()
    zones.servers[1].freeze()
    zones.write_topology([])
    zones.servers[2].sql("create table left_over()")
    zones.servers[2].sql("alter system set default_transaction_read_only = on", "select pg_reload_conf()")
    assert until(lambda: zones.servers[2].value("show transaction_read_only") == "on", 5.0)

    zones.reset()

    assert [len(listed(zones, index)) for index in range(3)] == [3, 3, 3]
    with pytest.raises(SqlError, match="left_over"):
        zones.servers[2].sql("select from left_over")
    assert not zones.servers[2].sql("select 1 from pg_file_settings where name = 'default_transaction_read_only'")


@pytest.mark.trio
async def test_a_server_is_killed_and_frozen_and_comes_back_under_trio(zones: ThreeZones) -> None:
    await zones.kill(0)
    assert zones.servers[0].ping() == "refused"
    await zones.start(0)
    assert await zones.sessions(0, "nobody") == 0
    await zones.freeze(1)
    assert zones.servers[1].ping(timeout=0.1) == "silent"
    await zones.thaw(1)
    await zones.set_topology(zones.rows()[:1])
    assert len(listed(zones, 2)) == 1


@pytest.mark.trio
async def test_a_bed_opened_under_trio_is_taken_down_when_its_block_is_cancelled() -> None:
    with trio.CancelScope() as scope:
        async with open_three_zones(1, placements=[Placement("c", "r", "z")]) as bed:
            path = bed.run.path
            assert bed.servers[0].value("select cloud || region || zone from yb_servers()") == "crz"
            scope.cancel()
            await trio.sleep_forever()
    assert not path.exists()


@pytest.fixture(scope="module")
def one_server() -> Iterator[Backing]:
    with backing() as found:
        yield found


@pytest.mark.trio
async def test_shared_data_is_the_same_behind_every_address(one_server: Backing) -> None:
    async with open_shared_data(one_server) as bed:
        rows = one_server.server.sql("select host, port from yb_servers()")
        assert rows == [(member.host, str(member.port)) for member in bed.members]
        assert len(set(rows)) == 3
        stream = await trio.open_tcp_stream(bed.members[1].host, bed.members[1].port)
        with trio.fail_after(5):
            while not bed.proxies[1].live:  # noqa: ASYNC110 - nothing to wait on: the kernel accepts before the proxy
                await trio.sleep(0.005)
            await bed.kill(1)
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
            await stream.aclose()
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream(bed.members[1].host, bed.members[1].port)
        await bed.start(1)
        await (await trio.open_tcp_stream(bed.members[1].host, bed.members[1].port)).aclose()


@pytest.mark.trio
async def test_an_error_in_the_block_of_a_shared_data_bed_comes_out_bare(one_server: Backing) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_shared_data(one_server):
            _ = 1 // 0


@pytest.mark.trio
async def test_shared_data_cannot_disagree(one_server: Backing) -> None:
    async with open_shared_data(one_server) as bed:
        with pytest.raises(ValueError, match="share"):
            await bed.set_topology([], on=[0])


@pytest.fixture(scope="module")
def standbys_of_module() -> Iterator[Replicated]:
    with replicated() as bed:
        yield bed


@pytest.fixture
def standbys(standbys_of_module: Replicated) -> Iterator[Replicated]:
    yield standbys_of_module
    standbys_of_module.reset()


def roles(bed: Replicated) -> list[str | None]:
    return [server.value("select pg_is_in_recovery()") for server in bed.servers]


def test_a_write_on_the_primary_is_read_on_the_standbys_and_refused_there(standbys: Replicated) -> None:
    standbys.servers[0].sql("create table seen as select 1 as x")
    standbys.catch_up(0)
    assert [server.value("select x from seen") for server in standbys.servers] == ["1", "1", "1"]
    with pytest.raises(SqlError) as caught:
        standbys.servers[1].sql("insert into seen values (2)")
    assert caught.value.sqlstate == "25006"


def test_after_a_failover_the_old_primary_rejoins_and_loses_what_only_it_had(standbys: Replicated) -> None:
    old, new, third = standbys.servers
    old.sql("create table told(x int)")
    standbys.catch_up(0)
    old.freeze()
    standbys.fail_over(1)
    old.thaw()
    # Two primaries now: what is written to the old one is to be undone.
    old.sql("insert into told values (13)")
    new.sql("insert into told values (42)")
    standbys.catch_up(1)
    assert roles(standbys) == ["f", "f", "t"]
    assert third.value("select x from told") == "42"

    standbys.rejoin(0, 1)
    standbys.catch_up(1)

    assert roles(standbys) == ["t", "f", "t"]
    assert old.value("select x from told") == "42"


def test_a_reset_undoes_a_failover(standbys: Replicated) -> None:
    standbys.servers[0].kill()
    standbys.fail_over(2)

    standbys.reset()

    assert roles(standbys) == ["f", "t", "t"]


def test_a_synchronous_commit_waits_for_a_standby(standbys: Replicated) -> None:
    standbys.servers[0].sql("create table waited(x int)")
    standbys.synchronous(0, 2)
    standbys.servers[0].sql("insert into waited values (1)")
    standbys.servers[2].kill()

    with pytest.raises(TimeoutError):
        standbys.servers[0].sql("insert into waited values (2)", timeout=0.3)

    assert standbys.servers[0].value("select count(*) from pg_stat_activity where wait_event = 'SyncRep'") == "1"


def test_a_standby_that_only_replays_answers_57p03() -> None:
    with replicated(1, closed=[1]) as bed:
        assert bed.servers[1].ping() == "rejecting"
        with pytest.raises(SqlError) as caught:
            bed.servers[1].sql("select 1")
        assert caught.value.sqlstate == "57P03"
        bed.reset()
        assert bed.servers[1].ping() == "rejecting"
