"""What a connection's actor is told, and what it tells the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import ConnectFailed, Error, NoNodeAvailable


@dataclass(frozen=True, slots=True)
class Settle:
    """A caller left a call before its end: have the server stop it, and make the session usable again."""


@dataclass(frozen=True, slots=True)
class Undo:
    """A holder left a transaction open, or a statement half sent, and could not wait: send this, on its behalf."""

    sql: str


@dataclass(frozen=True, slots=True)
class Unlisten:
    """A holder's listeners outlive its lease: take them off."""

    listeners: tuple[tuple[str, Any], ...]
    """Each channel, and the driver's callback on it."""
    channels: tuple[str, ...]
    """Those of which the driver does not know whether the server still listens: LISTEN or UNLISTEN was cancelled."""


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """The server says that the transaction is read-only (25006), and the holder did not ask for one that is."""


@dataclass(frozen=True, slots=True)
class Examine:
    """Nobody holds the connection: ask it whether it accepts writes."""


@dataclass(frozen=True, slots=True)
class Close:
    """Say goodbye to the server and end."""

    reason: str
    """One of the words that `connections_closed` counts by."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The socket is gone (sent by the session's own event)."""

    reason: str


ConnectionMessage: TypeAlias = Settle | Undo | Unlisten | WriteRefused | Examine | Close | Lost


@dataclass(frozen=True, slots=True)
class Opened:
    """The connection is open and nobody's yet."""

    number: int


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """No server could be connected to. The actor has ended."""

    number: int
    error: ConnectFailed | NoNodeAvailable | Error


@dataclass(frozen=True, slots=True)
class Settled:
    """What the last holder left is put right; the connection may be used, or handed out, again."""

    number: int


@dataclass(frozen=True, slots=True)
class Doubted:
    """Its server has refused a write, and may not be the one that was asked for any more."""

    number: int


@dataclass(frozen=True, slots=True)
class IsReadOnly:
    """It was asked, and accepts no writes: it is marked to be closed. Others to the same address may be as old."""

    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The socket is gone. The actor has ended."""

    number: int
    reason: str


ConnectionEvent: TypeAlias = Opened | OpenFailed | Settled | Doubted | IsReadOnly | Ended
