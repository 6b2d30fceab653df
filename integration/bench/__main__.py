"""``python -m integration.bench``."""

from __future__ import annotations

import sys

from integration.bench.arguments import parse
from integration.bench.program import Bench

if __name__ == "__main__":
    sys.exit(Bench(parse()).main())
