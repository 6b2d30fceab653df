"""What is the trio-asyncio driver's alone; the contract it shares is in tests/contract."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from contextlib import aclosing, asynccontextmanager

import pytest
import trio

from ysactor.config import Config
from ysactor.driver.protocol import ConnectFailure, Phase, Preface, Status
from ysactor.errors import ConnectionLost
from ysactor.servers import HostPort

trio_asyncio = pytest.importorskip("trio_asyncio", exc_type=(ImportError, AttributeError))

from ysactor.driver.trio_asyncio import TrioAsyncioDriver  # noqa: E402


@pytest.fixture
def config(bed):
    return bed.config(application_name="trio-asyncio tests")


async def test_it_uses_the_loop_that_the_application_runs_in(bed, config):
    async with trio_asyncio.open_loop() as loop, trio.open_nursery() as nursery:
        driver = TrioAsyncioDriver()
        await nursery.start(driver.run)
        session = await driver.connect(bed.tcp, config)

        async def whose():
            return asyncio.get_running_loop(), await session.raw.fetchval("SELECT 1")

        assert await session.drive(whose()) == (loop, 1)
        assert await trio_asyncio.aio_as_trio(session.raw.fetchval)("SELECT 2") == 2
        await session.close(5)
        nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancelled_caught


async def test_several_drivers_live_in_one_run(bed, config):
    async with trio.open_nursery() as nursery:
        first, second = TrioAsyncioDriver(), TrioAsyncioDriver()
        await nursery.start(first.run)
        await nursery.start(second.run)
        one, two = await first.connect(bed.tcp, config), await second.connect(bed.tcp, config)

        async def loop_of(session):
            await session.raw.fetchval("SELECT 1")
            return asyncio.get_running_loop()

        assert await one.drive(loop_of(one)) is not await two.drive(loop_of(two))
        await one.close(5)
        await two.close(5)
        nursery.cancel_scope.cancel()


async def test_a_socket_directory_is_a_host(bed, config):
    async with trio.open_nursery() as nursery:
        driver = TrioAsyncioDriver()
        await nursery.start(driver.run)
        session = await driver.connect(bed.unix, config)
        with trio.move_on_after(0.05):
            await session.drive(session.raw.fetchval("SELECT pg_sleep(5)"))
        assert await session.settle(5)
        await session.close(5)

        with pytest.raises(ConnectFailure) as caught:
            await driver.connect(HostPort("/nowhere/at/all", 5433), config)
        nursery.cancel_scope.cancel()
    assert caught.value.phase is Phase.CONNECT


async def test_every_address_of_a_name_is_tried(bed, config):
    """ "localhost" is two addresses, and a proxy listens on one of them only."""
    from ysactor.testing.proxy import open_fault_proxy

    async with trio.open_nursery() as nursery:
        driver = TrioAsyncioDriver()
        await nursery.start(driver.run)
        async with open_fault_proxy(("127.0.0.1", bed.port)) as proxy:
            session = await driver.connect(HostPort("localhost", proxy.address[1]), config)
            with trio.move_on_after(0.05):
                await session.drive(session.raw.fetchval("SELECT pg_sleep(5)"))
            assert await session.settle(5)
            assert proxy.cancel_requests == 1
            await session.close(5)
        nursery.cancel_scope.cancel()


async def test_a_listener_that_raises_is_logged_and_ends_nothing(bed, config, caplog):
    async with trio.open_nursery() as nursery:
        driver = TrioAsyncioDriver()
        await nursery.start(driver.run)
        session = await driver.connect(bed.tcp, config)

        def broken(*_args):
            raise KeyError("the listener broke")

        await session.drive(session.raw.add_listener("news", broken))
        with caplog.at_level(logging.ERROR, "ysactor"):
            await session.drive(session.raw.execute("NOTIFY news"))
            await session.drive(session.raw.execute("SELECT 1"))
        assert await session.drive(session.raw.fetchval("SELECT 1")) == 1
        await session.close(5)
        nursery.cancel_scope.cancel()
    assert "the listener broke" in caplog.text


async def test_the_end_of_the_driver_closes_what_is_still_open(bed, config):
    async with trio.open_nursery() as nursery:
        driver = TrioAsyncioDriver()
        await nursery.start(driver.run)
        session = await driver.connect(bed.tcp, config)
        nursery.cancel_scope.cancel()

    assert session.status is Status.CLOSED
    session.terminate("late")
    with trio.fail_after(10):
        while bed.server.sql(f"select 1 from pg_stat_activity where pid = {session.pid}"):  # noqa: ASYNC110
            await trio.sleep(0.005)


async def test_a_driver_that_does_not_run_says_so():
    with pytest.raises(RuntimeError, match="run"):
        await TrioAsyncioDriver().connect(HostPort("127.0.0.1", 1), Config())


def _python(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_without_trio_asyncio_choosing_it_is_a_configuration_error():
    done = _python(
        "import sys\n"
        "sys.modules['trio_asyncio'] = None\n"
        "from ysactor.driver.choose import choose\n"
        "from ysactor.errors import ConfigurationError\n"
        "try: choose('trio_asyncio')\n"
        "except ConfigurationError as error: print(error)\n"
    )
    assert done.stdout.startswith("driver: trio-asyncio cannot be used here"), done.stderr
    assert "3.14" in done.stdout


def test_nothing_imports_trio_asyncio_before_it_is_chosen():
    done = _python(
        "import sys, ysactor, ysactor.driver.choose, ysactor.driver.trio_asyncio, ysactor.testing\n"
        "print(sorted(name for name in sys.modules if name in ('trio_asyncio', 'asyncpg')))\n"
        "from ysactor.driver.choose import choose\n"
        "choose('trio_asyncio')\n"
        "print('trio_asyncio' in sys.modules)\n"
    )
    assert done.stdout.splitlines()[1:] == ["True"], done.stderr
    assert "trio_asyncio" not in done.stdout.splitlines()[0]


@pytest.mark.parametrize("way", ["tcp", "tls", "socket directory"])
async def test_a_loss_carries_the_servers_words_idle_and_in_a_call(bed, way):
    changes = {"tls": bed.tls()} if way == "tls" else {}
    host = bed.unix if way == "socket directory" else bed.tcp
    told = []
    lost = trio.Event()

    class Owner:
        def lost(self, reason):
            told.append(reason)
            lost.set()

        def abandoned(self):
            raise AssertionError("nobody has left a call")

    words = "closed by the server: terminating connection due to administrator command"
    async with trio.open_nursery() as nursery:
        driver = TrioAsyncioDriver()
        await nursery.start(driver.run)
        with trio.fail_after(20):
            for during in (None, "SELECT pg_terminate_backend(pg_backend_pid())", "SELECT pg_sleep(30)"):
                session = await driver.connect(host, bed.config(**changes))
                session.attach(Owner())
                kill = f"select pg_terminate_backend({session.pid})"
                if during is None:
                    bed.server.sql(kill)
                else:
                    if "sleep" in during:
                        nursery.start_soon(trio.to_thread.run_sync, bed.server.sql, kill)
                    with pytest.raises(ConnectionLost) as caught:
                        await session.drive(session.raw.execute(during))
                    assert caught.value.reason == words
                await lost.wait()
                lost = trio.Event()
        nursery.cancel_scope.cancel()
    assert told == [words] * 3


class _Nobody:
    def lost(self, reason):
        pass

    def abandoned(self):
        pass


@asynccontextmanager
async def _a_session(bed, **changes):
    async with trio.open_nursery() as nursery:
        driver = TrioAsyncioDriver()
        await nursery.start(driver.run)
        with trio.fail_after(20):
            session = await driver.connect(bed.tcp, bed.config(**changes))
            session.attach(_Nobody())
            yield session
            await session.close(5)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_notices_amid_the_rows_of_a_copy_are_waited_for_over_tls_too(bed, encrypted):
    got = []

    async def keep(data):
        await trio.lowlevel.checkpoint()
        got.append(bytes(data))

    async with _a_session(bed, **({"tls": bed.tls()} if encrypted else {})) as session:
        await session.drive(
            session.raw.execute(
                "create function pg_temp.loud(n int) returns int language plpgsql as "
                "$$ begin raise notice 'notice %', n; return n; end $$"
            )
        )
        call = session.raw.copy_from_query(
            "select pg_temp.loud(n) from generate_series(1, 300) n", output=session.sink(keep)
        )
        assert await session.drive(call) == "COPY 300"
    assert b"".join(got).split() == [b"%d" % n for n in range(1, 301)]


async def test_the_owner_knows_of_a_loss_as_soon_as_asyncpg_does(bed, config):
    """What of asyncpg's is used without a call, such as `cursor`, fails from then on."""
    told = []

    class Owner:
        def lost(self, reason):
            told.append(reason)

    async with trio.open_nursery() as nursery:
        driver = TrioAsyncioDriver()
        await nursery.start(driver.run)
        with trio.fail_after(20):
            for number in range(1, 6):
                session = await driver.connect(bed.tcp, config)
                session.attach(Owner())
                await trio.to_thread.run_sync(bed.server.sql, f"select pg_terminate_backend({session.pid})")
                while not session.raw.is_closed():
                    await trio.lowlevel.checkpoint()
                assert len(told) == number
                assert session.status is Status.CLOSED
        nursery.cancel_scope.cancel()


async def test_a_text_that_cannot_be_sent_ends_the_session_and_its_owner_knows_at_once(bed, config):
    told = []

    class Owner:
        def lost(self, reason):
            told.append(reason)

    async with _a_session(bed) as session:
        session.attach(Owner())
        with pytest.raises(UnicodeEncodeError):
            await session.drive(session.raw.execute("SELECT '\ud800'"))
        assert session.status is Status.CLOSED
        assert len(told) == 1


async def test_command_timeout_leaves_a_copy_wherever_it_waits(bed):
    async def chunks():
        yield b"1\n"
        await trio.sleep_forever()

    async def write(data):
        await trio.sleep_forever()

    async with _a_session(bed, asyncpg_options={"command_timeout": 0.2}) as session:
        await session.drive(session.raw.execute("create temp table t (a int)"))
        for call in (
            session.raw.copy_to_table("t", source=session.source(chunks())),
            session.raw.copy_from_query("select 1", output=session.sink(write)),
            session.raw.fetchval("select pg_sleep(30)"),
        ):
            started = trio.current_time()
            with pytest.raises(TimeoutError):
                await session.drive(call)
            assert trio.current_time() - started < 5
            assert await session.settle(5)
        assert await session.drive(session.raw.fetchval("select count(*) from t")) == 0
        with pytest.raises(TimeoutError):
            await session.drive_after(Preface("begin"), session.raw.fetchval("select pg_sleep(30)"))


@pytest.mark.parametrize("how", ["command_timeout", "its own"])
async def test_a_source_that_is_late_after_the_server_has_refused_the_copy_is_a_time_out(bed, how):
    async def chunks():
        yield b"no number\n" * 1000
        await trio.sleep(0.2)
        if how == "its own":
            raise fault
        while True:
            yield b"1\n"
            await trio.sleep(0.02)

    fault = TimeoutError("its own")
    options = {"command_timeout": 0.4} if how == "command_timeout" else {}
    async with _a_session(bed, asyncpg_options=options) as session:
        await session.drive(session.raw.execute("create temp table t (a int)"))
        async with aclosing(chunks()) as source:
            with pytest.raises(TimeoutError) as caught:
                await session.drive(session.raw.copy_to_table("t", source=session.source(source)))
        if how == "its own":
            assert caught.value is fault
            assert await session.settle(5)
            assert await session.drive(session.raw.fetchval("select count(*) from t")) == 0


async def test_a_copy_from_an_endless_file_is_left_at_the_end_of_a_read(bed):
    class Endless:
        reads = 0

        def read(self, size):
            self.reads += 1
            time.sleep(0.005)
            return b"1\n"

    source = Endless()
    async with _a_session(bed) as session:
        await session.drive(session.raw.execute("create temp table t (a int)"))
        with pytest.raises(TimeoutError):
            await session.drive(session.raw.copy_to_table("t", source=source), timeout=0.1)
        assert await session.settle(5)
        reads = source.reads
        assert await session.drive(session.raw.fetchval("select count(*) from t")) == 0
        assert source.reads == reads


@pytest.mark.parametrize("rows", [1, 100_000])
async def test_a_copy_to_a_file_that_cannot_be_written_keeps_its_session(bed, rows):
    """Its first piece, and its last, after which the server has nothing more to say."""
    fault = OSError("no space is left")
    fault.__cause__ = cause = KeyError("which is why")

    class Full:
        def write(self, data):
            raise fault

    async with _a_session(bed) as session:
        with pytest.raises(OSError, match="no space") as caught:
            await session.drive(session.raw.copy_from_query(f"select generate_series(1, {rows})", output=Full()))
        assert caught.value is fault
        assert fault.__cause__ is cause
        if session.status is Status.ABANDONED:
            assert await session.settle(5)
        assert await session.drive(session.raw.fetchval("select 1")) == 1
