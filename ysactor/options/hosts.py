"""Hosts and ports: every form of the `hosts` and `port` options, and the parts that a DSN shares with them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..servers import HostPort
from .readers import Invalid, elements, encodable, is_integer

HOST = (
    "'name', 'name:port', '[IPv6 address]:port', (name, port) or a socket directory that starts with '/', "
    "in a list, or as one string with commas between"
)
PORT = "an integer from 1 to 65535"
_ITS_PORT = f"each host's port to be {PORT}"
_DSN = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
_PORT = re.compile(r"[0-9]{1,5}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.~-]+)?")
_BRACKETED = re.compile(r"\[([^\[\]]+)\](?::(.*))?", re.DOTALL)
# Whatever can be in no name: it would be a piece of something else, such as a DSN or a path.
_NOT_IN_A_NAME = re.compile(r"[\s\x00-\x1f\x7f,:/@?#%\[\]\\\"'<>]")


class Seed(NamedTuple):
    """A host as configured: its port is not known yet if it was given without one."""

    host: str
    port: int | None


Ports: TypeAlias = int | tuple[int | None, ...]
"""One port for all hosts, or, from a DSN or the environment, one for each; None in it is the default."""


def seeds(value: object) -> tuple[Seed, ...]:
    """The `hosts` option: one string, or a sequence of strings and pairs."""
    items = value.split(",") if isinstance(value, str) else elements(value)
    if any(isinstance(item, str) and _DSN.match(item) for item in items or ()):
        raise Invalid(reason="it takes hosts, and this holds a DSN: give a DSN as the first argument")
    if items is None:
        raise Invalid(HOST)
    if not items:
        raise Invalid("at least one host")
    return tuple(_seed(item) for item in items)


def libpq_seeds(value: str) -> tuple[Seed, ...]:
    """libpq's list of hosts (``?host=``): as `seeds`, and an IPv6 address may stand without brackets."""
    return tuple(Seed(item, None) if _is_ipv6(item) else _seed(item) for item in value.split(","))


def one_port(value: object) -> int:
    """The `port` option."""
    if not is_integer(value) or not 1 <= value <= 65535:
        raise Invalid(PORT)
    return value


def libpq_ports(value: str) -> Ports:
    """libpq's list of ports: one for all hosts, or one for each; one left empty is the default."""
    items = [port_text(item) if item else None for item in value.split(",")]
    if len(items) == 1 and items[0] is not None:
        return items[0]
    return tuple(items)


def port_text(value: str) -> int:
    """A port in text."""
    if not _PORT.fullmatch(value):
        raise Invalid(PORT)
    return one_port(int(value))


def check_host(host: str) -> str:
    """The host itself, once it is known to be a name, an address or a socket directory."""
    if host.startswith(("/", "@")):
        # "@" is Linux's abstract namespace, as in libpq.
        if len(host) == 1 or not encodable(host):
            raise Invalid(HOST)
        return host
    if not host or not encodable(host) or (_NOT_IN_A_NAME.search(host) and not _is_ipv6(host)):
        raise Invalid(HOST)
    return host


def resolve(found: Sequence[Seed], ports: Ports, default: int) -> tuple[HostPort, ...]:
    """Give each host its port. A host that is listed twice counts once, at its first place."""
    if isinstance(ports, int):
        ports = (ports,) * len(found)
    elif len(ports) == 1:
        ports = ports * len(found)
    if len(ports) != len(found):
        raise Invalid(reason=f"{len(ports)} ports cannot be matched to {len(found)} hosts")
    placed = (HostPort(seed.host, seed.port or port or default) for seed, port in zip(found, ports, strict=True))
    return tuple(dict.fromkeys(placed))


def _seed(item: object) -> Seed:
    if isinstance(item, str):
        return _seed_text(item)
    match elements(item):
        case [str(host), port]:
            return Seed(check_host(_unbracketed(host.strip())), _its_port(one_port, port))
        case _:
            raise Invalid(HOST)


def _seed_text(item: str) -> Seed:
    item = item.strip()
    if item.startswith(("/", "@")):
        # The whole of it is the directory: a colon is as good a character in a path as any.
        return Seed(check_host(item), None)
    if (match := _BRACKETED.fullmatch(item)) is not None:
        address, port = match.groups()
        if not _is_ipv6(address):
            raise Invalid(HOST)
        return Seed(address, None if port is None else _its_port(port_text, port))
    name, colon, port = item.partition(":")
    return Seed(check_host(name), _its_port(port_text, port) if colon else None)


def _its_port(read: Callable[[Any], int], given: object) -> int:
    try:
        return read(given)
    except Invalid:
        raise Invalid(_ITS_PORT) from None


def _unbracketed(host: str) -> str:
    match = _BRACKETED.fullmatch(host)
    return match[1] if match is not None and match[2] is None else host


def _is_ipv6(host: str) -> bool:
    if not _IPV6.fullmatch(host):
        return False
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
