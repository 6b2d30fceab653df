"""The `ssl` options: which mode they mean, and that the context made for it checks what the mode promises."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme

from ysactor.config import Config, Tls, TlsMode
from ysactor.errors import ConfigurationError

OFF, PREFER, REQUIRE = TlsMode.OFF, TlsMode.PREFER, TlsMode.REQUIRE
VERIFY_CA, VERIFY_FULL = TlsMode.VERIFY_CA, TlsMode.VERIFY_FULL


def tls(dsn: str | None = None, environ: Mapping[str, str] | None = None, **options: Any) -> Tls:
    return Config.of(dsn, options, environ=environ or {}).tls


def problems(dsn: str | None = None, environ: Mapping[str, str] | None = None, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        tls(dsn, environ, **options)
    return caught.value.problems


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    ca.cert_pem.write_to_path(path)
    return str(path)


@pytest.fixture(scope="module")
def client_files(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("client")
    issued = ca.issue_cert(common_name="app")
    issued.cert_chain_pems[0].write_to_path(folder / "client.crt")
    issued.private_key_pem.write_to_path(folder / "client.key")
    return str(folder / "client.crt"), str(folder / "client.key")


def handshake(made: Tls, ca: trustme.CA, name: str, *, dialled: str, demand: bool = False) -> ssl.SSLObject:
    """Shake hands in memory with a server whose certificate is for `name`; the server's side is returned."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(name).configure_cert(server_context)
    server_context.set_alpn_protocols(["postgresql"])
    if demand:
        server_context.verify_mode = ssl.CERT_REQUIRED
        ca.configure_trust(server_context)
    assert made.context is not None
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(up, down, server_side=True)
    client = made.context.wrap_bio(down, up, server_hostname=made.server_name or dialled)
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    return server


class TestModes:
    @pytest.mark.parametrize(
        ("given", "mode"),
        [
            (False, OFF),
            ("disable", OFF),
            ("prefer", PREFER),
            ("require", REQUIRE),
            ("verify-ca", VERIFY_CA),
            ("verify-full", VERIFY_FULL),
            (True, VERIFY_FULL),
            (TlsMode.REQUIRE, REQUIRE),
        ],
    )
    def test_each_form_has_its_mode_and_a_context_that_is_ready(self, given: object, mode: TlsMode) -> None:
        made = tls(ssl=given)

        assert made.mode is mode
        if mode is OFF:
            assert made.context is None
            return
        assert made.context is not None
        assert made.context.check_hostname is (mode is VERIFY_FULL)
        assert made.context.verify_mode is (ssl.CERT_REQUIRED if mode in {VERIFY_CA, VERIFY_FULL} else ssl.CERT_NONE)
        assert made.context.minimum_version is ssl.TLSVersion.TLSv1_2

    def test_off_is_the_default(self) -> None:
        assert tls() == Tls(OFF, None, None)

    @pytest.mark.parametrize("given", [None, 0, 1, "", "true", "Require", "verify_full", b"require", object()])
    def test_anything_else_is_refused_without_an_echo(self, given: object) -> None:
        (problem,) = problems(ssl=given)

        assert problem.startswith("ssl: expected False, ")
        assert "not " not in problem

    def test_allow_is_refused_with_the_reason(self) -> None:
        assert problems(ssl="allow") == (
            "ssl: 'allow' is not supported, as it prefers not to encrypt: use 'prefer' or 'require'",
        )

    def test_a_context_of_the_users_own_is_kept_and_says_its_mode(self) -> None:
        full = ssl.create_default_context()
        chain = ssl.create_default_context()
        chain.check_hostname = False
        none = ssl.create_default_context()
        none.check_hostname = False
        none.verify_mode = ssl.CERT_NONE

        for context, mode in ((full, VERIFY_FULL), (chain, VERIFY_CA), (none, REQUIRE)):
            assert tls(ssl=context) == Tls(mode, context, None)

    def test_a_servers_context_is_refused(self) -> None:
        (problem,) = problems(ssl=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

        assert problem.startswith("ssl: expected ")


class TestHandshakes:
    def test_verify_full_takes_the_dialled_name_only(self, ca: trustme.CA, ca_file: str) -> None:
        made = tls(ssl="verify-full", ssl_root_cert=ca_file)

        server = handshake(made, ca, "a.example", dialled="a.example")
        assert server.selected_alpn_protocol() == "postgresql"
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(made, ca, "a.example", dialled="b.example")

    def test_verify_ca_takes_any_name_of_the_ca(self, ca: trustme.CA, ca_file: str) -> None:
        made = tls(ssl="verify-ca", ssl_root_cert=ca_file)

        handshake(made, ca, "a.example", dialled="b.example")
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(made, trustme.CA(), "a.example", dialled="a.example")

    @pytest.mark.parametrize("mode", ["prefer", "require"])
    def test_prefer_and_require_take_any_certificate(self, mode: str) -> None:
        handshake(tls(ssl=mode), trustme.CA(), "a.example", dialled="b.example")

    def test_the_system_store_is_used_without_a_file(self, ca: trustme.CA) -> None:
        for made in (tls(ssl=True), tls(ssl=True, ssl_root_cert="system"), tls(ssl=True, ssl_root_cert=None)):
            with pytest.raises(ssl.SSLCertVerificationError):
                handshake(made, ca, "a.example", dialled="a.example")

    def test_require_with_a_ca_file_checks_it(self, ca: trustme.CA, ca_file: str) -> None:
        made = tls(ssl="require", ssl_root_cert=ca_file)

        assert made.mode is VERIFY_CA
        handshake(made, ca, "a.example", dialled="b.example")
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(made, trustme.CA(), "a.example", dialled="a.example")

    def test_one_server_name_stands_for_all_servers(self, ca: trustme.CA, ca_file: str) -> None:
        made = tls(ssl="verify-full", ssl_root_cert=ca_file, ssl_server_name="db.example")

        assert made.server_name == "db.example"
        handshake(made, ca, "db.example", dialled="10.0.0.7")
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(made, ca, "10.0.0.7", dialled="10.0.0.7")

    def test_a_client_certificate_is_shown(self, ca: trustme.CA, ca_file: str, client_files: tuple[str, str]) -> None:
        certificate, key = client_files
        dsn = f"postgresql://h?sslmode=verify-full&sslrootcert={ca_file}&sslcert={certificate}&sslkey={key}"

        server = handshake(tls(dsn), ca, "a.example", dialled="a.example", demand=True)

        assert "app" in str(server.getpeercert())


class TestFiles:
    def test_a_path_object_will_do(self, ca_file: str) -> None:
        assert tls(ssl=True, ssl_root_cert=Path(ca_file)).mode is VERIFY_FULL

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing.pem")

        assert problems(ssl=True, ssl_root_cert=missing) == (
            f"ssl_root_cert: {missing!r} cannot be used: No such file or directory",
        )

    def test_a_file_that_is_no_certificate_is_named_and_its_contents_are_not_shown(self, tmp_path: Path) -> None:
        file = tmp_path / "x.pem"
        file.write_text("SENTINEL-42")

        (problem,) = problems(ssl=True, ssl_root_cert=file)

        assert problem.startswith(f"ssl_root_cert: {str(file)!r} cannot be used: ")
        assert "SENTINEL" not in problem

    def test_a_file_named_in_a_dsn_is_not_shown(self) -> None:
        assert problems("postgresql://h?sslmode=verify-ca&sslrootcert=/SENTINEL-42") == (
            "ssl_root_cert: what the DSN gives cannot be used: No such file or directory",
        )

    @pytest.mark.parametrize("bad", ["", 5, True, b"/ca.pem", "/a\0b"])
    def test_what_is_no_path_is_refused(self, bad: object) -> None:
        (problem,) = problems(ssl=True, ssl_root_cert=bad)

        assert problem.startswith("ssl_root_cert: expected the path of a file, or None, not ")

    def test_every_bad_file_is_reported(self) -> None:
        found = problems("postgresql://h?sslmode=verify-ca&sslrootcert=/x&sslcrl=/x&sslcert=/x&sslkey=/x")

        assert [problem.partition(":")[0] for problem in found] == ["ssl_root_cert", "sslcrl", "sslcert"]

    def test_a_key_without_a_certificate_is_an_error(self, client_files: tuple[str, str]) -> None:
        assert problems(f"postgresql://h?sslmode=require&sslkey={client_files[1]}") == (
            "sslkey: a key needs a certificate: sslcert",
        )

    def test_an_encrypted_key_takes_its_password_and_asks_nobody_for_it(
        self, client_files: tuple[str, str], tmp_path: Path
    ) -> None:
        from cryptography.hazmat.primitives import serialization

        certificate, key = client_files
        loaded = serialization.load_pem_private_key(Path(key).read_bytes(), None)
        locked = tmp_path / "locked.key"
        locked.write_bytes(
            loaded.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"SENTINEL-42"),
            )
        )
        dsn = f"postgresql://h?sslmode=require&sslcert={certificate}&sslkey={locked}"

        assert tls(f"{dsn}&sslpassword=SENTINEL-42").mode is REQUIRE
        start = "sslkey: what the DSN gives cannot be used: it is no key in PEM, or "
        assert problems(dsn) == (f"{start}it is encrypted and sslpassword is not given",)
        assert problems(f"{dsn}&sslpassword=SENTINEL-43") == (f"{start}sslpassword is not its password",)

    def test_of_certificate_and_key_the_one_that_cannot_be_used_is_named(
        self, ca: trustme.CA, client_files: tuple[str, str], tmp_path: Path
    ) -> None:
        certificate, key = client_files
        other, garbage, missing = tmp_path / "other.key", tmp_path / "garbage.pem", tmp_path / "missing.pem"
        ca.issue_cert(common_name="another").private_key_pem.write_to_path(other)
        garbage.write_text("SENTINEL-42")

        for cert, its_key, words in (
            (certificate, other, "sslkey: what the DSN gives cannot be used: KEY_VALUES_MISMATCH"),
            (certificate, garbage, "sslkey: what the DSN gives cannot be used: it is no key in PEM"),
            (certificate, missing, "sslkey: what the DSN gives cannot be used: No such file or directory"),
            (garbage, key, "sslcert: what the DSN gives cannot be used: "),
            (missing, key, "sslcert: what the DSN gives cannot be used: No such file or directory"),
        ):
            (problem,) = problems(f"postgresql://h?sslmode=require&sslcert={cert}&sslkey={its_key}")
            assert problem.startswith(words)
            assert "SENTINEL" not in problem
        (problem,) = problems(f"postgresql://h?sslmode=require&sslcert={certificate}")
        assert problem.endswith("it holds no key, or one that cannot be read: name the key's file with sslkey")

    def test_a_revocation_list_is_checked(self, ca: trustme.CA, ca_file: str, tmp_path: Path) -> None:
        # Without a list of this CA's nothing can be shown to be unrevoked.
        with pytest.raises(ssl.SSLCertVerificationError, match="CRL"):
            made = tls(f"postgresql://h?sslmode=verify-ca&sslrootcert={ca_file}&sslcrl={ca_file}")
            handshake(made, ca, "a.example", dialled="a.example")

    def test_the_lowest_version_can_be_raised_and_not_lowered(self) -> None:
        dsn = "postgresql://h?sslmode=require&ssl_min_protocol_version="

        context = tls(f"{dsn}TLSv1.3").context
        assert context is not None
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert problems(f"{dsn}TLSv1.1") == ("ssl_min_protocol_version: expected 'TLSv1.2' or 'TLSv1.3' (in the DSN)",)


class TestWhatHasNoEffect:
    @pytest.mark.parametrize("mode", [False, "prefer"])
    def test_a_ca_file_that_would_not_be_used_is_an_error(self, mode: object, ca_file: str) -> None:
        assert problems(ssl=mode, ssl_root_cert=ca_file) == (f"ssl_root_cert: it has no effect with ssl={mode!r}",)

    def test_so_it_is_beside_a_context(self, ca_file: str) -> None:
        assert problems(ssl=ssl.create_default_context(), ssl_root_cert=ca_file) == (
            "ssl_root_cert: an ssl.SSLContext brings its own: load it there",
        )

    def test_so_it_is_in_a_dsn_without_sslmode(self, ca_file: str) -> None:
        assert problems(f"postgresql://h?sslrootcert={ca_file}") == ("ssl_root_cert: it has no effect with ssl=False",)

    @pytest.mark.parametrize("mode", [False, "prefer", "require", "verify-ca"])
    def test_a_server_name_needs_a_mode_that_checks_names(self, mode: object) -> None:
        (problem,) = problems(ssl=mode, ssl_server_name="db.example")

        assert problem.startswith("ssl_server_name: a name is checked with ssl='verify-full', not with ")

    def test_a_server_name_goes_with_a_context_that_checks_names(self) -> None:
        context = ssl.create_default_context()
        assert tls(ssl=context, ssl_server_name="db.example") == Tls(VERIFY_FULL, context, "db.example")

        context.check_hostname = False
        assert len(problems(ssl=context, ssl_server_name="db.example")) == 1

    @pytest.mark.parametrize("bad", ["", " ", 5, b"db", "a\0"])
    def test_what_is_no_name_is_refused(self, bad: object) -> None:
        (problem,) = problems(ssl=True, ssl_server_name=bad)

        assert problem.startswith("ssl_server_name: expected a server's name, or None, not ")

    def test_a_keyword_that_changes_ssl_drops_what_the_dsn_said_beside_it(self, ca_file: str) -> None:
        dsn = f"postgresql://h?sslmode=verify-full&sslrootcert={ca_file}&ssl_server_name=x&sslcert=/none"
        context = ssl.create_default_context()

        assert tls(dsn, ssl=False) == Tls(OFF, None, None)
        assert tls(dsn, ssl=context).context is context


class TestEnvironment:
    def test_it_fills_in(self, ca_file: str, client_files: tuple[str, str], ca: trustme.CA) -> None:
        made = tls(
            environ={
                "PGSSLMODE": "verify-full",
                "PGSSLROOTCERT": ca_file,
                "PGSSLCERT": client_files[0],
                "PGSSLKEY": client_files[1],
                "PGSSLMINPROTOCOLVERSION": "TLSv1.3",
            }
        )

        server = handshake(made, ca, "a.example", dialled="a.example", demand=True)
        assert server.version() == "TLSv1.3"

    def test_require_with_the_environments_ca_file_checks_it(self, ca_file: str) -> None:
        assert tls(environ={"PGSSLROOTCERT": ca_file}, ssl="require").mode is VERIFY_CA

    @pytest.mark.parametrize("mode", [False, "prefer", ssl.create_default_context()])
    def test_its_ca_file_is_left_alone_where_it_has_no_effect(self, mode: object) -> None:
        environ = {"PGSSLROOTCERT": "/missing", "PGSSLCRL": "/missing"}

        assert tls(environ=environ, ssl=mode).server_name is None

    def test_its_bad_file_is_named_where_it_has(self) -> None:
        assert problems(environ={"PGSSLROOTCERT": "/missing"}, ssl=True) == (
            "ssl_root_cert: '/missing' cannot be used: No such file or directory",
        )

    def test_its_bad_mode_is_an_error_unless_something_else_says_ssl(self) -> None:
        (problem,) = problems(environ={"PGSSLMODE": "allow"})
        assert problem.endswith("(in PGSSLMODE)")

        assert tls(environ={"PGSSLMODE": "allow"}, ssl=False).mode is OFF


def test_a_context_shows_in_no_repr() -> None:
    assert "SSLContext" not in repr(Config.of(None, {"ssl": True}, environ={}))


def test_a_directory_is_no_ca_file() -> None:
    (problem,) = problems(ssl=True, ssl_root_cert=os.sep)

    assert problem.startswith("ssl_root_cert: ")
