"""Every form of `ssl` against every kind of server, dialled by address and by name; names, certificates, sockets.

Twice each: PostgreSQL's own TLS, where a PostgreSQL built with OpenSSL is at hand, and a proxy that ends TLS, anywhere.
A proxy stands before the servers in both cases and notes what comes first on the wire.
"""

from __future__ import annotations

import datetime
import itertools
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
import trio
from pytest_trio import trio_fixture

import ysactor
from integration.conftest import Stage
from integration.scenario import NATIVE, Transport, Truth, nothing_is_left, on_both_transports, until, watched
from ysactor.testing.postgres import (
    Access,
    Authority,
    Certificate,
    PostgresNotFound,
    PostgresServer,
    Role,
    Run,
    ServerRow,
    ThreeZones,
    create_data,
    find,
)
from ysactor.testing.postgres.topology import SETUP
from ysactor.testing.proxy import FaultProxy, open_fault_proxy

pytestmark = watched

Backend: TypeAlias = Literal["postgres", "proxy"]
Offer: TypeAlias = Literal["no TLS", "TLS only", "good", "DNS only", "wrong host", "expired", "other CA", "self-signed"]
Dialled: TypeAlias = Literal["127.0.0.1", "db.tls.test"]

ADDRESS: Dialled = "127.0.0.1"
NAME: Dialled = "db.tls.test"
TLS_REQUEST = bytes.fromhex("0000000804d2162f")
ENCRYPTED = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"

_names = itertools.count(1)


# --- the servers -----------------------------------------------------------------------------------------------------


def self_signed(directory: Path, give: Callable[[Path], None]) -> Certificate:
    """A certificate that nobody but itself has signed, right in all else."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(NAME), x509.IPAddress(ipaddress.ip_address(ADDRESS))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate = Certificate(directory / "self-signed.crt", directory / "self-signed.key")
    certificate.chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    certificate.key.touch(mode=0o600)
    certificate.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    give(directory)
    return certificate


class Certificates:
    """One for each kind of server, and the authority that clients trust."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.authority = Authority(run)
        self.other = Authority(run)
        both = (ADDRESS, NAME)
        self.by_offer: Mapping[Offer, Certificate] = {
            "TLS only": self.authority.issue(*both),
            "good": self.authority.issue(*both),
            "DNS only": self.authority.issue(NAME),
            "wrong host": self.authority.issue("127.9.9.9", "elsewhere.tls.test"),
            "expired": self.authority.issue(*both, expired=True),
            "other CA": self.other.issue(*both),
            "self-signed": self_signed(self.authority.root.parent, run.give),
        }


@dataclass
class Target:
    """A server to be dialled through a proxy, and the way to have it offer something else."""

    server: PostgresServer
    certificates: Certificates
    proxy: FaultProxy
    backend: Backend

    @property
    def port(self) -> int:
        return self.proxy.address[1]

    async def offer(self, offer: Offer) -> None:
        certificate = self.certificates.by_offer.get(offer)
        if self.backend == "proxy":
            self.proxy.tls = None if certificate is None else certificate.server_context()
            return
        settings = {"ssl": "off"} if certificate is None else self.certificates.authority.settings(certificate)
        await self.restart(settings, Access(tls_only=offer == "TLS only"))

    async def restart(self, settings: Mapping[str, str], access: Access) -> None:
        self.server.settings, self.server.access = dict(settings), access
        await trio.to_thread.run_sync(self.server.restart)

    @asynccontextmanager
    async def cluster(
        self, transport: Transport, *hosts: Any, dsn: str | None = None, **options: Any
    ) -> AsyncGenerator[tuple[ysactor.Cluster, Truth]]:
        """A cluster for the length of a block, after which nothing is left, here or on the server."""
        name = f"matrix-{next(_names)}"
        truth = Truth([self.server], name, proxied=True)
        named: dict[str, Any] = {"application_name": name}
        if dsn is None:
            named |= {"hosts": list(hosts), "user": "yugabyte", "database": "yugabyte"}
        async with (
            nothing_is_left(truth),
            ysactor.open_cluster(dsn, driver=transport, **named, **options) as cluster,
        ):
            yield cluster, truth

    async def refusal(self, transport: Transport, *hosts: Any, **options: Any) -> ysactor.ConnectFailed:
        """How one connection is refused. Nothing must have been sent in clear, and nothing be left open."""
        before = self.proxy.accepted
        async with self.cluster(transport, *hosts, **options) as (cluster, truth):
            with pytest.raises(ysactor.ConnectFailed) as caught:
                async with cluster.connect():
                    pass
            assert await truth.count() == 0
        if options.get("ssl", "prefer") is not False:
            assert all(one.first.startswith(TLS_REQUEST) for one in self.proxy.connections[before:])
            assert self.proxy.accepted - before == 1
        return caught.value


@pytest.fixture(scope="session")
def openssl() -> Iterator[tuple[PostgresServer, Certificates] | str]:
    """PostgreSQL with TLS of its own; text: why there is none."""
    try:
        binaries = find(require_tls=True)
    except PostgresNotFound as missing:
        yield str(missing)
        return
    with Run(binaries) as run:
        (address,) = run.addresses(1)
        template = create_data(run, "template", roles=[Role("yugabyte", "p@ss", superuser=True)], setup=SETUP)
        with PostgresServer(run, "tls", address, template=template) as server:
            server.start()
            yield server, Certificates(run)


@pytest.fixture(scope="session")
def plain(stage: Stage) -> tuple[PostgresServer, Certificates]:
    """Any PostgreSQL, spoken to in plain by the proxy that ends TLS."""
    return stage.three_zones.servers[0], Certificates(stage.three_zones.run)


@pytest.fixture(params=["postgres", "proxy"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


def _names_resolve(**addresses: str) -> None:
    """For this run of Trio: these names stand for these addresses. Everything else does not resolve."""
    trio.socket.set_custom_hostname_resolver(_Resolver(addresses))


class _Resolver(trio.abc.HostnameResolver):
    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses

    async def getaddrinfo(self, host: Any, port: Any, family: int = 0, *_: Any, **__: Any) -> Any:
        import socket

        await trio.lowlevel.checkpoint()
        name = host.decode() if isinstance(host, bytes) else host
        if name not in self._addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self._addresses[name], port or 0))]

    async def getnameinfo(self, *_: Any) -> Any:
        raise NotImplementedError


@trio_fixture
async def target(backend: Backend, request: pytest.FixtureRequest) -> AsyncGenerator[Target]:
    found = request.getfixturevalue("openssl" if backend == "postgres" else "plain")
    if isinstance(found, str):
        pytest.skip(found)
    server, certificates = found
    _names_resolve(**{NAME: ADDRESS})
    async with open_fault_proxy((server.host, server.port)) as proxy:
        yield Target(server, certificates, proxy, backend)
    if backend == "proxy":
        request.getfixturevalue("stage").three_zones.reset()


# --- the matrix ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write the `ssl` options, and what it asks for."""

    options: Callable[[Certificates], dict[str, Any]]
    tls: bool = True
    """Whether it does without encryption under no circumstances; `prefer` is neither."""
    prefers: bool = False
    chain: bool = False
    """The certificate must come from an authority that is trusted, and be in date."""
    trusts_ours: bool = True
    name: str | None = None
    """What the certificate must be for: ``"dialled"`` is whatever was dialled."""


def _root(certificates: Certificates) -> str:
    return str(certificates.authority.root)


def _context(*, names: bool, chain: bool) -> Callable[[Certificates], dict[str, Any]]:
    def options(certificates: Certificates) -> dict[str, Any]:
        context = certificates.authority.client_context()
        context.check_hostname = names
        context.verify_mode = ssl.CERT_REQUIRED if chain else ssl.CERT_NONE
        return {"ssl": context}

    return options


FORMS: Mapping[str, Form] = {
    "False": Form(lambda _: {"ssl": False}, tls=False),
    "left out": Form(lambda _: {}, tls=False),
    "prefer": Form(lambda _: {"ssl": "prefer"}, prefers=True),
    "require": Form(lambda _: {"ssl": "require"}),
    "require, CA": Form(lambda c: {"ssl": "require", "ssl_root_cert": _root(c)}, chain=True),
    "verify-ca": Form(lambda c: {"ssl": "verify-ca", "ssl_root_cert": _root(c)}, chain=True),
    "verify-ca, the system's": Form(lambda _: {"ssl": "verify-ca"}, chain=True, trusts_ours=False),
    "verify-full": Form(lambda c: {"ssl": "verify-full", "ssl_root_cert": _root(c)}, chain=True, name="dialled"),
    "True": Form(lambda c: {"ssl": True, "ssl_root_cert": _root(c)}, chain=True, name="dialled"),
    "True, the system's": Form(
        lambda _: {"ssl": True, "ssl_root_cert": "system"}, chain=True, trusts_ours=False, name="dialled"
    ),
    "verify-full, one name": Form(
        lambda c: {"ssl": "verify-full", "ssl_root_cert": _root(c), "ssl_server_name": NAME}, chain=True, name=NAME
    ),
    "verify-full, another name": Form(
        lambda c: {"ssl": True, "ssl_root_cert": _root(c), "ssl_server_name": "elsewhere.tls.test"},
        chain=True,
        name="elsewhere.tls.test",
    ),
    "context": Form(_context(names=True, chain=True), chain=True, name="dialled"),
    "context, one name": Form(
        lambda c: {"ssl": c.authority.client_context(), "ssl_server_name": NAME}, chain=True, name=NAME
    ),
    "context, no names": Form(_context(names=False, chain=True), chain=True),
    "context, no checks": Form(_context(names=False, chain=False)),
}

SIGNED_BY_OURS = frozenset({"TLS only", "good", "DNS only", "wrong host", "expired"})
NAMES: Mapping[Offer, frozenset[str]] = {
    "TLS only": frozenset({ADDRESS, NAME}),
    "good": frozenset({ADDRESS, NAME}),
    "DNS only": frozenset({NAME}),
    "wrong host": frozenset({"127.9.9.9", "elsewhere.tls.test"}),
    "expired": frozenset({ADDRESS, NAME}),
    "other CA": frozenset({ADDRESS, NAME}),
    "self-signed": frozenset({ADDRESS, NAME}),
}
"""What each certificate is for."""


def expected(form: Form, offer: Offer, dialled: str) -> str:
    """What must come of it: ``TLS``, ``plain``, or what the refusal is about. From the table in the options page."""
    if offer == "no TLS":
        return "refuses TLS" if form.tls and not form.prefers else "plain"
    if not form.tls:
        return "no encryption" if offer == "TLS only" else "plain"
    if form.chain and (offer == "expired" or offer not in SIGNED_BY_OURS or not form.trusts_ours):
        return "certificate"
    wanted = dialled if form.name == "dialled" else form.name
    return "certificate" if wanted is not None and wanted not in NAMES[offer] else "TLS"


WORDS: Mapping[str, tuple[str, ...]] = {
    # Each transport says it in its own words.
    "certificate": ("certificate",),
    "refuses TLS": ("refuses TLS", "rejected SSL upgrade"),
    "no encryption": ("no encryption", "SSL off"),
}

OFFERS: tuple[Offer, ...] = (
    "no TLS",
    "TLS only",
    "good",
    "DNS only",
    "wrong host",
    "expired",
    "other CA",
    "self-signed",
)


async def outcome(target: Target, transport: Transport, form: Form, dialled: str) -> str:
    """What came of it."""
    options = form.options(target.certificates)
    before = target.proxy.accepted
    try:
        async with (
            target.cluster(transport, (dialled, target.port), **options) as (cluster, _),
            cluster.connect() as conn,
        ):
            on_server = await conn.fetchval(ENCRYPTED)
    except ysactor.ConnectFailed as failed:
        came = target.proxy.connections[before:]
        assert failed.kind == "rejected", failed
        assert f"server {dialled}:{target.port} " in str(failed)
        if form.tls:
            # One attempt, which asked for TLS and said nothing else in clear: never a second one, in plain.
            assert [one.first[:8] for one in came] == [TLS_REQUEST], failed
        found = [reason for reason, words in WORDS.items() if any(word in str(failed) for word in words)]
        assert found, failed
        return found[0]
    used = target.proxy.connections[-1]
    assert used.first.startswith(TLS_REQUEST) or not used.encrypted
    if target.backend == "postgres":
        assert on_server == used.encrypted
    return "TLS" if used.encrypted else "plain"


@on_both_transports
@pytest.mark.parametrize("offer", OFFERS)
async def test_every_form_of_ssl_does_what_it_says_and_no_less(
    target: Target, offer: Offer, transport: Transport
) -> None:
    if offer == "TLS only" and target.backend == "proxy":
        pytest.skip("only a server itself can insist on TLS")
    await target.offer(offer)
    found: dict[tuple[str, str], str] = {}
    wanted: dict[tuple[str, str], str] = {}
    for title, form in FORMS.items():
        for dialled in (ADDRESS, NAME):
            wanted[title, dialled] = expected(form, offer, dialled)
            found[title, dialled] = await outcome(target, transport, form, dialled)
    assert found == wanted


@on_both_transports
@pytest.mark.parametrize("dialled", [ADDRESS, NAME])
async def test_a_refused_certificate_names_the_server_and_the_name_that_it_is_not_for(
    target: Target, transport: Transport, dialled: str
) -> None:
    """C69: the server answers, so it is rejected, not down; and the reason shows which name was checked."""
    await target.offer("wrong host")
    form = FORMS["verify-full"].options(target.certificates)
    async with target.cluster(transport, (dialled, target.port), **form) as (cluster, _):
        with pytest.raises(ysactor.ConnectFailed) as caught:
            async with cluster.connect():
                pass
        text = str(caught.value)
        assert text.startswith(f"server {dialled}:{target.port} turned the connection away: ")
        assert f"certificate is not valid for '{dialled}'" in text
        assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)
        info = cluster.info()
        assert [server.host for server in info.rejected] == [dialled]
        assert info.failed == ()


# --- names -----------------------------------------------------------------------------------------------------------


@dataclass
class Names:
    """The names that clients ask for, in the order of their handshakes."""

    asked: list[str | None] = field(default_factory=list)

    def context(self, certificate: Certificate) -> ssl.SSLContext:
        context = certificate.server_context()
        context.sni_callback = lambda _socket, name, _context: self.asked.append(name)
        return context


@on_both_transports
async def test_the_name_is_sent_in_the_handshake_and_an_address_is_not(
    plain: tuple[PostgresServer, Certificates], transport: Transport
) -> None:
    """SNI, by which a proxy before several clusters tells them apart. The standard knows no addresses in it."""
    server, certificates = plain
    names = Names()
    _names_resolve(**{NAME: ADDRESS})
    root = str(certificates.authority.root)
    tls = names.context(certificates.by_offer["good"])
    async with open_fault_proxy((server.host, server.port), tls=tls) as proxy:
        target = Target(server, certificates, proxy, "proxy")
        for ssl_option in ("prefer", "require", "verify-ca", "verify-full"):
            root_cert = root if ssl_option.startswith("verify") else None
            for dialled in (NAME, ADDRESS):
                options = {"ssl": ssl_option, "ssl_root_cert": root_cert}
                at = (dialled, proxy.address[1])
                async with target.cluster(transport, at, **options) as (cluster, _), cluster.connect() as conn:
                    with trio.move_on_after(0.05):
                        await conn.execute("SELECT pg_sleep(30)")
                    assert await conn.fetchval("SELECT 1") == 1
                sent = NAME if dialled is NAME else None
                # The second handshake is the cancel request's.
                assert names.asked == [sent, sent], ssl_option
                names.asked.clear()
        options = {"ssl": True, "ssl_root_cert": root, "ssl_server_name": NAME}
        at = (ADDRESS, proxy.address[1])
        async with target.cluster(transport, at, **options) as (cluster, _), cluster.connect():
            assert names.asked == [NAME]


TWO_NAMES = {"yb-1.tls.test": "127.0.0.1", "yb-2.tls.test": "127.0.0.2"}


@asynccontextmanager
async def two_listed(
    bed: ThreeZones, certificates: tuple[Certificate, Certificate], hosts: tuple[str, str]
) -> AsyncGenerator[tuple[FaultProxy, FaultProxy]]:
    """Two servers behind proxies with TLS, listed by `yb_servers()` under these hosts."""
    first, second = (
        open_fault_proxy((server.host, server.port), listen=(address, 0), tls=certificate.server_context())
        for server, address, certificate in zip(bed.servers, TWO_NAMES.values(), certificates, strict=False)
    )
    async with first as one, second as two:
        rows = [ServerRow(host, proxy.address[1]) for host, proxy in zip(hosts, (one, two), strict=True)]
        await bed.set_topology(rows)
        yield one, two


@on_both_transports
async def test_each_discovered_server_is_checked_by_its_own_name(three_zones: ThreeZones, transport: Transport) -> None:
    """What one context for all servers cannot do: the name that is checked is that of the server that was picked."""
    _names_resolve(**TWO_NAMES)
    authority = Authority(three_zones.run)
    first, second = (authority.issue(name) for name in TWO_NAMES)
    options: dict[str, Any] = {"load_balance": True, "ssl": "verify-full", "ssl_root_cert": str(authority.root)}
    async with two_listed(three_zones, (first, second), tuple(TWO_NAMES)) as proxies:
        seed = ("yb-1.tls.test", proxies[0].address[1])
        async with ysactor.open_cluster(
            hosts=[seed], user="yugabyte", database="yugabyte", driver=transport, **options
        ) as cluster:
            async with cluster.connect() as one, cluster.connect() as two:
                assert {one.server.host, two.server.host} == set(TWO_NAMES)
            assert cluster.info().rejected == ()
        assert all(one.encrypted for proxy in proxies for one in proxy.connections)


@on_both_transports
async def test_a_discovered_server_with_its_neighbours_certificate_is_left_out(
    three_zones: ThreeZones, transport: Transport
) -> None:
    _names_resolve(**TWO_NAMES)
    authority = Authority(three_zones.run)
    shared = authority.issue("yb-1.tls.test")
    options: dict[str, Any] = {"load_balance": True, "ssl": "verify-full", "ssl_root_cert": str(authority.root)}
    async with two_listed(three_zones, (shared, shared), tuple(TWO_NAMES)) as proxies:
        seed = ("yb-1.tls.test", proxies[0].address[1])
        async with ysactor.open_cluster(
            hosts=[seed], user="yugabyte", database="yugabyte", driver=transport, **options
        ) as cluster:
            for _ in range(6):
                async with cluster.connect() as one, cluster.connect() as two:
                    assert {one.server.host, two.server.host} == {"yb-1.tls.test"}
            assert [server.host for server in cluster.info().rejected] == ["yb-2.tls.test"]
            assert cluster.info().failed == ()
        # It was asked for TLS and nothing else, and told nothing in clear.
        assert [one.first[:8] for one in proxies[1].connections] == [TLS_REQUEST]


@on_both_transports
async def test_discovered_addresses_are_checked_by_address_or_by_the_one_name_given(
    three_zones: ThreeZones, transport: Transport
) -> None:
    """C69: certificates with DNS names only, and a listing of addresses."""
    authority = Authority(three_zones.run)
    addresses = tuple(TWO_NAMES.values())
    _names_resolve(**TWO_NAMES, **{address: address for address in addresses})
    shared = authority.issue("yb.tls.test")
    base: dict[str, Any] = {"load_balance": True, "ssl": "verify-full", "ssl_root_cert": str(authority.root)}
    async with two_listed(three_zones, (shared, shared), addresses) as proxies:
        common: dict[str, Any] = {
            "hosts": [("127.0.0.1", proxies[0].address[1])],
            "user": "yugabyte",
            "database": "yugabyte",
            "driver": transport,
        }
        async with ysactor.open_cluster(**common, **base) as cluster:
            with pytest.raises(ysactor.ConnectFailed, match="certificate") as caught:
                async with cluster.connect():
                    pass
            assert caught.value.kind == "rejected"
        async with (
            ysactor.open_cluster(**common, **base, ssl_server_name="yb.tls.test") as cluster,
            cluster.connect() as one,
            cluster.connect() as two,
        ):
            assert {one.server.host, two.server.host} == set(addresses)


# --- client certificates ---------------------------------------------------------------------------------------------


class CertificateAndPassword(Access):
    """A certificate for the very user, and a password besides."""

    def rules(self) -> str:
        return "host all testbed all trust\nhostssl all all all scram-sha-256 clientcert=verify-full\n"


@on_both_transports
async def test_client_certificates_come_from_a_context_or_from_the_dsn(
    openssl: tuple[PostgresServer, Certificates] | str, tmp_path: Path, transport: Transport
) -> None:
    if isinstance(openssl, str):
        pytest.skip(openssl)
    server, certificates = openssl
    ours, other = certificates.authority, certificates.other
    good = ours.issue(common_name="yugabyte")
    async with open_fault_proxy((server.host, server.port)) as proxy:
        target = Target(server, certificates, proxy, "postgres")
        settings = ours.settings(certificates.by_offer["good"], ask_clients=True)
        await target.restart(settings, CertificateAndPassword())
        at = (ADDRESS, target.port)

        context = ours.client_context(good)
        secret = {"ssl": context, "password": "p@ss"}
        async with target.cluster(transport, at, **secret) as (cluster, _), cluster.connect() as conn:
            shown = "SELECT client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            assert "CN=yugabyte" in await conn.fetchval(shown)

        locked = tmp_path / "locked.key"
        locked.write_bytes(_locked(good.key.read_bytes(), b"k:y"))
        base = (
            f"postgresql://yugabyte:p%40ss@127.0.0.1:{target.port}/yugabyte?sslmode=verify-full&sslrootcert={ours.root}"
        )
        for key in (f"&sslkey={good.key}", f"&sslkey={locked}&sslpassword=k%3Ay"):
            dsn = f"{base}&sslcert={good.chain}{key}"
            async with target.cluster(transport, dsn=dsn) as (cluster, _), cluster.connect() as conn:
                assert await conn.fetchval("SELECT current_user") == "yugabyte"

        for refused, words in (
            (None, "client certificate"),
            (ours.issue(common_name="somebody"), "authentication failed"),  # the server says no more
            (other.issue(common_name="yugabyte"), "(?i)unknown.ca|certificate"),
            (ours.issue(common_name="yugabyte", expired=True), "(?i)expired"),
        ):
            context = ours.client_context(refused)
            failed = await target.refusal(transport, at, ssl=context, password="p@ss")
            assert failed.kind == "rejected", failed
            assert re.search(words, str(failed)), failed
        failed = await target.refusal(transport, at, ssl=ours.client_context(good), password="wrong")
        assert "password" in str(failed)


def _locked(key: bytes, password: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )


# --- Unix sockets ----------------------------------------------------------------------------------------------------


@pytest.fixture
def on_sockets(stage: Stage) -> Iterator[PostgresServer]:
    """A server with sockets in a directory, in one with colons in its name, and in the abstract namespace."""
    bed = stage.three_zones
    server = bed.servers[0]
    directories = [bed.run.path / "p", bed.run.path / "p:region:inst"]
    for directory in directories:
        directory.mkdir(exist_ok=True)
        bed.run.give(directory)
    abstract = f"@ysactor-{server.port}"
    server.settings = {
        **server.settings,
        "unix_socket_directories": ", ".join([*(f'"{directory}"' for directory in directories), abstract]),
    }
    server.restart()
    yield server
    bed.reset()


@on_both_transports
async def test_unix_sockets_are_used_in_plain_whatever_ssl_says(
    on_sockets: PostgresServer, tmp_path: Path, transport: Transport
) -> None:
    """C67. As in libpq: what cannot leave the machine is not encrypted, and TLS is not even asked for."""
    server = on_sockets
    directory = server.data.parent / "p"
    port = str(server.port)
    authority = Authority(server._run)
    forms: list[dict[str, Any]] = [
        {"ssl": False},
        {"ssl": "prefer"},
        {"ssl": "require"},
        {"ssl": "verify-full", "ssl_root_cert": str(authority.root)},
        {"ssl": authority.client_context()},
    ]
    colons = server.data.parent / "p:region:inst"
    hosts = [str(directory), str(colons), f"@ysactor-{port}"]
    for form in forms:
        for host in hosts:
            async with (
                ysactor.open_cluster(
                    hosts=[host], port=server.port, user="yugabyte", database="yugabyte", driver=transport, **form
                ) as cluster,
                cluster.connect() as conn,
            ):
                assert await conn.fetchval("SELECT inet_client_addr()") is None
                with trio.move_on_after(0.05):
                    await conn.execute("SELECT pg_sleep(30)")
                assert await conn.fetchval("SELECT 1") == 1, (form, host)


@on_both_transports
async def test_unix_sockets_in_a_dsn_and_mixed_with_hosts(
    on_sockets: PostgresServer, tmp_path: Path, transport: Transport
) -> None:
    server = on_sockets
    directory = server.data.parent / "p:region:inst"
    encoded = str(directory).replace("/", "%2F").replace(":", "%3A")
    missing = tmp_path / "none"
    for dsn in (
        f"postgresql://yugabyte@{encoded}:{server.port}/yugabyte",
        f"postgresql://yugabyte@/yugabyte?host={directory}&port={server.port}",
        f"postgresql://yugabyte@/yugabyte?host={missing},{server.host}&port={server.port}",
    ):
        async with ysactor.open_cluster(dsn, driver=transport) as cluster, cluster.connect() as conn:
            assert await conn.fetchval("SELECT current_user") == "yugabyte"
            if "none" in dsn:
                # A socket that is missing is a server that is down, and the next host is used.
                assert conn.server.host == server.host
                assert [str(one.at) for one in cluster.info().failed] == [f"{missing}:{server.port}"]
            else:
                assert dict(cluster.info().counts) == {f"{directory}:{server.port}": 1}


# --- cancel requests -------------------------------------------------------------------------------------------------

CANCELLING = [title for title, form in FORMS.items() if form.trusts_ours and "another" not in title]


@on_both_transports
@pytest.mark.parametrize("title", CANCELLING)
async def test_a_cancel_request_travels_as_its_session_did(target: Target, title: str, transport: Transport) -> None:
    """C71: to the same address, encrypted if the session is, and in time."""
    form = FORMS[title]
    offer: Offer = "TLS only" if form.tls and target.backend == "postgres" else "good"
    await target.offer(offer)
    async with target.cluster(transport, (ADDRESS, target.port), **form.options(target.certificates)) as (
        cluster,
        truth,
    ):
        before = target.proxy.accepted
        async with cluster.connect() as conn:
            pid = await conn.fetchval("SELECT pg_backend_pid()")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(conn.execute, "SELECT pg_sleep(30)")
                await truth.until_active("pg_sleep")
                nursery.cancel_scope.cancel()
            assert await conn.fetchval("SELECT pg_backend_pid()") == pid
            assert not await truth.active("pg_sleep")
        # A server that takes long to stop is asked again.
        session, *requests = target.proxy.connections[before:]
        assert session.encrypted is form.tls
        assert requests
        for request in requests:
            assert request.encrypted is form.tls
            assert request.first.startswith(TLS_REQUEST) is form.tls
            # Inside the server's own TLS nobody sees what it is.
            assert request.cancel is not (form.tls and target.backend == "postgres")


@on_both_transports
@pytest.mark.parametrize(
    ("title", "change"),
    [(title, "no TLS") for title in ("verify-full", "context", "require", "prefer")]
    + [(title, "wrong host") for title in ("verify-full", "context")],  # the others check no names
)
async def test_a_cancel_request_that_cannot_be_sent_as_safely_is_not_sent(
    plain: tuple[PostgresServer, Certificates], title: str, change: Offer, transport: Transport
) -> None:
    """Somebody else answers now, or nobody offers TLS any more: the session's key stays here, and it is closed."""
    server, certificates = plain
    async with open_fault_proxy((server.host, server.port)) as proxy:
        target = Target(server, certificates, proxy, "proxy")
        await target.offer("good")
        options = FORMS[title].options(certificates) | {"cancel_timeout": 1}
        async with target.cluster(transport, (ADDRESS, target.port), **options) as (cluster, truth):
            with pytest.raises(ysactor.ConnectionLost):
                async with cluster.connect() as conn:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(conn.execute, "SELECT pg_sleep(30)")
                        await truth.until_active("pg_sleep")
                        await target.offer(change)
                        nursery.cancel_scope.cancel()
                    await conn.fetchval("SELECT 1")

            async def all_have_spoken() -> bool:
                return all(one.first for one in proxy.connections)

            await until(all_have_spoken, "every connection has said what it wants")
            assert proxy.cancel_requests == 0
            assert all(one.first.startswith(TLS_REQUEST) for one in proxy.connections)
            # What the server runs on with is ended here; `statement_timeout` is what bounds it in earnest.
            await truth.terminate()


@on_both_transports
async def test_closing_stops_what_runs_by_a_request_that_is_encrypted_too(target: Target, transport: Transport) -> None:
    await target.offer("TLS only" if target.backend == "postgres" else "good")
    options = FORMS["verify-full"].options(target.certificates)
    async with target.cluster(transport, (ADDRESS, target.port), **options) as (cluster, truth):
        async with trio.open_nursery() as nursery:

            async def hold() -> None:
                async with cluster.connect() as conn:
                    await conn.execute("SELECT pg_sleep(30)")

            nursery.start_soon(hold)
            await truth.until_active("pg_sleep")
            nursery.cancel_scope.cancel()

        async def over() -> bool:
            return not await truth.active("pg_sleep")

        await until(over, "the statement is stopped", limit=1.0)
        assert all(one.first.startswith(TLS_REQUEST) and one.encrypted for one in target.proxy.connections)
        assert target.proxy.accepted == 2


# --- passwords in every form (C65) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", [NATIVE, "trio_asyncio"])
async def test_a_user_and_a_password_of_every_kind_of_character_log_in(stage: Stage, transport: Transport) -> None:
    """C65: by keyword, and percent-encoded in a DSN, where `+` is itself and nothing is decoded twice."""
    from urllib.parse import quote

    user, password = "ü@s:e/r#?%2B+", "p@ss:w/o#r?d%2B+é"
    bed = stage.three_zones
    server = bed.servers[1]
    server.sql(f"""create role "{user}" login password '{password}'""")
    server.access = Access("scram-sha-256")
    try:
        await trio.to_thread.run_sync(server.restart)
        whole = f"postgresql://{quote(user, safe='+')}:{quote(password, safe='+')}@{server.host}:{server.port}/yugabyte"
        async with ysactor.open_cluster(whole, driver=transport) as cluster, cluster.connect() as conn:
            assert await conn.fetchval("SELECT current_user") == user
        for given in (password, password.encode(), lambda: password):
            async with (
                ysactor.open_cluster(
                    hosts=[(server.host, server.port)],
                    user=user,
                    password=given,
                    database="yugabyte",
                    driver=transport,
                ) as cluster,
                cluster.connect() as conn,
            ):
                assert await conn.fetchval("SELECT current_user") == user
        raw = f"postgresql://{user}:{password}@{server.host}:{server.port}/yugabyte"
        with pytest.raises(ysactor.ConfigurationError) as caught:
            async with ysactor.open_cluster(raw, driver=transport):
                pass
        shown = f"{caught.value!s} {caught.value!r}"
        assert not any(piece in shown for piece in ("p@ss", "w/o", "r?d", "ss:w", "%2B+", "é"))
    finally:
        await trio.to_thread.run_sync(server.recreate)
        await trio.to_thread.run_sync(bed.reset)
