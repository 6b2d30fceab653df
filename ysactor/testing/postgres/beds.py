"""The test beds made of PostgreSQL servers on this machine."""

from __future__ import annotations

from ysactor.testing.postgres.bed import Bed, Capability, Dialled, Member
from ysactor.testing.postgres.replicated import Replicated, open_replicated, replicated
from ysactor.testing.postgres.shared_data import Backing, SharedData, backing, open_shared_data
from ysactor.testing.postgres.three_zones import ThreeZones, open_three_zones, three_zones

__all__ = [
    "Backing",
    "Bed",
    "Capability",
    "Dialled",
    "Member",
    "Replicated",
    "SharedData",
    "ThreeZones",
    "backing",
    "open_replicated",
    "open_shared_data",
    "open_three_zones",
    "replicated",
    "three_zones",
]
