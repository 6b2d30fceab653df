"""How the native driver connects: every way in, every way it fails, and that nothing stays open or is given away."""

from __future__ import annotations

import gc
import os
import socket
import ssl
import struct
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import asyncpg
import pytest
import trio
import trio.lowlevel

from ysactor.config import Tls, TlsMode
from ysactor.driver.protocol import ConnectFailure, NoPassword, Phase
from ysactor.secret import Secret
from ysactor.servers import HostPort

pytestmark = pytest.mark.trio

WRONG = "wr0ng-one"
MODES = [TlsMode.PREFER, TlsMode.REQUIRE, TlsMode.VERIFY_CA, TlsMode.VERIFY_FULL]


@asynccontextmanager
async def scripted(script: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[HostPort]:
    """A server that does what it is told, once for each connection."""

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await script(stream)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield HostPort("127.0.0.1", listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()


def error_response(code: str, message: str) -> bytes:
    body = f"SFATAL\0VFATAL\0C{code}\0M{message}\0\0".encode()
    return b"E" + struct.pack("!i", 4 + len(body)) + body


async def failure(client: Any, host: HostPort | None = None, **changes: Any) -> ConnectFailure:
    with pytest.raises(ConnectFailure) as caught:
        await client.open(host, **changes)
    return caught.value


async def test_every_kind_of_address_is_reached(bed: Any) -> None:
    async with bed.client() as client:
        for name in ("127.0.0.1", "::1", "localhost", str(bed.directory)):
            session = await client.open(HostPort(name, bed.port))
            assert await client.ask(session, "select 1") == 1
            assert session.host == HostPort(name, bed.port)


@pytest.mark.parametrize("user", ["scram", "md5", "clear"])
@pytest.mark.parametrize("encrypted", [False, True])
async def test_every_kind_of_password_login_works_and_a_wrong_one_is_refused(
    bed: Any, user: str, encrypted: bool
) -> None:
    tls = bed.tls() if encrypted else Tls()
    async with bed.client() as client:
        for password in (Secret(f"s3cret-{user}"), Secret(f"s3cret-{user}".encode()), Secret(lambda: f"s3cret-{user}")):
            session = await client.open(user=f"{user}_user", password=password, tls=tls)
            assert await client.ask(session, "select current_user") == f"{user}_user"
        refused = await failure(client, user=f"{user}_user", password="wrong-s3cret", tls=tls)
        assert refused.phase is Phase.LOGIN
        assert refused.sqlstate == "28P01"
        assert isinstance(refused.__cause__, asyncpg.InvalidPasswordError)
        missing = await failure(client, user=f"{user}_user", tls=tls)
        assert missing.phase is Phase.LOGIN


async def test_a_password_function_may_be_async_and_its_failure_is_a_failed_login(bed: Any) -> None:
    async def asked() -> str:
        await trio.lowlevel.checkpoint()
        return "s3cret-scram"

    def failing() -> str:
        raise LookupError("the vault said s3cret-scram")

    async with bed.client() as client:
        await client.open(user="scram_user", password=Secret(asked))
        failed = await failure(client, user="scram_user", password=Secret(failing))
        assert isinstance(failed, NoPassword)
        assert failed.phase is Phase.LOGIN
        assert "LookupError" in str(failed)
        assert "s3cret" not in str(failed)
        bad = await failure(client, user="scram_user", password=Secret(b"\xffs3cret"))
        assert isinstance(bad, NoPassword)
        assert "s3cret" not in "".join(traceback.format_exception(bad))
        bad = await failure(client, user="clear_user", password=Secret("s3cret-\udc80"))
        assert isinstance(bad, NoPassword)
        assert "s3cret" not in "".join(traceback.format_exception(bad))


async def test_what_a_password_function_takes_is_not_taken_from_its_address_share_of_the_time(bed: Any) -> None:
    asked: list[float] = []

    async def slow() -> str:
        asked.append(trio.current_time())
        await trio.sleep(0.6)  # of two addresses each has half a second
        return "s3cret-scram"

    class Both(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *_: Any, **__: Any) -> Any:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", bed.port)) for n in (1, 2)]

        async def getnameinfo(self, *_: Any) -> Any:
            raise NotImplementedError

    trio.socket.set_custom_hostname_resolver(Both())
    async with bed.client() as client:
        config = replace(bed.config(user="scram_user", password=Secret(slow)), connect_timeout=1)
        session = await client.open(HostPort("db.test", bed.port), config)
        assert await client.ask(session, "select 1") == 1
    assert len(asked) == 1


def shown(error: BaseException) -> str:
    """Everything that a traceback with locals shows of an error and what is behind it."""
    chain: list[str] = []
    one: BaseException | None = error
    while one is not None:
        chain.append("".join(traceback.TracebackException.from_exception(one, capture_locals=True).format()))
        one = one.__cause__ or one.__context__
    return "\n".join(chain)


async def test_no_password_is_shown_or_kept(bed: Any) -> None:
    async with bed.client() as client:
        wanted = bed.config(user="clear_user", password="s3cret-clear")
        session = await client.driver.connect(bed.tcp, wanted)
        seen: list[Any] = [session, session.raw]
        reached: set[int] = set()
        for _ in range(8):
            found = [one for one in gc.get_referents(*seen) if not isinstance(one, (type, FunctionType, ModuleType))]
            seen = [one for one in found if id(one) not in reached]
            reached.update(map(id, seen))
            assert not any(isinstance(one, (str, bytes)) and "s3cret" in str(one) for one in seen)
        session.terminate("done")
        for config in (bed.config(user=user, password=WRONG) for user in ("scram_user", "md5_user", "clear_user")):
            with pytest.raises(ConnectFailure) as caught:
                await client.driver.connect(bed.tcp, config)
            given_away = WRONG in shown(caught.value)
            assert not given_away


async def test_a_name_that_does_not_resolve_is_said_so(bed: Any) -> None:
    async with bed.client() as client:
        for name in ("no-such-host.invalid", "x" * 300, ".."):
            failed = await failure(client, HostPort(name, 5433))
            assert (failed.phase, failed.sqlstate) == (Phase.RESOLVE, None), name


async def test_a_server_that_is_not_there_is_a_failed_connect(bed: Any) -> None:
    async with bed.client() as client:
        for host in (HostPort("127.0.0.1", 1), HostPort("localhost", 1), HostPort(str(bed.directory), 1)):
            failed = await failure(client, host)
            assert failed.phase is Phase.CONNECT
            assert failed.sqlstate is None
            assert isinstance(failed.__cause__, OSError)
        assert "refused" in str(await failure(client, HostPort("127.0.0.1", 1)))


async def test_the_servers_refusals_carry_their_sqlstate(bed: Any) -> None:
    async with bed.client() as client:
        for changes, code in (
            ({"database": "nowhere"}, "3D000"),
            ({"user": "nobody_here"}, "28000"),
            ({"user": "capped"}, "53300"),
        ):
            failed = await failure(client, **changes)
            assert failed.phase is Phase.LOGIN
            assert failed.sqlstate == code
        async with scripted(lambda stream: starting(stream)) as host:
            failed = await failure(client, host)
            assert failed.phase is Phase.LOGIN
            assert failed.sqlstate == "57P03"
            assert "starting up" in str(failed)


async def starting(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(error_response("57P03", "the database system is starting up"))


async def test_a_server_that_hangs_up_or_talks_nonsense_is_a_failed_login_without_sqlstate(bed: Any) -> None:
    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    async def nonsense(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)

    async def garbled(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"R" + struct.pack("!ii", 9, 5) + b"x" + b"E\0\0\0\5\xff" + b"Z\0\0\0\4")

    async def unknown_login(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"R" + struct.pack("!ii", 8, 6))

    async with bed.client() as client:
        for script in (hang_up, nonsense, garbled, unknown_login):
            async with scripted(script) as host:
                failed = await failure(client, host)
                assert (failed.phase, failed.sqlstate) == (Phase.LOGIN, None), script


@pytest.mark.parametrize("mode", MODES)
async def test_every_tls_mode_encrypts(bed: Any, mode: TlsMode) -> None:
    async with bed.client() as client:
        session = await client.open(tls=bed.tls(mode), user="tls_user")
        assert await client.ask(session, "select ssl from pg_stat_ssl where pid = pg_backend_pid()")


async def test_names_and_addresses_are_checked_and_one_name_can_stand_for_all(bed: Any) -> None:
    async with bed.client() as client:
        await client.open(bed.tcp, tls=bed.tls())
        await client.open(HostPort("localhost", bed.port), tls=bed.tls())
        failed = await failure(client, HostPort("::1", bed.port), tls=bed.tls())
        assert failed.phase is Phase.TLS
        assert "::1" in str(failed)
        assert "match" in str(failed)
        await client.open(HostPort("::1", bed.port), tls=bed.tls(TlsMode.VERIFY_CA))
        await client.open(HostPort("::1", bed.port), tls=bed.tls(server_name="the.server.example"))
        failed = await failure(client, tls=bed.tls(server_name="another.example"))
        assert failed.phase is Phase.TLS
        assert "another.example" in str(failed)


async def test_a_certificate_of_an_unknown_authority_is_refused(bed: Any) -> None:
    async with bed.client() as client:
        tls = Tls(TlsMode.VERIFY_CA, bed.context(trusted=False, check_hostname=False))
        failed = await failure(client, tls=tls)
        assert failed.phase is Phase.TLS
        assert "127.0.0.1" in str(failed)
        assert "certificate" in str(failed)
        assert isinstance(failed.__cause__, ssl.SSLCertVerificationError)


async def test_a_client_certificate_is_asked_for_and_given(bed: Any) -> None:
    async with bed.client() as client:
        failed = await failure(client, user="cert_user", tls=bed.tls())
        assert failed.phase is Phase.LOGIN
        assert failed.sqlstate == "28000"
        certificate = bed.authority.issue("client.example", common_name="cert_user")
        tls = Tls(TlsMode.VERIFY_FULL, bed.authority.client_context(certificate))
        assert await client.ask(await client.open(user="cert_user", tls=tls), "select 1") == 1


async def test_tls_is_not_asked_for_on_a_unix_socket(bed: Any) -> None:
    async with bed.client() as client:
        for mode in MODES:
            session = await client.open(bed.unix, tls=bed.tls(mode))
            assert not await client.ask(session, "select ssl from pg_stat_ssl where pid = pg_backend_pid()")


@asynccontextmanager
async def without_tls(bed: Any, answer: bytes) -> AsyncIterator[HostPort]:
    """The server as it is when it answers a request for TLS so, and then goes on in plain."""

    async def script(stream: trio.SocketStream) -> None:
        await stream.receive_some(8)
        await stream.send_all(answer)
        first = await stream.receive_some()
        if not first:
            return
        async with await trio.open_tcp_stream("127.0.0.1", bed.port) as server, trio.open_nursery() as nursery:
            await server.send_all(first)

            async def pump(source: trio.SocketStream, target: trio.SocketStream) -> None:
                async for data in source:
                    await target.send_all(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(pump, stream, server)
            nursery.start_soon(pump, server, stream)

    async with scripted(script) as host:
        yield host


async def test_a_refusal_of_tls_is_accepted_only_where_nothing_is_verified(bed: Any) -> None:
    async with bed.client() as client, without_tls(bed, b"N") as host:
        session = await client.open(host, tls=bed.tls(TlsMode.PREFER))
        assert await client.ask(session, "select 1") == 1
        with trio.move_on_after(0.05):
            await client.ask(session, "select pg_sleep(30)")
        for mode in MODES[1:]:
            assert (await failure(client, host, tls=bed.tls(mode))).phase is Phase.TLS
        verifying = Tls(TlsMode.PREFER, bed.context())
        assert (await failure(client, host, tls=verifying)).phase is Phase.TLS


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"S" + error_response("28000", "stuffed"), id="stuffed S"),
        pytest.param(b"N" + error_response("28000", "stuffed"), id="stuffed N"),
        pytest.param(error_response("28P01", "spoofed text"), id="error"),
        pytest.param(b"H", id="not PostgreSQL"),
        pytest.param(b"Snot a handshake at all", id="no handshake"),
    ],
)
async def test_nothing_said_before_encryption_is_trusted_or_shown(bed: Any, mode: TlsMode, answer: bytes) -> None:
    async with bed.client() as client, without_tls(bed, answer) as host:
        failed = await failure(client, host, tls=bed.tls(mode))
        assert failed.phase is Phase.TLS
        assert failed.sqlstate is None
        assert "spoofed" not in str(failed)
        assert "stuffed" not in str(failed)


async def test_a_server_that_hangs_up_around_the_handshake_is_a_tls_failure(bed: Any) -> None:
    async def at_once(stream: trio.SocketStream) -> None:
        await stream.receive_some(8)

    async def later(stream: trio.SocketStream) -> None:
        await stream.receive_some(8)
        await stream.send_all(b"S")
        await stream.receive_some()

    async with bed.client() as client:
        for script in (at_once, later):
            async with scripted(script) as host:
                assert (await failure(client, host, tls=bed.tls())).phase is Phase.TLS


async def test_options_reach_the_server(bed: Any) -> None:
    async with bed.client() as client:
        session = await client.open(
            application_name="my app", statement_timeout=1.5, server_settings={"work_mem": "5MB", "TimeZone": "UTC"}
        )
        assert await client.ask(session, "show application_name") == "my app"
        assert await client.ask(session, "show statement_timeout") == "1500ms"
        assert await client.ask(session, "show work_mem") == "5MB"
        with pytest.raises(asyncpg.QueryCanceledError):
            await client.ask(await client.open(statement_timeout=0.05), "select pg_sleep(5)")


async def test_asyncpgs_own_options_are_passed_on(bed: Any) -> None:
    class Row(asyncpg.Record):
        def __getattr__(self, name: str) -> Any:
            return self[name]

    async with bed.client() as client:
        session = await client.open(asyncpg_options={"record_class": Row, "statement_cache_size": 0})
        row = await session.drive(session.raw.fetchrow("select 3 as three"))
        assert row.three == 3
        assert await client.ask(session, "select count(*) from pg_prepared_statements where name <> ''") == 0


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def test_failed_and_cancelled_connects_leave_nothing_open(bed: Any) -> None:
    async def silent(stream: trio.SocketStream) -> None:
        while await stream.receive_some():
            pass

    async def silent_after_tls(stream: trio.SocketStream) -> None:
        await stream.receive_some(8)
        await stream.send_all(b"S")
        while await stream.receive_some():
            pass

    async with bed.client() as client, scripted(silent) as quiet, scripted(silent_after_tls) as quiet_tls:
        tries: list[tuple[HostPort, dict[str, Any]]] = [
            (HostPort("no-such-host.invalid", 1), {}),
            (HostPort("127.0.0.1", 1), {}),
            (quiet, {}),
            (quiet, {"tls": bed.tls()}),
            (quiet_tls, {"tls": bed.tls()}),
            (bed.tcp, {"database": "nowhere"}),
            (bed.tcp, {"tls": bed.tls(server_name="wrong.example")}),
            (bed.tcp, {"user": "scram_user", "password": Secret(trio.sleep_forever)}),  # type: ignore[arg-type]
        ]

        async def attempt(host: HostPort, changes: dict[str, Any]) -> None:
            with trio.move_on_after(0.04):
                await failure(client, host, **changes)

        for host, changes in tries:
            await attempt(host, changes)
        await trio.sleep(0.1)
        before = open_files()
        for _ in range(25):
            async with trio.open_nursery() as nursery:
                for host, changes in tries:
                    nursery.start_soon(attempt, host, changes)
        await trio.sleep(0.1)
        assert open_files() <= before


async def test_successful_connects_cancelled_half_way_leave_no_session_on_the_server(bed: Any) -> None:
    async with bed.client() as client:
        other = await client.open()
        for number in range(60):
            with trio.move_on_after(number * 0.0002):
                (await client.driver.connect(bed.tcp, bed.config(application_name="half way"))).terminate("done")
        left = "select count(*) from pg_stat_activity where application_name = 'half way'"
        for _ in range(100):
            if await client.ask(other, left) == 0:
                break
            await trio.sleep(0.02)
        assert await client.ask(other, left) == 0


async def test_names_resolve_to_their_first_ipv4_address(bed: Any) -> None:
    async with bed.client() as client:
        resolve = client.driver.resolve
        assert await resolve("localhost") == "127.0.0.1"
        assert await resolve("127.0.0.2") == "127.0.0.2"
        assert await resolve("::1") == "::1"
        assert await resolve("::ffff:10.1.2.3") == "10.1.2.3"
        assert await resolve("no-such-host.invalid") is None
        assert await resolve("..") is None


class Resolver(trio.abc.HostnameResolver):
    async def getaddrinfo(self, host: Any, port: Any, *_: Any, **__: Any) -> Any:
        import socket

        found = {b"both": ["fd00::1", "10.0.0.9"], b"six": ["fd00::1"], b"mapped": ["fd00::1", "::ffff:10.0.0.8"]}
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found[host]]

    async def getnameinfo(self, *_: Any) -> Any:
        raise NotImplementedError


async def test_ipv4_comes_before_ipv6_and_mapped_counts_as_ipv4(bed: Any) -> None:
    trio.socket.set_custom_hostname_resolver(Resolver())
    async with bed.client() as client:
        assert await client.driver.resolve("both") == "10.0.0.9"
        assert await client.driver.resolve("six") == "fd00::1"
        assert await client.driver.resolve("mapped") == "10.0.0.8"


async def test_sockets_are_kept_alive_and_not_delayed(bed: Any) -> None:
    import socket

    async with bed.client() as client:
        session = await client.open()
        sock = session.raw._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
