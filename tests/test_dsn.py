"""DSNs: what they say, and that nothing that may be a piece of a password is ever quoted from one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ysactor.config import Config, LoadBalance, TlsMode, TopologyKey
from ysactor.errors import ConfigurationError
from ysactor.options.table import OPTIONS

# Of C65: everything that has a meaning of its own in a DSN, and one letter that is not ASCII.
AWKWARD = "p@ss:w/o#r?d%2B+é"


def of(dsn: str, environ: Mapping[str, str] | None = None, **options: Any) -> Config:
    return Config.of(dsn, options, environ=environ or {})


def problems(dsn: Any, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        Config.of(dsn, options, environ={})
    return caught.value.problems


async def password_of(config: Config) -> str | bytes | None:
    return None if config.password is None else await config.password.reveal()


def encoded(text: str) -> str:
    return quote(text, safe="")


class TestHosts:
    @pytest.mark.parametrize(
        ("dsn", "hosts"),
        [
            ("postgresql://", [("localhost", 5432)]),
            ("postgres:///db", [("localhost", 5432)]),
            ("yugabytedb://", [("localhost", 5433)]),
            ("YugabyteDB://h", [("h", 5433)]),
            ("postgresql://h", [("h", 5432)]),
            ("postgresql://h:", [("h", 5432)]),
            ("postgresql://:5999", [("localhost", 5999)]),
            ("postgresql://u@:5999/db", [("localhost", 5999)]),
            ("postgresql://a:1,b,[::1]:3,[::2]", [("a", 1), ("b", 5432), ("::1", 3), ("::2", 5432)]),
            ("postgresql://[fe80::1%25eth0]:3", [("fe80::1%eth0", 3)]),
            ("postgresql://%2Frun%2Fpg:5999/db", [("/run/pg", 5999)]),
            ("postgresql://%2Ftmp%2Fp%3Aregion%3Ainst/db", [("/tmp/p:region:inst", 5432)]),
            ("postgresql://%2Fa%2Cb,c/db", [("/a,b", 5432), ("c", 5432)]),
            ("postgresql://%40abstract/db", [("@abstract", 5432)]),
            ("postgresql://b%C3%BCcher.example", [("bücher.example", 5432)]),
            ("postgresql://?host=/run/pg&port=5999", [("/run/pg", 5999)]),
            ("postgresql:///db?host=/tmp/p:region:inst", [("/tmp/p:region:inst", 5432)]),
            ("postgresql://?host=a,b&port=1,2", [("a", 1), ("b", 2)]),
            ("postgresql://?host=a,b&port=1", [("a", 1), ("b", 1)]),
            ("postgresql://?port=1,&host=a,b", [("a", 1), ("b", 5432)]),
            ("postgresql://?host=::1,a", [("::1", 5432), ("a", 5432)]),
            ("postgresql://?hosts=a:1,b", [("a", 1), ("b", 5432)]),
            ("postgresql://?host=", [("localhost", 5432)]),
            ("postgresql://a?host=", [("a", 5432)]),
            ("postgresql://a:1,b:2/db?host=c,d", [("c", 1), ("d", 2)]),
            ("postgresql://a:1/db?host=c,d", [("c", 1), ("d", 1)]),
            ("postgresql://a:1,b:2/db?port=3,4", [("a", 3), ("b", 4)]),
            ("postgresql://:5999/db?host=%2Frun%2Fpg", [("/run/pg", 5999)]),
            ("postgresql://%2Fnonexistent,127.0.0.1", [("/nonexistent", 5432), ("127.0.0.1", 5432)]),
        ],
    )
    def test_every_form_of_libpq_is_read(self, dsn: str, hosts: list[tuple[str, int]]) -> None:
        assert list(of(dsn).hosts) == hosts

    def test_the_scheme_gives_only_the_default_port(self) -> None:
        assert of("postgresql://h", hosts="k").hosts == (("k", 5432),)
        assert of("postgresql://h", port=9).hosts == (("h", 9),)
        assert of("postgresql://", environ={"PGHOST": "e"}).hosts == (("e", 5432),)

    def test_a_list_of_ports_goes_with_the_hosts_that_a_keyword_replaces(self) -> None:
        assert of("postgresql://a,b?port=1,2", hosts="k").hosts == (("k", 5432),)
        assert of("postgresql://a,b?port=1", hosts="k").hosts == (("k", 1),)
        assert of("postgresql://?port=1,2", hosts="k,l").hosts == (("k", 1), ("l", 2))

    @pytest.mark.parametrize(
        "dsn",
        [
            "postgresql://h:x",
            "postgresql://h:0",
            "postgresql://h:65536",
            "postgresql://h:+1",
            "postgresql://h:1:2",
            "postgresql://a,,b",
            "postgresql://a,:1",
            "postgresql://::1",
            "postgresql://[::1",
            "postgresql://[::1]x",
            "postgresql://[nonsense]",
            "postgresql://a%2Fb",
            "postgresql://a%20b",
            "postgresql://a%00b",
            "postgresql://a%ffb",
            "postgresql://?host=a,,b",
            "postgresql://?host=a,b&port=1,2,3",
            "postgresql://?port=x",
            "postgresql://?port=0",
        ],
    )
    def test_a_bad_host_or_port_is_refused(self, dsn: str) -> None:
        (problem,) = problems(dsn)

        assert re.match("dsn: |hosts: |port: ", problem)


class TestUserAndDatabase:
    @pytest.mark.parametrize(
        ("dsn", "user", "database"),
        [
            ("postgresql://h", "yugabyte", "yugabyte"),
            ("postgresql://u@h", "u", "u"),
            ("postgresql://u@h/", "u", "u"),
            ("postgresql://u@h/db", "u", "db"),
            ("postgresql:///db?user=u", "u", "db"),
            ("postgresql://u@h/db?dbname=other", "u", "other"),
            ("postgresql://u@h?database=other", "u", "other"),
            ("postgresql://u@h/db?user=v", "v", "db"),
            ("postgresql://u@h/db?user=&dbname=", "u", "db"),
            ("postgresql://b%C3%BCcher@h/a%2Fb%3Fc", "bücher", "a/b?c"),
            ("postgresql://bücher@h", "bücher", "bücher"),
        ],
    )
    def test_they_are_decoded_and_the_query_string_wins(self, dsn: str, user: str, database: str) -> None:
        config = of(dsn)

        assert (config.user, config.database) == (user, database)

    @pytest.mark.parametrize(
        ("dsn", "password"),
        [
            ("postgresql://u@h", None),
            ("postgresql://u:@h", None),
            ("postgresql://u:p@h", "p"),
            ("postgresql://u:p:w@h", "p:w"),
            ("postgresql://:p@h", "p"),
            ("postgresql://u:a+b%2Bc@h", "a+b+c"),
            ("postgresql://u:%2525@h", "%25"),
            ("postgresql://u:p@h?password=other", "other"),
            ("postgresql://u@h?password=a+b%26c%3Dd", "a+b&c=d"),
        ],
    )
    async def test_a_password_is_decoded_once_and_plus_stands_for_itself(self, dsn: str, password: str | None) -> None:
        assert await password_of(of(dsn)) == password

    async def test_the_awkward_password_works_encoded(self) -> None:
        config = of(f"postgresql://{encoded(AWKWARD)}:{encoded(AWKWARD)}@h/{encoded(AWKWARD)}")

        assert await password_of(config) == AWKWARD
        assert (config.user, config.database) == (AWKWARD, AWKWARD)

    @pytest.mark.parametrize(
        "raw",
        [
            AWKWARD,
            "se@cret",
            "sec/ret",
            "sec?ret",
            "sec#ret",
            "sec%ret",
            "12/secret",
            "12?secret",
            "sec ret",
            "s%ffcret",
        ],
    )
    def test_a_raw_password_is_refused_and_no_part_of_it_shown(self, raw: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            of(f"postgresql://app:{raw}@127.0.0.1:5433/yugabyte")

        assert "percent-encode" in str(caught.value) or "%25" in str(caught.value) or "UTF-8" in str(caught.value)
        for part in re.split("[@:/#?% ]", raw):
            assert len(part) < 3 or part not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


class TestQueryString:
    def test_options_of_ours_are_read_from_text(self) -> None:
        config = of(
            "yugabytedb://h/?load_balance=only-rr&topology_keys=a.b.*:2,a.b.c&fallback_to_topology_keys_only=TRUE"
            "&yb_servers_refresh_interval=0&statement_timeout=1.5&idle_timeout=none&max_lifetime=inf&pool_size=4"
            "&failed_host_max_delay_secs=None&application_name=my+app%20x&target_session_attrs=read_write"
        )

        assert config == Config(
            hosts=config.hosts,
            load_balance=LoadBalance.ONLY_RR,
            topology_keys=(TopologyKey("a", "b", "*", 2), TopologyKey("a", "b", "c", 1)),
            fallback_to_topology_keys_only=True,
            yb_servers_refresh_interval=0,
            statement_timeout=1.5,
            idle_timeout=None,
            max_lifetime=None,
            min_size=4,
            max_size=4,
            application_name="my+app x",
            target_session_attrs="read-write",
        )

    @pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.parse is not None])
    def test_every_option_that_can_be_text_is_known(self, name: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            of(f"yugabytedb://h?{name}=%00")

        assert "is not known" not in str(caught.value)
        assert any(problem.startswith(f"{name}: ") for problem in caught.value.problems)

    @pytest.mark.parametrize("name", ["server_settings", "asyncpg_options", "on_connect", "prepare_on_connect"])
    def test_an_option_that_is_no_text_is_refused(self, name: str) -> None:
        assert problems(f"yugabytedb://h?{name}=x") == (
            f"dsn: option 1 of its query string is {name}, which can be given by keyword only",
        )

    @pytest.mark.parametrize(
        "query",
        [
            "pool_size=five",
            "pool_size=5.0",
            "pool_size=%2B1_0",
            "pool_size=",
            "statement_timeout=nan",
            "statement_timeout=1e999",
            "statement_timeout=1_0",
            "connect_timeout=0",
            "connect_timeout=inf",
            "fallback_to_topology_keys_only=1",
            "load_balance=SENTINEL-42",
            "target_session_attrs=SENTINEL-42",
            "sslmode=SENTINEL-42",
            "topology_keys=SENTINEL-42",
            "hosts=SENTINEL/42",
        ],
    )
    def test_a_bad_value_is_named_and_not_echoed(self, query: str) -> None:
        (problem,) = problems(f"yugabytedb://h?{query}")

        value = query.partition("=")[2]
        assert problem.startswith({"sslmode": "ssl"}.get(name := query.partition("=")[0], name) + ": expected ")
        assert problem.endswith("(in the DSN)")
        assert not value or f"'{value}'" not in problem

    def test_an_unknown_option_is_not_quoted_but_what_was_meant_is(self) -> None:
        assert problems("yugabytedb://h?load_balance=any&SENTINEL-42=x&Pool-Sizes=3") == (
            "dsn: option 2 of its query string is not known",
            "dsn: option 3 of its query string is not known; perhaps pool_size was meant",
        )

    @pytest.mark.parametrize("query", ["a", "&", "pool_size=1&", "pool_size=1&&user=u", "=", "=x"])
    def test_a_query_string_is_name_value_pairs(self, query: str) -> None:
        assert all("of its query string" in problem for problem in problems(f"yugabytedb://h?{query}"))

    @pytest.mark.parametrize(
        ("query", "name"),
        [
            ("pool_size=1&pool_size=1", "pool_size"),
            ("dbname=a&database=a", "database"),
            ("sslmode=require&ssl=require", "ssl"),
            ("host=a&hosts=a", "hosts"),
        ],
    )
    def test_no_option_is_given_twice(self, query: str, name: str) -> None:
        assert problems(f"yugabytedb://h?{query}") == (f"{name}: the query string of the DSN gives it twice",)

    def test_libpqs_options_go_to_the_server(self) -> None:
        dsn = "yugabytedb://h?options=-c%20geqo%3Doff"

        assert of(dsn).server_settings == {"options": "-c geqo=off"}
        assert of(dsn, server_settings={"options": "-c x=y"}).server_settings == {"options": "-c x=y"}

    @pytest.mark.parametrize(
        ("query", "mode"),
        [
            ("sslmode=disable", TlsMode.OFF),
            ("sslmode=prefer", TlsMode.PREFER),
            ("sslmode=require", TlsMode.REQUIRE),
            ("sslmode=verify-ca", TlsMode.VERIFY_CA),
            ("sslmode=verify-full", TlsMode.VERIFY_FULL),
            ("ssl=true", TlsMode.VERIFY_FULL),
            ("ssl=false", TlsMode.OFF),
            ("sslmode=", TlsMode.OFF),
        ],
    )
    def test_sslmode_is_libpqs(self, query: str, mode: TlsMode) -> None:
        assert of(f"yugabytedb://h?{query}").tls.mode is mode

    def test_sslmode_allow_is_refused_with_the_reason(self) -> None:
        (problem,) = problems("yugabytedb://h?sslmode=allow")

        assert problem.startswith("ssl: 'allow' is not supported")


@pytest.mark.parametrize(
    "dsn", ["", "h", "h:5433", "://h", "mysql://h", "postgresql:/h", "host=h user=u password=SENTINEL-42", b"x", 5]
)
def test_anything_that_is_no_dsn_is_refused(dsn: object) -> None:
    (problem,) = problems(dsn)

    assert problem.startswith("dsn: ")
    assert "SENTINEL" not in problem


def test_the_environment_does_not_fill_in_for_a_dsn_that_cannot_be_read() -> None:
    with pytest.raises(ConfigurationError) as caught:
        of("mysql://h", environ={"PGHOST": ":", "PGPORT": "x", "PGSSLMODE": "x"})

    assert len(caught.value.problems) == 1


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=20)
NAME = st.from_regex(r"[a-z][a-z0-9.-]{0,10}", fullmatch=True)
HOST = st.one_of(
    NAME,
    st.ip_addresses(v=6).map(str),
    st.ip_addresses(v=4).map(str),
    st.text("ab/:,@%é ", min_size=1, max_size=10).map(lambda path: f"/{path}"),
)


@given(
    user=TEXT,
    password=TEXT,
    database=TEXT,
    hosts=st.lists(st.tuples(HOST, st.integers(1, 65535)), min_size=1, unique=True),
)
async def test_whatever_is_encoded_comes_out_as_it_was(
    user: str, password: str, database: str, hosts: list[tuple[str, int]]
) -> None:
    places = ",".join(
        f"[{host}]:{port}" if ":" in host and host[0] != "/" else f"{encoded(host)}:{port}" for host, port in hosts
    )

    config = of(f"yugabytedb://{encoded(user)}:{encoded(password)}@{places}/{encoded(database)}")

    assert (config.user, config.database) == (user, database)
    assert await password_of(config) == password
    assert list(config.hosts) == hosts


def attempt(dsn: str) -> str:
    try:
        return repr(Config.of(dsn, environ={}))
    except ConfigurationError as error:
        return f"{error} {error!r} {error.problems}"


PIECES = st.sampled_from(
    [
        "postgresql://",
        "yugabytedb://",
        "u",
        "h",
        ":",
        "@",
        "/",
        ",",
        "?",
        "#",
        "&",
        "=",
        "%",
        "%2F",
        "%ff",
        "[",
        "]",
        "[::1]",
        "5433",
        "0",
        "é",
        "+",
        "host",
        "port",
        "user",
        "password",
        "dbname",
        "sslmode",
        "require",
        "pool_size",
        "topology_keys",
        "a.b.c",
        "options",
        "connect_timeout",
        "passfile",
        "ssl_server_name",
    ]
)


@given(
    st.text() | st.lists(PIECES).map("".join) | st.lists(PIECES).map(lambda pieces: "postgresql://" + "".join(pieces))
)
@example("postgresql://[::1%0a]")
@example("postgresql://?host=[")
@example("postgresql://h?" + "&".join(["a=b"] * 100))
def test_any_text_at_all_gives_a_config_or_a_configuration_error(dsn: str) -> None:
    assert attempt(dsn)


SECRET = "SENTINEL-42"


@given(
    before=st.lists(PIECES, max_size=3).map("".join),
    after=st.lists(PIECES, max_size=3).map("".join),
    end=st.sampled_from(["@h", "@h/db", "@h:1,h/db?pool_size=3", "@h?pool_size=x", ""]),
)
@example("", "", "@h")
@example("?", "", "@h")
@example("?ssl_root_cert=", "&ssl=verify-full", "")
@example("?topology_keys=", "", "@h")
def test_no_part_of_a_password_is_shown_however_raw_it_is(before: str, after: str, end: str) -> None:
    try:
        config = of(f"postgresql://app:{before}{SECRET}{after}{end}")
    except ConfigurationError as error:
        assert SECRET not in f"{error} {error!r} {error.problems}"
    else:
        # It can be read as something else, such as "?user=", but then only if nothing in it had to be encoded.
        assert "/" not in before or "?" in before
        assert before or SECRET not in repr(config)


@given(st.lists(PIECES, max_size=6).map("".join))
def test_no_value_of_the_query_string_is_shown_in_an_error(before: str) -> None:
    try:
        of(f"postgresql://h?{before}{SECRET}")
    except ConfigurationError as error:
        assert SECRET not in str(error)
