"""Calls that are left half-way: cancelled before, during and after, and what the next call sees of it."""

from __future__ import annotations

import gc
import random
import warnings
from typing import Any

import asyncpg
import pytest
import trio

from ysactor.config import TlsMode
from ysactor.driver.protocol import Status
from ysactor.errors import ConnectionLost

pytestmark = pytest.mark.trio

STILL_RUNNING = (
    "select count(*) from pg_stat_activity where state = 'active' and query like '%pg_sleep(30)%' and pid = $1"
)
ECHO = "select $1::int + 0 * length(pg_sleep(0.001)::text)"


async def test_a_caller_that_is_cancelled_leaves_at_once(bed: Any) -> None:
    async with bed.client() as client:
        session, other = await client.open(), await client.open()
        started = trio.current_time()
        with trio.move_on_after(0.1) as scope:
            await client.ask(session, "select pg_sleep(30)")
        assert scope.cancelled_caught
        assert trio.current_time() - started < 0.3
        assert session.status is Status.ABANDONED
        assert client.told(session).abandonments == 1
        assert await client.ask(other, STILL_RUNNING, session.pid) == 1
        started = trio.current_time()
        assert await session.settle(2)
        assert trio.current_time() - started < 0.5
        assert await client.ask(other, STILL_RUNNING, session.pid) == 0
        assert session.is_clean()
        assert await client.ask(session, "select 41 + 1") == 42


async def test_a_cancelled_caller_sends_nothing(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("create temp table t (a int)"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with trio.CancelScope() as scope:
                scope.cancel()
                await session.drive(session.raw.execute("insert into t values (1)"))
            assert scope.cancelled_caught
            gc.collect()
        assert session.is_clean()
        assert client.told(session).abandonments == 0
        assert await client.ask(session, "select count(*) from t") == 0


async def test_an_answer_that_came_first_is_given(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        await client.ask(session, "select 1")
        caller = trio.lowlevel.current_task()
        with trio.CancelScope() as scope:

            class Late(trio.abc.Instrument):
                def task_scheduled(self, task: trio.lowlevel.Task) -> None:
                    if task is caller:
                        scope.cancel()

            late = Late()
            trio.lowlevel.add_instrument(late)
            answer = await client.ask(session, "select 1")
            trio.lowlevel.remove_instrument(late)
            assert answer == 1
            assert session.is_clean()
            assert scope.cancel_called


@pytest.mark.parametrize("encrypted", [False, True])
async def test_five_hundred_cancellations_mix_up_no_answers(bed: Any, encrypted: bool) -> None:
    draw = random.Random(5)
    async with bed.client() as client:
        session = await client.open(tls=bed.tls() if encrypted else bed.tls(TlsMode.OFF))
        left = 0
        for number in range(500 if not encrypted else 100):
            with trio.move_on_after(draw.random() * 0.003):
                assert await client.ask(session, ECHO, number) == number
            if session.status is Status.ABANDONED:
                left += 1
                assert await session.settle(2)
            assert session.is_clean()
        assert left > 20
        assert client.told(session).abandonments == left
        assert await client.ask(session, "select 7") == 7


async def test_cancellations_at_every_kind_of_statement_leave_a_usable_session(bed: Any) -> None:
    draw = random.Random(9)
    async with bed.client() as client:
        session = await client.open()
        raw = session.raw
        await session.drive(raw.execute("create temp table t (a int, b text)"))
        kinds = [
            lambda: raw.execute("select pg_sleep(0.002)"),
            lambda: raw.fetch(f"select {draw.random()}, repeat('x', 1000) from generate_series(1, 2000)"),
            lambda: raw.fetchval("select length($1::text)", "x" * 3_000_000),
            lambda: raw.executemany("insert into t values ($1, $2)", [(i, "x" * 300) for i in range(3000)]),
            lambda: raw.copy_records_to_table("t", records=[(i, "x" * 300) for i in range(3000)]),
            lambda: raw.prepare(f"select {draw.random()}"),
        ]
        left = 0
        for number in range(120):
            with trio.move_on_after(draw.random() * 0.008):
                await session.drive(kinds[number % len(kinds)]())
            if session.status is Status.ABANDONED:
                left += 1
                with trio.fail_after(5):
                    assert await session.settle(4), (number % len(kinds), session.status)
            assert session.is_clean(), number
            assert await client.ask(session, "select $1::int", number) == number
        assert left > 20


async def test_the_next_call_waits_until_the_one_that_was_left_is_settled(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        with trio.move_on_after(0.05):
            await client.ask(session, "select pg_sleep(30)")
        answers: list[Any] = []

        async def next_call() -> None:
            answers.append(await client.ask(session, "select 2"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(next_call)
            await trio.sleep(0.1)
            assert answers == []
            assert session.status is Status.ABANDONED
            assert await session.settle(2)
        assert answers == [2]


async def test_the_wait_for_settling_is_bounded_by_the_time_out_and_ends_with_the_session(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        with trio.move_on_after(0.05):
            await client.ask(session, "select pg_sleep(30)")
        with pytest.raises(TimeoutError):
            await client.ask(session, "select 2", timeout=0.05)
        assert client.told(session).abandonments == 1

        async def next_call() -> None:
            with pytest.raises(ConnectionLost, match="enough"):
                await client.ask(session, "select 2")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(next_call)
            await trio.sleep(0.02)
            session.terminate("enough")


async def test_a_slow_cancel_request_never_hits_the_next_statement(bed: Any, proxied: Any) -> None:
    async with bed.client() as client, proxied() as proxy:
        proxy.delay_cancel = 0.1
        session = await client.open(proxy.at)
        for number in range(12):
            with trio.move_on_after(0.02 + number * 0.001):
                await client.ask(session, "select pg_sleep(0.025)")
            if session.status is Status.ABANDONED:
                assert await session.settle(2)
            assert await client.ask(session, "select 1 + length(pg_sleep(0.05)::text)") == 1
        assert proxy.cancels >= 3


async def test_a_cancel_request_that_never_ends_costs_the_session(bed: Any, proxied: Any) -> None:
    async with bed.client() as client, proxied() as proxy:
        proxy.delay_cancel = 30
        session = await client.open(proxy.at)
        with trio.move_on_after(0.05):
            await client.ask(session, "select pg_sleep(30)")
        started = trio.current_time()
        assert not await session.settle(0.2)
        assert trio.current_time() - started < 1
        assert session.status is Status.CLOSED
        assert client.told(session).losses == []


async def test_a_cancel_request_of_a_tls_session_goes_over_tls(bed: Any, proxied: Any) -> None:
    async with bed.client() as client, proxied() as proxy:
        session, other = await client.open(proxy.at, user="tls_user", tls=bed.tls()), await client.open()
        with trio.move_on_after(0.1):
            await client.ask(session, "select pg_sleep(30)")
        assert await session.settle(2)
        assert await client.ask(other, STILL_RUNNING, session.pid) == 0
        assert [first[4:8] for first in proxy.first_bytes] == [(80877103).to_bytes(4, "big")] * 2
        assert await client.ask(session, "select 1") == 1


async def test_cancelling_works_on_every_way_to_the_server(bed: Any) -> None:
    async with bed.client() as client:
        for host in (bed.unix, bed.tcp, bed.tcp._replace(host="::1"), bed.tcp._replace(host="localhost")):
            session = await client.open(host)
            with trio.move_on_after(0.05):
                await client.ask(session, "select pg_sleep(30)")
            assert await session.settle(2)
            assert await client.ask(session, "select 1") == 1


async def test_settling_with_no_time_closes_the_session(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        assert await session.settle(1)
        with trio.move_on_after(0.05):
            await client.ask(session, "select pg_sleep(30)")
        assert not await session.settle(0)
        assert session.status is Status.CLOSED
        assert not await session.settle(1)


async def test_settling_that_is_itself_cancelled_closes_the_session(bed: Any, proxied: Any) -> None:
    async with bed.client() as client, proxied() as proxy:
        proxy.delay_cancel = 30
        session = await client.open(proxy.at)
        with trio.move_on_after(0.05):
            await client.ask(session, "select pg_sleep(30)")
        with trio.move_on_after(0.1) as scope:
            await session.settle(20)
        assert scope.cancelled_caught
        assert session.status is Status.CLOSED


async def test_settling_in_a_transaction_leaves_it_for_its_holder(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("begin"))
        with pytest.raises(TimeoutError):
            await client.ask(session, "select pg_sleep(30)", timeout=0.05)
        assert await session.settle(2)
        assert session.status is Status.IN_TRANSACTION
        assert not session.is_clean()
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await client.ask(session, "select 1")
        await session.drive(session.raw.execute("rollback"))
        assert session.is_clean()


async def test_grace_puts_a_cancellation_off_until_the_answer_is_there(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        with trio.move_on_after(0.05) as scope:
            answer = await client.ask(session, "select 1 + length(pg_sleep(0.2)::text)", grace=2)
            assert answer == 1
            assert session.is_clean()
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        with trio.move_on_after(0.05) as scope, pytest.raises(asyncpg.DivisionByZeroError):
            await client.ask(session, "select 1 / length(pg_sleep(0.2)::text)", grace=2)
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.drive(session.raw.execute("create temp table unsent (a int)"), grace=2)
        assert scope.cancelled_caught
        assert await client.ask(session, "select to_regclass('unsent')") is None
        assert session.is_clean()
        assert client.told(session).abandonments == 0


async def test_grace_that_runs_out_costs_the_session(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        started = trio.current_time()
        with trio.move_on_after(0.05), pytest.raises(ConnectionLost):
            await client.ask(session, "select pg_sleep(30)", grace=0.1)
        assert trio.current_time() - started < 1
        assert session.status is Status.CLOSED
        assert client.told(session).abandonments == 0


async def test_grace_puts_off_no_time_out_of_the_calls_own(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        with pytest.raises(TimeoutError):
            await client.ask(session, "select pg_sleep(30)", timeout=0.05, grace=10)
        assert await session.settle(2)
        assert session.is_clean()


async def test_an_answer_after_the_socket_time_out_is_lost(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open(socket_timeout=0.1)
        assert await client.ask(session, "select 1") == 1
        await trio.sleep(0.2)
        assert await client.ask(session, "select 2") == 2  # nothing stays armed between calls
        with pytest.raises(ConnectionLost) as caught:
            await client.ask(session, "select pg_sleep(30)")
        assert caught.value.reason == "socket_timeout"
        assert caught.value.server == bed.tcp
        assert session.status is Status.CLOSED


async def test_an_answer_in_the_very_moment_of_the_socket_time_out_is_lost(bed: Any) -> None:
    def slow(value: str) -> Any:
        until = trio.current_time() + 0.15
        while trio.current_time() < until:
            pass
        return value

    async with bed.client() as client:
        session = await client.open(socket_timeout=0.1)
        await session.drive(session.raw.set_type_codec("json", schema="pg_catalog", encoder=str, decoder=slow))
        with pytest.raises(ConnectionLost, match="socket_timeout"):
            await client.ask(session, "select '1'::json")
        assert session.status is Status.CLOSED


async def test_a_storm_of_cancellations_ends_with_every_session_usable(bed: Any) -> None:
    async with bed.client() as client:
        sessions = [await client.open() for _ in range(5)]
        idle_send, idle_receive = trio.open_memory_channel[Any](5)
        for session in sessions:
            idle_send.send_nowait(session)
        wrong = 0

        async def worker(seed: int) -> None:
            nonlocal wrong
            draw = random.Random(seed)
            for number in range(20):
                session = await idle_receive.receive()
                with trio.move_on_after(draw.choice([0.001, 1])):
                    wrong += await client.ask(session, ECHO, number) != number
                if session.status is Status.ABANDONED:
                    assert await session.settle(2)
                idle_send.send_nowait(session)

        async with trio.open_nursery() as nursery:
            for seed in range(20):
                nursery.start_soon(worker, seed)
        assert wrong == 0
        assert all(session.is_clean() for session in sessions)


async def test_interrupting_stops_what_the_server_executes_for_a_session_that_was_closed(bed: Any) -> None:
    async with bed.client() as client:
        session, other = await client.open(tls=bed.tls()), await client.open()
        with trio.move_on_after(0.1):
            await client.ask(session, "select pg_sleep(30)")
        session.terminate("no time")
        await trio.sleep(0.05)
        assert await client.ask(other, STILL_RUNNING, session.pid) == 1
        await session.interrupt(2)
        await trio.sleep(0.05)
        assert await client.ask(other, STILL_RUNNING, session.pid) == 0
        await session.interrupt(1)


async def test_interrupting_is_bounded_and_raises_nothing(bed: Any, proxied: Any) -> None:
    async with bed.client() as client:
        async with proxied() as proxy:
            proxy.delay_cancel = 30
            session = await client.open(proxy.at)
            started = trio.current_time()
            await session.interrupt(0.1)
            assert trio.current_time() - started < 1
        await session.interrupt(0.1)  # nobody listens there any more
