"""One bed of each kind for the whole session, built when a test first asks for it, made as new after each test.

``three_zones``, ``shared_data``, ``replicated``, ``tls_server``, ``postgres_docker`` and ``yugabyte_docker`` are one
bed each. ``bed`` runs a test on every kind that has what it ``needs``::

    @pytest.mark.needs("yb-servers", "freeze")
    async def test_…(bed): ...

The Docker beds are skipped where no engine answers, with the reason; naming one in ``YSACTOR_REQUIRE_BED`` (several
with commas) turns its skip into a failure.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import pytest
import trio
from pytest_trio import trio_fixture

from integration import docker_beds
from ysactor.testing import postgres
from ysactor.testing.postgres import (
    Authority,
    Backing,
    Bed,
    Capability,
    PostgresNotFound,
    PostgresServer,
    Replicated,
    Run,
    SharedData,
    ThreeZones,
    create_data,
    find,
    open_shared_data,
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): what the fixture `bed` must be able to do")


@dataclass(frozen=True, slots=True)
class TlsServer:
    """A server that offers TLS, by a certificate for its address, and the authority that issued it."""

    server: PostgresServer
    authority: Authority


def _lacking(name: str, reason: str) -> NoReturn:
    """Skip, or fail if this bed was said to be required."""
    required = os.environ.get("YSACTOR_REQUIRE_BED", "").replace(",", " ").split()
    if name in required:
        pytest.fail(f"{name} is required, but: {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}")


class Stage:
    """The session's beds. Each is built when first asked for; those never asked for cost nothing."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    @cached_property
    def three_zones(self) -> ThreeZones:
        return self._stack.enter_context(postgres.three_zones())

    @cached_property
    def backing(self) -> Backing:
        return self._stack.enter_context(postgres.backing())

    @cached_property
    def replicated(self) -> Replicated:
        return self._stack.enter_context(postgres.replicated())

    @cached_property
    def tls_server(self) -> TlsServer | str:
        """Or why there is none."""
        try:
            binaries = find(require_tls=True)
        except PostgresNotFound as missing:
            return str(missing)
        run = self._stack.enter_context(Run(binaries))
        (address,) = run.addresses(1)
        server = PostgresServer(run, "tls-server", address, template=create_data(run, "template"))
        self._stack.enter_context(server)
        return TlsServer(server, Authority(run))

    @cached_property
    def _docker(self) -> str | None:
        return docker_beds.docker_engine()

    @cached_property
    def postgres_docker(self) -> docker_beds.PostgresDocker | str:
        return self._docker or self._stack.enter_context(docker_beds.postgres_docker())

    @cached_property
    def yugabyte_docker(self) -> docker_beds.YugabyteDocker | str:
        return self._docker or self._stack.enter_context(docker_beds.yugabyte_docker())


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack)


@pytest.fixture
def three_zones(stage: Stage) -> Iterator[ThreeZones]:
    yield stage.three_zones
    stage.three_zones.reset()


@pytest.fixture
def replicated(stage: Stage) -> Iterator[Replicated]:
    yield stage.replicated
    stage.replicated.reset()


@trio_fixture
async def shared_data(stage: Stage) -> AsyncIterator[SharedData]:
    async with open_shared_data(stage.backing) as bed:
        yield bed
    await trio.to_thread.run_sync(stage.backing.reset)


@pytest.fixture
def tls_server(stage: Stage) -> Iterator[TlsServer]:
    """Afresh for each test: the server's own settings and certificate, trust for all, plain sessions too."""
    found = stage.tls_server
    if isinstance(found, str):
        _lacking("tls-server", found)
    server = found.server
    server.settings = found.authority.settings(found.authority.issue(server.host, "localhost"), ask_clients=True)
    server.access = postgres.Access()
    server.start()
    yield found
    server.recreate()


@pytest.fixture
def postgres_docker(stage: Stage) -> Iterator[docker_beds.PostgresDocker]:
    found = stage.postgres_docker
    if isinstance(found, str):
        _lacking("postgres-docker", found)
    yield found
    found.reset()


@pytest.fixture
def yugabyte_docker(stage: Stage) -> Iterator[docker_beds.YugabyteDocker]:
    found = stage.yugabyte_docker
    if isinstance(found, str):
        _lacking("yugabyte-docker", found)
    yield found
    found.reset()


_CAPABILITIES: Mapping[str, frozenset[Capability]] = {
    kind.name: kind.capabilities
    for kind in (ThreeZones, SharedData, Replicated, docker_beds.PostgresDocker, docker_beds.YugabyteDocker)
}
_BUILD: Mapping[str, Callable[[Stage], Bed | Backing | str]] = {
    "three-zones": lambda stage: stage.three_zones,
    "shared-data": lambda stage: stage.backing,
    "replicated": lambda stage: stage.replicated,
    "postgres-docker": lambda stage: stage.postgres_docker,
    "yugabyte-docker": lambda stage: stage.yugabyte_docker,
}


@pytest.fixture(params=list(_CAPABILITIES))
def bed_or_backing(request: pytest.FixtureRequest, stage: Stage) -> Bed | Backing:
    """What ``bed`` is made from; skips before anything is built."""
    name: str = request.param
    needed = {capability for mark in request.node.iter_markers("needs") for capability in mark.args}
    if missing := sorted(needed - _CAPABILITIES[name]):
        pytest.skip(f"{name} lacks {', '.join(missing)}")
    found = _BUILD[name](stage)
    if isinstance(found, str):
        _lacking(name, found)
    return found


@trio_fixture
async def bed(bed_or_backing: Bed | Backing) -> AsyncIterator[Bed]:
    if isinstance(bed_or_backing, Backing):
        async with open_shared_data(bed_or_backing) as shared:
            yield shared
        await trio.to_thread.run_sync(bed_or_backing.reset)
        return
    yield bed_or_backing
    await trio.to_thread.run_sync(bed_or_backing.reset)
