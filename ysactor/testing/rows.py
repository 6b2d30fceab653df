"""Rows and results as asyncpg hands them out. Its own record class cannot be made without a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


class Row:
    """One row: by position, by name, and iterable over its values, like `asyncpg.Record`."""

    __slots__ = ("_columns", "_values")

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._columns = tuple(row)
        self._values = tuple(row.values())

    def __getitem__(self, key: int | slice | str) -> Any:
        if not isinstance(key, str):
            return self._values[key]
        try:
            return self._values[self._columns.index(key)]
        except ValueError:
            raise KeyError(key) from None

    def get(self, key: str, default: Any = None) -> Any:
        """The value of this column, or the default where there is no such column."""
        return self[key] if key in self._columns else default

    def keys(self) -> Iterator[str]:
        """The columns' names."""
        return iter(self._columns)

    def values(self) -> Iterator[Any]:
        """The columns' values."""
        return iter(self._values)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names and values."""
        return zip(self._columns, self._values, strict=True)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, column: object) -> bool:
        return column in self._columns

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Row):
            return self._values == other._values
        return isinstance(other, tuple) and self._values == other

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return f"<Row {' '.join(f'{name}={value!r}' for name, value in self.items())}>"


@dataclass(frozen=True, slots=True)
class Result:
    """What one statement came to: its rows, and the command tag that `execute` returns."""

    rows: tuple[Row, ...] = ()
    tag: str = ""

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], tag: str | None = None) -> Result:
        """Rows from mappings; the tag is that of a SELECT unless given."""
        made = tuple(Row(row) for row in rows)
        return cls(made, f"SELECT {len(made)}" if tag is None else tag)


Rows: TypeAlias = Sequence[Mapping[str, Any]]
