"""The `ssl` options: how connections are encrypted and what is checked, made into one ready context.

Files are read here, when the options are: one that is missing is a configuration error, not a failed connection.
As in libpq, ``require`` together with a CA file checks the certificate as ``verify-ca`` does; never is less checked
than was asked for. libpq's ``allow`` is refused: it sends the login in clear to servers that offer TLS.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias, cast

from .readers import Invalid, encodable, shown


class TlsMode(Enum):
    """How a connection is encrypted and what is checked, strongest last."""

    OFF = "disable"
    PREFER = "prefer"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


@dataclass(frozen=True, slots=True)
class Tls:
    """The `ssl` options together."""

    mode: TlsMode = TlsMode.OFF
    context: ssl.SSLContext | None = field(default=None, repr=False)
    """Ready for use whenever `mode` is not OFF: the user's own (mode then says REQUIRE or more), or one made from
    the options when they were read."""
    server_name: str | None = None
    """The one name to check on every server; by default each server is checked by the host that is dialled."""


@dataclass(frozen=True, slots=True)
class Given:
    """An option's value, and whether an error may show it: what came from a DSN may be a piece of a password."""

    value: str = field(repr=False)
    quotable: bool

    def __str__(self) -> str:
        return shown(self.value) if self.quotable else "what the DSN gives"


TlsOption: TypeAlias = TlsMode | ssl.SSLContext
SYSTEM = "system"
"""libpq's word for the system's certificate store, where a CA file could be named."""
FURTHER = ("ssl_root_cert", "ssl_server_name", "sslcrl", "sslcert", "sslkey", "sslpassword", "ssl_min_protocol_version")
"""The options beside `ssl` itself. The CA file comes first, as it decides what the others are worth."""
_VERIFYING = frozenset({TlsMode.VERIFY_CA, TlsMode.VERIFY_FULL})
_MODES: dict[str, TlsMode] = {mode.value: mode for mode in TlsMode}
_EXPECTED = (
    "False, 'prefer', 'require', 'verify-ca', 'verify-full', True (the same as 'verify-full') or a client's "
    "ssl.SSLContext"
)
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def ssl_option(value: object) -> TlsOption:
    """The `ssl` option itself, from a keyword, ``sslmode`` or ``PGSSLMODE``."""
    match value:
        case TlsMode():
            return value
        case bool():
            return TlsMode.VERIFY_FULL if value else TlsMode.OFF
        case str() if value in _MODES:
            return _MODES[value]
        case "allow":
            raise Invalid(reason="'allow' is not supported, as it prefers not to encrypt: use 'prefer' or 'require'")
        case ssl.SSLContext() if value.protocol is not ssl.PROTOCOL_TLS_SERVER:
            return value
        case _:
            raise Invalid(_EXPECTED)


def path(value: object) -> str | None:
    """A file's path, as text or as a path object; None is no file."""
    if value is None:
        return None
    found: object = os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str) or not found or not encodable(found):
        raise Invalid("the path of a file, or None")
    return found


def server_name(value: object) -> str | None:
    """A name to check on every server; None checks each by its own."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or not encodable(value):
        raise Invalid("a server's name, or None")
    return value.strip()


def tls_version(value: object) -> str:
    """libpq's ``ssl_min_protocol_version``, from TLS 1.2, which is the least in any case."""
    if not isinstance(value, str) or value not in _VERSIONS:
        raise Invalid("'TLSv1.2' or 'TLSv1.3'")
    return value


def unused(wanted: TlsOption, name: str) -> str | None:
    """Why one of the further options has no effect with this `ssl`, or None if it has one."""
    mode = _mode_of(wanted)
    if name == "ssl_server_name":
        needed = mode is TlsMode.VERIFY_FULL
        return None if needed else f"a name is checked with ssl='verify-full', not with {mode.value!r}"
    if isinstance(wanted, ssl.SSLContext):
        return "an ssl.SSLContext brings its own: load it there"
    match name:
        case "ssl_root_cert":
            needed = mode not in {TlsMode.OFF, TlsMode.PREFER}
        case "sslcrl":
            needed = mode in _VERIFYING
        case _:
            needed = mode is not TlsMode.OFF
    return None if needed else f"it has no effect with ssl={False if mode is TlsMode.OFF else mode.value!r}"


def strengthened(wanted: TlsOption, *, root_cert: bool) -> TlsOption:
    """What `ssl` means beside a CA file: whoever names one wants it used."""
    return TlsMode.VERIFY_CA if wanted is TlsMode.REQUIRE and root_cert else wanted


def make_tls(wanted: TlsOption, given: Mapping[str, Given], report: Callable[[str, str], None]) -> Tls:
    """Make the context. `report` is told of each problem: the option's name, and what is wrong."""
    used: dict[str, Given] = {}
    for option, value in given.items():
        if (reason := unused(wanted, option)) is not None:
            report(option, reason)
        else:
            used[option] = value
    name = used.get("ssl_server_name")
    if isinstance(wanted, ssl.SSLContext):
        context: ssl.SSLContext | None = wanted
    else:
        context = None if wanted is TlsMode.OFF else _context(wanted, used, report)
    return Tls(_mode_of(wanted), context, None if name is None else name.value)


def _mode_of(wanted: TlsOption) -> TlsMode:
    if isinstance(wanted, TlsMode):
        return wanted
    if wanted.check_hostname:
        return TlsMode.VERIFY_FULL
    return TlsMode.VERIFY_CA if wanted.verify_mode is ssl.CERT_REQUIRED else TlsMode.REQUIRE


def _context(mode: TlsMode, given: Mapping[str, Given], report: Callable[[str, str], None]) -> ssl.SSLContext:
    context = _empty()
    context.check_hostname = mode is TlsMode.VERIFY_FULL
    context.verify_mode = ssl.CERT_REQUIRED if mode in _VERIFYING else ssl.CERT_NONE
    lowest = given.get("ssl_min_protocol_version")
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if lowest is None else _VERSIONS[lowest.value]
    # As libpq since 17: a server of another protocol that shares the certificate is not mistaken for PostgreSQL.
    context.set_alpn_protocols(["postgresql"])
    if mode in _VERIFYING:
        _trust(context, given, report)
    _load_identity(context, given, report)
    return context


def _trust(context: ssl.SSLContext, given: Mapping[str, Given], report: Callable[[str, str], None]) -> None:
    root = given.get("ssl_root_cert")
    if root is None or root.value == SYSTEM:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load("ssl_root_cert", root, report, lambda: context.load_verify_locations(cafile=root.value))
    revoked = given.get("sslcrl")
    if revoked is not None:
        _load("sslcrl", revoked, report, lambda: context.load_verify_locations(cafile=revoked.value))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def _load_identity(context: ssl.SSLContext, given: Mapping[str, Given], report: Callable[[str, str], None]) -> None:
    certificate, key, password = (given.get(name) for name in ("sslcert", "sslkey", "sslpassword"))
    if certificate is None:
        if key is not None:
            report("sslkey", "a key needs a certificate: sslcert")
        return
    # By itself first: of the two together OpenSSL does not say which it could not read.
    if not _load("sslcert", certificate, report, lambda: _empty().load_verify_locations(cafile=certificate.value)):
        return
    # Without a function OpenSSL would ask for the password on the terminal.
    secret = "" if password is None else password.value
    if key is None:
        unread = "it holds no key, or one that cannot be read: name the key's file with sslkey"
        _load(
            "sslcert",
            certificate,
            report,
            lambda: context.load_cert_chain(certificate.value, None, lambda: secret),
            unread,
        )
        return
    unread = "it is no key in PEM, or " + (
        "it is encrypted and sslpassword is not given" if password is None else "sslpassword is not its password"
    )
    _load("sslkey", key, report, lambda: context.load_cert_chain(certificate.value, key.value, lambda: secret), unread)


def _empty() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _load(
    name: str, given: Given, report: Callable[[str, str], None], load: Callable[[], None], unread: str | None = None
) -> bool:
    """Whether it could be loaded. `unread` is said where OpenSSL gives no reason."""
    try:
        load()
    except (OSError, ValueError) as error:
        # OpenSSL's reason is one of its own words, never a piece of the file.
        reason: str | None = getattr(error, "reason", None)
        if isinstance(error, ssl.SSLError) and reason is None:
            reason = unread
        reason = reason or getattr(error, "strerror", None) or type(error).__name__
        report(name, f"{given} cannot be used: {reason}")
        return False
    return True
