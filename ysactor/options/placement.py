"""The values that say where connections go: `load_balance`, `topology_keys`, `target_session_attrs`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from .readers import Invalid, elements, encodable, is_integer


class LoadBalance(Enum):
    """The modes of `load_balance`; `True` is ANY and `False` is OFF."""

    OFF = "false"
    ANY = "any"
    ONLY_PRIMARY = "only-primary"
    ONLY_RR = "only-rr"
    PREFER_PRIMARY = "prefer-primary"
    PREFER_RR = "prefer-rr"


@dataclass(frozen=True, slots=True)
class TopologyKey:
    """One placement that is preferred, at a level: 1 is the most preferred. Names are case-folded."""

    cloud: str
    region: str
    zone: str
    """``*`` is every zone of the region."""
    level: int = 1


SessionAttrs: TypeAlias = Literal["any", "read-write"]

_MODES = {mode.value: mode for mode in LoadBalance} | {"true": LoadBalance.ANY}
_ATTRS: dict[str, SessionAttrs] = {"any": "any", "read-write": "read-write"}
_LEVEL = re.compile(r"[0-9]{1,2}")
_KEYS = "'cloud.region.zone:N' with commas between, N from 1 to 10, or a sequence of (cloud, region, zone, N)"


def load_balance(value: object) -> LoadBalance:
    """True, False or a mode's name, in any case, with ``-`` or ``_``."""
    match value:
        case LoadBalance():
            return value
        case bool():
            return LoadBalance.ANY if value else LoadBalance.OFF
        case str() if (mode := _MODES.get(value.lower().replace("_", "-"))) is not None:
            return mode
        case _:
            names = ", ".join(repr(mode.value) for mode in LoadBalance if mode is not LoadBalance.OFF)
            raise Invalid(f"True, False, {names}")


def session_attrs(value: object) -> SessionAttrs:
    """What a server must be for a connection to stay on it."""
    found = _ATTRS.get(value.replace("_", "-")) if isinstance(value, str) else None
    if found is None:
        raise Invalid("'any' or 'read-write'")
    return found


def topology_keys(value: object) -> tuple[TopologyKey, ...]:
    """Placement keys, as text or as a sequence of tuples.

    As in eysql: parts are trimmed, empty parts between commas are skipped, so that empty text is no keys, and names
    are folded once, here. Only a zone has a wildcard: ``*`` as a cloud or a region is a name like any other.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(_from_text(part) for raw in value.split(",") if (part := raw.strip()))
    items = elements(value)
    if items is None:
        raise Invalid(_KEYS)
    return tuple(_from_item(item) for item in items)


def _from_text(part: str) -> TopologyKey:
    place, colon, level = (piece.strip() for piece in part.partition(":"))
    names = place.split(".")
    if colon and not _LEVEL.fullmatch(level):
        raise Invalid(_KEYS)
    return _key(names, int(level) if colon else 1)


def _from_item(item: object) -> TopologyKey:
    if isinstance(item, TopologyKey):
        return _key((item.cloud, item.region, item.zone), item.level)
    match elements(item):
        case [cloud, region, zone]:
            return _key((cloud, region, zone), 1)
        case [cloud, region, zone, level]:
            return _key((cloud, region, zone), level)
        case _:
            raise Invalid(_KEYS)


def _key(names: Sequence[object], level: object) -> TopologyKey:
    folded = [name.strip().casefold() for name in names if isinstance(name, str) and encodable(name)]
    if len(names) != 3 or len(folded) != 3 or not all(folded):
        raise Invalid(_KEYS)
    if not is_integer(level) or not 1 <= level <= 10:
        raise Invalid(_KEYS)
    cloud, region, zone = folded
    return TopologyKey(cloud, region, zone, level)
