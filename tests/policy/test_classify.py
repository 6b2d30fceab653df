"""What an error says, of a server and of the work."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

import asyncpg
import pytest
import trio

from ysactor.driver.protocol import Phase
from ysactor.errors import (
    CommitOutcomeUnknown,
    ConnectFailed,
    ConnectionLost,
    LeaseEnded,
    NoNodeAvailable,
    PoolClosed,
    TransactionAborted,
)
from ysactor.policy.classify import Verdict, classify, connect_kind, is_drivers, is_stale_plan
from ysactor.servers import HostPort, Kind


@pytest.mark.parametrize(
    ("phase", "sqlstate", "kind"),
    [
        (Phase.RESOLVE, None, Kind.UNREACHABLE),
        (Phase.CONNECT, None, Kind.UNREACHABLE),
        # A refusal to speak TLS, a failed check, a peer that closes inside the handshake.
        (Phase.TLS, None, Kind.REJECTED),
        (Phase.LOGIN, None, Kind.UNREACHABLE),
        (Phase.SETUP, None, Kind.UNREACHABLE),
        (Phase.LOGIN, "08001", Kind.UNREACHABLE),
        (Phase.LOGIN, "08004", Kind.REJECTED),
        (Phase.LOGIN, "08006", Kind.REJECTED),
        (Phase.LOGIN, "57P03", Kind.REJECTED),
        (Phase.LOGIN, "53300", Kind.REJECTED),
        (Phase.LOGIN, "28P01", Kind.REJECTED),
        (Phase.LOGIN, "28000", Kind.REJECTED),
        (Phase.LOGIN, "3D000", Kind.REJECTED),
        (Phase.SETUP, "57P03", Kind.REJECTED),
        (Phase.SETUP, "08001", Kind.UNREACHABLE),
    ],
)
def test_trap_14_what_a_failed_connect_says_of_its_server(phase: Phase, sqlstate: str | None, kind: Kind) -> None:
    assert connect_kind(phase, sqlstate) is kind


@pytest.mark.parametrize("phase", list(Phase))
def test_a_connect_that_ran_out_of_time_found_nobody_in_whatever_phase(phase: Phase) -> None:
    assert connect_kind(phase, None, timeout=True) is Kind.UNREACHABLE


def test_a_driver_that_will_not_go_on_is_a_rejection_once_there_is_a_socket() -> None:
    assert connect_kind(Phase.LOGIN, None, socket=False) is Kind.REJECTED
    assert connect_kind(Phase.SETUP, None, socket=False) is Kind.REJECTED
    assert connect_kind(Phase.RESOLVE, None, socket=False) is Kind.UNREACHABLE
    assert connect_kind(Phase.CONNECT, None, socket=False) is Kind.UNREACHABLE


AT = HostPort("h", 5433)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (asyncpg.SerializationError("x"), "retryable"),
        (asyncpg.DeadlockDetectedError("x"), "retryable"),
        (asyncpg.StatementCompletionUnknownError("x"), "other"),
        (asyncpg.QueryCanceledError("x"), "other"),
        (asyncpg.UniqueViolationError("x"), "other"),
        (asyncpg.TransactionResolutionUnknownError("x"), "other"),
        (asyncpg.ProtocolViolationError("x"), "other"),
        (asyncpg.AdminShutdownError("x"), "connection_lost"),
        (asyncpg.CrashShutdownError("x"), "connection_lost"),
        (asyncpg.CannotConnectNowError("x"), "connection_lost"),
        (asyncpg.ConnectionDoesNotExistError("x"), "connection_lost"),
        (asyncpg.ConnectionFailureError("x"), "connection_lost"),
        (asyncpg.ConnectionRejectionError("x"), "connection_lost"),
        (asyncpg.IdleInTransactionSessionTimeoutError("x"), "connection_lost"),
        (asyncpg.IdleSessionTimeoutError("x"), "connection_lost"),
        (asyncpg.InterfaceError("connection is closed"), "connection_lost"),
        (asyncpg.InterfaceError("cannot perform operation: connection is closed"), "connection_lost"),
        (asyncpg.InterfaceError("the underlying connection is closed"), "connection_lost"),
        (asyncpg.InterfaceError("cannot perform operation: another operation is in progress"), "other"),
        (asyncpg.InternalClientError("got result for unknown protocol state 3"), "connection_lost"),
        (asyncpg.InternalClientError("no binary format encoder for type x (OID 1)"), "other"),
        (ConnectionLost("socket_timeout", AT), "connection_lost"),
        (CommitOutcomeUnknown("socket_timeout", AT), "other"),
        (TransactionAborted(), "other"),
        (LeaseEnded(), "other"),
        (PoolClosed(), "other"),
        (NoNodeAvailable("cluster"), "other"),
        (ConnectFailed(AT, "unreachable", "x"), "other"),
        (ConnectionResetError("x"), "connection_lost"),
        (BrokenPipeError("x"), "connection_lost"),
        (OSError(errno.EHOSTUNREACH, "x"), "connection_lost"),
        (TimeoutError(errno.ETIMEDOUT, "x"), "connection_lost"),
        (asyncio.IncompleteReadError(b"", 1), "connection_lost"),
        (ssl.SSLEOFError("x"), "connection_lost"),
        (trio.BrokenResourceError("x"), "connection_lost"),
        # A call's own limit leaves a connection that may be as good as before; a file is none of ours.
        (TimeoutError("x"), "other"),
        (FileNotFoundError(errno.ENOENT, "x"), "other"),
        (socket.gaierror(socket.EAI_NONAME, "x"), "other"),
        (ssl.SSLCertVerificationError("x"), "other"),
        (ValueError("connection is closed"), "other"),
    ],
)
def test_what_an_error_means_to_whoever_would_run_the_work_again(error: Exception, verdict: Verdict) -> None:
    assert classify(error) == verdict


def test_an_error_without_a_class_of_its_own_is_known_by_its_sqlstate() -> None:
    error = asyncpg.PostgresError("conflict")
    error.sqlstate = "40001"

    assert classify(error) == "retryable"


def test_the_drivers_own_errors_are_told_from_bugs() -> None:
    assert is_drivers(asyncpg.UndefinedColumnError("x"))
    assert is_drivers(asyncpg.InterfaceError("x"))
    assert is_drivers(ConnectionLost("x"))
    assert not is_drivers(TypeError("x"))
    assert not is_drivers(OSError("x"))


def test_a_stale_plan_is_known_by_its_class() -> None:
    assert is_stale_plan(asyncpg.InvalidCachedStatementError("x"))
    assert is_stale_plan(asyncpg.OutdatedSchemaCacheError("x"))
    assert not is_stale_plan(asyncpg.FeatureNotSupportedError("x"))
