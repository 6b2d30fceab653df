"""The user's own code in the middle of a COPY: where it is run, what ends it, and who writes what is left."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import trio

from ysactor.driver.protocol import Status
from ysactor.errors import ConnectionLost

pytestmark = pytest.mark.trio

CHUNK = b"x" * 65_535 + b"\n"


async def copy(session: Any, source: Any, **bounds: Any) -> str:
    call = session.raw.copy_to_table("t", source=session.source(source), where="false")
    return str(await session.drive(call, **bounds))


async def with_table(client: Any, **changes: Any) -> Any:
    session = await client.open(**changes)
    await session.drive(session.raw.execute("create temp table t (a text)"))
    return session


async def test_the_users_code_sees_no_asyncio_loop_whether_it_waits_or_not(bed: Any) -> None:
    seen: list[object] = []

    def look() -> None:
        try:
            seen.append(asyncio.get_running_loop())
        except RuntimeError:
            seen.append(None)

    async def source() -> AsyncIterator[bytes]:
        for number in range(4):
            look()
            if number % 2:
                await trio.lowlevel.checkpoint()
                look()
            yield b"x\n"

    async def sink(data: bytes) -> None:
        look()
        await trio.lowlevel.checkpoint()
        look()

    async with bed.client() as client:
        session = await with_table(client)
        await copy(session, source())
        await session.drive(session.raw.copy_from_query("select 1", output=session.sink(sink)))
        assert seen == [None] * 8


async def test_a_source_may_have_scopes_and_nurseries_of_its_own_around_what_it_waits_for(bed: Any) -> None:
    async def source() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x\n"
            with trio.move_on_after(0.01) as scope:
                await trio.sleep_forever()
            assert scope.cancelled_caught
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 0.001)

    async with bed.client() as client:
        session = await with_table(client)
        assert await copy(session, source()) == "COPY 0"
        assert session.is_clean()


async def test_what_a_source_raises_at_once_comes_out_and_undoes_the_copy(bed: Any) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"x\n"
        raise KeyError("broken")

    async with bed.client() as client:
        session = await with_table(client)
        with pytest.raises(KeyError, match="broken"):
            await copy(session, source())
        assert session.status is not Status.ABANDONED or await session.settle(5)
        assert await client.ask(session, "select 1") == 1


async def test_what_is_no_exception_goes_through_as_it_is(bed: Any) -> None:
    class Stop(BaseException):
        pass

    async def source() -> AsyncIterator[bytes]:
        yield b"x\n"
        raise Stop

    async with bed.client() as client:
        session = await with_table(client)
        with pytest.raises(Stop):
            await copy(session, source())
        assert session.status is Status.CLOSED or await session.settle(5)


async def test_terminating_ends_what_a_source_or_a_sink_waits_for(bed: Any) -> None:
    waiting = trio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"x\n"
        waiting.set()
        await trio.sleep_forever()

    async def sink(data: bytes) -> None:
        waiting.set()
        await trio.sleep_forever()

    async def end(session: Any) -> None:
        await waiting.wait()
        session.terminate("enough")

    async with bed.client() as client:
        for kind in ("source", "sink"):
            session, waiting = await with_table(client), trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end, session)
                with pytest.raises(ConnectionLost, match="enough"):
                    if kind == "source":
                        await copy(session, source())
                    else:
                        await session.drive(session.raw.copy_from_query("select 1", output=session.sink(sink)))
            assert not client.events[id(session)].losses


async def test_a_server_process_that_ends_ends_what_a_source_waits_for(bed: Any) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"x\n"
        bed.signal(session.pid, signal.SIGTERM)
        await trio.sleep_forever()

    async with bed.client() as client:
        session = await with_table(client)
        with trio.fail_after(5), pytest.raises(ConnectionLost, match="terminating connection"):
            await copy(session, source())
        assert len(client.events[id(session)].losses) == 1


async def test_the_limits_of_a_call_hold_in_the_users_code(bed: Any) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"x\n"
        await trio.sleep_forever()

    async with bed.client() as client:
        session = await with_table(client)
        async with aclosing(source()) as rows:
            with pytest.raises(TimeoutError):
                await copy(session, rows, timeout=0.05)
        assert await session.settle(5)
        session = await with_table(client, socket_timeout=0.3)
        async with aclosing(source()) as rows:
            with pytest.raises(ConnectionLost, match="socket_timeout"):
                await copy(session, rows)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_what_a_cancelled_caller_left_half_written_is_written_all_the_same(bed: Any, encrypted: bool) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield CHUNK

    async with bed.client() as client:
        session = await with_table(client, **({"tls": bed.tls()} if encrypted else {}))
        session._link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        for pause in (0, 0.01, 0.3):
            bed.signal(session.pid, signal.SIGSTOP)
            try:
                async with aclosing(endless()) as rows, trio.open_nursery() as nursery:
                    nursery.start_soon(copy, session, rows)
                    while not session._link.transport.backlog:
                        await trio.lowlevel.checkpoint()
                    await trio.sleep(pause)
                    nursery.cancel_scope.cancel()
                # What the kernel still had room for may be gone by now, but a process that is stopped reads nothing.
                assert session._link.transport.backlog or pause < 0.3
            finally:
                bed.signal(session.pid, signal.SIGCONT)
            with trio.fail_after(5):
                while session._link.transport.backlog:
                    await trio.lowlevel.checkpoint()
            assert await session.settle(5)
            assert await client.ask(session, "select count(*) from t") == 0


async def test_a_server_that_stalls_is_read_while_it_is_written_to(bed: Any) -> None:
    """Both buffers are full from the first moment on, and again each time."""
    text = "t" * 50_000

    async with bed.client() as client:
        session = await client.open()
        session._link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 1024)
        call = session.raw.fetchmany("select repeat($1::text, 20)", [(text,)] * 40)
        with trio.fail_after(10):
            rows = await session.drive(call)
        assert [len(row[0]) for row in rows] == [20 * len(text)] * 40
