"""COPY of the fake: what may be read from and written to, and how a record looks as a line of text."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, cast


def key(table: str, schema: str | None) -> str:
    """The key of the cluster's table under which the lines copied to this table are kept."""
    return f"copy:{schema}.{table}" if schema else f"copy:{table}"


def line(record: Iterable[Any]) -> bytes:
    """A record in COPY's text format."""
    return ("\t".join(r"\N" if value is None else str(value) for value in record) + "\n").encode()


async def lines(records: Iterable[Sequence[Any]] | AsyncIterable[Sequence[Any]]) -> AsyncIterator[bytes]:
    """Records as text."""
    if isinstance(records, AsyncIterable):
        async for record in records:
            yield line(record)
    else:
        for record in records:
            yield line(record)


async def read(source: Any) -> AsyncIterator[bytes]:
    """The bytes of a path, a file object, an async iterable, or a bytes-like object."""
    if (path := _path(source)) is not None:
        yield path.read_bytes()
    elif hasattr(source, "read"):
        yield source.read()
    elif hasattr(source, "__aiter__"):
        async for chunk in source:
            yield bytes(chunk)
    else:
        yield bytes(source)


async def write(output: Any, lines: Iterable[bytes]) -> str:
    """Write to a path, a file object or an async function; the command tag."""
    count = 0
    if (path := _path(output)) is not None:
        written = list(lines)
        path.write_bytes(b"".join(written))
        return f"COPY {len(written)}"
    for each in lines:
        if hasattr(output, "write"):
            output.write(each)
        else:
            await output(each)
        count += 1
    return f"COPY {count}"


def _path(place: Any) -> Path | None:
    """The file that is meant. It is read and written at once: a clock that jumps would not wait for a thread."""
    if not isinstance(place, str | bytes) and not hasattr(place, "__fspath__"):
        return None
    return Path(os.fsdecode(cast("str | bytes", os.fspath(place))))
