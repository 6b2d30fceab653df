"""What happened in a fake cluster: who was dialled, logged in to, asked, told to cancel and closed, and when.

Records are frozen and in order; times are Trio's clock. A claim such as "a server that is down is never dialled" is one
look at `Journal.dials`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..servers import HostPort


@dataclass(frozen=True, slots=True)
class Dialled:
    """A connection was begun. Nothing is said of how far it came."""

    time: float
    server: HostPort
    """The server that is there, or what was dialled where no server is."""
    dialled: HostPort
    """What the client asked for: the host, the public address, or a name that stands for either."""


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A session is open."""

    time: float
    server: HostPort
    pid: int
    application_name: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A statement reached the server's socket. A server that hangs has not read it yet."""

    time: float
    server: HostPort
    pid: int
    sql: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A cancel request reached the server for the session with this pid."""

    time: float
    server: HostPort
    pid: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A session's connection is gone."""

    time: float
    server: HostPort
    pid: int
    by: Literal["client", "server"]
    reason: str


Record: TypeAlias = Dialled | LoggedIn | Asked | CancelRequested | Closed


class Journal:
    """The records of one cluster, oldest first. Iterating or `len` gives all of them.

    The queries take a server as a `FakeServer`, a `HostPort` or ``"host:port"``; None means every server.
    """

    def __init__(self) -> None:
        self._records: list[Record] = []

    def add(self, record: Record) -> None:
        """Write a record. The cluster does; a test has no reason to."""
        self._records.append(record)

    def clear(self) -> None:
        """Forget what is past, so that a test's next question is about what it does next."""
        self._records.clear()

    def since(self, time: float) -> tuple[Record, ...]:
        """The records from this time on."""
        return tuple(record for record in self._records if record.time >= time)

    def dials(self, server: object = None) -> tuple[Dialled, ...]:
        """Every attempt to connect, cancel requests not included."""
        return tuple(r for r in self._at(server) if isinstance(r, Dialled))

    def logins(self, server: object = None) -> tuple[LoggedIn, ...]:
        """Every session that was opened."""
        return tuple(r for r in self._at(server) if isinstance(r, LoggedIn))

    def asked(self, server: object = None) -> tuple[Asked, ...]:
        """Every statement."""
        return tuple(r for r in self._at(server) if isinstance(r, Asked))

    def statements(self, server: object = None) -> tuple[str, ...]:
        """The texts of `asked`."""
        return tuple(r.sql for r in self.asked(server))

    def cancels(self, server: object = None) -> tuple[CancelRequested, ...]:
        """Every cancel request."""
        return tuple(r for r in self._at(server) if isinstance(r, CancelRequested))

    def closes(self, server: object = None) -> tuple[Closed, ...]:
        """Every session that ended."""
        return tuple(r for r in self._at(server) if isinstance(r, Closed))

    def _at(self, server: object) -> Iterator[Record]:
        return (r for r in self._records if server is None or str(r.server) == str(server))

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<Journal of {len(self._records)} records>"
