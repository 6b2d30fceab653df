"""Every option, checked at once and together, as one frozen record."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigurationError
from .options.pgpass import PassFile
from .options.placement import LoadBalance, SessionAttrs, TopologyKey
from .options.read import read_options
from .options.tls import Tls, TlsMode
from .secret import Secret
from .servers import HostPort

__all__ = ["Config", "LoadBalance", "SessionAttrs", "Tls", "TlsMode", "TopologyKey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All options, valid. Durations are seconds; None is "off" or "no limit".

    Made by `Config.of`; the defaults are the documented ones.
    """

    hosts: tuple[HostPort, ...] = (HostPort("localhost", 5433),)
    """The seeds, in order, each once."""
    user: str = "yugabyte"
    password: Secret | None = None
    """What every login uses, unless `passfile` has a line for its very server: see `password_for`."""
    database: str = "yugabyte"
    tls: Tls = Tls()
    connect_timeout: float = 10
    statement_timeout: float | None = None
    socket_timeout: float | None = None
    application_name: str = "ysactor"
    server_settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Never holds `application_name`; may hold `statement_timeout` if the field of that name is None."""
    asyncpg_options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    on_connect: Callable[[Any], Awaitable[None]] | None = None
    prepare_on_connect: tuple[str, ...] = field(default=(), repr=False)
    load_balance: LoadBalance = LoadBalance.OFF
    topology_keys: tuple[TopologyKey, ...] = ()
    fallback_to_topology_keys_only: bool = False
    yb_servers_refresh_interval: int = 300
    failed_host_reconnect_delay_secs: int = 5
    failed_host_max_delay_secs: int | None = None
    target_session_attrs: SessionAttrs = "any"
    min_size: int = 10
    max_size: int = 10
    idle_timeout: float | None = 600
    checkout_timeout: float | None = 5
    max_waiting: int | None = None
    max_lifetime: float | None = 1800
    lifetime_jitter: float = 300
    rebalance_interval: float = 30
    rebalance_batch: int = 2
    cancel_timeout: float = 1
    shutdown_timeout: float | None = 5
    passfile: PassFile | None = field(default=None, repr=False)
    """The password file, read once; None if it was not needed or says nothing."""

    @classmethod
    def of(
        cls,
        dsn: str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> Config:
        """Read a DSN and options: keyword > DSN > environment and password file > default.

        `environ` is the process's environment unless given; nothing is read from outside it, and the home directory
        is its ``HOME``. Files that the options name (CA, certificate, passwords) are read here and now; nothing is
        opened on the network.

        Raises:
            ConfigurationError: with every problem that was found.
        """
        fields, problems = read_options(dsn, options or {}, os.environ if environ is None else environ)
        # What may hold a password is out of this frame before a traceback can show its locals.
        del dsn, options, environ
        if problems:
            del fields
            raise ConfigurationError(problems)
        return cls(**fields)

    def password_for(self, server: HostPort) -> Secret | None:
        """The password for a login on one server.

        A password from a keyword, the DSN or ``PGPASSWORD`` is for every server. Of the password file, the line for
        this server counts; a server without one, such as one that was only discovered, takes the password of the
        first seed that has a line, as the servers of a cluster share their users.
        """
        own = None if self.passfile is None else self.passfile.find(server, self.database, self.user)
        return self.password if own is None else own
