"""An open transaction of a fake session: its changes, its savepoints, and what COMMIT will send."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .pgerrors import error
from .table import Changes

Kind: TypeAlias = Literal["block", "string", "single"]
"""How a transaction came about: by BEGIN, for a query string of several statements, or for a single statement."""


@dataclass(eq=False, slots=True)
class Transaction:
    """An open transaction."""

    changes: Changes
    kind: Kind
    read_only: bool = False
    failed: bool = False
    notifications: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _savepoints: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])

    def save(self, name: str) -> None:
        """SAVEPOINT."""
        self._savepoints.append((name, self.changes.mark()))

    def release(self, name: str) -> None:
        """RELEASE SAVEPOINT. Raises: 3B001."""
        del self._savepoints[self._find(name) :]

    def go_back(self, name: str) -> None:
        """ROLLBACK TO SAVEPOINT; a failed transaction is whole again. Raises: 3B001."""
        at = self._find(name)
        self.changes.go_back(self._savepoints[at][1])
        del self._savepoints[at + 1 :]
        self.failed = False

    def _find(self, name: str) -> int:
        for index in reversed(range(len(self._savepoints))):
            if self._savepoints[index][0] == name:
                return index
        self.failed = True
        raise error("3B001", f'savepoint "{name}" does not exist')
