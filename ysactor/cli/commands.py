"""What each command does with its arguments: the exit code."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from functools import partial
from typing import Any

import trio

from ..config import Config
from ..errors import ConfigurationError
from . import findings, report
from .arguments import options_of
from .check import check
from .course import LEAST_SECONDS
from .demo import demo
from .ending import FAILED, OK, SIGNALLED, Output, Refusal, until_stopped
from .stage import Stage, choose_output
from .visit import visit


def run_check(arguments: argparse.Namespace) -> int:
    """``ysactor check``."""
    try:
        config = Config.of(arguments.dsn, options_of(arguments))
    except ConfigurationError as error:
        raise Refusal(str(error)) from None
    output = Output(sys.stdout)

    async def work() -> int:
        found = await check(config, arguments.timeout)
        for line in _json(findings.as_json(found)) if arguments.json else findings.words(found):
            output.line(line)
        return OK if found.ok else FAILED

    return trio.run(partial(until_stopped, work, output))


def run_demo(arguments: argparse.Namespace) -> int:
    """``ysactor demo``."""
    if arguments.url is None and arguments.seconds < LEAST_SECONDS:
        raise Refusal(f"--seconds: at least {LEAST_SECONDS:g}, or the server is not seen to fail and to come back")
    output, live = choose_output(as_json=arguments.json)
    results = Output(sys.stdout) if arguments.json else output
    stage = Stage(output, live=live)
    seed: int = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed

    async def work() -> int:
        if arguments.url is None:
            result = await demo(stage, arguments.seconds, seed)
        else:
            result = await visit(stage, arguments.seconds, seed, arguments.url)
        if arguments.json:
            results.line(*_json(report.as_json(result)))
        else:
            results.line()
            for text in report.words(result):
                results.paragraph(text)
        return OK if result.ok else FAILED

    code = trio.run(partial(until_stopped, work, output))
    if code > SIGNALLED:
        output.line("stopped before the end: nothing was checked")
    return code


def _json(found: dict[str, Any]) -> list[str]:
    return [json.dumps(found, indent=2, ensure_ascii=False)]
