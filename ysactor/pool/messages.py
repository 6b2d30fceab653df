"""What the pool's actor is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..connection.messages import ConnectionEvent
from ..servers import HostPort


@dataclass(frozen=True, slots=True)
class Wanted:
    """Somebody has joined the line, and the pool may have to grow."""

    leaves: bool = False
    """They do not wait, and will be gone when this is read: the pool grows for the next one."""


@dataclass(frozen=True, slots=True)
class RefillDue:
    """The pause after a failed opening is over."""


@dataclass(frozen=True, slots=True)
class RebalanceDue:
    """Time to close what has expired, and to move connections to where they should be."""


@dataclass(frozen=True, slots=True)
class ShrinkDue:
    """Time to look for connections that have been idle for too long."""


@dataclass(frozen=True, slots=True)
class FoundReadOnly:
    """A server that had refused a write was probed, and accepts none."""

    at: HostPort


@dataclass(frozen=True, slots=True)
class CloseLeased:
    """The pool is closing, and has waited long enough: end every lease that is still out."""


PoolMessage: TypeAlias = ConnectionEvent | Wanted | RefillDue | RebalanceDue | ShrinkDue | FoundReadOnly | CloseLeased
