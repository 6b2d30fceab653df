"""The page about options says what the program does: names, defaults, and the names of other sources."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from ysactor.config import Config, LoadBalance, TlsMode
from ysactor.options.passthrough import asyncpg_options
from ysactor.options.table import ENVIRONMENT, LIBPQ, OPTIONS
from ysactor.servers import HostPort

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "options.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading."""
    lines = PAGE.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2
    rows: list[list[str]] = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


DEFAULTS = {row[0].strip("`"): row[1] for row in table("option")}


def test_every_option_has_its_row_and_every_row_its_option() -> None:
    assert list(DEFAULTS) == list(OPTIONS)


def test_every_field_of_a_config_is_an_option_or_made_from_some() -> None:
    made = {"tls", "passfile"}
    without_field = {"port", "pool_size", "ssl", "ssl_root_cert", "ssl_server_name"}

    assert {field.name for field in dataclasses.fields(Config)} - made == OPTIONS.keys() - without_field


# Where the config holds the default in another form than an application would write it.
IN_OTHER_FORM = {
    "hosts": (HostPort("localhost", 5433),),
    "database": "yugabyte",
    "load_balance": LoadBalance.OFF,
    "topology_keys": (),
    "min_size": 10,
    "max_size": 10,
}
NO_FIELD = {"port", "pool_size", "ssl", "ssl_root_cert", "ssl_server_name"}


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in NO_FIELD])
def test_the_default_on_the_page_is_the_one_in_force(name: str) -> None:
    expected = IN_OTHER_FORM[name] if name in IN_OTHER_FORM else ast.literal_eval(DEFAULTS[name].strip("`"))

    assert getattr(Config.of(environ={}), name) == expected


def test_the_defaults_that_no_field_holds_are_in_force_too() -> None:
    config = Config.of(environ={})

    assert [DEFAULTS[name] for name in sorted(NO_FIELD)] == ["`10`", "`5433`", "`False`", "`None`", "`None`"]
    assert (config.min_size, config.max_size) == (10, 10)
    assert config.hosts[0].port == 5433
    assert (config.tls.mode, config.tls.context, config.tls.server_name) == (TlsMode.OFF, None, None)


DEPENDENT = {"database", "min_size", "max_size"}


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name not in DEPENDENT])
def test_the_default_on_the_page_can_be_given_and_changes_nothing(name: str) -> None:
    given = ast.literal_eval(DEFAULTS[name].strip("`"))

    assert Config.of(None, {name: given}, environ={}) == Config.of(environ={})


def test_the_other_names_of_a_dsn_are_listed() -> None:
    assert {row[0].strip("`") for row in table("name")} == LIBPQ.keys()


def test_the_variables_of_the_environment_are_listed() -> None:
    assert {row[1].strip("`"): row[0].strip("`") for row in table("variable")} == ENVIRONMENT


def test_the_arguments_that_are_passed_to_asyncpg_are_listed() -> None:
    (sentence,) = re.findall(r"`asyncpg_options` takes (.*?):", PAGE, re.DOTALL)

    for name in re.findall(r"`(\w+)`", sentence):
        value = {"record_class": type("Record", (), {"__module__": "asyncpg"}), "gsslib": "sspi", "krbsrvname": "x"}
        assert asyncpg_options({name: value.get(name, 1)})
