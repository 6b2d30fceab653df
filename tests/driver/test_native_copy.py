"""COPY with the user's own Trio code inside it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from ysactor.driver.protocol import Status

pytestmark = pytest.mark.trio


@pytest.fixture
def way(bed: Any) -> dict[str, Any]:
    return {"host": bed.tcp}


async def numbers(count: int) -> AsyncIterator[tuple[int, str]]:
    for number in range(count):
        if number % 1000 == 0:
            await trio.lowlevel.checkpoint()
        yield number, "x" * 50


async def test_records_from_a_trio_iterable_are_copied(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("create temp table t (a int, b text)"))
        for count in (0, 1, 50_000):
            rows = session.source(numbers(count))
            tag = await session.drive(session.raw.copy_records_to_table("t", records=rows))
            assert tag == f"COPY {count}"
            assert session.is_clean()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_copies_go_in_and_out_through_trio_functions(bed: Any, encrypted: bool) -> None:
    got = bytearray()

    async def keep(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        got.extend(data)

    async def lines() -> AsyncIterator[bytes]:
        for number in range(0, 100_000, 1000):
            await trio.lowlevel.checkpoint()
            yield b"".join(b"%d\tr%d\n" % (n, n) for n in range(number, number + 1000))

    async with bed.client() as client:
        session = await client.open(**({"tls": bed.tls()} if encrypted else {}))
        await session.drive(session.raw.execute("create temp table t (a int, b text)"))
        assert await session.drive(session.raw.copy_to_table("t", source=session.source(lines()))) == "COPY 100000"
        assert await session.drive(session.raw.copy_from_table("t", output=session.sink(keep))) == "COPY 100000"
        assert got.count(b"\n") == 100_000
        assert session.is_clean()


async def test_files_are_copied_in_and_out(bed: Any, tmp_path: Path) -> None:
    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("create temp table t (a int)"))
        (tmp_path / "in").write_text("1\n2\n3\n")
        assert await session.drive(session.raw.copy_to_table("t", source=str(tmp_path / "in"))) == "COPY 3"
        assert await session.drive(session.raw.copy_to_table("t", source=io.BytesIO(b"4\n"))) == "COPY 1"
        assert await session.drive(session.raw.copy_from_table("t", output=tmp_path / "out")) == "COPY 4"
        assert (tmp_path / "out").read_text() == "1\n2\n3\n4\n"
        with pytest.raises(FileNotFoundError):
            await session.drive(session.raw.copy_to_table("t", source=str(tmp_path / "none")))
        assert session.is_clean()


@pytest.mark.parametrize("rows", [1, 100_000])
@pytest.mark.parametrize("in_transaction", [False, True])
async def test_an_error_in_the_source_comes_out_itself_and_no_row_is_kept(
    bed: Any, rows: int, in_transaction: bool
) -> None:
    fault = ValueError("x" * 12_000)

    async def faulty() -> AsyncIterator[tuple[int, str]]:
        async for row in numbers(rows):
            yield row
        raise fault

    async with bed.client() as client:
        session, other = await client.open(), await client.open()
        await other.drive(other.raw.execute("drop table if exists copied; create table copied (a int, b text)"))
        if in_transaction:
            await session.drive(session.raw.execute("begin"))
        with pytest.raises(ValueError, match="xxx") as caught, trio.fail_after(10):
            await session.drive(session.raw.copy_records_to_table("copied", records=session.source(faulty())))
        assert caught.value is fault
        assert session.status is Status.ABANDONED
        assert await session.settle(3)
        if in_transaction:
            assert session.status is Status.IN_TRANSACTION
            await session.drive(session.raw.execute("rollback"))
        assert session.is_clean()
        assert await client.ask(other, "select count(*) from copied") == 0


async def test_an_error_in_a_plain_iterator_comes_out_itself(bed: Any) -> None:
    def faulty() -> Any:
        yield (1,)
        raise ValueError("plain")

    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("create temp table t (a int)"))
        with pytest.raises(ValueError, match="plain"):
            await session.drive(session.raw.copy_records_to_table("t", records=faulty()))
        assert await session.settle(3)
        assert session.is_clean()


async def test_a_time_out_of_a_plain_iterators_own_comes_out_with_its_cause_even_where_the_server_has_refused(
    bed: Any,
) -> None:
    """asyncpg would raise the server's "canceled" or, where that has refused before, an `AttributeError` of its own."""

    def late(rows: int) -> Any:
        # Enough for the server's refusal to be read meanwhile: of a NULL in the first row.
        for number in range(rows):
            yield None if rows > 1 and number == 0 else number, "x" * 10_000
        raise fault

    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("create temp table t (a int not null, b text)"))
        for rows in (1, 5000):
            fault = TimeoutError("its own")
            fault.__cause__ = cause = KeyError("which is why")
            with pytest.raises(TimeoutError) as caught:
                await session.drive(session.raw.copy_records_to_table("t", records=late(rows)))
            assert caught.value is fault
            assert fault.__cause__ is cause
            assert session.status is not Status.CLOSED
            assert await session.settle(3)
            assert session.is_clean()
            assert await client.ask(session, "select count(*) from t") == 0


async def test_a_cancellation_in_the_source_leaves_at_once_and_the_session_lives(bed: Any) -> None:
    async def endless() -> AsyncIterator[tuple[int]]:
        yield (1,)
        await trio.sleep_forever()

    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("create temp table t (a int)"))
        started = trio.current_time()
        with trio.move_on_after(0.1) as scope:
            await session.drive(session.raw.copy_records_to_table("t", records=session.source(endless())))
        assert scope.cancelled_caught
        assert trio.current_time() - started < 1
        assert await session.settle(3)
        assert session.is_clean()
        assert await client.ask(session, "select count(*) from t") == 0
        with pytest.raises(TimeoutError):
            await session.drive(session.raw.copy_records_to_table("t", records=session.source(endless())), timeout=0.1)
        assert await session.settle(3)
        assert session.is_clean()
        with pytest.raises(TimeoutError):
            await session.drive(session.raw.copy_records_to_table("t", records=session.source(endless()), timeout=0.1))
        if session.status is Status.ABANDONED:
            assert await session.settle(3)
        assert session.is_clean()


async def test_an_error_and_a_cancellation_in_the_sink_come_out_themselves(bed: Any) -> None:
    fault = KeyError("sink")

    async def faulty(data: bytes) -> None:
        raise fault

    async def stuck(data: bytes) -> None:
        await trio.sleep_forever()

    async with bed.client() as client:
        session = await client.open()
        query = "select repeat('x', 1000) from generate_series(1, 50000)"
        with pytest.raises(KeyError) as caught:
            await session.drive(session.raw.copy_from_query(query, output=session.sink(faulty)))
        assert caught.value is fault
        assert await session.settle(3)
        assert session.is_clean()
        with trio.move_on_after(0.1) as scope:
            await session.drive(session.raw.copy_from_query(query, output=session.sink(stuck)))
        assert scope.cancelled_caught
        assert await session.settle(3)
        assert session.is_clean()
        with pytest.raises(TimeoutError):
            await session.drive(session.raw.copy_from_query(query, output=session.sink(stuck), timeout=0.1))
        assert await session.settle(3)
        assert session.is_clean()
        assert await client.ask(session, "select 1") == 1


async def test_terminating_ends_user_code_inside_a_copy(bed: Any) -> None:
    from ysactor.errors import ConnectionLost

    async def stuck(data: bytes) -> None:
        await trio.sleep_forever()

    async with bed.client() as client:
        session = await client.open()

        async def end() -> None:
            await trio.sleep(0.1)
            session.terminate("enough")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            with pytest.raises(ConnectionLost, match="enough"):
                await session.drive(session.raw.copy_from_query("select 1", output=session.sink(stuck)))


async def test_other_sessions_can_be_used_inside_a_copy(bed: Any) -> None:
    async with bed.client() as client:
        session, other = await client.open(), await client.open()
        await session.drive(session.raw.execute("create temp table t (a int)"))

        async def asking() -> AsyncIterator[tuple[int]]:
            for number in range(50):
                yield (await client.ask(other, "select $1::int", number),)

        tag = await session.drive(session.raw.copy_records_to_table("t", records=session.source(asking())))
        assert tag == "COPY 50"
        assert await client.ask(session, "select sum(a) from t") == 1225


async def test_trio_code_that_was_not_announced_works_and_costs_the_session_when_cancelled(bed: Any) -> None:
    async def slow() -> AsyncIterator[tuple[int]]:
        yield (1,)
        await trio.sleep(0.05)
        yield (2,)

    async def endless() -> AsyncIterator[tuple[int]]:
        yield (1,)
        await trio.sleep_forever()

    async with bed.client() as client:
        session = await client.open()
        await session.drive(session.raw.execute("create temp table t (a int)"))
        assert await session.drive(session.raw.copy_records_to_table("t", records=slow())) == "COPY 2"
        with trio.move_on_after(0.1) as scope:
            await session.drive(session.raw.copy_records_to_table("t", records=endless()))
        assert scope.cancelled_caught
        assert session.status is Status.CLOSED


async def test_a_slow_sink_holds_the_server_back(bed: Any) -> None:
    largest = 0

    async def slow(data: bytes) -> None:
        nonlocal largest
        largest = max(largest, len(data))
        await trio.sleep(0.001)

    async with bed.client() as client:
        session = await client.open()
        query = "select repeat('x', 1000) from generate_series(1, 60000)"
        assert await session.drive(session.raw.copy_from_query(query, output=session.sink(slow))) == "COPY 60000"
        assert largest <= 2 * 256 * 1024


async def test_a_server_that_does_not_read_holds_the_source_back(bed: Any, proxied: Any) -> None:
    given = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += 100_000
            yield b"x" * 99_999 + b"\n"

    async with bed.client() as client, proxied() as proxy:
        session = await client.open(proxy.at)
        await session.drive(session.raw.execute("create temp table t (a text)"))
        proxy.frozen = trio.Event()
        async with aclosing(endless()) as lines:
            with trio.move_on_after(0.5):
                await session.drive(session.raw.copy_to_table("t", source=session.source(lines)))
        assert given < 20_000_000
        assert session.status is Status.ABANDONED
        session.terminate("done")
        proxy.frozen.set()
