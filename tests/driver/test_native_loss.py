"""Sessions that end under their holder, or are ended: what is raised, who is told, and how long it takes."""

from __future__ import annotations

import gc
import signal
from typing import Any

import asyncpg
import pytest
import trio

from ysactor.driver.native.watch import PortableWatch, best_watch
from ysactor.driver.protocol import Status
from ysactor.errors import ConnectionLost

pytestmark = pytest.mark.trio

ADMIN = "terminating connection due to administrator command"


@pytest.fixture(params=["best", "portable"])
def watch(request: pytest.FixtureRequest) -> Any:
    return best_watch if request.param == "best" else PortableWatch


async def until_told(client: Any, session: Any, seconds: float = 2) -> list[str]:
    with trio.move_on_after(seconds):
        await client.told(session).changed.wait()
    losses: list[str] = client.told(session).losses
    return losses


@pytest.mark.parametrize("encrypted", [False, True])
async def test_the_end_of_an_idle_session_is_noticed_with_the_servers_own_words(
    bed: Any, watch: Any, encrypted: bool
) -> None:
    async with bed.client(watch) as client:
        session, other = await client.open(**({"tls": bed.tls()} if encrypted else {})), await client.open()
        await client.ask(session, "select 1")
        await client.ask(other, "select pg_terminate_backend($1)", session.pid)
        losses = await until_told(client, session)
        assert losses == [f"closed by the server: {ADMIN}"]
        assert session.status is Status.CLOSED
        assert not session.is_clean()
        with pytest.raises(ConnectionLost, match="administrator") as caught:
            await client.ask(session, "select 1")
        assert caught.value.server == bed.tcp
        await trio.sleep(0.02)
        assert losses == [f"closed by the server: {ADMIN}"]


async def test_a_hundred_idle_sessions_hear_of_their_end(bed: Any, watch: Any) -> None:
    async with bed.client(watch) as client:
        sessions = [await client.open() for _ in range(40)]
        other = await client.open()
        for _ in range(3):
            for session in sessions:
                await client.ask(session, "select 1")
        pids = [session.pid for session in sessions]
        await client.ask(other, "select count(pg_terminate_backend(p)) from unnest($1::int[]) p", pids)
        for session in sessions:
            assert len(await until_told(client, session)) == 1
        assert await client.ask(other, "select 1") == 1


@pytest.mark.parametrize("pause", [0, 0.001, 0.05])
async def test_a_call_after_the_servers_end_says_that_the_connection_is_lost(
    bed: Any, watch: Any, pause: float
) -> None:
    async with bed.client(watch) as client:
        other = await client.open()
        for _ in range(15):
            session = await client.open()
            await session.drive(session.raw.execute("begin"))
            await client.ask(other, "select pg_terminate_backend($1)", session.pid)
            await trio.sleep(pause)
            with pytest.raises(ConnectionLost) as caught:
                while True:  # the server may still be alive for a moment
                    await client.ask(session, "select 1")
            assert "closed by the server" in caught.value.reason or "reset" in caught.value.reason
            assert session.status is Status.CLOSED
            assert len(client.told(session).losses) == 1


async def test_a_kill_in_the_middle_of_a_query_gives_the_servers_reason(bed: Any, watch: Any) -> None:
    async with bed.client(watch) as client:
        session, other = await client.open(), await client.open()

        async def kill() -> None:
            await trio.sleep(0.1)
            await client.ask(other, "select pg_terminate_backend($1)", session.pid)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            with pytest.raises(ConnectionLost, match=ADMIN) as caught:
                await client.ask(session, "select pg_sleep(30)")
        assert isinstance(caught.value.__cause__, (asyncpg.PostgresError, asyncpg.InterfaceError))
        assert client.told(session).losses == [caught.value.reason]


async def test_a_cut_connection_is_lost_idle_and_in_a_call(bed: Any, watch: Any, proxied: Any) -> None:
    async with bed.client(watch) as client, proxied() as proxy:
        idle, busy = await client.open(proxy.at), await client.open(proxy.at)

        async def cut() -> None:
            await trio.sleep(0.1)
            proxy.reset_all()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            with pytest.raises(ConnectionLost):
                await client.ask(busy, "select pg_sleep(30)")
        assert len(await until_told(client, idle)) == 1
        assert len(client.told(busy).losses) == 1


async def test_an_answer_that_came_before_the_end_is_given_and_the_loss_told_after_it(
    bed: Any, watch: Any, proxied: Any
) -> None:
    async with bed.client(watch) as client:
        for _ in range(10):
            async with proxied() as proxy:
                session = await client.open(proxy.at)
                await client.ask(session, "select 5")
                proxy.last_answer = True
                assert await client.ask(session, "select 5") == 5
                assert await until_told(client, session) == ["closed by the server"]
                assert session.status is Status.CLOSED


async def test_a_half_written_message_is_finished_or_the_session_is_lost_in_bounds(bed: Any, proxied: Any) -> None:
    async with bed.client() as client, proxied() as proxy:
        session = await client.open(proxy.at)
        await client.ask(session, "select 1")
        proxy.frozen = trio.Event()
        with trio.move_on_after(0.1):
            await client.ask(session, "select length($1::text)", "x" * 30_000_000)
        assert session.status is Status.ABANDONED
        # The cancel request cannot get through: its own connection is frozen as well.
        started = trio.current_time()
        assert not await session.settle(0.3)
        assert trio.current_time() - started < 1
        assert session.status is Status.CLOSED
        proxy.frozen.set()


async def test_a_half_written_message_is_finished_once_the_server_reads_again(bed: Any, proxied: Any) -> None:
    async with bed.client() as client, proxied() as proxy:
        session = await client.open(proxy.at)
        await client.ask(session, "select 1")
        frozen = proxy.frozen = trio.Event()
        with trio.move_on_after(0.1):
            await client.ask(session, "select length($1::text)", "x" * 30_000_000)
        frozen.set()
        proxy.frozen = None
        assert await session.settle(10)
        assert session.is_clean()
        assert await client.ask(session, "select 6") == 6


async def test_a_frozen_server_costs_the_call_its_socket_time_out_and_no_more(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open(socket_timeout=0.2)
        await client.ask(session, "select 1")
        bed.signal(session.pid, signal.SIGSTOP)
        try:
            started = trio.current_time()
            with pytest.raises(ConnectionLost, match="socket_timeout"):
                await client.ask(session, "select 1")
            await session.close(5)
            assert trio.current_time() - started < 1
        finally:
            bed.signal(session.pid, signal.SIGCONT)


async def test_closing_a_frozen_server_is_bounded(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        bed.signal(session.pid, signal.SIGSTOP)
        try:
            started = trio.current_time()
            await session.close(0.2)
            assert 0.15 < trio.current_time() - started < 1
        finally:
            bed.signal(session.pid, signal.SIGCONT)
        assert session.status is Status.CLOSED
        assert client.told(session).losses == []


async def test_settling_on_a_frozen_server_is_bounded(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        with trio.move_on_after(0.05):
            await client.ask(session, "select pg_sleep(30)")
        bed.signal(session.pid, signal.SIGSTOP)
        try:
            started = trio.current_time()
            assert not await session.settle(0.3)
            assert trio.current_time() - started < 1
        finally:
            bed.signal(session.pid, signal.SIGCONT)


async def test_closing_waits_for_the_servers_end_even_when_cancelled(bed: Any) -> None:
    async with bed.client() as client:
        session, other = await client.open(), await client.open()
        pid = session.pid
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.close(2)
        assert session.status is Status.CLOSED
        assert client.told(session).losses == []
        assert await client.ask(other, "select count(*) from pg_stat_activity where pid = $1", pid) == 0
        await session.close(2)
        session.terminate("again")


async def test_terminating_in_the_middle_of_a_call_raises_its_reason_there(bed: Any, watch: Any) -> None:
    async with bed.client(watch) as client:
        session = await client.open()

        async def end() -> None:
            await trio.sleep(0.05)
            session.terminate("the pool is closing")
            assert session.status is Status.CLOSED

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            with pytest.raises(ConnectionLost, match="the pool is closing"):
                await client.ask(session, "select pg_sleep(30)")
        assert client.told(session).losses == []


@pytest.mark.parametrize("kind", ["executemany", "copy", "big"])
async def test_terminating_while_writing_raises_its_reason_as_well(bed: Any, proxied: Any, kind: str) -> None:
    async with bed.client() as client, proxied() as proxy:
        session = await client.open(proxy.at)
        await session.drive(session.raw.execute("create temp table t (a text)"))
        await session.drive(session.raw.executemany("insert into t values ($1)", [("x",)]))
        await session.drive(session.raw.copy_records_to_table("t", records=[("x",)]))

        def forever() -> Any:
            while True:
                yield ("x" * 1000,)

        calls = {
            "executemany": lambda: session.raw.executemany("insert into t values ($1)", forever()),
            "copy": lambda: session.raw.copy_records_to_table("t", records=forever()),
            "big": lambda: session.raw.fetchval("select length($1::text)", "x" * 30_000_000),
        }
        proxy.frozen = trio.Event()

        async def end() -> None:
            await trio.sleep(0.2)
            session.terminate("enough")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            with pytest.raises(ConnectionLost, match="enough"):
                await session.drive(calls[kind]())
        proxy.frozen.set()


@pytest.mark.parametrize("kind", ["executemany", "copy", "big"])
async def test_a_servers_end_while_writing_is_a_lost_connection(bed: Any, kind: str) -> None:
    async with bed.client() as client:
        session, other = await client.open(), await client.open()
        await session.drive(session.raw.execute("create temp table t (a text)"))

        many = "generate_series(1, 99999)"

        def killing() -> Any:
            for number in range(10_000_000):
                if number == 2000:
                    bed.signal(session.pid, signal.SIGTERM)
                yield ("x" * 1000,)

        calls = {
            "executemany": lambda: session.raw.executemany("insert into t values ($1)", killing()),
            "copy": lambda: session.raw.copy_records_to_table("t", records=killing()),
            "big": lambda: session.raw.fetch(f"select repeat('x', 1000), pg_sleep(0.0001) from {many}"),
        }
        async with trio.open_nursery() as nursery:
            if kind == "big":

                async def kill() -> None:
                    await trio.sleep(0.1)
                    await client.ask(other, "select pg_terminate_backend($1)", session.pid)

                nursery.start_soon(kill)
            with pytest.raises(ConnectionLost, match=r"closed by the server|reset"):
                await session.drive(calls[kind]())
        assert len(client.told(session).losses) == 1


async def test_a_loss_before_the_owner_is_named_is_told_at_once(bed: Any) -> None:
    async with bed.client() as client:
        session, other = await client.driver.connect(bed.tcp, bed.config()), await client.open()
        await client.ask(other, "select pg_terminate_backend($1)", session.pid)
        await trio.sleep(0.1)
        assert session.status is Status.CLOSED
        session.attach(client.told(session))
        assert len(client.told(session).losses) == 1


async def test_a_raw_connection_that_its_holder_terminates_is_lost(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        session.raw.terminate()
        assert session.status is Status.CLOSED
        assert client.told(session).losses == ["closed by asyncpg"]
        with pytest.raises(ConnectionLost, match="closed by asyncpg"):
            await client.ask(session, "select 1")


async def test_sessions_that_outlive_their_driver_make_no_noise(bed: Any, recwarn: Any) -> None:
    async with bed.client() as client:
        sessions = [await client.driver.connect(bed.tcp, bed.config()) for _ in range(3)]
        with trio.move_on_after(0.05):
            await client.ask(sessions[0], "select pg_sleep(30)")
        sessions[1].raw.transaction()
    assert all(session.status is Status.CLOSED for session in sessions)
    del sessions, client
    gc.collect()
    assert [str(warning.message) for warning in recwarn if warning.category in (ResourceWarning, RuntimeWarning)] == []


async def test_a_server_process_that_is_killed_takes_every_session_with_it(bed: Any, watch: Any) -> None:
    async with bed.client(watch) as client:
        busy, idle = await client.open(), await client.open()

        async def kill() -> None:
            await trio.sleep(0.1)
            bed.server.kill_backend(busy.pid)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill)
                with pytest.raises(ConnectionLost, match=r"closed by the server|reset"):
                    await client.ask(busy, "select pg_sleep(30)")
            assert len(await until_told(client, idle)) == 1
            with pytest.raises(ConnectionLost):
                await client.ask(idle, "select 1")
        finally:
            await trio.to_thread.run_sync(bed.server.wait_ready)
