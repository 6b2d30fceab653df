"""asyncpg's own exception classes, made without a server. The only file of the fake that needs asyncpg installed."""

from __future__ import annotations

import importlib
from typing import Any


def _exceptions() -> Any:
    # Loaded when the first error is needed: a suite that only counts connections should not wait for asyncpg.
    return importlib.import_module("asyncpg.exceptions")


def error(sqlstate: str, message: str = "", *, severity: str = "ERROR") -> Exception:
    """The exception asyncpg raises for a server's error with this SQLSTATE.

    It is what `FakeServer.answer` and `FakeServer.reject` take, and what the code under test will catch.
    """
    fields = {"S": severity, "V": severity, "C": sqlstate, "M": message or f"scripted error {sqlstate}"}
    made: Exception = _exceptions().PostgresError.new(fields)
    return made


def stale_plan() -> Exception:
    """A server's refusal of a statement that was prepared before the schema changed."""
    # The name of the server's function is what asyncpg knows it by.
    fields = {"S": "ERROR", "V": "ERROR", "C": "0A000", "R": "RevalidateCachedQuery"}
    made: Exception = _exceptions().PostgresError.new({**fields, "M": "cached plan must not change result type"})
    return made


def outdated_type() -> Exception:
    """What asyncpg raises of a row with a type that has changed since it asked for it: the statement has been run."""
    made: Exception = _exceptions().OutdatedSchemaCacheError("unexpected number of attributes of composite type")
    return made


def interface_error(message: str) -> Exception:
    """asyncpg's complaint about how it is used."""
    made: Exception = _exceptions().InterfaceError(message)
    return made


def connection_gone() -> Exception:
    """What asyncpg raises from a call whose connection ends under it."""
    made: Exception = _exceptions().ConnectionDoesNotExistError("connection was closed in the middle of operation")
    return made


def is_server_error(exception: BaseException) -> bool:
    """Whether a server would have sent it, so that it fails the transaction it happens in."""
    return isinstance(exception, _exceptions().PostgresError)
