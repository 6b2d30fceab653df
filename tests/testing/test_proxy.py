"""The fault proxy, before a peer that answers everything with its own words, and before a real server."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

import asyncpg
import pytest
import trio
import trio.testing

from ysactor.testing.breaking import Break, Framing
from ysactor.testing.postgres import Authority, PostgresServer, Run, create_data
from ysactor.testing.proxy import FaultProxy, open_fault_proxy

T = TypeVar("T")

STARTUP = struct.pack("!II", 17, 3 << 16) + b"user\0u\0\0\0"
CANCEL = struct.pack("!IIII", 16, 80877102, 1, 2)
SSL_REQUEST = struct.pack("!II", 8, 80877103)


def statement(text: str) -> bytes:
    return b"Q" + struct.pack("!I", len(text) + 5) + text.encode() + b"\0"


class Echo:
    """Sends back what it gets, and keeps it."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.welcome = STARTUP
        """What answers a start-up message: itself is no message of the kind that a server sends."""
        self.cancels = trio.Event()
        self._dialled: list[trio.SocketStream] = []

    async def dial(self, proxy: FaultProxy) -> trio.SocketStream:
        stream = await trio.open_tcp_stream(*proxy.address)
        self._dialled.append(stream)
        return stream

    async def connected(self, proxy: FaultProxy) -> trio.SocketStream:
        stream = await self.dial(proxy)
        await said(stream, STARTUP, self.welcome)
        return stream

    def hang_up(self) -> None:
        for stream in self._dialled:
            stream.socket.close()

    async def serve(self, stream: trio.SocketStream) -> None:
        try:
            async for chunk in stream:
                self.seen += chunk
                if chunk.startswith(CANCEL):
                    self.cancels.set()
                    return
                await stream.send_all(self.welcome if chunk == STARTUP else chunk)
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def before_echo() -> AsyncIterator[tuple[FaultProxy, Echo]]:
    echo = Echo()
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, echo.serve, [listener])
        with trio.fail_after(10):
            async with open_fault_proxy(listener.socket.getsockname()[:2]) as proxy:
                yield proxy, echo
        echo.hang_up()
        nursery.cancel_scope.cancel()


async def said(stream: trio.abc.Stream, message: bytes, expected: bytes = b"") -> None:
    """Send it and get it back, or what is expected instead."""
    await stream.send_all(message)
    answer, expected = b"", expected or message
    while len(answer) < len(expected):
        chunk = await stream.receive_some()
        assert chunk, "closed in the middle of the answer"
        answer += chunk
    assert answer == expected


@pytest.mark.trio
async def test_it_forwards_and_counts() -> None:
    async with before_echo() as (proxy, echo):
        stream = await echo.connected(proxy)
        await said(stream, statement("select 1"))
        assert proxy.accepted == 1
        assert proxy.connections[0].first == STARTUP[:16]
        assert not proxy.connections[0].encrypted
        assert bytes(echo.seen) == STARTUP + statement("select 1")
        await stream.aclose()
        while proxy.live:  # noqa: ASYNC110 - the proxy sees the end when the kernel tells it
            await trio.sleep(0.005)


@pytest.mark.trio
async def test_a_black_hole_swallows_until_it_heals() -> None:
    async with before_echo() as (proxy, echo):
        stream = await echo.connected(proxy)
        proxy.set_mode("blackhole")
        await stream.send_all(statement("select 1"))
        late = await echo.dial(proxy)
        await late.send_all(STARTUP)
        with trio.move_on_after(0.1) as waited:
            await stream.receive_some()
        assert waited.cancelled_caught
        assert bytes(echo.seen) == STARTUP

        proxy.set_mode("pass")

        assert await stream.receive_some() == statement("select 1")
        assert await late.receive_some() == STARTUP


@pytest.mark.trio
async def test_a_reset_breaks_open_connections_and_new_ones() -> None:
    async with before_echo() as (proxy, echo):
        stream = await echo.connected(proxy)
        proxy.set_mode("reset")
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        with pytest.raises((trio.BrokenResourceError, OSError)):
            await (await echo.dial(proxy)).receive_some()


@pytest.mark.trio
async def test_refusing_leaves_open_connections_alone_until_it_is_killed() -> None:
    async with before_echo() as (proxy, echo):
        stream = await echo.connected(proxy)
        address = proxy.address
        proxy.set_mode("refuse")
        with pytest.raises(OSError, match="connect"):
            await echo.dial(proxy)
        await said(stream, statement("select 1"))
        proxy.kill()
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        proxy.set_mode("pass")
        assert proxy.address == address
        await echo.connected(proxy)


@pytest.mark.trio
async def test_closing_accepts_and_hangs_up() -> None:
    async with before_echo() as (proxy, echo):
        proxy.set_mode("close")
        for _attempt in range(3):
            assert await (await echo.dial(proxy)).receive_some() == b""
        assert proxy.accepted == 3


@pytest.mark.trio
async def test_a_full_queue_makes_connecting_hang_until_it_is_emptied() -> None:
    async with before_echo() as (proxy, echo):
        proxy.set_mode("full")
        with trio.move_on_after(0.2) as waited:
            await echo.dial(proxy)
        assert waited.cancelled_caught
        proxy.set_mode("pass")
        await echo.connected(proxy)


@pytest.mark.trio
async def test_latency_holds_for_each_direction() -> None:
    async with before_echo() as (proxy, echo):
        stream = await echo.connected(proxy)
        proxy.latency = 0.05
        start = trio.current_time()
        await said(stream, b"H\0\0\0\4")
        assert trio.current_time() - start >= 0.1


@pytest.mark.trio
async def test_the_login_delay_holds_for_the_login_only() -> None:
    async with before_echo() as (proxy, echo):
        proxy.login_delay = 0.2
        start = trio.current_time()
        stream = await echo.connected(proxy)
        logged_in = trio.current_time()
        assert logged_in - start >= 0.2
        await said(stream, statement("select 1"))
        assert trio.current_time() - logged_in < 0.2


@pytest.mark.trio
async def test_a_held_cancel_request_arrives_late_even_if_its_sender_has_left() -> None:
    async with before_echo() as (proxy, echo):
        proxy.hold_cancel(0.2)
        stream = await echo.connected(proxy)
        start = trio.current_time()
        canceller = await echo.dial(proxy)
        await canceller.send_all(CANCEL)
        await canceller.aclose()
        await said(stream, statement("select 1"))
        assert not echo.cancels.is_set()
        await echo.cancels.wait()
        assert trio.current_time() - start >= 0.2
        assert proxy.cancel_requests == 1
        assert proxy.connections[1].first == CANCEL


@pytest.mark.trio
@pytest.mark.parametrize("parsed", [False, True])
@pytest.mark.parametrize(("when", "arrives"), [("before", False), ("after", True)])
async def test_a_commit_is_cut_on_the_side_asked_for_and_once(when: str, arrives: bool, parsed: bool) -> None:
    commit = statement("COMMIT;")
    if parsed:
        commit = b"P" + struct.pack("!I", 4 + 5 + 7 + 2) + b"name\0commit\0\0\0"
    async with before_echo() as (proxy, echo):
        stream = await echo.connected(proxy)
        proxy.cut_next_commit("after" if when == "after" else "before")
        # Neither the word inside a statement nor inside bulk data is a COMMIT.
        await said(stream, statement("insert into t values ('commit')"))
        await said(stream, b"d" + struct.pack("!I", 4 + 14) + b"Q\0\0\0\x0bcommit\0\0\0")
        assert proxy.commits_cut == 0
        await stream.send_all(commit[:7])
        await trio.sleep(0.02)
        await stream.send_all(commit[7:])
        # The first part of the message may have come back already; the rest never does.
        with pytest.raises(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        assert proxy.commits_cut == 1
        assert echo.seen.endswith(commit) is arrives
        await said(await echo.connected(proxy), commit)


def message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!I", len(content) + 4) + content


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("at", [0, 1, 5, 9, 1000])
def test_a_break_is_found_at_its_byte_whatever_the_chunks(at: int, size: int) -> None:
    before = message(b"D", b"D\0\0\0\x09") + message(b"C", b"") + message(b"C", b"SELECT 1\0")
    broken, after = message(b"C", b"COMMIT\0"), message(b"C", b"COMMIT\0") + b"Z\0\0"
    framing, wanted = Framing(), Break("answer", b"C", at, b"COMMIT", "hold")
    whole = before + broken + after
    passed, held = b"", None
    for start in range(0, len(whole), size):
        now, later = framing.take(whole[start : start + size], wanted if held is None else None)
        if later is not None:
            assert passed + now == before + broken[:at]
            held = later
        elif held is not None:
            held += now
        else:
            passed += now
    assert held is not None
    assert held == (broken + after)[min(at, len(broken)) :]


@pytest.mark.parametrize("known", range(1, 17))
def test_a_break_that_is_asked_for_in_the_middle_of_a_message_takes_nothing_back(known: int) -> None:
    first, second = message(b"C", b"COMMIT\0"), message(b"C", b"COMMIT\0")
    framing, wanted = Framing(), Break("answer", b"C", 3, b"", "reset")
    whole = first + second
    passed, later = framing.take(whole[:known], None)
    assert (passed, later) == (whole[:known], None), "what is not looked for is not held back"
    now, later = framing.take(whole[known:], wanted)
    # The length of a message tells where the next begins, so the first can still be met before it is complete.
    end = max(known, 3) if known < 5 else len(first) + max(3, known - len(first))
    assert passed + now == whole[:end]
    assert later == whole[end:]


@pytest.mark.trio
async def test_a_message_is_broken_in_its_middle_on_the_side_asked_for() -> None:
    row = message(b"D", b"twelve bytes")
    async with before_echo() as (proxy, echo):
        echo.welcome = message(b"Z", b"I")
        stream = await echo.connected(proxy)
        proxy.break_next("answer", b"D", at=7)
        await said(stream, statement("select 1"))
        assert proxy.messages_broken == 0
        await stream.send_all(row)
        assert await stream.receive_some() == row[:7]
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        assert echo.seen.endswith(row)

        stream = await echo.connected(proxy)
        proxy.break_next("request", b"D", at=7, begins=b"twe", then="close")
        await said(stream, message(b"D", b"other"))
        await stream.send_all(row)
        assert await stream.receive_some() in {row[:7], b""}
        while not echo.seen.endswith(row[:7]):  # noqa: ASYNC110 - the peer sees it when the kernel tells it
            await trio.sleep(0.002)
        assert proxy.messages_broken == 2

        await said(await echo.connected(proxy), row)


@pytest.mark.trio
async def test_a_message_that_is_held_goes_on_from_the_same_byte() -> None:
    row = message(b"D", b"x" * 200_000)
    async with before_echo() as (proxy, echo):
        echo.welcome = message(b"Z", b"I")
        stream = await echo.connected(proxy)
        proxy.break_next("answer", b"D", at=10, then="hold")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(said, stream, row + statement("select 1"))
            while not proxy.messages_broken:  # noqa: ASYNC110 - nothing tells when
                await trio.sleep(0.002)
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks, "it does not come"
            proxy.resume()
        await said(stream, row)


@pytest.mark.trio
async def test_answers_come_in_pieces() -> None:
    async with before_echo() as (proxy, echo):
        stream = await echo.connected(proxy)
        proxy.piece = 1
        await stream.send_all(b"Q1234")
        pieces = [bytes(await stream.receive_some()) for _ in range(5)]
        assert pieces == [b"Q", b"1", b"2", b"3", b"4"]


@pytest.mark.trio
async def test_an_error_in_the_block_comes_out_bare() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_fault_proxy(("127.0.0.1", 1)):
            _ = 1 // 0


@pytest.mark.trio
async def test_leaving_is_quick_whatever_is_open() -> None:
    async with before_echo() as (proxy, echo):
        streams = [await echo.connected(proxy) for _ in range(5)]
        proxy.set_mode("blackhole")
        start = trio.current_time()
    assert trio.current_time() - start < 1
    assert len(streams) == 5


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with Run() as found:
        yield found


@pytest.fixture(scope="module")
def server(run: Run) -> Iterator[PostgresServer]:
    (address,) = run.addresses(1)
    with PostgresServer(run, "server", address, template=create_data(run, "template")) as found:
        found.start()
        yield found


async def in_asyncio(scenario: Callable[[], Awaitable[T]]) -> T:
    """The driver's own world, in a thread: the proxy goes on serving here."""

    async def wrapped() -> T:
        result = await scenario()
        for _ in range(10):
            # The driver's sockets close some turns of the loop later.
            await asyncio.sleep(0)
        return result

    return await trio.to_thread.run_sync(asyncio.run, wrapped())


async def connect(proxy: FaultProxy, tls: ssl.SSLContext | bool = False) -> asyncpg.Connection:
    host, port = proxy.address
    return await asyncpg.connect(
        host=host, port=port, user="yugabyte", password="x", database="yugabyte", ssl=tls, timeout=5
    )


@pytest.mark.trio
@pytest.mark.parametrize(("when", "rows"), [("before", "0"), ("after", "1")])
async def test_the_client_cannot_tell_a_lost_commit_from_a_lost_answer(
    server: PostgresServer, when: str, rows: str
) -> None:
    server.sql("drop table if exists paid", "create table paid(x int)")

    async def scenario() -> None:
        connection = await connect(proxy)
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            async with connection.transaction():
                await connection.execute("insert into paid values (1)")
        connection.terminate()

    async with open_fault_proxy((server.host, server.port)) as proxy:
        proxy.cut_next_commit("after" if when == "after" else "before")
        await in_asyncio(scenario)
    server.end_sessions()
    assert server.value("select count(*) from paid") == rows


@pytest.mark.trio
async def test_it_ends_tls_for_a_server_that_has_none_and_sees_an_encrypted_cancel(
    run: Run, server: PostgresServer
) -> None:
    authority = Authority(run)

    async def scenario() -> str:
        connection = await connect(proxy, authority.client_context())
        with pytest.raises(TimeoutError):
            await connection.fetchval("select pg_sleep(5)", timeout=0.1)
        answer = await connection.fetchval("select repeat('x', 3000000)")
        await connection.close(timeout=2)
        return str(answer)

    certificate = authority.issue("127.0.0.1").server_context()
    async with open_fault_proxy((server.host, server.port), tls=certificate) as proxy:
        assert await in_asyncio(scenario) == "x" * 3_000_000
        main, cancel = proxy.connections
        assert (main.first, main.encrypted, main.cancel) == (SSL_REQUEST, True, False)
        assert cancel.cancel
        assert cancel.encrypted is (cancel.first == SSL_REQUEST)


@pytest.mark.trio
async def test_a_server_without_tls_may_still_be_asked_for_it(server: PostgresServer) -> None:
    async def scenario() -> int:
        host, port = proxy.address
        connection = await asyncpg.connect(
            host=host, port=port, user="yugabyte", database="yugabyte", ssl="prefer", timeout=5
        )
        found = await connection.fetchval("select 1")
        await connection.close()
        return int(found)

    async with open_fault_proxy((server.host, server.port)) as proxy:
        proxy.cut_next_commit("before")
        assert await in_asyncio(scenario) == 1
        assert proxy.connections[0].first == SSL_REQUEST
        assert not proxy.connections[0].encrypted
