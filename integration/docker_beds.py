"""The beds made of containers: PostgreSQL and YugabyteDB. Need a Docker engine and ``testcontainers``.

Containers get fixed addresses in a network of their own, because ``yb_servers()`` tells those to the clients and a
container started again would otherwise be given another one. A Linux host reaches them over the bridge; Docker Desktop
has no route to them.
"""

from __future__ import annotations

import gc
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from ysactor.testing.postgres import ServerFailed, ServerRow, SqlError, topology, wire
from ysactor.testing.postgres.bed import Capability, Dialled, Member
from ysactor.testing.postgres.configuration import ADMIN, USER
from ysactor.testing.postgres.three_zones import CLEAN
from ysactor.testing.postgres.topology import Placement

if TYPE_CHECKING:
    from docker.models.containers import Container
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.network import Network

POSTGRES_IMAGE = "postgres:18"
YUGABYTE_IMAGE = "yugabytedb/yugabyte:2026.1.2.0-b137"

_FIRST_HOST = 11
_SUBNET_TRIES = 10


def docker_engine() -> str | None:
    """Why containers cannot be used here, or None when they can."""
    with warnings.catch_warnings():
        # The client leaves its socket to the garbage collector when nobody listens at the other end.
        warnings.simplefilter("ignore", ResourceWarning)
        reason = _probe()
        gc.collect()
    return reason


def _probe() -> str | None:
    try:
        import docker
        import testcontainers.core.container  # noqa: F401 - only whether it is there
    except ImportError as missing:
        return f"not installed: {missing.name}"
    try:
        client = docker.from_env(timeout=10)
    except docker.errors.DockerException as error:
        return f"no Docker engine answers: {error}"
    try:
        system = client.info().get("OperatingSystem", "")
    except (docker.errors.DockerException, OSError) as error:
        return f"no Docker engine answers: {error}"
    finally:
        client.close()
    return f"{system} has no route to its containers' addresses" if "Docker Desktop" in system else None


@contextmanager
def _network() -> Iterator[tuple[Network, list[str]]]:
    """A network and the addresses to give out in it."""
    import docker
    from docker.types import IPAMConfig, IPAMPool
    from testcontainers.core.network import Network

    for attempt in range(_SUBNET_TRIES):
        prefix = f"10.{random.randrange(64, 128)}.{random.randrange(256)}"
        ipam = IPAMConfig(pool_configs=[IPAMPool(subnet=f"{prefix}.0/24")])
        network = Network(docker_network_kw={"ipam": ipam})
        try:
            network.create()
        except docker.errors.APIError:
            # Most likely the range is in use; any other cause shows again in the last attempt.
            if attempt == _SUBNET_TRIES - 1:
                raise
            continue
        try:
            yield network, [f"{prefix}.{number}" for number in range(_FIRST_HOST, 255)]
        finally:
            network.remove()
        return


def _at(container: DockerContainer, network: Network, address: str) -> DockerContainer:
    """Give the container that address. Replaces what ``with_network`` would pass on, which has no place for one."""
    endpoint = container.get_docker_client().client.api.create_endpoint_config(ipv4_address=address)
    return container.with_kwargs(network=network.name, networking_config={network.name: endpoint})


def _until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    limit = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > limit:
            raise ServerFailed(f"{what}: not within {timeout} s")
        time.sleep(0.2)


class DockerBed(Dialled):
    """What the container beds have in common: kill, start, freeze and thaw are the engine's own."""

    user = USER.name
    start_limit = 60.0

    def __init__(self, containers: Sequence[DockerContainer], members: Sequence[Member]) -> None:
        super().__init__(members)
        self.containers = [container.get_wrapped_container() for container in containers]

    def sql(self, index: int, *statements: str) -> list[wire.Row]:
        """Run statements on one server, each by itself; the rows of the last, as text."""
        member = self.members[index]
        return wire.query(
            member.host, member.port, *statements, user=self.user, database=USER.name, timeout=self.start_limit
        )

    def answers(self, index: int) -> bool:
        """The server takes sessions and runs a query, which YugabyteDB may not do for a while after it takes them."""
        try:
            return self.sql(index, "select 1") == [("1",)]
        except (OSError, SqlError):
            return False

    def _state(self, index: int) -> str:
        container: Container = self.containers[index]
        container.reload()
        return str(container.status)

    def bring_up(self, index: int) -> None:
        """Whatever its state is; returns when it runs queries."""
        match self._state(index):
            case "paused":
                self.containers[index].unpause()
            case "running":
                pass
            case _:
                self.containers[index].start()
        _until(partial(self.answers, index), self.start_limit, f"{self.members[index]} runs queries")

    async def kill(self, index: int) -> None:
        await trio.to_thread.run_sync(self.containers[index].kill)

    async def start(self, index: int) -> None:
        await trio.to_thread.run_sync(self.bring_up, index)

    async def freeze(self, index: int) -> None:
        await trio.to_thread.run_sync(self.containers[index].pause)

    async def thaw(self, index: int) -> None:
        await trio.to_thread.run_sync(self.containers[index].unpause)

    async def sessions(self, index: int, application_name: str) -> int:
        counted = f"select count(*) from pg_stat_activity where application_name = {wire.quote(application_name)}"
        ((found, *_),) = await trio.to_thread.run_sync(self.sql, index, counted)
        return int(found or 0)

    def end_sessions(self, index: int) -> None:
        """Of all clients but this one."""
        others = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        terminate = f"select pg_terminate_backend(pid) {others}"
        _until(lambda: not self.sql(index, terminate), self.start_limit, "sessions end")


class PostgresDocker(DockerBed):
    """Independent PostgreSQL servers in containers, each with a ``yb_servers()`` over a table of its own."""

    name = "postgres-docker"
    capabilities: frozenset[Capability] = frozenset({"yb-servers", "topology-edit", "topology-per-server", "freeze"})
    detect_s = 2.0
    user = ADMIN

    def write_topology(self, rows: Sequence[ServerRow], *, on: Iterable[int] | None = None) -> None:
        """``set_topology`` without Trio."""
        running = [index for index in range(len(self.members)) if self._state(index) == "running"]
        for index in running if on is None else on:
            self.sql(index, *topology.rewrite(rows))

    async def set_topology(self, rows: Sequence[ServerRow], *, on: Iterable[int] | None = None) -> None:
        await trio.to_thread.run_sync(partial(self.write_topology, rows, on=on))

    def reset(self) -> None:
        for index in range(len(self.members)):
            self.bring_up(index)
            self.end_sessions(index)
            self.sql(index, *CLEAN)
        self.write_topology(self.rows())


class YugabyteDocker(DockerBed):
    """A YugabyteDB cluster, one node to a zone, with its own ``yb_servers()``."""

    name = "yugabyte-docker"
    capabilities: frozenset[Capability] = frozenset({"yb-servers", "shared-data", "freeze", "yugabyte"})
    # The masters call a silent tserver dead after tserver_unresponsive_timeout_ms, 60 s by default.
    detect_s = 75.0
    start_limit = 180.0

    async def set_topology(self, rows: Sequence[ServerRow], *, on: Iterable[int] | None = None) -> None:
        """Raises ValueError: the cluster alone says what it consists of."""
        raise ValueError("the topology of a real cluster cannot be edited")

    def sees_all(self, index: int) -> bool:
        """Its ``yb_servers()`` lists every node."""
        try:
            return {host for (host,) in self.sql(index, "select host from yb_servers()")} == {
                member.host for member in self.members
            }
        except (OSError, SqlError):
            return False

    def reset(self) -> None:
        for index in range(len(self.members)):
            self.bring_up(index)
        for index in range(len(self.members)):
            _until(partial(self.sees_all, index), self.start_limit, f"{self.members[index]} lists all nodes")
            self.end_sessions(index)
        # DDL is not transactional here by default, and one of the statements may meet a schema not yet there.
        for statement in CLEAN[-1].split("; "):
            self.sql(0, statement)


@contextmanager
def postgres_docker(count: int = 3) -> Iterator[PostgresDocker]:
    """Build the bed, and remove its containers and network at the end."""
    from testcontainers.core.container import DockerContainer

    with ExitStack() as stack:
        network, addresses = stack.enter_context(_network())
        places = topology.three_zones(count)
        members = [Member(address, 5432, place) for address, place in zip(addresses, places, strict=False)]
        containers: list[DockerContainer] = []
        for member in members:
            container = DockerContainer(POSTGRES_IMAGE).with_envs(
                POSTGRES_USER=ADMIN, POSTGRES_DB=USER.name, POSTGRES_HOST_AUTH_METHOD="trust"
            )
            containers.append(stack.enter_context(_at(container, network, member.host)))
        bed = PostgresDocker(containers, members)
        for index in range(count):
            bed.bring_up(index)
            bed.sql(
                index,
                "create role yugabyte login superuser password 'yugabyte'",
                "create role app login password 'app'",
                "grant all on schema public to public",
                topology.SETUP,
            )
        bed.write_topology(bed.rows())
        yield bed


@contextmanager
def yugabyte_docker(count: int = 3, *, placements: Sequence[Placement] | None = None) -> Iterator[YugabyteDocker]:
    """Start the cluster, a minute or two, and remove its containers and network at the end."""
    from testcontainers.core.container import DockerContainer

    with ExitStack() as stack:
        network, addresses = stack.enter_context(_network())
        places = topology.three_zones(count) if placements is None else placements
        members = [Member(address, 5433, place) for address, place in zip(addresses, places, strict=False)]
        containers: list[DockerContainer] = []
        for number, member in enumerate(members):
            container = DockerContainer(YUGABYTE_IMAGE).with_command(
                ["bash", "-c", yugabyted(member, None if number == 0 else members[0])]
            )
            containers.append(stack.enter_context(_at(container, network, member.host)))
            # One after the other: a node joins a cluster that takes members, which the last one made it.
            bed = YugabyteDocker(containers, members)
            bed.bring_up(number)
        bed.reset()
        yield bed


def yugabyted(member: Member, joined: Member | None) -> str:
    """The command of one node, good for its first start and for every later one."""
    where = member.placement
    options = [
        "--background=false",
        f"--advertise_address={member.host}",
        f"--cloud_location={where.cloud}.{where.region}.{where.zone}",
        "--fault_tolerance=zone",
        *([f"--join={joined.host}"] if joined is not None else []),
    ]
    # A killed node leaves the lock of its socket in /tmp, which keeps the next start from listening.
    return f"rm -rf /tmp/.yb.*; exec bin/yugabyted start {' '.join(options)}"
