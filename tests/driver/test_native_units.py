"""Parts of the native driver that need no server."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from ysactor.driver.native.messages import cancel_request
from ysactor.driver.native.names import missing
from ysactor.driver.protocol import Status


@pytest.mark.parametrize("secret", [7, struct.pack("!i", 7), b"k" * 32])
def test_a_cancel_request_holds_a_key_of_any_length(secret: int | bytes) -> None:
    message = cancel_request(99, secret)
    length, code, pid = struct.unpack("!iii", message[:12])
    assert (length, code, pid) == (len(message), 80877102, 99)
    assert message[12:] == (struct.pack("!i", 7) if isinstance(secret, int) else secret)


def test_names_that_are_gone_are_named() -> None:
    assert missing() == []
    assert missing([(asyncio, "asyncio", ("Future", "no_such_name"))]) == ["asyncio.no_such_name"]


def in_a_process_of_its_own(code: str, *args: str) -> None:
    """Where importing trio-asyncio, or running asyncio, leaves nothing behind for the other tests."""
    command = [sys.executable, "-W", "ignore", "-c", code, *args]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


BESIDE_TRIO_ASYNCIO = """
import sys
if sys.argv[1] == "before":
    import trio_asyncio
import trio
from ysactor.config import Config
from ysactor.driver.native import NativeDriver
from ysactor.servers import HostPort
import trio_asyncio

async def use():
    driver = NativeDriver()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: driver.run(task_status=task_status))
        config = Config(user="yugabyte", database="yugabyte")
        session = await driver.connect(HostPort("127.0.0.1", int(sys.argv[2])), config)
        await session.drive(session.raw.execute("create temp table t (a int, b text)"))
        rows = [(i, "x" * 300) for i in range(20000)]
        await session.drive(session.raw.executemany("insert into t values ($1, $2)", rows, timeout=20))
        await session.drive(session.raw.reset(timeout=5))
        with trio.move_on_after(0.05):
            await session.drive(session.raw.fetchval("select pg_sleep(5)"))
        assert await session.settle(2)
        nursery.cancel_scope.cancel()

async def main():
    await use()
    async with trio_asyncio.open_loop():
        await use()

trio.run(main)
"""


@pytest.mark.parametrize("order", ["before", "after"])
def test_it_works_beside_trio_asyncio_in_the_same_process(bed: Any, order: str) -> None:
    if importlib.util.find_spec("trio_asyncio") is None:
        pytest.skip("trio-asyncio is not installed")
    in_a_process_of_its_own(BESIDE_TRIO_ASYNCIO, order, str(bed.port))


GUEST = """
import asyncio, sys
import trio
from ysactor.config import Config
from ysactor.driver.native import NativeDriver
from ysactor.servers import HostPort

async def use():
    driver = NativeDriver()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: driver.run(task_status=task_status))
        config = Config(user="yugabyte", database="yugabyte")
        session = await driver.connect(HostPort("127.0.0.1", int(sys.argv[1])), config)
        assert await session.drive(session.raw.fetchval("select 1")) == 1
        await session.drive(session.raw.reset(timeout=5))
        nursery.cancel_scope.cancel()

async def main():
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    soon = loop.call_soon_threadsafe
    trio.lowlevel.start_guest_run(use, run_sync_soon_threadsafe=soon, done_callback=done.set_result)
    (await done).unwrap()
    assert asyncio.get_running_loop() is loop

asyncio.run(main())
"""


def test_it_works_in_a_guest_run_inside_asyncio(bed: Any) -> None:
    in_a_process_of_its_own(GUEST, str(bed.port))


def test_importing_the_driver_does_not_import_trio_asyncio() -> None:
    code = "import sys, ysactor.driver.native; sys.exit('trio_asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_keyboard_interrupt_leaves_a_call_as_a_cancellation_does(bed: Any) -> None:
    async def main() -> None:
        async with bed.client() as client:
            session = await client.open()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(interrupt)
                    await client.ask(session, "select pg_sleep(30)")
            except* KeyboardInterrupt:
                interrupted.append(session.status)
            assert await session.settle(2)
            assert await client.ask(session, "select 1") == 1

    async def interrupt() -> None:
        await trio.sleep(0.1)
        signal.raise_signal(signal.SIGINT)

    interrupted: list[Status] = []
    trio.run(main)
    assert interrupted == [Status.ABANDONED]


def test_a_keyboard_interrupt_never_tears_asyncpg_apart(bed: Any) -> None:
    def rows() -> Iterator[tuple[int]]:
        for number in range(3000):
            if number == 1500:
                signal.raise_signal(signal.SIGINT)  # in the middle of a step
            yield (number,)

    async def main() -> None:
        async with bed.client() as client:
            session = await client.open()
            await session.drive(session.raw.execute("create temp table t (a int)"))
            try:
                await session.drive(session.raw.executemany("insert into t values ($1)", rows()))
            except KeyboardInterrupt:
                interrupted.append(session.status)
            if session.status is Status.ABANDONED:
                assert await session.settle(2)
            assert session.is_clean()
            assert await client.ask(session, "select 1") == 1

    interrupted: list[Status] = []
    trio.run(main)
    assert interrupted == [Status.ABANDONED]
