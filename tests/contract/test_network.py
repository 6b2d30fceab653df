"""What only a network can do: TLS by name and by authority, peers that close or stay silent, cut connections.

Real drivers only. TLS is ended by a proxy, so that any PostgreSQL will do.
"""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager

import pytest
import trio

from ysactor.config import Tls, TlsMode
from ysactor.driver.protocol import ConnectFailure, Phase, Status
from ysactor.errors import ConnectionLost
from ysactor.servers import HostPort

pytestmark = pytest.mark.real_drivers


@pytest.fixture(scope="module")
def authority(postgres_run):
    pytest.importorskip("trustme")
    from ysactor.testing.postgres import Authority

    return Authority(postgres_run)


@asynccontextmanager
async def _proxy(world, certificate=None):
    from ysactor.testing.proxy import open_fault_proxy

    tls = None if certificate is None else certificate.server_context()
    async with open_fault_proxy((world.server.host, world.server.port), tls=tls) as proxy:
        world.host = HostPort(*proxy.address)
        yield proxy


@asynccontextmanager
async def _peer(world, behave):
    """A server that is none: `behave(stream)` is all it does with each connection."""

    async def serve(stream):
        async with stream:
            await behave(stream)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        world.host = HostPort("127.0.0.1", listener.socket.getsockname()[1])
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield
        nursery.cancel_scope.cancel()


async def _failure(world, **changes):
    with pytest.raises(ConnectFailure) as caught:
        async with world.session(**changes):
            pytest.fail("it connected")
    return caught.value


def _trusting(authority, mode=TlsMode.VERIFY_FULL, **changes):
    context = authority.client_context()
    context.check_hostname = mode is TlsMode.VERIFY_FULL
    return Tls(mode, context, **changes)


def _unchecking(mode):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return Tls(mode, context)


async def test_verify_full_takes_a_certificate_for_the_address_that_is_dialled(world, authority):
    async with (
        _proxy(world, authority.issue("127.0.0.1")) as proxy,
        world.session(tls=_trusting(authority)) as (session, _),
    ):
        assert await session.drive(session.raw.fetchval("SELECT 1")) == 1
        assert [connection.encrypted for connection in proxy.connections] == [True]


async def test_verify_full_checks_the_name_that_is_dialled(world, authority):
    async with _proxy(world, authority.issue("localhost")):
        refused = await _failure(world, tls=_trusting(authority))
        world.host = world.host._replace(host="localhost")
        async with world.session(tls=_trusting(authority)) as (session, _):
            assert await session.drive(session.raw.fetchval("SELECT 1")) == 1

    assert (refused.phase, refused.sqlstate) == (Phase.TLS, None)
    assert isinstance(refused.__cause__, ssl.SSLCertVerificationError)


async def test_one_name_may_be_checked_whatever_is_dialled(world, authority):
    async with _proxy(world, authority.issue("db.example.com")):
        async with world.session(tls=_trusting(authority, server_name="db.example.com")) as (session, _):
            with trio.move_on_after(0.05):
                await session.drive(session.raw.fetchval("SELECT pg_sleep(5)"))
            assert await session.settle(5), "the cancel request's own handshake checks the same name"
        refused = await _failure(world, tls=_trusting(authority, server_name="other.example.com"))

    assert refused.phase is Phase.TLS


async def test_verify_ca_does_not_look_at_the_name(world, authority):
    async with (
        _proxy(world, authority.issue("db.example.com")),
        world.session(tls=_trusting(authority, TlsMode.VERIFY_CA)) as (session, _),
    ):
        assert session.is_clean()


@pytest.mark.parametrize("mode", [TlsMode.VERIFY_CA, TlsMode.VERIFY_FULL])
async def test_a_certificate_of_an_unknown_authority_fails_in_the_tls_phase(world, authority, mode):
    async with _proxy(world, authority.issue("127.0.0.1")):
        failure = await _failure(world, tls=Tls(mode, ssl.create_default_context()))

    assert failure.phase is Phase.TLS


@pytest.mark.parametrize("mode", [TlsMode.PREFER, TlsMode.REQUIRE])
async def test_prefer_and_require_encrypt_without_a_check(world, authority, mode):
    async with (
        _proxy(world, authority.issue("db.example.com")) as proxy,
        world.session(tls=_unchecking(mode)) as (session, _),
    ):
        assert session.is_clean()
        assert [connection.encrypted for connection in proxy.connections] == [True]


async def test_a_cancel_request_goes_the_way_the_session_came(world, authority):
    async with (
        _proxy(world, authority.issue("127.0.0.1")) as proxy,
        world.session(tls=_trusting(authority)) as (session, _),
    ):
        with trio.move_on_after(0.05):
            await session.drive(session.raw.fetchval("SELECT pg_sleep(5)"))
        assert await session.settle(5)

        assert [(each.encrypted, each.cancel) for each in proxy.connections] == [(True, False), (True, True)]
        assert await session.drive(session.raw.fetchval("SELECT 1")) == 1


async def test_settling_waits_for_the_end_of_a_slow_cancel_request(world):
    async with _proxy(world) as proxy, world.session() as (session, _):
        proxy.hold_cancel(0.3)
        with trio.move_on_after(0.05):
            await session.drive(session.raw.fetchval("SELECT pg_sleep(0.1)"))
        started = trio.current_time()

        assert await session.settle(5)

        assert trio.current_time() - started >= 0.25, "the statement ended before its cancel request had arrived"
        assert await session.drive(session.raw.fetchval("SELECT length(pg_sleep(0.2)::text)")) == 0


async def test_an_interrupt_goes_the_same_way(world, authority):
    async with (
        _proxy(world, authority.issue("127.0.0.1")) as proxy,
        world.session(tls=_trusting(authority)) as (session, _),
    ):
        with trio.move_on_after(0.05):
            await session.drive(session.raw.fetchval("SELECT pg_sleep(8)"))
        session.terminate("gone")
        await session.interrupt(5)

        await world.until(lambda: world.activity() == {})
        assert [each.encrypted for each in proxy.connections if each.cancel] == [True] * proxy.cancel_requests


async def _close_at_once(stream):
    await stream.receive_some(1)


async def _agree_to_tls_and_close(stream):
    await stream.receive_some(8)
    await stream.send_all(b"S")


async def _agree_to_tls_and_close_in_the_handshake(stream):
    await stream.receive_some(8)
    await stream.send_all(b"S")
    await stream.receive_some(1)


async def _error_before_tls(stream):
    await stream.receive_some(8)
    await stream.send_all(b"E\0\0\0\x2fSFATAL\0VFATAL\0C53300\0Mtoo many connections\0\0")


async def _nonsense_before_tls(stream):
    await stream.receive_some(8)
    await stream.send_all(b"X")


@pytest.mark.parametrize(
    "behave",
    [
        _close_at_once,
        _agree_to_tls_and_close,
        _agree_to_tls_and_close_in_the_handshake,
        _error_before_tls,
        _nonsense_before_tls,
    ],
)
async def test_a_peer_that_fails_before_the_end_of_the_handshake_fails_in_the_tls_phase(world, behave):
    async with _peer(world, behave):
        failure = await _failure(world, tls=_unchecking(TlsMode.REQUIRE))

    assert (failure.phase, failure.sqlstate) == (Phase.TLS, None)


async def test_a_peer_that_closes_during_the_login_fails_in_the_login_without_a_code(world):
    async with _peer(world, _close_at_once):
        failure = await _failure(world)

    assert (failure.phase, failure.sqlstate) == (Phase.LOGIN, None)


async def test_a_peer_that_never_answers_is_left_by_a_cancellation(world):
    connected = trio.Event()
    gone = trio.Event()

    async def stay_silent(stream):
        connected.set()
        async for _ in stream:
            pass
        gone.set()

    async with _peer(world, stay_silent):
        with trio.move_on_after(0.1) as attempt:
            await world.connect()
        await connected.wait()
        await gone.wait()

    assert attempt.cancelled_caught


async def test_a_connection_that_is_reset_in_a_call_is_lost(world):
    async with _proxy(world) as proxy, world.session() as (session, events), trio.open_nursery() as nursery:

        async def cut():
            await world.until_executing(session)
            proxy.reset_all()

        nursery.start_soon(cut)
        with pytest.raises(ConnectionLost):
            await session.drive(session.raw.fetchval("SELECT pg_sleep(2)"))
        assert (session.status, len(events.losses)) == (Status.CLOSED, 1)


async def test_a_connection_that_is_reset_while_idle_is_told(world):
    async with _proxy(world) as proxy, world.session() as (session, events):
        proxy.reset_all()
        await world.until(lambda: events.losses != [])

        assert session.status is Status.CLOSED


async def test_a_silent_network_costs_a_call_no_more_than_socket_timeout(world):
    async with _proxy(world) as proxy, world.session(socket_timeout=0.1) as (session, _):
        proxy.set_mode("blackhole")
        with pytest.raises(ConnectionLost) as caught:
            await session.drive(session.raw.fetchval("SELECT 1"))

        assert caught.value.reason == "socket_timeout"


async def test_a_commit_that_is_cut_is_lost_whether_it_took_effect_or_not(world):
    async with _proxy(world) as proxy, world.session() as (session, _):
        await session.drive(session.raw.execute("BEGIN"))
        proxy.cut_next_commit("after")

        with pytest.raises(ConnectionLost):
            await session.drive(session.raw.execute("COMMIT"), grace=1)
