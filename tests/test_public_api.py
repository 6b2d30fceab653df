"""The public surface: what is exported, documented and typed."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

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


AT = ysactor.HostPort("10.0.0.1", 5433)
ERRORS: list[Exception] = [
    ysactor.Error("anything"),
    ysactor.ConfigurationError(["port: expected an integer", "user: expected text"]),
    ysactor.PoolClosed(),
    ysactor.PoolOverloaded(3),
    ysactor.CheckoutTimeout(1.5, "2 of 2 are in use", ValueError("the last")),
    ysactor.NoNodeAvailable("read_replica"),
    ysactor.ConnectFailed(AT, "rejected", "no such user"),
    ysactor.ConnectionLost("socket_timeout", AT),
    ysactor.CommitOutcomeUnknown("closed by the server", AT),
    ysactor.TransactionAborted(),
    ysactor.TransactionEnded(),
    ysactor.LeaseEnded(),
    ysactor.LeaseExpired("held for too long"),
    ysactor.RestartLimit("failed 4 times"),
    ysactor.Rollback({"a": [1]}),
]


def pickled(error: Exception) -> Any:
    return pickle.loads(pickle.dumps(error))


def test_every_error_is_among_those_that_are_copied() -> None:
    public = {thing for thing in vars(ysactor).values() if inspect.isclass(thing) and issubclass(thing, Exception)}
    assert public == {type(error) for error in ERRORS}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled], ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_copied_error_is_the_same_in_type_text_and_attributes(
    error: Exception, copied: Callable[[Exception], Any]
) -> None:
    error.add_note("seen in the nightly run")
    again = copied(error)
    assert again is not error
    assert type(again) is type(error)
    assert (str(again), repr(again), again.args) == (str(error), repr(error), error.args)
    assert vars(again) == vars(error)
    assert again.__notes__[-1] == "seen in the nightly run"


def test_an_application_may_derive_an_error_with_arguments_of_its_own() -> None:
    again = copy.copy(Derived(AT, code=7))
    assert (type(again), again.code, again.server, str(again)) == (
        *(Derived, 7, AT),
        "server 10.0.0.1:5433 turned the connection away: code 7",
    )


class Derived(ysactor.ConnectFailed):
    def __init__(self, server: ysactor.HostPort, *, code: int) -> None:
        self.code = code
        super().__init__(server, "rejected", f"code {code}")
