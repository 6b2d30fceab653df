"""Rows and what is said amid them, cut anywhere, read by something that loses rows as asyncpg does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ysactor.driver.copy_out import CopyOut
from ysactor.driver.words import Ear


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (4 + len(body)).to_bytes(4, "big") + body


UNASKED = st.tuples(st.sampled_from([b"N", b"S", b"A"]), st.binary(max_size=40))
ROW = st.tuples(st.just(b"d"), st.binary(max_size=60))
FORMAT = message(b"H", b"\0\0\1\0\0")
END = message(b"c", b"") + message(b"C", b"COPY 9\0") + message(b"Z", b"I")


class Forgetful:
    """asyncpg's way with a COPY: rows gathered in one read are given out unless another whole message follows them."""

    def __init__(self) -> None:
        self.buffer = b""
        self.gathered: list[bytes] | None = None
        self.rows: list[bytes] = []
        self.unasked: list[tuple[bytes, bytes]] = []
        self.rest: list[bytes] = []
        self.is_paused = False

    def __call__(self, data: bytes) -> None:
        assert data
        assert not self.is_paused
        self.buffer += data
        while (found := self.take()) is not None:
            kind, body = found
            if kind == b"d":
                self.gathered = [body]
                while self.buffer[:1] == b"d" and (more := self.take()) is not None:
                    self.gathered.append(more[1])
                if not self.is_whole():
                    self.give_out()
            elif kind in (b"N", b"S", b"A"):
                self.unasked.append((kind, body))
            else:
                if kind == b"Z":
                    self.give_out()
                self.rest.append(kind)

    def give_out(self) -> None:
        self.rows += self.gathered or []
        self.gathered = None
        self.is_paused = True

    def is_whole(self) -> bool:
        return len(self.buffer) >= 5 and len(self.buffer) > int.from_bytes(self.buffer[1:5], "big")

    def take(self) -> tuple[bytes, bytes] | None:
        if not self.is_whole():
            return None
        size = 1 + int.from_bytes(self.buffer[1:5], "big")
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken[:1], taken[5:]


def read(stream: bytes, cuts: list[int], *, guarded: bool) -> Forgetful:
    asyncpg = Forgetful()
    over: list[bool] = []
    guard = CopyOut(asyncpg, lambda: over.append(True))
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    for start, stop in pairwise(edges):
        if start == stop:
            continue
        asyncpg.is_paused = False
        (guard if guarded and not over else asyncpg)(stream[start:stop])
        while guard.left_over:
            asyncpg.is_paused = False
            guard.more()
    assert over == [True] * guarded
    return asyncpg


@given(
    before=st.lists(UNASKED, max_size=2),
    amid=st.lists(st.one_of(ROW, UNASKED), max_size=12),
    cuts=st.lists(st.integers(0, 1500), max_size=12),
)
def test_every_row_and_everything_unasked_comes_through_in_its_order(
    before: list[tuple[bytes, bytes]], amid: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    parts = [message(*one) for one in before], [FORMAT], [message(*one) for one in amid], [END]
    heard = read(b"".join(part for some in parts for part in some), cuts, guarded=True)
    assert heard.rows == [body for kind, body in amid if kind == b"d"]
    assert heard.unasked == [one for one in (*before, *amid) if one[0] != b"d"]
    assert heard.rest == [b"H", b"c", b"C", b"Z"]
    assert heard.buffer == b""


def test_without_it_rows_are_lost() -> None:
    """The stand-in is as forgetful as what it stands in for; the real one is asked by the integration tests."""
    rows = message(b"d", b"1\n"), message(b"N", b"a notice"), message(b"d", b"2\n")
    assert read(b"".join([FORMAT, *rows, END]), [], guarded=False).rows == [b"2\n"]


@given(anything=st.binary(min_size=5, max_size=200), cuts=st.lists(st.integers(0, 200), max_size=4))
def test_what_is_no_copy_passes_unchanged_at_once_and_afterwards(anything: bytes, cuts: list[int]) -> None:
    heard: list[bytes] = []
    over: list[bool] = []
    guard = CopyOut(heard.append, lambda: over.append(True))
    stream = message(b"E", b"SERROR\0\0") + anything
    guard(stream)
    assert heard == [stream]
    assert over == [True]


def test_the_middle_of_something_is_not_taken_for_a_message() -> None:
    """A notification whose beginning was read before the COPY was sent."""
    for middle in (b"Some text, and the rest of a notification\0", b"d\0\0\0\x09text\0", b"\0\0\0\x20"):
        heard: list[bytes] = []
        over: list[bool] = []
        CopyOut(heard.append, lambda over=over: over.append(True))(middle + FORMAT)  # type: ignore[misc]
        assert (heard, over) == ([middle + FORMAT], [True])


def test_what_comes_while_something_is_left_over_waits_behind_it() -> None:
    heard: list[bytes] = []
    guard = CopyOut(heard.append, lambda: None)
    notice, row = message(b"N", b"a notice"), message(b"d", b"1\n")
    guard(FORMAT + row + notice)
    guard(row)
    assert b"".join(heard) == FORMAT + row + notice[:1]
    guard.more()
    assert b"".join(heard) == FORMAT + row + notice + row
    assert not guard.left_over


def test_what_is_let_go_of_is_over_and_gives_back_what_was_left_over() -> None:
    heard: list[bytes] = []
    over: list[bool] = []
    guard = CopyOut(heard.append, lambda: over.append(True))
    notice, row = message(b"N", b"a notice"), message(b"d", b"1\n")
    guard(FORMAT + row + notice + row + END)
    assert b"".join(heard) + guard.let_go() == FORMAT + row + notice + row + END
    assert over == [True]
    assert guard.left_over == b""


class Loop:
    """One whose turns are taken by hand."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


class Transport:
    """What is read from."""

    def __init__(self) -> None:
        self._loop = Loop()
        self.is_paused = False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Asyncpg(Forgetful):
    """The protocol: it pauses where it gives rows out, unless their COPY was left."""

    def __init__(self) -> None:
        super().__init__()
        self.transport: Any = None
        self.is_left = False

    def data_received(self, data: bytes) -> None:
        self(data)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def give_out(self) -> None:
        super().give_out()
        if self.is_left:
            self.is_paused = False
        else:
            self.transport.pause_reading()

    def want_more(self) -> None:
        self.is_paused = False
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def eof_received(self) -> None: ...


STREAM = FORMAT + b"".join(message(b"d", b"%d\n" % n) + message(b"N", b"a notice") for n in range(3)) + END


@pytest.mark.parametrize("is_told_first", [False, True], ids=["by the transport", "by asyncpg itself, as over TLS"])
def test_an_ear_gives_asyncpg_what_was_left_over_before_the_transport_goes_on(is_told_first: bool) -> None:
    asyncpg, transport = Asyncpg(), Transport()
    ear = Ear(asyncpg)
    if is_told_first:
        asyncpg.connection_made(transport)
        ear.hold_back(transport)
    else:
        ear.connection_made(transport)
    ear.expect_rows()
    ear.data_received(STREAM)
    for _ in range(3):
        assert transport.is_paused
        asyncpg.want_more()
        transport._loop.turn()
    assert asyncpg.rows == [b"0\n", b"1\n", b"2\n"]
    assert asyncpg.rest == [b"H", b"c", b"C", b"Z"]


def test_an_ear_waits_with_nothing_for_a_copy_that_was_left() -> None:
    asyncpg, transport = Asyncpg(), Transport()
    asyncpg.is_left = True
    ear = Ear(asyncpg)
    ear.connection_made(transport)
    ear.expect_rows()
    ear.data_received(STREAM)
    assert asyncpg.rest == [b"H", b"c", b"C", b"Z"]
    assert not transport.is_paused
