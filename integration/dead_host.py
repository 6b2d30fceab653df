"""A server whose host goes silent, in network namespaces of their own: run as a program, by ``test_dead_host``.

A proxy cannot play this part: its kernel goes on acknowledging what arrives. Here the client's packets go to a hardware
address that nobody has. One process has PostgreSQL on one end of a pair of virtual cables, its child the pool on the
other end. Needs Linux, `unshare` and `ip`, and no rights: the namespaces are the process's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

import ysactor
from ysactor.testing.postgres import Access, PostgresServer, Run, create_data
from ysactor.testing.postgres.configuration import ADMIN

SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
LIMIT = 30.0
TIMERS = {"tcp_keepalive_time": 1, "tcp_keepalive_intvl": 1, "tcp_keepalive_probes": 2}
"""Seconds of silence before the first probe, seconds between probes, and how many go unanswered: found in 3 s."""


class Trusting(Access):
    """Whoever comes by the cable."""

    def rules(self) -> str:
        return f"host all {ADMIN} all trust\nhost all all all trust\n"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=LIMIT)


def serve(case: str, transport: str) -> int:
    """The end with the server. Starts the other, and does to the server what that asks for."""
    ip("link", "set", "lo", "up")
    ip("link", "add", "server", "type", "veth", "peer", "name", "client")
    ip("address", "add", f"{SERVER}/24", "dev", "server")
    ip("link", "set", "server", "up")
    with Run() as run:
        template = create_data(run, "template")
        (_, port) = run.addresses(1)[0]
        with PostgresServer(run, "s", (SERVER, port), template=template, access=Trusting()) as server:
            server.start()
            command = [sys.executable, "-m", "integration.dead_host", "client", case, transport, str(port)]
            with subprocess.Popen(
                ["unshare", "--net", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as child:
                assert child.stdin is not None
                assert child.stdout is not None
                try:
                    for line in child.stdout:
                        match line.strip():
                            case "the cable":
                                ip("link", "set", "client", "netns", str(child.pid))
                            case "freeze":
                                server.freeze()
                            case result:
                                print(result)
                                continue
                        child.stdin.write("\n")
                        child.stdin.flush()
                finally:
                    server.thaw()
                    child.kill()
            return child.returncode


def ask(what: str) -> None:
    """Have the other end do something; returns when it has."""
    print(what, flush=True)
    sys.stdin.readline()


def set_kernel(values: Mapping[str, int]) -> None:
    """The kernel's own timers, of this network namespace only."""
    for name, value in values.items():
        Path("/proc/sys/net/ipv4", name).write_text(str(value))


def silence() -> None:
    """The server's host is gone without a word: what is sent to it arrives nowhere."""
    ip("neighbour", "replace", SERVER, "lladdr", "02:00:00:00:00:99", "dev", "client", "nud", "permanent")


async def lost_within(pool: ysactor.Pool, seconds: float) -> float | None:
    """How long it takes until the pool has found its connection dead; None if it has not."""
    began = trio.current_time()
    with trio.move_on_after(seconds):
        while not pool.statistics().connections_closed.get("lost"):  # noqa: ASYNC110
            await trio.sleep(0.02)
        return trio.current_time() - began
    return None


async def idle_with_timers(pool: ysactor.Pool) -> Mapping[str, Any]:
    """An idle connection, and keepalive with short timers."""
    silence()
    return {"found after": await lost_within(pool, 10)}


async def idle_without(pool: ysactor.Pool) -> Mapping[str, Any]:
    """An idle connection, and the system's own timers, which are hours."""
    server = await pool.fetchval("SHOW tcp_keepalives_idle")
    silence()
    return {"found after": await lost_within(pool, 4), "idle": pool.statistics().idle, "the server's": server}


async def used_without(pool: ysactor.Pool) -> Mapping[str, Any]:
    """A statement that is sent into the silence, and nothing that bounds it."""
    silence()
    with trio.move_on_after(4) as scope:
        await pool.fetch("SELECT 1")
    return {"hung": scope.cancelled_caught}


async def used_and_given_up(pool: ysactor.Pool) -> Mapping[str, Any]:
    """The same with a kernel that sends a statement again twice only, not for a quarter of an hour."""
    silence()
    began = trio.current_time()
    try:
        with trio.move_on_after(10):
            await pool.fetch("SELECT 1")
    except ysactor.ConnectionLost as loss:
        return {"lost": loss.reason, "after": trio.current_time() - began}
    return {}


async def waiting_with_timers(pool: ysactor.Pool) -> Mapping[str, Any]:
    """A statement that the server has, whose answer never comes: nothing is sent again, so keepalive finds out."""
    lost: dict[str, Any] = {}

    async def wait() -> None:
        began = trio.current_time()
        try:
            await pool.fetch("SELECT pg_sleep(20)")
        except ysactor.ConnectionLost as loss:
            lost.update({"lost": loss.reason, "after": trio.current_time() - began})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(0.5)
        silence()
    return lost


async def used_with_timeout(pool: ysactor.Pool) -> Mapping[str, Any]:
    """A statement that is sent into the silence, with `socket_timeout`."""
    silence()
    began = trio.current_time()
    try:
        await pool.fetch("SELECT 1")
    except ysactor.ConnectionLost as loss:
        return {"lost": loss.reason, "after": trio.current_time() - began}
    return {}


async def frozen_with_timers(pool: ysactor.Pool) -> Mapping[str, Any]:
    """A process that hangs on a machine that lives: its kernel answers the probes."""
    ask("freeze")
    return {"found after": await lost_within(pool, 5), "idle": pool.statistics().idle}


@dataclass(frozen=True, slots=True)
class Case:
    """What happens, under which timers of the kernel's, with which options."""

    run: Callable[[ysactor.Pool], Awaitable[Mapping[str, Any]]]
    kernel: Mapping[str, int] = field(default_factory=dict[str, int])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


CASES: Mapping[str, Case] = {
    "idle_with_timers": Case(idle_with_timers, TIMERS),
    "idle_without": Case(idle_without, options={"server_settings": {"tcp_keepalives_idle": "60"}}),
    "used_without": Case(used_without),
    "used_and_given_up": Case(used_and_given_up, {"tcp_retries2": 2}),
    "waiting_with_timers": Case(waiting_with_timers, TIMERS),
    "used_with_timeout": Case(used_with_timeout, options={"socket_timeout": 1}),
    "frozen_with_timers": Case(frozen_with_timers, TIMERS),
}


async def connect(case: str, transport: Any, port: int) -> None:
    """The end with the pool."""
    chosen = CASES[case]
    # Before it connects: a connection goes on with the timers it was opened under.
    set_kernel(chosen.kernel)
    with trio.fail_after(LIMIT):
        async with ysactor.open_pool(
            hosts=[(SERVER, port)],
            user="yugabyte",
            database="yugabyte",
            driver=transport,
            pool_size=1,
            connect_timeout=1,
            cancel_timeout=0,
            shutdown_timeout=0,
            **chosen.options,
        ) as pool:
            await pool.ready(1)
            print(json.dumps(await chosen.run(pool)), flush=True)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["client", case, transport, port]:
            ask("the cable")
            ip("link", "set", "lo", "up")
            ip("address", "add", f"{CLIENT}/24", "dev", "client")
            ip("link", "set", "client", "up")
            trio.run(connect, case, transport, int(port))
            return 0
        case [case, transport]:
            return serve(case, transport)
        case _:
            return os.EX_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
