"""TLS to several servers: whose certificate is checked for which name, and that cancelling stays inside it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

import ysactor
from integration.conftest import Stage, TlsServer
from integration.scenario import Transport, on_both_transports, open_case, until, watched
from ysactor.testing.postgres import Access, Authority, Backing, SharedData, open_shared_data

pytestmark = watched

NAME = "db.cluster.test"


@dataclass(frozen=True, slots=True)
class Secure:
    """A bed whose servers speak TLS, by the proxies before them."""

    bed: SharedData
    authority: Authority


@asynccontextmanager
async def secured(backing: Backing, *names: str, expired: bool = False) -> AsyncGenerator[Secure]:
    """With one certificate for all the servers, for these names; by default for all their addresses."""
    authority = Authority(backing.run)
    hosts = names or tuple(host for host, _ in backing.fronts)
    certificate = authority.issue(*hosts, expired=expired)
    async with open_shared_data(backing, tls=certificate.server_context()) as bed:
        yield Secure(bed, authority)
    await trio.to_thread.run_sync(backing.reset)


@pytest.fixture
async def by_address(stage: Stage) -> AsyncGenerator[Secure]:
    async with secured(stage.backing) as secure:
        yield secure


@pytest.fixture
async def by_name(stage: Stage) -> AsyncGenerator[Secure]:
    async with secured(stage.backing, NAME) as secure:
        yield secure


def options(secure: Secure, **more: Any) -> dict[str, Any]:
    return {
        "ssl": "verify-full",
        "ssl_root_cert": str(secure.authority.root),
        "load_balance": True,
        "pool_size": 6,
        **more,
    }


def all_encrypted(bed: SharedData) -> bool:
    return all(connection.encrypted for proxy in bed.proxies for connection in proxy.connections)


@on_both_transports
async def test_three_servers_each_checked_by_its_own_address(by_address: Secure, transport: Transport) -> None:
    async with open_case(by_address.bed, transport, **options(by_address)) as case:
        await case.pool.ready(6)
        assert sorted(case.pool.statistics().by_host.values()) == [2, 2, 2]
        for _ in range(6):
            assert await case.pool.fetchval("SELECT length(repeat('x', 3000000))") == 3_000_000
        assert len(await case.pool.fetchval("SELECT repeat('x', 3000000)")) == 3_000_000
        assert all_encrypted(by_address.bed)
        # And after one of them has been gone.
        await by_address.bed.kill(1)
        await until(lambda: sorted(case.pool.statistics().by_host.values()) == [3, 3], "the others have all")
        await by_address.bed.start(1)


@on_both_transports
async def test_three_servers_checked_by_one_name(by_name: Secure, transport: Transport) -> None:
    """C69: the certificate has a DNS name only, and the servers are reached at addresses that discovery gave."""
    async with open_case(by_name.bed, transport, **options(by_name, ssl_server_name=NAME)) as case:
        await case.pool.ready(6)
        assert sorted(case.pool.statistics().by_host.values()) == [2, 2, 2]
        assert all_encrypted(by_name.bed)


@on_both_transports
async def test_a_client_context_is_used_as_it_is(by_address: Secure, transport: Transport) -> None:
    context = by_address.authority.client_context()
    async with open_case(by_address.bed, transport, ssl=context, load_balance=True, pool_size=3) as case:
        await case.pool.ready(3)
        assert all_encrypted(by_address.bed)


async def refused(secure: Secure, transport: Transport, words: str, **changed: Any) -> None:
    """One clear error that names the server and the reason, as a rejection; nothing goes on in clear."""
    async with open_case(secure.bed, transport, rest=False, **options(secure, load_balance=False, **changed)) as case:
        with pytest.raises(ysactor.ConnectFailed, match=words) as caught:
            await case.pool.fetch("SELECT 1")
        assert caught.value.kind == "rejected"
        assert str(caught.value.server) in {str(member) for member in secure.bed.members}
        info = case.pool.cluster.info()
        assert not info.failed
        assert len(info.rejected) >= 1
        assert await case.truth.count() == 0
    assert not any(connection.cancel for proxy in secure.bed.proxies for connection in proxy.connections)


@on_both_transports
async def test_a_certificate_of_another_authority_is_refused(
    by_address: Secure, stage: Stage, transport: Transport
) -> None:
    other = Authority(stage.backing.run)
    for mode in ("verify-full", "verify-ca"):
        await refused(
            by_address,
            transport,
            "(?i)certificate.* (verify failed|was refused)",
            ssl=mode,
            ssl_root_cert=str(other.root),
        )


@on_both_transports
async def test_a_certificate_for_another_name_is_refused_where_names_are_checked(
    by_name: Secure, transport: Transport
) -> None:
    await refused(by_name, transport, "(?i)mismatch|not valid for")
    await refused(by_name, transport, "(?i)mismatch|not valid for", ssl_server_name="db.other.test")
    for proxy in by_name.bed.proxies:
        proxy.clear()
    async with open_case(by_name.bed, transport, **options(by_name, ssl="verify-ca")) as case:
        assert await case.pool.fetchval("SELECT 1") == 1
    async with open_case(by_name.bed, transport, **options(by_name, ssl="require", ssl_root_cert=None)) as case:
        assert await case.pool.fetchval("SELECT 1") == 1
    assert all_encrypted(by_name.bed)


@on_both_transports
async def test_an_expired_certificate_is_refused(stage: Stage, transport: Transport) -> None:
    async with secured(stage.backing, expired=True) as expired:
        await refused(expired, transport, "(?i)expired")


@on_both_transports
async def test_cancelling_a_query_stays_inside_tls_and_works(by_address: Secure, transport: Transport) -> None:
    """C71: every connection of the client begins with a request for TLS, those with a cancel request as well."""
    bed = by_address.bed
    async with open_case(bed, transport, **options(by_address, pool_size=3)) as case:
        pool = case.pool
        await pool.ready(3)
        for _ in range(10):
            with trio.move_on_after(0.05) as scope:
                await pool.fetch("SELECT pg_sleep(30)")
            assert scope.cancelled_caught
        await case.at_rest()
        assert not await case.truth.active("pg_sleep")
        assert pool.statistics().connections_closed == {}
        cancels = [one for proxy in bed.proxies for one in proxy.connections if one.cancel]
        assert len(cancels) >= 10
        for connection in (one for proxy in bed.proxies for one in proxy.connections):
            # Length 8, and the code of SSLRequest: nothing before it is in clear.
            assert connection.first[:8] == bytes.fromhex("0000000804d2162f"), connection
            assert connection.encrypted


@on_both_transports
async def test_a_real_server_that_takes_tls_only(tls_server: TlsServer, transport: Transport) -> None:
    """C71 and C69 against PostgreSQL's own TLS: `hostssl`, a certificate for the address, cancelling, a big result."""
    server = tls_server.server
    server.access = Access(tls_only=True)
    server.restart("immediate")
    common: dict[str, Any] = {"ssl": "verify-full", "ssl_root_cert": str(tls_server.authority.root), "pool_size": 2}
    async with open_case(server, transport, **common) as case:
        pool = case.pool
        assert await pool.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert len(await pool.fetchval("SELECT repeat('x', 5000000)")) == 5_000_000
        for _ in range(5):
            with trio.move_on_after(0.05):
                await pool.fetch("SELECT pg_sleep(30)")
        await case.at_rest()
        assert pool.statistics().connections_closed == {}
        await case.truth.terminate()
        await case.at_rest()
    async with open_case(server, transport, rest=False, pool_size=1) as case:
        with pytest.raises(ysactor.ConnectFailed, match="no encryption") as caught:
            await case.pool.fetch("SELECT 1")
        assert caught.value.kind == "rejected"


@on_both_transports
async def test_a_client_certificate_logs_in(tls_server: TlsServer, transport: Transport) -> None:
    server, authority = tls_server.server, tls_server.authority
    server.access = Access("cert", tls_only=True)
    server.restart("immediate")
    context = authority.client_context(authority.issue(common_name="yugabyte"))
    async with open_case(server, transport, ssl=context, pool_size=2) as case:
        assert await case.pool.fetchval("SELECT current_user") == "yugabyte"
        with trio.move_on_after(0.05):
            await case.pool.fetch("SELECT pg_sleep(30)")
        await case.at_rest()
        assert case.pool.statistics().connections_closed == {}
