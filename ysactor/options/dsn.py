"""Reads a DSN: ``postgresql://user:password@host:port,host:port/database?option=value``.

A DSN may hold a password, and one that was pasted in raw (with ``@ : / # ?`` in it) may show up in any part. So no
message here quotes any piece of it. Everything is percent-decoded once; ``+`` stands for itself. Where libpq and
asyncpg differ, libpq is followed: the query string overrides what stands before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .hosts import PORT, Ports, Seed, check_host, libpq_ports, libpq_seeds, port_text, seeds
from .readers import Invalid

PORTS: Mapping[str, int] = MappingProxyType({"postgresql": 5432, "postgres": 5432, "yugabytedb": 5433})
"""The schemes, and the port each implies."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "host": "hosts",
        "dbname": "database",
        "sslmode": "ssl",
        "sslrootcert": "ssl_root_cert",
    }
)
"""libpq's names for options of ours."""

_LEFT_OUT_IF_EMPTY = frozenset(
    {
        "database",
        "dbname",
        "host",
        "passfile",
        "password",
        "port",
        "sslcert",
        "sslcrl",
        "sslkey",
        "sslmode",
        "sslpassword",
        "sslrootcert",
        "user",
    }
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_UNENCODED = re.compile(r"[\s\x00-\x1f\x7f#]")
_IN_BRACKETS = re.compile(r"\[([^\[\]]*)\](?::(.*))?", re.DOTALL)
_ENCODE = "; percent-encode the user, the password and the database ('@' is %40, ':' %3A, '/' %2F, '#' %23, '?' %3F)"


@dataclass(frozen=True, slots=True)
class Dsn:
    """What a DSN says, by option name: text, still to be read, but for hosts and ports."""

    port: int | None = None
    """The port that its scheme implies."""
    hosts: tuple[Seed, ...] | None = None
    ports: Ports | None = None
    text: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    problems: tuple[str, ...] = ()


def parse_dsn(dsn: object, unknown: Callable[[str], str | None]) -> Dsn:
    """Take a DSN apart. `unknown` says why an option's name cannot stand in the query string, or None if it can."""
    if not isinstance(dsn, str):
        return Dsn(problems=("dsn: expected text",))
    scheme = _SCHEME.match(dsn)
    if scheme is None or scheme[1].lower() not in PORTS:
        return Dsn(problems=("dsn: it does not start with postgresql://, postgres:// or yugabytedb://",))
    if _UNENCODED.search(dsn):
        return Dsn(problems=(f"dsn: it holds a space, a control character or a '#'{_ENCODE}",))
    if _BAD_ESCAPE.search(dsn):
        return Dsn(problems=("dsn: a '%' is not followed by two hexadecimal digits; '%' itself is written %25",))
    try:
        decoded(dsn)
    except UnicodeDecodeError:
        return Dsn(problems=("dsn: what is percent-encoded in it is not UTF-8",))
    reading = _Reading(unknown)
    reading.read(dsn[scheme.end() :])
    return Dsn(
        port=PORTS[scheme[1].lower()],
        hosts=reading.hosts,
        ports=reading.ports,
        text=reading.text,
        problems=tuple(reading.problems),
    )


def decoded(text: str) -> str:
    """Percent-decode once. Each run of escapes must be UTF-8 by itself."""
    return _ESCAPE.sub(lambda escape: bytes.fromhex(escape[0].replace("%", "")).decode(), text)


class _Reading:
    """One DSN being read: what was found so far, and what is wrong with it."""

    def __init__(self, unknown: Callable[[str], str | None]) -> None:
        self.unknown = unknown
        self.hosts: tuple[Seed, ...] | None = None
        self.ports: Ports | None = None
        self.text: dict[str, str] = {}
        self.problems: list[str] = []

    def read(self, rest: str) -> None:
        before, _, query = rest.partition("?")
        authority, _, path = before.partition("/")
        if authority.count("@") > 1 or "@" in path:
            self.problems.append(f"dsn: there is an '@' too many{_ENCODE}")
            return
        if "/" in path:
            self.problems.append(f"dsn: there is a '/' too many{_ENCODE}")
            return
        user_info, _, addresses = authority.rpartition("@")
        user, _, password = user_info.partition(":")
        for name, part in (("user", user), ("password", password), ("database", path)):
            if part:
                self.text[name] = decoded(part)
        self.read_addresses(addresses)
        self.read_query(query)

    def read_addresses(self, addresses: str) -> None:
        if not addresses:
            return
        if addresses.startswith(":") and "," not in addresses:
            self.keep_port(port_text, addresses[1:])
            return
        try:
            self.hosts = tuple(self.address(item) for item in addresses.split(","))
        except Invalid as invalid:
            wanted = f"a port is {PORT}" if str(invalid) == PORT else "hosts are name:port or [IPv6 address]:port"
            self.problems.append(f"dsn: {wanted}, with commas between{_ENCODE}")

    def address(self, item: str) -> Seed:
        bracketed = _IN_BRACKETS.fullmatch(item)
        host, _, port = item.partition(":") if bracketed is None else (bracketed[1], "", bracketed[2])
        # Decoded after it is divided, so that a socket's directory may hold colons and commas.
        host = decoded(host)
        plain = check_host(host) if bracketed is None else seeds([f"[{host}]"])[0].host
        return Seed(plain, port_text(port) if port else None)

    def read_query(self, query: str) -> None:
        for name, value in self.pairs(query):
            match ALIASES.get(name, name):
                case "hosts":
                    self.keep_hosts(libpq_seeds if name == "host" else seeds, value)
                case "port":
                    self.keep_port(libpq_ports, value)
                    self.hosts = self.hosts and tuple(Seed(seed.host, None) for seed in self.hosts)
                case option:
                    self.text[option] = value

    def pairs(self, query: str) -> Iterator[tuple[str, str]]:
        """The options of the query string that are known and given once. The port comes last, as it needs the hosts."""
        found: dict[str, tuple[str, str]] = {}
        for number, pair in enumerate(query.split("&") if query else (), 1):
            raw_name, equals, raw_value = pair.partition("=")
            name, value = decoded(raw_name), decoded(raw_value)
            if not equals:
                self.problems.append(f"dsn: option {number} of its query string is not name=value{_ENCODE}")
            elif (reason := self.unknown(ALIASES.get(name, name))) is not None:
                self.problems.append(f"dsn: option {number} of its query string {reason}")
            elif (option := ALIASES.get(name, name)) in found:
                self.problems.append(f"{option}: the query string of the DSN gives it twice")
            elif value or name not in _LEFT_OUT_IF_EMPTY:
                found[option] = (name, value)
        yield from sorted(found.values(), key=lambda pair: pair[0] == "port")

    def keep_hosts(self, read: Callable[[str], tuple[Seed, ...]], value: str) -> None:
        before = self.hosts or ()
        try:
            found = read(value)
        except Invalid as invalid:
            self.problems.append(f"hosts: {invalid.reason or f'expected {invalid}'} (in the DSN)")
            return
        # As in libpq, hosts of the query string take the places, and so the ports, of those before the path.
        own = [seed.port for seed in before] * (len(found) if len(before) == 1 else 1) + [None] * len(found)
        self.hosts = tuple(Seed(seed.host, seed.port or port) for seed, port in zip(found, own, strict=False))

    def keep_port(self, read: Callable[[str], Ports], value: str) -> None:
        try:
            self.ports = read(value)
        except Invalid as invalid:
            self.problems.append(f"port: expected {invalid} (in the DSN)")
