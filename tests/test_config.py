"""Options by keyword, their sources, and the rules between them."""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Mapping
from typing import Any, ClassVar

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ysactor.config import Config, LoadBalance, TopologyKey
from ysactor.errors import ConfigurationError
from ysactor.secret import Secret
from ysactor.servers import HostPort


def of(dsn: str | None = None, environ: Mapping[str, str] | None = None, **options: Any) -> Config:
    return Config.of(dsn, options, environ=environ or {})


def problems(dsn: str | None = None, environ: Mapping[str, str] | None = None, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        of(dsn, environ, **options)
    return caught.value.problems


async def password_of(config: Config) -> str | bytes | None:
    return None if config.password is None else await config.password.reveal()


async def setup(conn: object) -> None: ...


class TestDefaults:
    def test_nothing_given_is_the_documented_defaults(self) -> None:
        assert of() == Config()

    def test_the_database_defaults_to_the_user_whoever_named_the_user(self) -> None:
        assert of(user="app").database == "app"
        assert of("yugabytedb://dsn@h").database == "dsn"
        assert of(environ={"PGUSER": "env"}).database == "env"
        assert of("yugabytedb://dsn@h/db", user="app").database == "db"

    def test_a_config_is_frozen_and_can_be_replaced(self) -> None:
        config = of(user="app")

        with pytest.raises(dataclasses.FrozenInstanceError):
            config.user = "other"  # type: ignore[misc]

        assert dataclasses.replace(config, min_size=3).min_size == 3
        assert config.min_size == 10


GOOD: list[tuple[str, object, object]] = [
    ("connect_timeout", 1, 1),
    ("connect_timeout", 0.5, 0.5),
    ("statement_timeout", 0, 0),
    ("statement_timeout", None, None),
    ("statement_timeout", math.inf, None),
    ("statement_timeout", 2147483.647, 2147483.647),
    ("statement_timeout", 0.0001, 0.001),
    ("socket_timeout", 2.5, 2.5),
    ("socket_timeout", math.inf, None),
    ("application_name", "", ""),
    ("user", "ünïcode", "ünïcode"),
    ("fallback_to_topology_keys_only", True, True),
    ("yb_servers_refresh_interval", 0, 0),
    ("yb_servers_refresh_interval", 600, 600),
    ("failed_host_reconnect_delay_secs", 0, 0),
    ("failed_host_reconnect_delay_secs", 60, 60),
    ("failed_host_max_delay_secs", 5, 5),
    ("failed_host_max_delay_secs", 10**9, 10**9),
    ("failed_host_max_delay_secs", None, None),
    ("target_session_attrs", "read_write", "read-write"),
    ("target_session_attrs", "read-write", "read-write"),
    ("target_session_attrs", "any", "any"),
    ("idle_timeout", None, None),
    ("checkout_timeout", math.inf, None),
    ("max_waiting", 1, 1),
    ("max_waiting", math.inf, None),
    ("max_lifetime", math.inf, None),
    ("lifetime_jitter", 0, 0),
    ("rebalance_interval", 0.001, 0.001),
    ("rebalance_batch", 1, 1),
    ("cancel_timeout", 0, 0),
    ("shutdown_timeout", 0, 0),
    ("shutdown_timeout", None, None),
    ("on_connect", None, None),
    ("on_connect", setup, setup),
    ("prepare_on_connect", (), ()),
    ("prepare_on_connect", ["SELECT 1", " SELECT $1 "], ("SELECT 1", " SELECT $1 ")),
    ("prepare_on_connect", ("SELECT 1", "SELECT 2", "SELECT 1"), ("SELECT 1", "SELECT 2")),
    ("load_balance", True, LoadBalance.ANY),
    ("load_balance", False, LoadBalance.OFF),
    ("load_balance", "TRUE", LoadBalance.ANY),
    ("load_balance", "False", LoadBalance.OFF),
    ("load_balance", "any", LoadBalance.ANY),
    ("load_balance", "Only-Primary", LoadBalance.ONLY_PRIMARY),
    ("load_balance", "only_rr", LoadBalance.ONLY_RR),
    ("load_balance", "PREFER_primary", LoadBalance.PREFER_PRIMARY),
    ("load_balance", LoadBalance.PREFER_RR, LoadBalance.PREFER_RR),
]


@pytest.mark.parametrize(("name", "value", "read"), GOOD)
def test_a_value_in_range_is_taken(name: str, value: object, read: object) -> None:
    config = of(**{name: value})

    assert getattr(config, name) == read
    assert type(getattr(config, name)) is type(read)


NUMBERS = {
    "port": (0, 65536),
    "connect_timeout": (0, None),
    "statement_timeout": (2147484,),
    "socket_timeout": (0,),
    "yb_servers_refresh_interval": (601, 1.5, None),
    "failed_host_reconnect_delay_secs": (61, 1.5, None),
    "failed_host_max_delay_secs": (0, 1.5, math.inf),
    "pool_size": (0, 1.5, None),
    "min_size": (1.5, None),
    "max_size": (0, 1.5, None),
    "idle_timeout": (0,),
    "checkout_timeout": (0,),
    "max_waiting": (0, 1.5),
    "max_lifetime": (0,),
    "lifetime_jitter": (None,),
    "rebalance_interval": (0, None),
    "rebalance_batch": (0, 1.5, None),
    "cancel_timeout": (None,),
    "shutdown_timeout": (),
}
NO_NUMBERS = (True, False, math.nan, -1, -math.inf, "5", b"5", [5], 5j)


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, own in NUMBERS.items() for bad in (*own, *NO_NUMBERS)])
def test_a_number_out_of_range_or_type_is_named_and_echoed(name: str, bad: object) -> None:
    (problem,) = problems(**{name: bad})

    assert problem.startswith(f"{name}: expected ")
    assert problem.endswith(f", not {bad!r}")


@pytest.mark.parametrize(
    "name", [name for name in NUMBERS if name not in {"port", "pool_size", "min_size", "max_size"}]
)
def test_a_number_no_clock_could_bear_is_refused_or_kept_exactly(name: str) -> None:
    try:
        config = of(**{name: 10**400})
    except ConfigurationError as error:
        assert name in str(error)
    else:
        assert getattr(config, name) == 10**400
        assert name in {"rebalance_batch", "max_waiting", "failed_host_max_delay_secs"}


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("user", ""),
        ("user", None),
        ("user", b"app"),
        ("user", "nul\0"),
        ("user", "\ud800"),
        ("database", ""),
        ("application_name", None),
        ("application_name", "nul\0"),
        ("fallback_to_topology_keys_only", "true"),
        ("fallback_to_topology_keys_only", 1),
        ("load_balance", "on"),
        ("load_balance", ""),
        ("load_balance", 1),
        ("load_balance", None),
        ("load_balance", "only primary"),
        ("target_session_attrs", "primary"),
        ("target_session_attrs", "READ-WRITE"),
        ("target_session_attrs", None),
        ("on_connect", "function"),
        ("on_connect", lambda: None),
        ("on_connect", dict),
    ],
)
def test_any_other_value_out_of_type_is_named(name: str, bad: object) -> None:
    (problem,) = problems(**{name: bad})

    assert problem.startswith(f"{name}: expected ")


class TestHosts:
    @pytest.mark.parametrize(
        ("hosts", "found"),
        [
            ("a", [("a", 5433)]),
            ("a:1", [("a", 1)]),
            ("a, b:2 ,[::1]:3", [("a", 5433), ("b", 2), ("::1", 3)]),
            (["a", "b:2", ("c", 3), ["d", 4], HostPort("e", 5)], [("a", 5433), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]),
            (("a", "b"), [("a", 5433), ("b", 5433)]),
            (["[::1]"], [("::1", 5433)]),
            (["[fe80::1%eth0]:7"], [("fe80::1%eth0", 7)]),
            ([("::1", 3), ("[::2]", 4)], [("::1", 3), ("::2", 4)]),
            ("127.0.0.1:65535", [("127.0.0.1", 65535)]),
            ("/run/pg", [("/run/pg", 5433)]),
            ("/tmp/p:region:inst", [("/tmp/p:region:inst", 5433)]),
            (["/tmp/a,b:1", ("/run/pg", 7)], [("/tmp/a,b:1", 5433), ("/run/pg", 7)]),
            ("/nonexistent,127.0.0.1", [("/nonexistent", 5433), ("127.0.0.1", 5433)]),
            ("@abstract", [("@abstract", 5433)]),
            ("bücher.example", [("bücher.example", 5433)]),
            ("a,b,a,a:5433", [("a", 5433), ("b", 5433)]),
        ],
    )
    def test_every_documented_form_is_read(self, hosts: object, found: list[tuple[str, int]]) -> None:
        assert list(of(hosts=hosts).hosts) == found

    @pytest.mark.parametrize(
        "hosts",
        [
            "",
            [],
            "a,,b",
            ["a,b"],
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a:１",
            "a:1:2",
            "::1",
            "[::1",
            "[nonsense]",
            "[::1]5433",
            "[::1]:",
            "a b",
            "a/b",
            "a\0b",
            "/",
            "@",
            ("a", 5433),
            [("a", "5433")],
            [("a", True)],
            [("a", 0)],
            [("a", 1, 2)],
            [("", 1)],
            [("a:1", 1)],
            [5433],
            5433,
            None,
            b"a",
            {"a": 1},
        ],
    )
    def test_anything_else_is_refused(self, hosts: object) -> None:
        (problem,) = problems(hosts=hosts)

        assert problem.startswith("hosts: expected ")

    def test_the_port_is_for_hosts_given_without_one(self) -> None:
        assert of(hosts="a,b:2", port=9).hosts == (("a", 9), ("b", 2))

    def test_a_dsn_in_the_wrong_place_is_not_echoed(self) -> None:
        dsn = "postgresql://app:SENTINEL-42@h,i/db"
        for hosts in (dsn, [dsn], ["a", f" {dsn}"]):
            assert problems(hosts=hosts) == (
                "hosts: it takes hosts, and this holds a DSN: give a DSN as the first argument",
            )

    @pytest.mark.parametrize("hosts", ["db:abc", "db:", ["[::1]:0"], [("db", "5433")]])
    def test_a_port_that_is_none_is_what_the_error_is_about(self, hosts: object) -> None:
        (problem,) = problems(hosts=hosts)

        assert problem.startswith("hosts: expected each host's port to be an integer from 1 to 65535, not ")


class TestTopologyKeys:
    @pytest.mark.parametrize(
        ("keys", "found"),
        [
            (None, []),
            ("", []),
            (" , ,", []),
            ([], []),
            ("a.b.c", [("a", "b", "c", 1)]),
            ("a.b.c:10", [("a", "b", "c", 10)]),
            (" AWS . us-East-1 . Zone : 2 ,, a.b.*", [("aws", "us-east-1", "zone", 2), ("a", "b", "*", 1)]),
            ("STRASSE.ß.ẞ", [("strasse", "ss", "ss", 1)]),
            ("a.*.*", [("a", "*", "*", 1)]),
            ("a.b.c:1,a.b.c:2,a.b.c:1", [("a", "b", "c", 1), ("a", "b", "c", 2), ("a", "b", "c", 1)]),
            ([("A", "b", "c", 3), ("a", "b", "*")], [("a", "b", "c", 3), ("a", "b", "*", 1)]),
            ([TopologyKey("A", "b", "c", 4)], [("a", "b", "c", 4)]),
            ([("a.x", "b", "c", 1)], [("a.x", "b", "c", 1)]),
        ],
    )
    def test_keys_are_read_trimmed_and_folded(self, keys: object, found: list[tuple[str, str, str, int]]) -> None:
        assert of(topology_keys=keys).topology_keys == tuple(TopologyKey(*key) for key in found)

    @pytest.mark.parametrize(
        "keys",
        [
            "a",
            "a.b",
            "a.b.c.d",
            "a..c",
            ".b.c",
            "a.b. ",
            "a.b.c:",
            "a.b.c:0",
            "a.b.c:11",
            "a.b.c:-1",
            "a.b.c:1.5",
            "a.b.c:+1",
            "a.b.c:１",
            "a.b.c:1:2",
            "a.b:1.c",
            "a.b.c;d.e.f",
            5,
            b"a.b.c",
            ["a.b.c"],
            [("a", "b", "c", 0)],
            [("a", "b", "c", 11)],
            [("a", "b", "c", True)],
            [("a", "b", "c", "1")],
            [("a", "b")],
            [("a", "", "c", 1)],
            [("a", None, "c", 1)],
            ("a", "b", "c", 1),
        ],
    )
    def test_a_key_that_is_none_is_refused(self, keys: object) -> None:
        (problem,) = problems(topology_keys=keys)

        assert problem.startswith("topology_keys: expected ")


class TestSizes:
    @pytest.mark.parametrize(
        ("options", "sizes"),
        [
            ({}, (10, 10)),
            ({"pool_size": 3}, (3, 3)),
            ({"min_size": 2, "max_size": 4}, (2, 4)),
            ({"min_size": 0, "max_size": 1}, (0, 1)),
            ({"min_size": 0}, (0, 10)),
            ({"max_size": 20}, (10, 20)),
            ({"max_size": 4}, (4, 4)),
            ({"min_size": 15}, (15, 15)),
        ],
    )
    def test_one_form_or_the_other_gives_both_sizes(self, options: dict[str, int], sizes: tuple[int, int]) -> None:
        config = of(**options)

        assert (config.min_size, config.max_size) == sizes

    def test_both_forms_together_are_an_error(self) -> None:
        assert len(problems(pool_size=3, max_size=3)) == 1
        assert len(problems("yugabytedb://h?pool_size=3", min_size=3)) == 1

    def test_the_least_is_not_more_than_the_most(self) -> None:
        assert problems(min_size=5, max_size=4) == ("min_size: 5 is more than max_size, 4",)


class TestDelays:
    def test_the_longest_delay_is_not_less_than_the_delay(self) -> None:
        (problem,) = problems(failed_host_reconnect_delay_secs=7, failed_host_max_delay_secs=6)
        assert problem == "failed_host_max_delay_secs: 6 is less than failed_host_reconnect_delay_secs, 7"

        (by_default,) = problems(failed_host_max_delay_secs=4)
        assert by_default == "failed_host_max_delay_secs: 4 is less than failed_host_reconnect_delay_secs, 5"

    def test_a_delay_of_zero_takes_no_longest(self) -> None:
        (problem,) = problems(failed_host_reconnect_delay_secs=0, failed_host_max_delay_secs=6)
        assert "takes none" in problem

        assert of(failed_host_reconnect_delay_secs=0, failed_host_max_delay_secs=None)


class TestServerSettings:
    def test_settings_are_kept_and_cannot_be_changed(self) -> None:
        given = {"geqo": "off", "my.setting": "x", "TimeZone": "UTC"}
        settings = of(server_settings=given).server_settings
        given["geqo"] = "on"

        assert settings == {"geqo": "off", "my.setting": "x", "TimeZone": "UTC"}
        with pytest.raises(TypeError):
            settings["geqo"] = "on"  # type: ignore[index]

    @pytest.mark.parametrize(
        "settings",
        [
            {"geqo": True},
            {"work_mem": 4},
            {"geqo": None},
            {"": "x"},
            {"a b": "x"},
            {"a=b": "x"},
            {"x": "nul\0"},
            {1: "x"},
            {"user": "x"},
            {"database": "x"},
            {"client_encoding": "latin1"},
            {"replication": "database"},
            {"TimeZone": "UTC", "timezone": "UTC"},
            [("geqo", "off")],
            None,
        ],
    )
    def test_names_are_checked_and_values_are_text(self, settings: object) -> None:
        (problem,) = problems(server_settings=settings)

        assert problem.startswith("server_settings: ")

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"x": "SENTINEL-42", "work_mem": 4}, "work_mem takes text"),
            ({"x": "SENTINEL-42", "geqo": "SENTINEL-42\0"}, "geqo takes text"),
            ({"x": "SENTINEL-42", "SENTINEL-42": "y"}, "one of the names is none that a parameter can have"),
            ({"x": "SENTINEL-42", 5: "y"}, "one of the names is none that a parameter can have"),
            ([("x", "SENTINEL-42")], "expected a mapping"),
            ("x=SENTINEL-42", "expected a mapping"),
        ],
    )
    def test_no_value_is_shown_but_the_name_it_stands_under(self, settings: object, words: str) -> None:
        (problem,) = problems(server_settings=settings)

        assert problem.startswith("server_settings: ")
        assert words in problem
        assert "SENTINEL" not in problem

    @pytest.mark.parametrize("twice", ["application_name", "Application_Name", "statement_timeout"])
    def test_what_has_an_option_of_its_own_is_not_given_twice(self, twice: str) -> None:
        (problem,) = problems(server_settings={twice: "7"}, **{twice.lower(): {"s": 7}.get(twice[0], "7")})

        assert problem == f"server_settings: {twice.lower()} is given as an option and again here"

    def test_an_application_name_given_here_only_is_the_application_name(self) -> None:
        config = of(server_settings={"application_name": "mine"})

        assert config.application_name == "mine"
        assert config.server_settings == {}

    def test_a_statement_timeout_given_here_only_goes_to_the_server_as_it_is(self) -> None:
        config = of(server_settings={"statement_timeout": "5s"})

        assert config.statement_timeout is None
        assert config.server_settings == {"statement_timeout": "5s"}


class TestAsyncpgOptions:
    def test_what_asyncpg_takes_is_passed_on(self) -> None:
        class Row(asyncpg.Record): ...

        passed = {
            "statement_cache_size": 0,
            "max_cached_statement_lifetime": 0,
            "max_cacheable_statement_size": 1024,
            "command_timeout": 2.5,
            "record_class": Row,
            "krbsrvname": "postgres",
            "gsslib": "gssapi",
        }

        assert of(asyncpg_options=passed).asyncpg_options == passed

    @pytest.mark.parametrize(
        ("name", "instead"),
        [
            ("host", "hosts"),
            ("port", "port"),
            ("user", "user"),
            ("password", "password"),
            ("passfile", "password"),
            ("database", "database"),
            ("ssl", "ssl"),
            ("timeout", "connect_timeout"),
            ("server_settings", "server_settings"),
            ("target_session_attrs", "target_session_attrs"),
            ("dsn", "dsn"),
            ("loop", "its own"),
            ("connection_class", "its own"),
            ("direct_tls", "not supported"),
            ("service", "not read"),
        ],
    )
    def test_what_is_an_option_of_ours_is_refused_and_that_option_named(self, name: str, instead: str) -> None:
        (problem,) = problems(asyncpg_options={name: "SENTINEL-42"})

        assert problem.startswith(f"asyncpg_options: {name} is not passed on: ")
        assert instead in problem
        assert "SENTINEL" not in problem

    @pytest.mark.parametrize(
        "passed",
        [
            {"SENTINEL-42": 1},
            {"statement_cache_size": "SENTINEL-42"},
            {"statement_cache_size": True},
            {"statement_cache_size": -1},
            {"command_timeout": 0},
            {"record_class": dict},
            {"gsslib": "SENTINEL-42"},
            {"krbsrvname": 1},
            {1: 1},
            "SENTINEL-42",
            None,
        ],
    )
    def test_a_bad_one_is_refused_without_an_echo(self, passed: object) -> None:
        (problem,) = problems(asyncpg_options=passed)

        assert problem.startswith("asyncpg_options: ")
        assert "SENTINEL" not in problem

    def test_every_argument_of_asyncpg_is_passed_on_or_refused_by_name(self) -> None:
        import inspect

        for name in inspect.signature(asyncpg.connect).parameters:
            try:
                of(asyncpg_options={name: object()})
            except ConfigurationError as error:
                assert "one of the names is not known" not in str(error), name


class TestPrepareOnConnect:
    TEXTS: ClassVar = [f"SELECT {number}" for number in range(101)]

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ("SELECT 'SENTINEL-42'", "expected a sequence of SQL texts; put a single one into a list"),
            (None, "expected a sequence of SQL texts"),
            (b"SELECT 'SENTINEL-42'", "expected a sequence of SQL texts"),
            ({"SELECT 'SENTINEL-42'"}, "expected a sequence of SQL texts"),
            ({"SELECT 'SENTINEL-42'": 1}, "expected a sequence of SQL texts"),
            (["SELECT 1", 42], "entry 2 is not text"),
            ([b"SELECT 'SENTINEL-42'"], "entry 1 is not text"),
            (["SELECT 1", "SELECT 2", ""], "entry 3 is empty: leave it out"),
            ([" \n"], "entry 1 is empty: leave it out"),
            (["SELECT 'SENTINEL-42\0'"], "text without NUL that can be encoded as UTF-8, which entry 1 is not"),
            (["SELECT 'SENTINEL-42\ud800'"], "text without NUL that can be encoded as UTF-8, which entry 1 is not"),
        ],
    )
    def test_what_is_no_list_of_texts_is_refused_without_an_echo(self, given: object, says: str) -> None:
        (problem,) = problems(prepare_on_connect=given)

        assert problem.startswith("prepare_on_connect: expected ")
        assert problem.endswith(says)

    def test_a_list_is_kept_as_it_was_and_its_texts_are_not_shown(self) -> None:
        given = ["SELECT 'SENTINEL-42'"]
        config = of(prepare_on_connect=given)
        given.append("SELECT 2")

        assert config.prepare_on_connect == ("SELECT 'SENTINEL-42'",)
        assert "SENTINEL" not in repr(config)

    def test_more_than_a_connection_keeps_are_refused(self) -> None:
        assert len(of(prepare_on_connect=[*self.TEXTS[:100], self.TEXTS[0]]).prepare_on_connect) == 100
        assert problems(prepare_on_connect=self.TEXTS) == (
            "prepare_on_connect: it lists 101 statements, and a connection keeps 100: list fewer, or raise "
            "statement_cache_size in asyncpg_options",
        )
        assert of(prepare_on_connect=self.TEXTS, asyncpg_options={"statement_cache_size": 101})
        (problem,) = problems(prepare_on_connect=self.TEXTS[:3], asyncpg_options={"statement_cache_size": 2})
        assert "lists 3 statements, and a connection keeps 2" in problem

    def test_where_none_are_kept_none_can_be_prepared(self) -> None:
        assert problems(prepare_on_connect=["SELECT 1"], asyncpg_options={"statement_cache_size": 0}) == (
            "prepare_on_connect: a statement_cache_size of 0, in asyncpg_options, keeps none: leave one out",
        )
        assert of(prepare_on_connect=[], asyncpg_options={"statement_cache_size": 0})

    def test_a_text_that_is_too_long_to_be_kept_is_refused(self) -> None:
        longest = "SELECT '" + "x" * (15360 - 9) + "'"
        assert of(prepare_on_connect=[longest])
        (problem,) = problems(prepare_on_connect=["SELECT 1", longest + " "])
        assert problem == (
            "prepare_on_connect: statement 2 has 15361 characters, and one of more than 15360 is not kept: raise "
            "max_cacheable_statement_size in asyncpg_options, where 0 is no limit"
        )
        assert of(prepare_on_connect=[longest + " "], asyncpg_options={"max_cacheable_statement_size": 0})
        assert problems(prepare_on_connect=["SELECT 12"], asyncpg_options={"max_cacheable_statement_size": 8})

    def test_the_defaults_it_reckons_with_are_asyncpgs(self) -> None:
        import inspect

        defaults = inspect.signature(asyncpg.connect).parameters
        assert defaults["statement_cache_size"].default == 100
        assert defaults["max_cacheable_statement_size"].default == 15360

    def test_beside_asyncpg_options_that_cannot_be_read_only_those_are_reported(self) -> None:
        (problem,) = problems(prepare_on_connect=self.TEXTS, asyncpg_options={"statement_cache_size": -1})

        assert problem.startswith("asyncpg_options: ")


class TestPassword:
    @pytest.mark.parametrize("given", ["SENTINEL-42", b"SENTINEL-42\xff", ""])
    async def test_text_and_bytes_are_kept_as_they_are(self, given: str | bytes) -> None:
        assert await password_of(of(password=given)) == given

    async def test_a_function_is_kept_and_not_called_yet(self) -> None:
        calls: list[None] = []

        async def rotate() -> str:
            calls.append(None)
            return f"secret{len(calls)}"

        config = of(password=rotate)

        assert not calls
        assert [await password_of(config), await password_of(config)] == ["secret1", "secret2"]

    @pytest.mark.parametrize("bad", [5, True, ["SENTINEL-42"], "SENTINEL-42\0", "SENTINEL-42\ud800", lambda user: "x"])
    def test_anything_else_is_refused_without_an_echo(self, bad: object) -> None:
        (problem,) = problems(password=bad)

        assert problem.startswith("password: expected ")
        assert "SENTINEL" not in problem
        assert repr(bad) not in problem

    def test_it_shows_in_no_repr(self) -> None:
        config = of(
            "yugabytedb://app:SENTINEL-42@h/db?sslmode=require",
            asyncpg_options={"krbsrvname": "SENTINEL-42"},
        )

        assert "SENTINEL" not in repr(config)
        assert "SENTINEL" not in str(config)

    def test_it_shows_in_no_locals_of_our_frames(self) -> None:
        with pytest.raises(ConfigurationError) as caught:
            Config.of("yugabytedb://app:SENTINEL-42@h/db?x=1", {"password": "SENTINEL-42"}, environ={})

        # The caller's own frame is not ours to clean; its locals are nothing here.
        shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
        assert "SENTINEL" not in shown.replace(
            '"yugabytedb://app:SENTINEL-42@h/db?x=1", {"password": "SENTINEL-42"}', ""
        )


class TestSources:
    ENVIRON: ClassVar = {
        "PGHOST": "env1,env2:2",
        "PGPORT": "7",
        "PGUSER": "envuser",
        "PGPASSWORD": "envsecret",
        "PGDATABASE": "envdb",
        "PGTARGETSESSIONATTRS": "read-write",
    }

    async def test_the_environment_fills_in_what_is_left_out(self) -> None:
        config = of(environ=self.ENVIRON)

        assert config.hosts == (("env1", 7), ("env2", 2))
        assert (config.user, config.database, config.target_session_attrs) == ("envuser", "envdb", "read-write")
        assert await password_of(config) == "envsecret"

    async def test_a_dsn_comes_before_the_environment(self) -> None:
        config = of("yugabytedb://u:p@h:1/db?target_session_attrs=any", environ=self.ENVIRON)

        assert config.hosts == (("h", 1),)
        assert (config.user, config.database, config.target_session_attrs) == ("u", "db", "any")
        assert await password_of(config) == "p"

    async def test_a_keyword_comes_before_a_dsn(self) -> None:
        config = of(
            "yugabytedb://u:p@h:1/db?target_session_attrs=any&connect_timeout=3&pool_size=4",
            hosts="k",
            user="ku",
            password="kp",
            database="kdb",
            target_session_attrs="read-write",
            connect_timeout=9,
            pool_size=5,
        )

        assert config.hosts == (("k", 5433),)
        assert (config.user, config.database, config.target_session_attrs) == ("ku", "kdb", "read-write")
        assert (config.connect_timeout, config.min_size, config.max_size) == (9, 5, 5)
        assert await password_of(config) == "kp"

    def test_a_keyword_of_none_is_a_value_too(self) -> None:
        config = of(
            "yugabytedb://u:p@h/?statement_timeout=5", environ=self.ENVIRON, password=None, statement_timeout=None
        )

        assert config.password is None
        assert config.statement_timeout is None

    def test_pgport_fills_in_for_whichever_hosts_lack_a_port(self) -> None:
        assert of("postgresql://h", environ={"PGPORT": "7"}).hosts == (("h", 7),)
        assert of(hosts="a,b", environ={"PGPORT": "7,8"}).hosts == (("a", 7), ("b", 8))
        assert of(hosts="a,b", environ={"PGPORT": "7,"}).hosts == (("a", 7), ("b", 5433))
        assert of(hosts="a,b", environ={"PGPORT": "7,8"}, port=9).hosts == (("a", 9), ("b", 9))

    def test_as_many_ports_as_hosts_are_needed(self) -> None:
        assert problems(hosts="a,b,c", environ={"PGPORT": "7,8"}) == ("port: 2 ports cannot be matched to 3 hosts",)

    def test_pghost_takes_libpqs_bare_ipv6_address(self) -> None:
        assert of(environ={"PGHOST": "::1,/run/pg"}).hosts == (("::1", 5433), ("/run/pg", 5433))

    def test_a_bad_variable_that_is_needed_is_an_error_that_names_option_and_variable(self) -> None:
        assert problems(environ={"PGPORT": "x"}) == ("port: expected an integer from 1 to 65535, not 'x' (in PGPORT)",)

    def test_a_bad_variable_that_is_not_needed_is_none(self) -> None:
        environ = {"PGPORT": "x", "PGTARGETSESSIONATTRS": "standby", "PGSSLMODE": "x", "PGHOST": ":"}

        assert of(environ=environ, hosts="a:1", target_session_attrs="any", ssl=False).hosts == (("a", 1),)

    def test_an_empty_variable_is_as_good_as_none(self) -> None:
        assert of(environ=dict.fromkeys(self.ENVIRON, "")) == Config()

    def test_the_process_environment_is_read_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGUSER", "fromprocess")

        assert Config.of().user == "fromprocess"


class TestProblems:
    def test_all_are_reported_together(self) -> None:
        found = problems(
            "mysql://h", {"PGHOST": ":"}, port=0, pool_size="5", user="", zz_top=1, conect_timeout=1, ssl=5
        )

        names = [problem.split(":")[0].split(";")[0] for problem in found]
        assert names == [
            "unknown option 'conect_timeout'",
            "unknown option 'zz_top'",
            "port",
            "user",
            "ssl",
            "pool_size",
            "dsn",
        ]

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("poolsize", "pool_size"),
            ("load-balance", "load_balance"),
            ("host", "hosts"),
            ("dbname", "database"),
            ("username", "user"),
            ("sslmode", "ssl"),
            ("timeout", "connect_timeout"),
        ],
    )
    def test_a_near_miss_gets_a_suggestion(self, name: str, meant: str) -> None:
        assert problems(**{name: 1}) == (f"unknown option {name!r}; perhaps {meant} was meant",)

    @pytest.mark.parametrize("name", ["health_check_interval", "health_check_timeout", "xyzzy"])
    def test_a_far_miss_gets_none(self, name: str) -> None:
        assert problems(**{name: 1}) == (f"unknown option {name!r}",)

    def test_a_value_with_a_hostile_repr_is_still_reported(self) -> None:
        class Hostile:
            def __repr__(self) -> str:
                raise RuntimeError

        (problem,) = problems(pool_size=Hostile())
        assert problem.startswith("pool_size: ")

    def test_a_long_value_is_cut_short(self) -> None:
        (problem,) = problems(pool_size="x" * 10_000)

        assert len(problem) < 200

    def test_it_is_a_value_error_that_says_everything(self) -> None:
        with pytest.raises(ValueError, match=r"port: .*; user: "):
            of(port=0, user="")


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
OPTION_NAMES = st.sampled_from(
    [field.name for field in dataclasses.fields(Config) if field.name not in {"tls", "passfile"}]
    + ["port", "pool_size", "ssl", "ssl_server_name"]
)


@given(
    st.dictionaries(OPTION_NAMES, ANYTHING | st.lists(ANYTHING, max_size=4) | st.tuples(ANYTHING, ANYTHING), max_size=4)
)
def test_any_values_at_all_give_a_config_or_a_configuration_error(options: dict[str, object]) -> None:
    try:
        config = Config.of(None, options, environ={})
    except ConfigurationError as error:
        assert error.problems
        assert all(problem.partition(":")[0] in options for problem in error.problems)
    else:
        assert config.min_size <= config.max_size
        assert config.hosts
        assert isinstance(config.password, Secret | None)
