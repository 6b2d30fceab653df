"""What it ran on, and which cores are whose."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import NamedTuple


class Cores(NamedTuple):
    """Whose is which."""

    client: int
    servers: int


def cores() -> Cores | None:
    """None where they cannot be held apart."""
    if sys.platform != "linux":
        return None
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[1]) if len(usable) > 1 else None


def description() -> dict[str, str]:
    """For the head of the report."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor() or platform.processor() or platform.machine(),
        "cores": str(count),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
