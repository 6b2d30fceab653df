"""The data of a fake cluster: one table of keys and values, common to all its servers.

Every transaction is serializable: it sees what was committed when it first looked at a key, plus its own changes, and
its COMMIT fails with 40001 if a key it read or wrote was changed by another commit meanwhile.
"""

from __future__ import annotations

from typing import Any

from .pgerrors import error

_ABSENT: Any = object()


class Table:
    """What is committed. Read it in a test with `get` and `keys`; set the scene with `put`."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._versions: dict[str, int] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """The committed value of a key."""
        return self._values.get(key, default)

    def put(self, key: str, value: Any) -> None:
        """Commit a value, as another client would have."""
        self._values[key] = value
        self._versions[key] = self._versions.get(key, 0) + 1

    def delete(self, key: str) -> None:
        """Commit the absence of a key."""
        self._values.pop(key, None)
        self._versions[key] = self._versions.get(key, 0) + 1

    def keys(self) -> tuple[str, ...]:
        """The keys that have a committed value."""
        return tuple(self._values)

    def version(self, key: str) -> int:
        """How many commits have changed this key."""
        return self._versions.get(key, 0)

    def __contains__(self, key: str) -> bool:
        return key in self._values


class Changes:
    """One transaction's view of the table, and what it has changed. A savepoint is a `mark` to go back to."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._seen: dict[str, tuple[int, Any]] = {}
        self._written: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """The value this transaction sees."""
        value = self._written[key] if key in self._written else self._look(key)
        return default if value is _ABSENT else value

    def put(self, key: str, value: Any) -> None:
        """Change a value in this transaction."""
        self._look(key)
        self._written[key] = value

    def delete(self, key: str) -> None:
        """Remove a key in this transaction."""
        self.put(key, _ABSENT)

    def mark(self) -> dict[str, Any]:
        """The changes so far."""
        return dict(self._written)

    def go_back(self, mark: dict[str, Any]) -> None:
        """Undo what came after the mark. What was read stays read."""
        self._written = dict(mark)

    def commit(self) -> None:
        """Make the changes everybody's.

        Raises: 40001 (`asyncpg.SerializationError`) after a conflict; nothing is changed then.
        """
        for key, (version, _value) in self._seen.items():
            if self._table.version(key) != version:
                raise error("40001", "could not serialize access due to concurrent update")
        for key, value in self._written.items():
            if value is _ABSENT:
                self._table.delete(key)
            else:
                self._table.put(key, value)

    def _look(self, key: str) -> Any:
        if key not in self._seen:
            self._seen[key] = (self._table.version(key), self._table.get(key, _ABSENT))
        return self._seen[key][1]
