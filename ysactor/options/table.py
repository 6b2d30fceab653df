"""Every option by name: who reads its value, and what text stands for in a DSN or in the environment."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from ..secret import Secret
from . import hosts, passthrough, placement, readers, tls
from .readers import Invalid, Reader, boolean, integer, parse_boolean, parse_integer, parse_number, seconds, text

Parse = Callable[[str], object]


def as_it_is(given: str) -> object:
    """Text that stands for itself."""
    return given


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    read: Reader
    """From a keyword's value to the value that is used; raises `Invalid`."""
    parse: Parse | None = as_it_is
    """From text to what a keyword would have given; None if the option cannot be text."""
    secret: bool = False
    """Whether no message may show a value."""


def password(value: object) -> Secret | None:
    """Text, bytes, or a function that returns one."""
    match value:
        case None:
            return None
        case Secret():
            return value
        case str() if readers.encodable(value):
            return Secret(value)
        case bytes() if b"\0" not in value:
            return Secret(value)
        case _ if callable(value) and readers.accepts(value):
            return Secret(cast("Callable[[], str | bytes]", value))
        case _:
            raise Invalid("text or bytes without NUL, or a function without arguments that returns one, or None")


# PostgreSQL keeps statement_timeout as an int of milliseconds.
_STATEMENT_TIMEOUT = seconds(zero=True, limitless=True, high=2147483.647)


def statement_timeout(value: object) -> float | None:
    """As `seconds`, but never rounded down to 0 ms by whoever sends it, for 0 is no limit."""
    limit: float | None = _STATEMENT_TIMEOUT(value)
    return max(limit, 0.001) if limit else limit


OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "hosts": Option(hosts.seeds),
        "port": Option(hosts.one_port, parse_integer),
        "user": Option(text()),
        "password": Option(password, secret=True),
        "database": Option(text()),
        "ssl": Option(tls.ssl_option, parse_boolean, secret=True),
        "ssl_root_cert": Option(tls.path),
        "ssl_server_name": Option(tls.server_name),
        "connect_timeout": Option(seconds(zero=False), parse_number),
        "statement_timeout": Option(statement_timeout, parse_number),
        "socket_timeout": Option(seconds(zero=False, limitless=True), parse_number),
        "application_name": Option(text(empty=True)),
        "server_settings": Option(passthrough.server_settings, None, secret=True),
        "asyncpg_options": Option(passthrough.asyncpg_options, None, secret=True),
        "on_connect": Option(readers.on_connect, None),
        "prepare_on_connect": Option(readers.statements, None, secret=True),
        "load_balance": Option(placement.load_balance),
        "topology_keys": Option(placement.topology_keys),
        "fallback_to_topology_keys_only": Option(boolean, parse_boolean),
        "yb_servers_refresh_interval": Option(integer(0, 600), parse_integer),
        "failed_host_reconnect_delay_secs": Option(integer(0, 60), parse_integer),
        "failed_host_max_delay_secs": Option(integer(1, absent=True), parse_integer),
        "target_session_attrs": Option(placement.session_attrs),
        "pool_size": Option(integer(1), parse_integer),
        "min_size": Option(integer(0), parse_integer),
        "max_size": Option(integer(1), parse_integer),
        "idle_timeout": Option(seconds(zero=False, limitless=True), parse_number),
        "checkout_timeout": Option(seconds(zero=False, limitless=True), parse_number),
        "max_waiting": Option(integer(1, absent=True, unlimited=True), parse_integer),
        "max_lifetime": Option(seconds(zero=False, limitless=True), parse_number),
        "lifetime_jitter": Option(seconds(zero=True), parse_number),
        "rebalance_interval": Option(seconds(zero=False), parse_number),
        "rebalance_batch": Option(integer(1), parse_integer),
        "cancel_timeout": Option(seconds(zero=True), parse_number),
        "shutdown_timeout": Option(seconds(zero=True, limitless=True), parse_number),
    }
)
"""What a keyword can be; all but the few that are no text can also stand in a DSN's query string."""

LIBPQ: Mapping[str, Option] = MappingProxyType(
    {
        "options": Option(text()),
        "passfile": Option(tls.path),
        "sslcert": Option(tls.path),
        "sslcrl": Option(tls.path),
        "sslkey": Option(tls.path),
        "sslpassword": Option(text(empty=True), secret=True),
        "ssl_min_protocol_version": Option(tls.tls_version),
    }
)
"""What only a DSN or the environment can give, under libpq's names."""

ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "hosts": "PGHOST",
        "port": "PGPORT",
        "user": "PGUSER",
        "password": "PGPASSWORD",
        "database": "PGDATABASE",
        "passfile": "PGPASSFILE",
        "ssl": "PGSSLMODE",
        "ssl_root_cert": "PGSSLROOTCERT",
        "sslcert": "PGSSLCERT",
        "sslkey": "PGSSLKEY",
        "sslcrl": "PGSSLCRL",
        "ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION",
        "target_session_attrs": "PGTARGETSESSIONATTRS",
    }
)
"""The variables that are read: those that asyncpg reads and that have a meaning here."""

_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "dbname": "database",
        "host": "hosts",
        "sslmode": "ssl",
        "sslrootcert": "ssl_root_cert",
        "timeout": "connect_timeout",
        "username": "user",
    }
)
"""What other drivers call an option."""


def suggestion(name: str) -> str:
    """What was probably meant by a name that is none, as the end of a sentence."""
    plain = name.lower().replace("-", "_")
    close = [_ELSEWHERE[plain]] if plain in _ELSEWHERE else difflib.get_close_matches(plain[:80], OPTIONS, 1, 0.75)
    return f"; perhaps {close[0]} was meant" if close else ""


def unknown_in_dsn(name: str) -> str | None:
    """Why a name cannot stand in a DSN's query string; the name itself is not shown."""
    option = OPTIONS.get(name) or LIBPQ.get(name)
    if option is None:
        return f"is not known{suggestion(name)}"
    if option.parse is None:
        return f"is {name}, which can be given by keyword only"
    return None
