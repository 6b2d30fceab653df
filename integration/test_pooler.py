"""Behind PgBouncer in transaction mode: one connection, and for each transaction another session of the server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import ysactor
from integration.scenario import until
from ysactor.testing.postgres import ThreeZones

BACKENDS = 2
"""How many server sessions the pooler shares among all its clients."""


@pytest.fixture
def pooler(three_zones: ThreeZones, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DSN of a PgBouncer before one server."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("there is no PgBouncer on this machine")
    server = three_zones.servers[0]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    folder = tmp_path_factory.mktemp("pooler")
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"""[databases]
* = host={server.host} port={server.port} user=yugabyte
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {BACKENDS}
max_client_conn = 50
"""
    )
    as_nobody = ["-u", "nobody"] if os.geteuid() == 0 else []
    for path in [settings, folder, *folder.parents[:2]]:
        path.chmod(0o755)
    log = Path(folder / "log").open("wb")  # noqa: SIM115  it is open as long as the process
    process = subprocess.Popen([program, *as_nobody, str(settings)], stdout=log, stderr=log)
    try:
        yield f"postgresql://yugabyte@127.0.0.1:{port}/yugabyte"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(5)
        log.close()


async def until_it_answers(pool: ysactor.Pool) -> None:
    async def answers() -> bool:
        try:
            return await pool.fetchval("SELECT 1") == 1
        except ysactor.ConnectFailed:
            return False

    await until(answers, "the pooler answers")
    await pool.ready(10, timeout=10)


async def test_without_named_statements_everything_works(pooler: str) -> None:
    """C58."""
    options = {"pool_size": 10, "asyncpg_options": {"statement_cache_size": 0}}

    async def work(pool: ysactor.Pool, number: int) -> None:
        for _ in range(20):
            assert await pool.fetchval("SELECT $1::int", number) == number

            async def fn(conn: ysactor.Connection) -> int:
                first = await conn.fetchval("SELECT pg_backend_pid()")
                assert await conn.fetchval("SELECT pg_backend_pid()") == first
                return int(await conn.fetchval("SELECT $1::int + 1", number))

            assert await pool.transaction(fn) == number + 1

    async with ysactor.open_pool(pooler, **options) as pool:
        await until_it_answers(pool)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(work, pool, number)
        assert pool.statistics().connections_closed == {}
        # Clients that die in the middle leave nothing that the next ones would meet.
        with trio.move_on_after(0.2):
            async with ysactor.open_pool(pooler, **options) as doomed, trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(doomed.fetchval, "SELECT pg_sleep(5) IS NULL AND $1::int = 1", 1)
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(work, pool, number)
        assert pool.statistics().connections_closed == {}


async def test_named_statements_that_are_not_there_are_statement_errors_and_cost_no_connection(pooler: str) -> None:
    """C58: what a pooler that knows no prepared statements answers is the statement's error, not the connection's."""
    errors: list[BaseException] = []

    async def ask(pool: ysactor.Pool, number: int) -> None:
        for _ in range(20):
            try:
                await pool.fetchval("SELECT $1::int", number)
            except Exception as error:
                errors.append(error)

    async with ysactor.open_pool(pooler, pool_size=10) as pool:
        await until_it_answers(pool)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, pool, number)
        states = {getattr(error, "sqlstate", None) for error in errors}
        assert states <= {"26000", "42P05"}
        assert {ysactor.classify(error) for error in errors} <= {"other"}
        assert pool.statistics().connections_closed == {}
        assert pool.statistics().connections_opened == 10
