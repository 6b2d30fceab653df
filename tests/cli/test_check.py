"""`ysactor check` on real servers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ysactor.cli import main
from ysactor.testing.postgres import (
    Access,
    Authority,
    PostgresNotFound,
    PostgresServer,
    Run,
    ThreeZones,
    create_data,
    find,
)

KEYS = "topology_keys=aws.us-east-1.us-east-1b:1,aws.us-east-1.us-east-1c:2"


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out)


def test_it_shows_the_servers_and_connects_where_it_said(zones: ThreeZones, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{zones.dsn(0)}?load_balance=true&{KEYS}"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    heading, _, _, first, second, third, _, end = shown.out.splitlines()
    assert heading == "yb_servers() lists 3 servers; load_balance=any, level 1 of topology_keys in use"
    assert first.startswith(str(zones.members[0]))
    assert first.endswith("no: not in topology_keys, and level 1 has a server")
    assert second.endswith("yes")
    assert third.endswith("no: level 2 waits until level 1 has no server")
    assert end.startswith(f"Connected to {zones.members[1]} (aws.us-east-1.us-east-1b) in ")
    assert end.endswith(", no TLS")


def test_options_as_flags_do_what_they_do_in_the_dsn(zones: ThreeZones, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["check", zones.dsn(0), "--load-balance", "any", "--topology-keys", "aws.us-east-1.us-east-1c", "--json"]
    assert main(argv) == 0
    assert told(capsys)["connection"]["host"] == zones.members[2].host  # type: ignore[index]


def test_a_server_that_is_down_is_left_out_and_the_next_level_is_used(
    zones: ThreeZones, capsys: pytest.CaptureFixture[str]
) -> None:
    zones.servers[1].kill()
    assert main(["check", f"{zones.dsn(0)}?load_balance=true&{KEYS}", "--json"]) == 0
    found = told(capsys)
    first, second, third = found["servers"]  # type: ignore[misc]
    assert [server["state"] for server in (first, second, third)] == ["up", "down", "up"]
    assert second["candidate"] is False
    assert "refused" in second["detail"]
    assert third["candidate"] is True
    assert (found["level"], found["connection"]["host"]) == (2, zones.members[2].host)  # type: ignore[index]


def test_sessions_of_others_are_counted(zones: ThreeZones, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection((zones.members[0].host, zones.members[0].port)) as other:
        name = b"user\0yugabyte\0database\0yugabyte\0\0"
        other.sendall((len(name) + 8).to_bytes(4, "big") + (3 << 16).to_bytes(4, "big") + name)
        other.recv(1)
        assert main(["check", zones.dsn(0), "--json"]) == 0
        (server,) = told(capsys)["servers"]  # type: ignore[misc]
    assert server["sessions"] == 1


def test_a_mode_without_a_server_ends_in_failure_and_says_of_what(
    zones: ThreeZones, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", zones.dsn(), "--load-balance", "only-rr"]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("takes read replicas only") == 3
    assert shown.out.splitlines()[-1] == "No connection: no read replica is available in the given placement"


def test_where_nothing_listens_every_host_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: connecting is refused
        port = held.getsockname()[1]
        assert main(["check", f"postgresql://u:s3cret@127.0.0.1:{port},localhost:{port}/d?load_balance=true"]) == 1
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "s3cret" not in shown.out
    rows = [line for line in shown.out.splitlines() if f":{port}  " in line]
    assert len(rows) == 2
    assert all("down" in row for row in rows)
    assert shown.out.splitlines()[-1].startswith("No connection: ")


def test_a_server_that_says_nothing_is_waited_for_no_longer_than_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        argv = ["check", f"postgresql://u@127.0.0.1:{port}/d", "--timeout", "0.3"]
        assert main([*argv, "--load-balance", "true"]) == 1
        shown = capsys.readouterr().out.splitlines()
        assert shown[-1] == "No connection: none was open after 0.3 s"
        assert shown[3].endswith("not known: there was no answer before the time was over")
        assert main([*argv, "--json"]) == 1
    (server,) = told(capsys)["servers"]  # type: ignore[misc]
    assert (server["state"], server["candidate"], server["reason"]) == ("?", None, "not known")


def test_a_server_that_opens_and_then_says_nothing_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Also if the check's time is over before it has said how many sessions it has."""
    welcome = b"R\0\0\0\x08\0\0\0\0" + b"S\0\0\0\x18server_version\x0017.0\0" + b"Z\0\0\0\x05I"

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                held.append(listener.accept()[0])
                held[-1].recv(1000)
                held[-1].sendall(welcome)

    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=serve, args=[silent], daemon=True).start()
        argv = ["check", f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d", "--timeout", "0.5", "--json"]
        main(argv)
        for client in held:
            client.close()
    (server,) = told(capsys)["servers"]  # type: ignore[misc]
    assert (server["state"], server["candidate"], server["sessions"]) == ("up", True, None)


@pytest.fixture(scope="module")
def locked() -> Iterator[PostgresServer]:
    """One server that wants passwords; not YugabyteDB; with TLS where there is a build with it."""
    try:
        with_tls = True
        binaries = find(require_tls=True)
    except PostgresNotFound:
        with_tls = False
        binaries = find()
    with Run(binaries) as run:
        (address,) = run.addresses(1)
        server = PostgresServer(
            run, "locked", address, template=create_data(run, "template"), access=Access("scram-sha-256")
        )
        if with_tls:
            authority = Authority(run)
            server.settings = authority.settings(authority.issue(server.host, "localhost"))
        with server:
            server.start()
            yield server


def test_a_wrong_password_is_a_rejection_and_is_not_shown(
    locked: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    dsn = f"postgresql://yugabyte:wr0ng@{locked.host}:{locked.port}/yugabyte"
    assert main(["check", dsn]) == 1
    shown = capsys.readouterr()
    assert "wr0ng" not in shown.out + shown.err
    assert "rejected" in shown.out
    assert "password authentication failed" in shown.out.splitlines()[-1]


def test_plain_postgresql_is_called_that(locked: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    dsn = f"postgresql://yugabyte:yugabyte@{locked.host}:{locked.port}/yugabyte"
    assert main(["check", dsn, "--load-balance", "true"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("there is no yb_servers(), so this is not YugabyteDB")
    assert "yes: the first host that works" in shown


def test_tls_is_told_from_a_plain_connection(locked: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    if "ssl" not in locked.settings:
        pytest.skip("no PostgreSQL with TLS was found")
    dsn = f"postgresql://yugabyte:yugabyte@{locked.host}:{locked.port}/yugabyte"
    assert main(["check", dsn, "--ssl", "require"]) == 0
    assert ", TLSv1." in capsys.readouterr().out.splitlines()[-1]
