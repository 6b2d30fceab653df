"""The servers that are measured against: a plain one, and one with TLS where the programs for it are found."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from integration.bench.catalogue import TransportName
from integration.bench.job import Endpoint
from ysactor.testing.postgres import (
    APPLICATION,
    USER,
    Authority,
    Binaries,
    Member,
    Placement,
    PostgresNotFound,
    PostgresServer,
    Run,
    create_data,
    find,
    topology,
)

_SETTINGS = {"max_connections": "450", "shared_buffers": "64MB", "superuser_reserved_connections": "3"}
_SETUP = (
    topology.SETUP
    + """
create unlogged table bench_insert (id int, text text);

create unlogged table bench_copy (text text);

grant all on bench_insert, bench_copy to public;

"""
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A running server, as the report names it."""

    server: PostgresServer
    endpoint: Endpoint
    version: str


class Servers:
    """What runs, by transport; and why something does not."""

    def __init__(self) -> None:
        self.by_transport: dict[TransportName, Measured] = {}
        self.lacking: dict[TransportName, str] = {}

    def clear(self) -> None:
        """Empty the table that the transactions fill."""
        for server in {id(one.server): one.server for one in self.by_transport.values()}.values():
            server.sql("truncate bench_insert")

    def versions(self) -> dict[str, str]:
        """The server of each transport."""
        return {name: one.version for name, one in self.by_transport.items()}


@contextmanager
def servers(transports: Collection[TransportName], core: int | None) -> Generator[Servers]:
    """Start what these transports need, on that core, and leave nothing of it.

    Raises `PostgresNotFound` if there is no PostgreSQL at all.
    """
    running = Servers()
    with ExitStack() as stack:
        if {"unix", "tcp"}.intersection(transports):
            plain = _start(stack, find(), core)
            running.by_transport["tcp"] = plain
            directory = str(plain.server.log.parent)
            running.by_transport["unix"] = replace(plain, endpoint=replace(plain.endpoint, host=directory))
        if "tls" in transports:
            try:
                running.by_transport["tls"] = _start(stack, find(require_tls=True), core, tls=True)
            except (PostgresNotFound, ImportError) as missing:
                running.lacking["tls"] = str(missing)
        yield running


def _start(stack: ExitStack, binaries: Binaries, core: int | None, *, tls: bool = False) -> Measured:
    run = stack.enter_context(Run(binaries))
    (address,) = run.addresses(1)
    settings: Mapping[str, str] = {**_SETTINGS, "unix_socket_directories": str(run.path)}
    authority = Authority(run) if tls else None
    if authority is not None:
        settings = {**settings, **authority.settings(authority.issue(address[0]))}
    template = create_data(run, "template", setup=_SETUP, settings=settings)
    server = stack.enter_context(PostgresServer(run, "measured", address, template=template, settings=settings))
    server.start()
    if core is not None:
        for pid in server.pids():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(pid, {core})
    here = Member(server.host, server.port, Placement("cloud", "region", "zone"))
    server.sql(*topology.rewrite([here.row()]))
    endpoint = Endpoint(
        host=server.host,
        port=server.port,
        tcp_host=server.host,
        user=APPLICATION.name,
        database=USER.name,
        authority=None if authority is None else str(authority.root),
    )
    return Measured(server, endpoint, f"PostgreSQL {server.value('show server_version')} ({binaries.origin})")
