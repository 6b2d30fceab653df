"""The command ``ysactor``: ``demo`` and ``check``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .arguments import parser
from .ending import SIGNALLED, Refusal

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0, 1 for failure, 2 for bad input, 128 and the signal's number when stopped."""
    from .. import __version__

    try:
        arguments = parser(__version__).parse_args(argv)
        # Only now: `--help` and a mistyped option need neither Trio nor the driver.
        from .commands import run_check, run_demo

        return {"check": run_check, "demo": run_demo}[arguments.command](arguments)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except Refusal as refusal:
        print(f"ysactor: {refusal}", file=sys.stderr)
        return refusal.code
    except KeyboardInterrupt:
        return SIGNALLED + 2
