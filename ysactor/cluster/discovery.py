"""One refresh of the list of servers: ask one server after the other until one answers.

The seeds are asked first, each once, in the order given and whatever their state; then the listed servers that are not
down. A discovery marks nothing and heals nothing, its connections are not counted, and a standby may answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import trio

from ..config import Config
from ..driver.protocol import Driver, Session
from ..policy import addresses
from ..policy.addresses import Choice
from ..policy.classify import NO_FUNCTION, is_drivers, sqlstate_of
from ..servers import HostPort
from .attempt import attempt
from .listing import QUERY, parse
from .messages import Discovered, Failure, Listing, NoListing, NotYugabyte

CLOSE = 1.0
"""Seconds for the goodbye on a discovery's connection; the answer is there already, and waits for it."""

_SHOWN = 5
"""How many servers' reasons a failed discovery names."""


async def discover(
    driver: Driver,
    config: Config,
    seeds: Sequence[HostPort],
    others: Sequence[HostPort],
    choice: Choice,
    is_down: Callable[[HostPort], bool],
) -> Discovered:
    """Ask `seeds`, then those of `others` that are not down when their turn comes.

    Each is given `connect_timeout` for its connection, as much again for the query, and as much for the name look-ups
    after it; the discovery as a whole ends within the sum of that. Cancelled, it leaves nothing open.
    """
    reasons: list[str] = []
    each = 3 * config.connect_timeout + CLOSE
    with trio.move_on_after(each * (len(seeds) + len(others))):
        for at in (*seeds, *others):
            if at not in seeds and is_down(at):
                continue
            found = await _ask(driver, config, at, choice)
            if not isinstance(found, str):
                return found
            reasons.append(f"{at}: {found}")
        return NoListing(_joined(reasons))
    return NoListing(_joined([*reasons, "it took too long"]))


def _joined(reasons: Sequence[str]) -> str:
    more = len(reasons) - _SHOWN
    return "; ".join([*reasons[:_SHOWN], f"and {more} more"] if more > 0 else reasons)


async def _ask(driver: Driver, config: Config, at: HostPort, choice: Choice) -> Discovered | str:
    """What one server answers; text: why it gave no list, and the next one is asked."""
    opened = await attempt(driver, config, at, check_role=False)
    if isinstance(opened, Failure):
        return opened.detail
    rows = await _query(opened, at, config.connect_timeout)
    if isinstance(rows, str | NotYugabyte):
        return rows
    try:
        servers, skipped = parse(rows)
    except KeyError as error:
        return f"its yb_servers() has no column {error}"
    if skipped and not servers:
        return "no row of its yb_servers() has a usable host and port"
    wanted = set(addresses.names(servers)) if servers and not choice.decided else set[str]()
    if not at.is_unix:
        wanted.add(at.host)
    resolved = await _resolve_all(driver, wanted, config.connect_timeout)
    if not at.is_unix and resolved[at.host] is None:
        # JDBC fails the refresh here rather than decide from nothing. A socket directory has no address to compare.
        return "its name does not resolve"
    if servers:
        choice = addresses.choose(choice, resolved.get(at.host), servers, resolved)
    return Listing(at, addresses.dialled(servers, choice.column), choice, skipped)


async def _query(session: Session, at: HostPort, timeout: float) -> Sequence[Mapping[str, Any]] | NotYugabyte | str:
    """Send the query on a fresh session, and close that whatever happens."""
    answered = False
    try:
        with trio.move_on_after(timeout):
            rows: Sequence[Mapping[str, Any]] = await session.drive(session.raw.fetch(QUERY))
            answered = True
            return rows
        return f"no answer to the query within {timeout:g} s"
    except Exception as error:
        if not is_drivers(error):
            raise
        answered = sqlstate_of(error) is not None
        return NotYugabyte(at) if sqlstate_of(error) == NO_FUNCTION else str(error)
    finally:
        if answered:
            await session.close(CLOSE)
        else:
            session.terminate("discovery gave up on it")


async def _resolve_all(driver: Driver, names: Iterable[str], timeout: float) -> dict[str, str | None]:
    """The address of each name, all looked up at once. One still looked up after `timeout` does not resolve.

    So a slow name server costs a discovery that long at most, not that long per name.
    """
    found: dict[str, str | None] = dict.fromkeys(names)

    async def look_up(name: str) -> None:
        found[name] = await driver.resolve(name)

    with trio.move_on_after(timeout):
        async with trio.open_nursery() as nursery:
            for name in list(found):
                nursery.start_soon(look_up, name, name=f"ysactor.look-up[{name}]")
    return found
