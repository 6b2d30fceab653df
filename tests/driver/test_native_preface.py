"""BEGIN in the packet of the statement that it opens the transaction for: bytes out, and answers in any pieces."""

from __future__ import annotations

import struct
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ysactor.driver.native.preface import Ahead, unsynced
from ysactor.driver.protocol import Preface, Status

PARSED, BOUND, BEGUN = b"1\0\0\0\x04", b"2\0\0\0\x04", b"C\0\0\0\x0aBEGIN\0"
SYNC = b"S\0\0\0\x04"


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", 4 + len(body)) + body


UNASKED = st.sampled_from([message(b"N", b"a notice\0"), message(b"S", b"name\0value\0"), message(b"A", b"1234x\0y\0")])
OWN = st.binary(max_size=60).map(lambda body: message(b"D", body))


class End:
    """A link's two ends, written down."""

    def __init__(self) -> None:
        self.heard = b""
        self.sent: list[bytes] = []
        self.transport: Any = SimpleNamespace(ahead=None, write=self.sent.append)
        self.receive: Any = self.hear

    def hear(self, data: bytes) -> None:
        self.heard += data

    def write(self, data: bytes) -> None:
        ahead = self.transport.ahead
        self.sent.append(data if ahead is None else ahead(data))


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


@given(
    before=st.lists(UNASKED, max_size=2),
    between=st.lists(UNASKED, max_size=2),
    own=st.lists(OWN, min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_its_answers_are_taken_out_and_nothing_else_however_the_stream_is_cut(
    before: list[bytes], between: list[bytes], own: list[bytes], cuts: list[int]
) -> None:
    end = End()
    original = end.receive
    Ahead(end, "BEGIN")  # type: ignore[arg-type]
    end.write(b"Bwhatever")
    stream = b"".join([*before, PARSED, BOUND, *between, BEGUN, *own])
    for piece in in_pieces(stream, cuts):
        end.receive(piece)
    assert end.heard == b"".join([*before, *between, *own])
    assert end.receive == original
    assert end.transport.ahead is None
    assert end.sent == [unsynced("BEGIN") + b"Bwhatever"]


@given(
    kind=st.sampled_from([b"B", b"P", b"Q"]),
    done=st.sampled_from([b"", PARSED, PARSED + BOUND]),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_an_error_passes_and_a_simple_query_that_is_skipped_gets_the_sync_it_lacks(
    kind: bytes, done: bytes, cuts: list[int]
) -> None:
    end = End()
    Ahead(end, "BEGIN")  # type: ignore[arg-type]
    end.write(kind + b"whatever")
    error, ready = message(b"E", b"SERROR\0\0"), message(b"Z", b"I")
    for piece in in_pieces(done + error + ready, cuts):
        end.receive(piece)
    assert end.heard == error + ready
    assert end.sent[1:] == ([SYNC] if kind == b"Q" else [])


def test_only_the_first_write_has_something_ahead() -> None:
    end = End()
    Ahead(end, "BEGIN")  # type: ignore[arg-type]
    end.write(b"B1")
    end.write(b"B2")
    assert end.sent == [unsynced("BEGIN") + b"B1", b"B2"]


@pytest.mark.trio
@pytest.mark.parametrize("way", ["tcp", "unix", "tls"])
async def test_a_server_answers_both_in_one_round_trip(bed: Any, way: str) -> None:
    from ysactor.config import TlsMode

    where = {"host": bed.unix} if way == "unix" else {"host": bed.tcp}
    if way == "tls":
        where["tls"] = bed.tls(TlsMode.VERIFY_FULL)
    async with bed.client() as client:
        session = await client.open(**where)
        raw = session.raw
        await client.ask(session, "select 1")
        counts = {"send": 0}
        transport = session._link.transport
        send = transport._send

        def counted(data: bytes) -> int:
            counts["send"] += 1
            return int(send(data))

        transport._send = counted
        for call in (lambda: raw.fetchval("select 1"), lambda: raw.execute("select 1")):
            counts["send"] = 0
            await session.drive_after(Preface("BEGIN"), call())
            assert counts["send"] == 1
            assert session.status is Status.IN_TRANSACTION
            await session.drive(raw.execute("ROLLBACK"))


@pytest.mark.trio
async def test_notices_and_settings_of_begin_reach_asyncpg(bed: Any) -> None:
    """BEGIN inside a transaction is a warning, between the answers that are taken out."""
    async with bed.client() as client:
        session = await client.open(host=bed.tcp)
        heard: list[str] = []
        session.raw.add_log_listener(lambda _raw, message: heard.append(message.message))
        await session.drive(session.raw.execute("BEGIN"))
        assert await session.drive_after(Preface("BEGIN"), session.raw.fetchval("select 3")) == 3
        assert heard == ["there is already a transaction in progress"]


@pytest.mark.trio
async def test_a_server_that_dies_in_it_is_a_lost_connection(bed: Any) -> None:
    from ysactor.errors import ConnectionLost

    async with bed.client() as client:
        session = await client.open(host=bed.tcp)
        kill = session.raw.execute("select pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(ConnectionLost, match="administrator command"):
            await session.drive_after(Preface("BEGIN"), kill)
        assert session.status is Status.CLOSED
