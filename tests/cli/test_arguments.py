"""Bad input: one clear line, exit code 2, and no password in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ysactor.cli import main
from ysactor.cli.arguments import CHECKED, options_of, parser
from ysactor.config import Config

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "COMMAND"),
        (["fly"], "invalid choice"),
        ([f"postgresql://u:{SECRET}@h/d"], "invalid choice"),
        (["check"], "DSN"),
        (["check", "localhost"], "does not start with postgresql://"),
        (["check", f"host=h password={SECRET}"], "does not start with postgresql://"),
        (["check", f"postgresql://u:{SECRET}@h:port/d"], "port"),
        (["check", f"postgresql://u:{SECRET}@h/d", f"postgresql://u:{SECRET}@h/d"], "unrecognized"),
        (["check", f"postgresql://u:{SECRET}@h/d?pool_size=none"], "pool_size"),
        (["check", f"postgresql://u:{SECRET}@h/d", "--load-balance", "nearest"], "load_balance"),
        (["check", f"postgresql://u:{SECRET}@h/d", "--pool-size", "3"], "unrecognized"),
        (["check", f"postgresql://u:{SECRET}@h/d", "--timeout", "0"], "seconds from 0.1 to 600"),
        (["check", f"postgresql://u:{SECRET}@h/d", "--password", f"-{SECRET}"], "unrecognized arguments: --password;"),
        (["check", f"postgresql://u:{SECRET}@h/d", "--password", f"--{SECRET}"], "unrecognized arguments: --password;"),
        (["check", f"postgresql://u:{SECRET}@h/d", f"-p{SECRET}"], "unrecognized arguments: (not shown);"),
        (["check", f"postgresql://u:{SECRET}@h/d", f"--json={SECRET}"], "argument --json: takes no value;"),
        (["check", f"--ssl-={SECRET}"], "could match --ssl-root-cert, --ssl-server-name"),
        ([f"{SECRET} (choose from {SECRET}"], "argument COMMAND: invalid choice (choose from "),
        (["demo", f"--json={SECRET}"], "argument --json: takes no value;"),
        (["demo", f"-{SECRET}"], "unrecognized arguments: (not shown);"),
        (["demo", "--seconds", "7.9"], "at least 8"),
        (["demo", "--seconds", "nan"], "seconds from 1 to 3600"),
        (["demo", "--seconds", f"postgresql://u:{SECRET}@h/d"], "seconds from 1 to 3600"),
        (["demo", "--seed", "-1"], "whole number"),
        (["demo", f"postgresql://u:{SECRET}@h/d"], "unrecognized"),
        (["demo", "--url", f"u:{SECRET}@h/d"], "does not start with postgresql://"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("ysactor")
    assert shown.err.count("\n") == 1
    assert words in shown.err
    assert SECRET not in shown.err


@pytest.mark.parametrize("argv", [["--help"], ["demo", "--help"], ["check", "--help"], ["--version"]])
def test_help_is_printed_and_is_no_failure(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert "ysactor" in capsys.readouterr().out


def test_an_option_is_read_as_in_a_dsn() -> None:
    dsn = "postgresql://u@h/d"
    argv = ["check", dsn, "--load-balance", "PREFER_RR", "--topology-keys", "c.r.z:2", "--connect-timeout", "2.5"]
    argv += ["--fallback-to-topology-keys-only", "false", "--target-session-attrs", "read-write", "--user", "me"]
    given = options_of(parser("0").parse_args(argv))
    query = "load_balance=PREFER_RR&topology_keys=c.r.z:2&connect_timeout=2.5&fallback_to_topology_keys_only=false"
    assert Config.of(dsn, given, environ={}) == Config.of(
        f"{dsn}?{query}&target_session_attrs=read-write&user=me", {}, environ={}
    )


def test_every_option_of_check_is_one_of_the_librarys_that_text_can_give() -> None:
    values = {"ssl": "verify-full", "connect_timeout": "3", "load_balance": "any", "topology_keys": "c.r.z"}
    values |= {"fallback_to_topology_keys_only": "true", "target_session_attrs": "any"}
    argv = ["check", "postgresql://u@h/d"]
    for name, _ in CHECKED:
        argv += [f"--{name.replace('_', '-')}", values.get(name, "text")]
    assert set(options_of(parser("0").parse_args(argv))) == {name for name, _ in CHECKED}


def test_help_needs_neither_the_driver_nor_rich() -> None:
    program = """
import sys
from ysactor.cli.arguments import parser
try:
    parser("0").parse_args(["check", "--help"])
except SystemExit:
    print({"rich", "ysactor.cli.display"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()"
