"""What answers a login is looked at before asyncpg sees it: by its headers, in whatever pieces they come."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from ysactor.driver.choose import Transport, choose
from ysactor.driver.greeting import Greeting
from ysactor.driver.protocol import ConnectFailure, Phase
from ysactor.servers import HostPort

DRIVERS: list[Transport] = ["native", "trio_asyncio"]


def message(kind: str, content: bytes) -> bytes:
    return kind.encode() + (len(content) + 4).to_bytes(4, "big") + content


WELCOME = (
    message("R", b"\0\0\0\x0aSCRAM-SHA-256\0\0")
    + message("R", b"\0\0\0\0")
    + message("v", b"\0\3\0\0\0\0\0\0")
    + message("S", b"search_path\0" + b"x" * 70_000 + b"\0")
    + message("S", b"a\0\0")
    + message("N", b"SNOTICE\0Mhello\0\0")
    + message("K", b"\0\0\0\1" + b"k" * 256)
    + message("Z", b"I")
)
REFUSAL = message("E", b"SFATAL\0C28000\0Mno\0\0")
LAST_WORDS = message("E", b"SFATAL\0C57P01\0Mbye\0\0")

FOREIGN = {
    "zeros": b"\0" * 5,
    "one zero": b"\0",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "TLS": b"\x15\x03\x03\x00\x02\x02\x28",
    "too short": b"R\0\0\0\1",
    "no length": b"S\0\0\0\0",
    "negative": b"E\xff\xff\xff\xff",
    "a query's answer": message("T", b"\0\0"),
    "zeros after a message": message("R", b"\0\0\0\0") + b"\0" * 5,
    "zeros after the last": WELCOME + b"\0" * 5,
}


def admitted(data: bytes, size: int) -> bool:
    greeting = Greeting()
    return all(greeting.admits(data[at : at + size]) for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 3, 5, 7, 100_000])
@pytest.mark.parametrize("data", [WELCOME, REFUSAL, WELCOME + LAST_WORDS], ids=["welcome", "refusal", "last words"])
def test_a_login_is_admitted_in_whatever_pieces_it_comes(data: bytes, size: int) -> None:
    assert admitted(data, size)


@pytest.mark.parametrize("size", [1, 3, 5, 7, 100_000])
@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_an_answer_that_is_not_postgresqls_is_not_admitted_in_whatever_pieces_it_comes(data: bytes, size: int) -> None:
    assert not admitted(data, size)


def test_a_login_is_over_with_the_header_of_the_message_that_says_so() -> None:
    greeting = Greeting()
    assert greeting.admits(WELCOME[:-6])
    assert not greeting.is_over
    assert greeting.admits(WELCOME[-6:])
    assert greeting.is_over


def test_a_server_that_cannot_start_a_process_says_so_without_a_length_and_is_one_all_the_same() -> None:
    assert admitted(b"Ecould not fork new process for connection: Cannot allocate memory\n\0", 3)


@asynccontextmanager
async def answering(*pieces: bytes, tls: ssl.SSLContext | None = None, stays: bool = True) -> AsyncIterator[HostPort]:
    """A server that says this to the start of a login, and stays, or hangs up."""

    async def serve(plain: trio.SocketStream) -> None:
        stream: trio.abc.Stream = plain
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            if tls is not None:
                await plain.receive_some(8)
                await plain.send_all(b"S")
                stream = trio.SSLStream(plain, tls, server_side=True)
            await stream.receive_some()
            for piece in pieces:
                await stream.send_all(piece)
                await trio.sleep(0.01)
            if stays:
                await trio.sleep_forever()
            await stream.aclose()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield HostPort("127.0.0.1", listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def failure_of(
    bed: Any, transport: Transport, pieces: tuple[bytes, ...], *, encrypted: bool, stays: bool = True
) -> ConnectFailure:
    """What a login comes to that is answered so."""
    tls = bed.authority.issue("127.0.0.1").server_context() if encrypted else None
    config = bed.config(tls=bed.tls()) if encrypted else bed.config()
    with trio.fail_after(10):
        async with answering(*pieces, tls=tls, stays=stays) as host, trio.open_nursery() as nursery:
            driver = choose(transport)
            await nursery.start(driver.run)
            with pytest.raises(ConnectFailure) as caught:
                await driver.connect(host, config)
            nursery.cancel_scope.cancel()
    return caught.value


@pytest.mark.trio
@pytest.mark.parametrize("transport", DRIVERS)
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize(
    "pieces",
    [(b"SSH-2.0-OpenSSH_9.6\r\n",), (b"S", b"SH", b"-2.0"), (message("R", b"\0\0\0\0") + b"H", b"TTP/")],
    ids=["at once", "in pieces", "after a message"],
)
async def test_a_foreign_answer_fails_the_attempt_at_once(
    bed: Any, transport: Transport, pieces: tuple[bytes, ...], encrypted: bool
) -> None:
    failure = await failure_of(bed, transport, pieces, encrypted=encrypted)
    assert (failure.phase, failure.sqlstate) == (Phase.LOGIN, None)
    assert str(failure) == "the answer to the login is not PostgreSQL's"


REFUSED = message("E", "SFATAL\0VFATAL\0C28P01\0Ml'authentification a échoué\0Fauth.c\0\0".encode("latin-1"))


@pytest.mark.trio
@pytest.mark.parametrize("transport", DRIVERS)
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize(
    "pieces",
    [(REFUSED,), (REFUSED[:3], REFUSED[3:40], REFUSED[40:]), (message("N", b"SNOTICE\0C00000\0Mhm\0\0") + REFUSED,)],
    ids=["at once", "in pieces", "after a notice"],
)
async def test_a_refusal_in_another_encoding_is_a_refusal_with_the_servers_code(
    bed: Any, transport: Transport, pieces: tuple[bytes, ...], encrypted: bool
) -> None:
    """The encoding of a session is settled as its login ends."""
    failure = await failure_of(bed, transport, pieces, encrypted=encrypted, stays=False)
    assert (failure.phase, failure.sqlstate) == (Phase.LOGIN, "28P01")
    assert str(failure) == "l'authentification a \ufffdchou\ufffd"


ZEROS = """
import socket, sys, threading, trio, ysactor

listener = socket.create_server(("127.0.0.1", 0))
held = []

def serve():
    while True:
        client, _ = listener.accept()
        client.recv(1000)
        client.sendall(bytes(5))
        held.append(client)

threading.Thread(target=serve, daemon=True).start()

async def main():
    dsn = f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/d"
    async with ysactor.open_pool(dsn, pool_size=1, driver=sys.argv[1]) as pool:
        try:
            await pool.fetchval("SELECT 1")
        except ysactor.ConnectFailed as error:
            print(error.kind, error)

trio.run(main)
"""


@pytest.mark.parametrize("transport", DRIVERS)
def test_five_zero_bytes_do_not_hang_the_process(transport: Transport) -> None:
    """In a process of its own: what hangs there hears no time-out."""
    done = subprocess.run(
        [sys.executable, "-c", ZEROS, transport], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.startswith("unreachable"), done.stderr
    assert "the answer to the login is not PostgreSQL's" in done.stdout
