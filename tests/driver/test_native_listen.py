"""Notifications: while a query runs, while the session is idle, and in between."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import trio

from ysactor.driver.native.watch import PortableWatch, best_watch

pytestmark = pytest.mark.trio


@pytest.fixture(params=["best", "portable"])
def watch(request: pytest.FixtureRequest) -> Any:
    return best_watch if request.param == "best" else PortableWatch


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self._more = trio.Event()

    def __call__(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        self.payloads.append(payload)
        self._more.set()

    async def until(self, count: int) -> None:
        with trio.move_on_after(3):
            while len(self.payloads) < count:
                await self._more.wait()
                self._more = trio.Event()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_notifications_are_heard_while_idle(bed: Any, watch: Any, encrypted: bool) -> None:
    heard = Heard()
    async with bed.client(watch) as client:
        session, other = await client.open(**({"tls": bed.tls()} if encrypted else {})), await client.open()
        await session.drive(session.raw.add_listener("news", heard))
        for number in range(200):
            await client.ask(other, "select pg_notify('news', $1)", str(number))
        await heard.until(200)
        assert heard.payloads == [str(number) for number in range(200)]
        assert session.is_clean()


async def test_notifications_are_heard_during_a_query_and_at_its_end(bed: Any, watch: Any) -> None:
    heard = Heard()
    async with bed.client(watch) as client:
        session, other = await client.open(), await client.open()
        await session.drive(session.raw.add_listener("news", heard))
        sent = 0

        async def tell() -> None:
            nonlocal sent
            for _ in range(300):
                sent += 1
                await client.ask(other, "select pg_notify('news', $1)", str(sent))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            for number in range(300):
                assert await client.ask(session, "select $1::int", number) == number
        await heard.until(300)
        assert heard.payloads == [str(number) for number in range(1, 301)]


@pytest.mark.parametrize("kind", [LookupError, asyncio.CancelledError])
async def test_a_listener_that_raises_is_logged_and_harmless(
    bed: Any, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    called = trio.Event()

    def raising(*_: Any) -> None:
        called.set()
        raise kind("the listener's own")

    async with bed.client() as client:
        session, other = await client.open(), await client.open()
        await session.drive(session.raw.add_listener("news", raising))
        with caplog.at_level(logging.ERROR):
            await client.ask(other, "select pg_notify('news', 'x')")
            with trio.fail_after(2):
                await called.wait()
        assert "the listener's own" in caplog.text
        assert session.is_clean()
        assert await client.ask(session, "select 1") == 1


async def test_a_session_that_listens_still_hears_of_its_end(bed: Any, watch: Any) -> None:
    async with bed.client(watch) as client:
        session, other = await client.open(), await client.open()
        await session.drive(session.raw.add_listener("news", Heard()))
        await client.ask(other, "select pg_terminate_backend($1)", session.pid)
        with trio.move_on_after(2):
            await client.told(session).changed.wait()
        assert len(client.told(session).losses) == 1


async def test_what_a_server_says_unasked_is_no_loss(bed: Any, watch: Any) -> None:
    async with bed.client(watch) as client:
        session, other = await client.open(), await client.open()
        await session.drive(session.raw.execute("listen quiet"))
        for number in range(20):
            await client.ask(other, "select pg_notify('quiet', $1)", str(number))
        await trio.sleep(0.05)
        assert client.told(session).losses == []
        assert session.is_clean()
        assert await client.ask(session, "select 1") == 1


async def test_after_the_last_listener_is_gone_the_socket_is_left_alone_again(bed: Any) -> None:
    heard = Heard()
    async with bed.client() as client:
        session, other = await client.open(), await client.open()
        await session.drive(session.raw.add_listener("news", heard))
        await session.drive(session.raw.remove_listener("news", heard))
        await client.ask(other, "select pg_notify('news', 'x')")
        await trio.sleep(0.03)
        assert heard.payloads == []
        assert await client.ask(session, "select 1") == 1
