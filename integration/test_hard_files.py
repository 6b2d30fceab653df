"""COPY to and from what is no path and no ordinary file, on both transports: files that are awaited."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from integration.scenario import Transport, on_both_transports, open_case, watched
from ysactor.testing.postgres import SharedData

pytestmark = [watched, on_both_transports]

NUMBERS = "SELECT generate_series(1, 20000)"
LINES = b"".join(b"%d\n" % n for n in range(1, 20001))


class Shelf:
    """Has an async `read` and `write`, and is no file."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content
        self.asked: list[int] = []

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.content += data

    async def read(self, size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        self.asked.append(size)
        piece, self.content = self.content[:size], self.content[size:]
        return piece


class Both(Shelf):
    """Can be iterated over too, a line at a time, as Trio's file can."""

    def __aiter__(self) -> Both:
        return self

    async def __anext__(self) -> bytes:
        pytest.fail("lines are short")


async def test_a_copy_out_is_written_to_trios_file(
    shared_data: SharedData, transport: Transport, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        async with await trio.open_file(path, "wb") as output:
            assert await conn.copy_from_query(NUMBERS, output=output) == "COPY 20000"
        assert path.read_bytes() == LINES


async def test_a_copy_in_is_read_from_trios_file(shared_data: SharedData, transport: Transport, tmp_path: Path) -> None:
    shared_data.server.sql("create table numbers(n int)")
    path = tmp_path / "in"
    path.write_bytes(LINES)
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        async with await trio.open_file(path, "rb") as source:
            assert await conn.copy_to_table("numbers", source=source) == "COPY 20000"
        assert await conn.fetchval("SELECT sum(n) FROM numbers") == 20000 * 20001 // 2


@pytest.mark.parametrize("kind", [Shelf, Both])
async def test_whatever_has_an_async_write_or_read_will_do(
    shared_data: SharedData, transport: Transport, kind: type[Shelf]
) -> None:
    shared_data.server.sql("create table numbers(n int)")
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        output = kind()
        assert await conn.copy_from_query(NUMBERS, output=output) == "COPY 20000"
        assert output.content == LINES
        source = kind(LINES)
        assert await conn.copy_to_table("numbers", source=source) == "COPY 20000"
        assert source.asked == [65536, 65536, 65536]
        output = kind()
        assert await conn.copy_from_table("numbers", output=output) == "COPY 20000"
        assert output.content == LINES


async def test_what_an_async_write_or_read_raises_comes_out_and_the_connection_goes_on(
    shared_data: SharedData, transport: Transport
) -> None:
    class Full(Shelf):
        async def write(self, data: bytes) -> None:
            raise LookupError("no room")

        async def read(self, size: int) -> bytes:
            if self.asked:
                raise LookupError("torn")
            return await super().read(size)

    shared_data.server.sql("create table numbers(n int)")
    async with open_case(shared_data.server, transport, pool_size=1) as case, case.pool.acquire() as conn:
        with pytest.raises(LookupError, match="no room"):
            await conn.copy_from_query(NUMBERS, output=Full())
        with pytest.raises(LookupError, match="torn"):
            await conn.copy_to_table("numbers", source=Full(LINES))
        assert await conn.fetchval("SELECT count(*) FROM numbers") == 0
