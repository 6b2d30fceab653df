"""The driver: opens sessions, resolves names, and has the tasks that outlive any one caller."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import trio

from ...config import Config
from ...servers import HostPort
from .bounds import Limits
from .login import Terms, start_up
from .reaching import address_of, dial, reach
from .session import NativeSession
from .watch import Watch, best_watch


class NativeDriver:
    """A `Driver`: asyncpg's protocol on Trio sockets.

    `watch` makes the watch over idle sockets: by default the cheapest that the system has.
    """

    def __init__(self, watch: Callable[[], Watch] = best_watch) -> None:
        self._make_watch = watch
        self._watch: Watch | None = None
        self._nursery: trio.Nursery | None = None
        self._basis: tuple[object, ...] = ()
        self._agreement: tuple[Terms, Limits]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch the idle sockets, and write what callers left half-written. Runs until it is cancelled.

        Sessions that are still open then are closed.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._watch = self._make_watch()
                await nursery.start(self._watch.run)
                task_status.started()
        finally:
            for session in self._watch.watched() if self._watch is not None else ():
                session.terminate("its driver has stopped")
            self._nursery = self._watch = None

    def _spawn(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._nursery is None:
            raise RuntimeError("the driver is not running")
        self._nursery.start_soon(run)

    async def connect(self, host: HostPort, config: Config) -> NativeSession:
        """Open one session on exactly this server. See `Driver.connect`.

        The addresses of a name share `connect_timeout`: one that is silent has its part of it, and the next is tried.
        TCP sockets have `TCP_NODELAY` and `SO_KEEPALIVE` on. Statements are kept for as long as the session lives
        unless `asyncpg_options` sets `max_cached_statement_lifetime`.
        """
        if self._watch is None:
            raise RuntimeError("the driver is not running")
        terms, limits = self._agreed(config)
        address = address_of(host)
        if address is None:
            log_in = partial(start_up, host=host, config=config, terms=terms, spawn=self._spawn)
            parts = await reach(host, config.connect_timeout, log_in)
        else:
            parts = await start_up(await dial(address), None, host, config, terms, self._spawn)
        return NativeSession(host, parts, self._watch, limits)

    def _agreed(self, config: Config) -> tuple[Terms, Limits]:
        """What the configuration comes to. Its connections share it: there is one configuration, as a rule."""
        basis = _basis(config)
        if basis != self._basis:
            self._basis, self._agreement = basis, (Terms.of(config), _limits(config))
        return self._agreement

    async def resolve(self, host: str) -> str | None:
        """The address a name stands for. See `Driver.resolve`."""
        try:
            found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return None
        addresses = [_plain(str(entry[4][0])) for entry in found]
        first_of_four = next((address for address in addresses if ":" not in address), None)
        return first_of_four or next(iter(addresses), None)


def _plain(address: str) -> str:
    """An IPv4-mapped address as the IPv4 address that it is."""
    try:
        mapped = ipaddress.IPv6Address(address.partition("%")[0]).ipv4_mapped
    except ValueError:
        return address
    return address if mapped is None else str(mapped)


def _basis(config: Config) -> tuple[object, ...]:
    """All that `Terms` and `Limits` are made of. The configuration itself is not kept: it holds the password."""
    return (
        *(config.user, config.database, config.application_name, config.server_settings, config.asyncpg_options),
        *(config.statement_timeout, config.socket_timeout),
    )


def _limits(config: Config) -> Limits:
    options = config.asyncpg_options
    return Limits(
        socket_timeout=config.socket_timeout,
        command_timeout=options.get("command_timeout"),
        statement_lifetime=options.get("max_cached_statement_lifetime") or None,
    )
