"""The public surface: what is exported, documented and typed."""

from __future__ import annotations

import inspect

import pytest

import ysactor
import ysactor.testing

CONTRACT = {
    "open_pool", "run_pool", "open_cluster", "classify", "Rollback",
    "Error", "ConfigurationError", "PoolClosed", "PoolOverloaded", "CheckoutTimeout", "NoNodeAvailable",
    "ConnectFailed", "ConnectionLost", "CommitOutcomeUnknown", "TransactionAborted", "LeaseEnded", "LeaseExpired",
    "RestartLimit", "Server",
}  # fmt: skip
POOL = {
    "fetch", "fetchrow", "fetchval", "execute", "executemany", "acquire", "checkout", "checkin", "discard",
    "transaction", "ready", "statistics", "cluster", "aclose",
}  # fmt: skip
CONNECTION = {
    "fetch", "fetchrow", "fetchval", "execute", "executemany", "prepare", "cursor", "transaction", "copy_to_table",
    "copy_from_table", "copy_from_query", "copy_records_to_table", "add_listener", "remove_listener", "set_type_codec",
    "set_builtin_type_codec", "is_in_transaction", "get_server_pid", "get_server_version", "get_settings", "server",
    "raw",
}  # fmt: skip


def test_what_programs_are_written_against_is_there() -> None:
    assert set(ysactor.__all__) >= CONTRACT
    assert all(hasattr(ysactor, name) for name in ysactor.__all__)
    assert {name for name in dir(ysactor.Pool) if not name.startswith("_")} >= POOL
    assert {name for name in dir(ysactor.Connection) if not name.startswith("_")} >= CONNECTION
    assert {name for name in dir(ysactor.Cluster) if not name.startswith("_")} >= {"info", "refresh", "connect"}


@pytest.mark.parametrize("name", sorted(set(ysactor.__all__) - {"__version__"}))
def test_everything_public_is_documented(name: str) -> None:
    thing = getattr(ysactor, name)
    if name == "NodeType":
        return  # an alias has no docstring of its own
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        for attribute, value in vars(thing).items():
            if not attribute.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{attribute}"


def test_errors_show_the_name_they_are_imported_by() -> None:
    errors = [thing for thing in vars(ysactor).values() if inspect.isclass(thing) and issubclass(thing, Exception)]
    assert all(error.__module__ == "ysactor" for error in errors)
    assert all(issubclass(error, ysactor.Error) for error in errors if error is not ysactor.Rollback)


def test_errors_are_what_callers_of_the_standard_kind_catch() -> None:
    assert issubclass(ysactor.ConfigurationError, ValueError)
    assert issubclass(ysactor.CheckoutTimeout, TimeoutError)
    assert not issubclass(ysactor.CommitOutcomeUnknown, ysactor.ConnectionLost)
