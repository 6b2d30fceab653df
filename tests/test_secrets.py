"""Secrets stay where they belong: planted ones are looked for in everything that a program could show or keep.

Planted are passwords in every form, DSNs, a password file, a key file and its password. Then everything that can fail
is made to fail, and text, logs, warnings, tracebacks with local variables and the live objects themselves are searched
(C73).
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import pickle
import ssl
import traceback
import types
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

import ysactor
from ysactor.cli import main
from ysactor.config import Config
from ysactor.secret import Secret
from ysactor.testing import FakeCluster, FakeDriver
from ysactor.testing.postgres import (
    Access,
    Authority,
    PostgresNotFound,
    PostgresServer,
    Role,
    Run,
    create_data,
    find,
)
from ysactor.testing.postgres.configuration import ADMIN
from ysactor.testing.proxy import open_fault_proxy

MARK = "SENTI" + "NEL"
"""In every planted secret. Put together here, so that no line of this file that a traceback shows holds it."""
RIGHT = f"{MARK}-right-é"
WRONG = f"{MARK}-wrong-é"
PATIENCE = 30.0


# --- looking ---------------------------------------------------------------------------------------------------------


def holds(text: object) -> bool:
    match text:
        case str():
            return MARK in text
        case bytes() | bytearray():
            return MARK.encode() in text
        case memoryview():
            return MARK.encode() in text.tobytes()
        case _:
            return False


def chain(error: BaseException) -> list[BaseException]:
    """The error, all that stands behind it, shown by Python or not, and all that is in it."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or any(one is other for other in found):
            continue
        found.append(one)
        left += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
    return found


def with_locals(error: BaseException) -> str:
    """What a traceback with the values of local variables shows, but for the frames of this file, which plants them."""
    parts: list[str] = []
    for one in chain(error):
        told = traceback.TracebackException.from_exception(one, capture_locals=True)
        told.stack = traceback.StackSummary.from_list(
            [frame for frame in told.stack if frame.filename != __file__ or not frame.locals]
        )
        told.__cause__ = told.__context__ = None
        if told.exceptions:
            told.exceptions = []
        parts += told.format()
        parts += [repr(one.args), repr(vars(one)), *getattr(one, "__notes__", [])]
    return "\n".join(parts)


def forms(thing: object) -> list[str]:
    """Every way in which a program shows or keeps an object as text."""
    found = [str(thing), repr(thing), f"{thing}", f"{thing!a}", "%s %r" % (thing, thing)]  # noqa: UP031
    try:
        found.append(pickle.dumps(thing).decode("latin-1"))
    except Exception as refused:  # as most of what is alive does
        found += [str(refused), with_locals(refused)]
    return found


_OPAQUE = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, Secret)


def reachable(*roots: object) -> Iterator[object]:
    """All that can be reached from these objects, not through a `Secret`, nor through modules or this file's frames."""
    seen: dict[int, object] = {id(root): root for root in roots}
    left = list(roots)
    while left:
        one = left.pop()
        yield one
        if isinstance(one, _OPAQUE) or _of_this_file(one):
            continue
        following: list[Any]
        if isinstance(one, types.FunctionType):
            following = [one.__closure__, one.__defaults__, one.__kwdefaults__]
        else:
            following = gc.get_referents(one)
        for other in following:
            if id(other) not in seen and not _is_namespace(other):
                seen[id(other)] = other
                left.append(other)


def _is_namespace(one: object) -> bool:
    """Whether these are the globals of a module: everything is reachable from there."""
    return isinstance(one, dict) and "__builtins__" in one


def _of_this_file(one: object) -> bool:
    match one:
        case types.FrameType():
            return one.f_code.co_filename == __file__
        case types.CoroutineType():
            return one.cr_code.co_filename == __file__
        case types.AsyncGeneratorType():
            return one.ag_code.co_filename == __file__
        case types.GeneratorType():
            return one.gi_code.co_filename == __file__
        case types.FunctionType():
            return one.__code__.co_filename == __file__
        case _:
            return False


@dataclass
class Search:
    """What was shown so far, and where."""

    found: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def look(self, where: str, text: str) -> None:
        if holds(text):
            line = next(line for line in text.splitlines() if holds(line))
            self.found.append((where, line[:300]))

    def error(self, where: str, error: BaseException) -> None:
        """Look at an error in every way, and at everything behind it."""
        self.failures.append(f"{where}: {type(error).__name__}")
        self.look(f"{where}, traceback", with_locals(error))
        for one in chain(error):
            for text in forms(one):
                self.look(f"{where}, {type(one).__name__}", text)

    def objects(self, where: str, *things: object) -> None:
        for thing in things:
            for text in forms(thing):
                self.look(f"{where}, {type(thing).__name__}", text)


@pytest.fixture
def search(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[Search]:
    """Fails the test, at its end, if anything was shown: by what the test looks at, in a log, on a terminal."""
    caplog.set_level(0)
    search = Search()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield search
        gc.collect()
    for warning in warned:
        search.look("a warning", str(warning.message))
    formatter = logging.Formatter("%(name)s %(message)s %(exc_info)s")
    for record in caplog.records:
        search.look("a log line", formatter.format(record))
        search.look("a log record", repr(vars(record)))
        if record.exc_info and record.exc_info[1] is not None:
            search.error("a logged error", record.exc_info[1])
    told = capfd.readouterr()
    search.look("the output", told.out)
    search.look("the error output", told.err)
    assert search.found == []


# --- the search itself finds what it is to find ----------------------------------------------------------------------


def test_the_search_finds_what_is_behind_an_error_and_in_its_frames() -> None:
    def hidden() -> None:
        try:
            raise ValueError(RIGHT)
        except ValueError:
            raise KeyError("harmless") from None

    with pytest.raises(KeyError) as caught:
        hidden()
    search = Search()
    search.error("here", caught.value)
    assert {where for where, _ in search.found} == {"here, traceback", "here, ValueError"}

    code = compile("def deep(password):\n  raise KeyError('harmless')\n", "elsewhere.py", "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    with pytest.raises(KeyError) as caught:
        space["deep"](RIGHT)
    search = Search()
    search.error("here", caught.value)
    assert [where for where, _ in search.found] == ["here, traceback"]


def test_the_search_finds_what_is_kept_and_not_what_a_secret_keeps() -> None:
    assert any(map(holds, reachable(functools.partial(print, [{"deep": (RIGHT,)}]))))
    assert not any(map(holds, reachable([Secret(RIGHT), {"also": Secret(lambda: RIGHT)}])))


# --- the server ------------------------------------------------------------------------------------------------------

METHODS = ("scram", "md5", "clear")


class Doors(Access):
    """Every kind of password login, by the user's name."""

    def rules(self) -> str:
        lines = [f"host all {ADMIN} all trust"]
        kinds = {"scram": "scram-sha-256", "md5": "md5", "clear": "password"}
        lines += [
            f"{door} all {user} {'' if door == 'local' else 'all'} {method}"
            for user, method in kinds.items()
            for door in ("host", "local")
        ]
        return "\n".join([*lines, ""])


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        binaries = find()
    except PostgresNotFound as missing:
        pytest.skip(str(missing))
    roles = [Role(name, RIGHT) for name in METHODS if name != "md5"]
    md5 = f"set password_encryption = 'md5';\n\ncreate role md5 login password '{RIGHT}';\n\n"
    with Run(binaries) as run:
        template = create_data(run, "template", roles=roles, setup=md5)
        (address,) = run.addresses(1)
        with PostgresServer(run, "secrets", address, template=template, access=Doors()) as made:
            made.start()
            yield made


@pytest.fixture(scope="module")
def authority(server: PostgresServer) -> Authority:
    return Authority(server._run)


Given = Callable[[str, str, int, Path], tuple[str | None, dict[str, Any]]]
"""How a password is given: from it, the host, the port and a directory, to a DSN and options."""


def _keyword(make: Callable[[str], object]) -> Given:
    def given(password: str, host: str, port: int, _: Path) -> tuple[str | None, dict[str, Any]]:
        return None, {"hosts": [(host, port)], "database": "yugabyte", "password": make(password)}

    return given


def _sync(password: str) -> Callable[[], str]:
    return lambda: password


def _async(password: str) -> Callable[[], Awaitable[bytes]]:
    async def fetch() -> bytes:
        await trio.lowlevel.checkpoint()
        return password.encode()

    return fetch


def _in_dsn(password: str, host: str, port: int, _: Path) -> tuple[str | None, dict[str, Any]]:
    return f"postgresql://nobody:{password}@{host}:{port}/yugabyte", {}


def _in_query(password: str, host: str, port: int, _: Path) -> tuple[str | None, dict[str, Any]]:
    return f"postgresql://{host}:{port}/yugabyte?password={password}", {}


def _passfile(password: str, host: str, port: int, directory: Path) -> tuple[str | None, dict[str, Any]]:
    file = directory / "passwords"
    file.write_text(f"other:1:*:*:{password}-other\n*:*:*:*:{password}\n")
    file.chmod(0o600)
    return f"postgresql://{host}:{port}/yugabyte?passfile={file}", {}


def _environment(password: str, host: str, port: int, _: Path) -> tuple[str | None, dict[str, Any]]:
    os.environ["PGPASSWORD"] = password
    return f"postgresql://{host}:{port}/yugabyte", {}


GIVEN: dict[str, Given] = {
    "text": _keyword(str),
    "bytes": _keyword(str.encode),
    "function": _keyword(_sync),
    "async function": _keyword(_async),
    "DSN": _in_dsn,
    "query string": _in_query,
    "password file": _passfile,
    "environment": _environment,
}


@dataclass
class Scene:
    """One pool after another, each made to fail in its own way, and what it shows of that."""

    search: Search
    server: PostgresServer
    driver: str
    given: Given
    directory: Path
    """For a password file."""

    def options(self, password: str, port: int, host: str | None, options: dict[str, Any]) -> dict[str, Any]:
        dsn, own = self.given(password, host or self.server.host, port, self.directory)
        base = {"user": "scram", "pool_size": 1, "driver": self.driver, "checkout_timeout": 5}
        return {**({} if dsn is None else {"dsn": dsn}), **base, **own, **options}

    @asynccontextmanager
    async def pool(
        self, password: str = RIGHT, *, at: int | None = None, host: str | None = None, **options: Any
    ) -> AsyncIterator[ysactor.Pool]:
        made = ysactor.open_pool(**self.options(password, at or self.server.port, host, options))
        del password, options
        async with made as pool:
            yield pool

    async def fails(
        self, what: str, work: Callable[[ysactor.Pool], Awaitable[object]], password: str = RIGHT, **options: Any
    ) -> None:
        """What comes out of the pool's block; it has to be an error."""
        try:
            async with self.pool(password, **options) as pool:
                try:
                    await work(pool)
                finally:
                    self.look_at(what, pool)
        except Exception as error:
            self.search.error(what, error)
        else:
            pytest.fail(f"{what} did not fail")

    def look_at(self, what: str, pool: ysactor.Pool) -> None:
        shown = (pool, pool.statistics(), pool.cluster, pool.cluster.info(), pool.cluster._config, pool._actor)
        self.search.objects(what, *shown)


async def ask(pool: ysactor.Pool) -> object:
    return await pool.fetchval("SELECT 1")


@pytest.fixture(params=["native", "trio_asyncio"])
def driver(request: pytest.FixtureRequest) -> str:
    if request.param == "trio_asyncio":
        pytest.importorskip("trio_asyncio", exc_type=(ImportError, AttributeError))
    return request.param


@pytest.fixture(params=GIVEN)
def scene(
    request: pytest.FixtureRequest,
    search: Search,
    server: PostgresServer,
    driver: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:
    monkeypatch.setenv("PGPASSWORD", "")  # counts as not set, and what is put there is gone after the test
    return Scene(search, server, driver, GIVEN[request.param], tmp_path)


async def test_what_goes_wrong_while_connecting_shows_no_secret(scene: Scene, authority: Authority) -> None:
    with trio.fail_after(PATIENCE):
        for user in METHODS:
            await scene.fails(f"wrong password, {user}", ask, WRONG, user=user)
        await scene.fails("no such role", ask, user="nobody_at_all")
        await scene.fails("no such database", ask, database="none")
        await scene.fails("refused", ask, at=1)
        await scene.fails("unresolvable", ask, host="no-such-name.invalid")
        await scene.fails("no TLS", ask, ssl="require")
        await scene.fails("a bad setting", ask, server_settings={"work_mem": "nonsense"})

        async def broken(conn: ysactor.Connection) -> None:
            await conn.execute("SELECT no_such_column")

        async def own(conn: ysactor.Connection) -> None:
            raise LookupError("the hook's own")

        await scene.fails("on_connect, the server's error", ask, on_connect=broken)
        await scene.fails("on_connect, its own error", ask, on_connect=own)

        tls = authority.issue("elsewhere.test").server_context()
        async with open_fault_proxy((scene.server.host, scene.server.port), tls=tls) as proxy:
            port = proxy.address[1]
            for options in (
                {"ssl": "verify-ca"},
                {"ssl": "verify-full", "ssl_root_cert": str(authority.root)},
                {"ssl": authority.client_context(), "ssl_server_name": "db.test"},
            ):
                await scene.fails("a bad certificate", ask, at=port, **options)
            await scene.fails("wrong password, TLS", ask, WRONG, at=port, ssl="require")
            proxy.tls = None
            proxy.set_mode("blackhole")
            await scene.fails("no answer", ask, at=port, connect_timeout=0.1)
            await scene.fails("no place in line", ask, at=port, connect_timeout=5, checkout_timeout=0.1)
            proxy.set_mode("reset")
            await scene.fails("reset", ask, at=port)
    assert len(scene.search.failures) >= 17


async def test_what_goes_wrong_on_an_open_connection_shows_no_secret(scene: Scene) -> None:
    server = scene.server

    async def ended(pool: ysactor.Pool) -> None:
        async with pool.acquire() as conn:
            scene.search.objects("a lease", conn, conn.raw, conn.transaction(), conn.server)
            pid = conn.get_server_pid()
            await trio.to_thread.run_sync(server.sql, f"select pg_terminate_backend({pid})")
            await conn.execute("SELECT pg_sleep(10)")

    async def late(pool: ysactor.Pool) -> None:
        await pool.execute("SELECT pg_sleep(10)")

    async def wrong(pool: ysactor.Pool) -> None:
        async with pool.acquire() as conn, conn.transaction():
            await conn.execute("SELECT * FROM no_such_table")

    async def waiting(pool: ysactor.Pool) -> None:
        async with pool.acquire():
            await pool.fetch("SELECT 1")

    async def closed(pool: ysactor.Pool) -> None:
        await pool.aclose()
        await pool.fetch("SELECT 1")

    async def over(pool: ysactor.Pool) -> None:
        async with pool.acquire() as conn:
            pass
        await conn.fetch("SELECT 1")

    async def misused(pool: ysactor.Pool) -> None:
        await pool.fetch("SELECT $1::int", "no number")

    async def commits(pool: ysactor.Pool) -> None:
        async def fn(conn: ysactor.Connection) -> None:
            await conn.execute("SELECT 1")

        await pool.transaction(fn)

    with trio.fail_after(PATIENCE):
        await scene.fails("ended", ended)
        await scene.fails("socket_timeout", late, socket_timeout=0.1)
        await scene.fails("statement_timeout", late, statement_timeout=0.1)
        await scene.fails("a server's error", wrong)
        await scene.fails("checkout_timeout", waiting, checkout_timeout=0.1)
        await scene.fails("closed", closed)
        await scene.fails("a lease that has ended", over)
        await scene.fails("misused", misused)
        async with open_fault_proxy((server.host, server.port)) as proxy:
            proxy.cut_next_commit("after")
            await scene.fails("commit unknown", commits, at=proxy.address[1])
    assert "commit unknown: CommitOutcomeUnknown" in scene.search.failures


async def test_a_crash_in_the_tree_shows_no_secret(scene: Scene) -> None:
    """A bug comes out with its traceback, in which the frames of actors are that have all options at hand."""
    from ysactor.driver.choose import choose

    class Broken:
        def __init__(self, inner: Any) -> None:
            self.run, self.resolve = inner.run, inner.resolve
            self.inner = inner

        async def connect(self, host: Any, config: Any) -> Any:
            session = await self.inner.connect(host, config)
            session.terminate("a bug follows")
            raise ZeroDivisionError("a bug")

    scene_driver: Any = Broken(choose(scene.driver))  # type: ignore[arg-type]
    with trio.fail_after(PATIENCE):

        async def wait(_: ysactor.Pool) -> None:
            await trio.sleep_forever()

        async def crash(_: ysactor.Pool) -> None:
            raise RuntimeError("the program's own")

        await scene.fails("a bug", wait, driver=scene_driver)
        await scene.fails("the program's own", crash)
        made = scene.options(RIGHT, scene.server.port, None, {"driver": scene_driver})
        try:
            # A function that is given on to Trio with its arguments shows them: those are the caller's own frames.
            await ysactor.run_pool(**made)
        except Exception as error:
            scene.search.error("run_pool", error)
    assert len(scene.search.failures) == 3


async def test_nothing_but_a_secret_keeps_the_password_once_a_session_is_open(
    scene: Scene, authority: Authority
) -> None:
    """Not asyncpg's objects either, though asyncpg keeps what it is given for as long as a connection lives."""
    tls = authority.issue(scene.server.host).server_context()
    with trio.fail_after(PATIENCE):
        async with open_fault_proxy((scene.server.host, scene.server.port), tls=tls) as proxy:
            for options in ({}, {"at": proxy.address[1], "ssl": "require"}, {"ssl": "prefer"}):
                for user in METHODS:
                    async with scene.pool(user=user, **options) as pool, pool.acquire() as conn:
                        assert await conn.fetchval("SELECT current_user") == user
                        session = conn._session()
                        gc.collect()
                        kept = [one for one in reachable(pool, conn, session, session.raw) if holds(one)]
                        scene.search.found += [(f"kept, {user}, {options}", type(one).__name__) for one in kept]
                        assert any(isinstance(one, Config) for one in reachable(pool)), "the search did not get far"
                        del kept, session


# --- passwords that are none, and functions that fail ----------------------------------------------------------------


@pytest.mark.parametrize(
    "returned",
    [
        pytest.param(b"\xff" + RIGHT.encode(), id="no UTF-8"),
        pytest.param(RIGHT + "\udc80", id="a surrogate"),
        pytest.param(RIGHT + "\0", id="a NUL"),
        pytest.param(RIGHT.encode() + b"\0", id="a NUL in bytes"),
        pytest.param(("scram", RIGHT), id="a pair"),
        pytest.param({"password": RIGHT}, id="a mapping"),
        pytest.param(None, id="None"),
        pytest.param(42, id="a number"),
    ],
)
async def test_a_function_that_returns_no_password_fails_the_login_and_nothing_else(
    returned: object, search: Search, server: PostgresServer, driver: str
) -> None:
    async def fetch() -> Any:
        return returned

    for function in (lambda: returned, fetch):
        with trio.fail_after(PATIENCE):
            async with ysactor.open_cluster(
                hosts=[(server.host, server.port)], user="scram", database="yugabyte", password=function, driver=driver
            ) as cluster:
                with pytest.raises(ysactor.ConnectFailed) as caught:
                    async with cluster.connect():
                        pass
        search.error("a function's result", caught.value)
        assert "password" in str(caught.value)


async def test_a_function_that_raises_shows_no_variable_of_ours(
    search: Search, server: PostgresServer, driver: str
) -> None:
    def fetch() -> str:
        raise LookupError("no vault today")

    with trio.fail_after(PATIENCE):
        async with ysactor.open_cluster(
            hosts=[(server.host, server.port)], user="scram", database="yugabyte", password=fetch, driver=driver
        ) as cluster:
            with pytest.raises(ysactor.ConnectFailed, match="LookupError") as caught:
                async with cluster.connect():
                    pass
    search.error("a function that raises", caught.value)


# --- the password file -----------------------------------------------------------------------------------------------


async def test_each_server_gets_the_line_of_its_own_on_either_transport(
    search: Search, server: PostgresServer, driver: str, tmp_path: Path
) -> None:
    """A server that the file knows is never sent another's password."""
    file = tmp_path / "passwords"
    file.write_text(f"no-such-name.invalid:*:*:*:{WRONG}\n{server.host}:{server.port}:*:*:{RIGHT}\n")
    file.chmod(0o600)
    dsn = f"postgresql://clear@no-such-name.invalid,{server.host}:{server.port}/yugabyte?passfile={file}"
    with trio.fail_after(PATIENCE):
        async with ysactor.open_cluster(dsn, driver=driver) as cluster, cluster.connect() as conn:  # type: ignore[arg-type]
            assert await conn.fetchval("SELECT current_user") == "clear"
            search.objects("a cluster", cluster, cluster.info(), cluster._config, cluster._config.passfile)


def test_a_password_file_that_is_ignored_is_named_and_not_quoted(search: Search, tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    file.write_text(f"*:*:*:*:{RIGHT}\n")
    file.chmod(0o644)
    search.objects("a config", Config.of(f"postgresql://h/d?passfile={file}", {}, environ={}))
    file.chmod(0o600)
    file.write_bytes(b"*:*:*:*:" + RIGHT.encode() + b"\xff\n")
    search.objects("a config", Config.of(f"postgresql://h/d?passfile={file}", {}, environ={}))


# --- options ---------------------------------------------------------------------------------------------------------

BAD: dict[str, Any] = {
    "hosts": [f"postgresql://u:{RIGHT}@h/d"],
    "port": "x",
    "user": 5,
    "database": "",
    "ssl": f"{RIGHT}",
    "ssl_root_cert": 5,
    "ssl_server_name": "",
    "asyncpg_options": {RIGHT: RIGHT, "statement_cache_size": RIGHT, "password": RIGHT},
    "server_settings": {"work_mem": 5, "my.key": RIGHT},
    "on_connect": 5,
    "prepare_on_connect": f"SELECT '{RIGHT}'",
    "topology_keys": 5,
    "password": [RIGHT],
    "passwrd": RIGHT,
    "dsn_url": f"postgresql://u:{RIGHT}@h/d",
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("opens", [ysactor.open_pool, ysactor.open_cluster, ysactor.run_pool])
async def test_a_bad_option_shows_no_secret(bad: str, opens: Callable[..., Any], search: Search) -> None:
    """Neither its own value, nor what stands beside it in the same call."""
    options = {"password": RIGHT, bad: BAD[bad]}
    dsn = f"postgresql://u:{RIGHT}@h/d?socket_timeout={RIGHT}&x={RIGHT}"
    for given in ({"dsn": dsn}, {}):
        made = opens(**given, **options)
        with pytest.raises(ysactor.ConfigurationError) as caught:
            if opens is ysactor.run_pool:
                await made
            else:
                async with made:
                    pass
        search.error(bad, caught.value)


async def test_a_dsn_given_as_the_driver_is_not_quoted() -> None:
    with pytest.raises(ysactor.ConfigurationError) as caught:
        async with ysactor.open_pool(driver=f"postgresql://u:{RIGHT}@h/d"):  # type: ignore[arg-type]
            pass
    assert str(caught.value) == "driver: expected 'native', 'trio_asyncio' or a driver, not that (not shown)"


DSNS = (
    "postgresql://u:{}@h:port/d",
    "postgresql://u:{}/x@h/d",
    "postgresql://u:{}#@h/d",
    "postgresql://u:{}%zz@h/d",
    "postgresql://u:{}%ff@h/d",
    "postgresql://u:a@{}@h/d",
    "postgresql://u:1?{}@h/d",
    "postgresql://u:p@h/d?sslpassword={}&sslkey=/none",
    "postgresql://u:p@h/d?sslmode=require&sslcert=/{}&sslkey=/{}",
    "postgresql://u:p@h/d?sslmode=verify-full&sslrootcert=/{}",
    "postgresql://u:p@h/d?{}=1",
    "postgresql://u:p@h/d?connect_timeout={}",
    "mysql://u:{}@h/d",
    "u:{}@h",
    "{}",
)


@pytest.mark.parametrize("dsn", DSNS)
def test_a_bad_dsn_is_not_shown_by_pool_or_command(dsn: str, search: Search, capfd: pytest.CaptureFixture[str]) -> None:
    text = dsn.replace("{}", RIGHT)

    async def open_it() -> None:
        async with ysactor.open_pool(text):
            pass

    with pytest.raises(ysactor.ConfigurationError) as caught:
        trio.run(open_it)
    search.error("a bad DSN", caught.value)
    for command in (["check", text], ["demo", "--url", text]):
        assert main(command) == 2
    told = capfd.readouterr()
    search.look("the command", told.out + told.err)
    assert told.err


@pytest.mark.parametrize(
    "shape",
    ["{}", "x" * 60 + "{}@host", "{}" + "x" * 60 + "@" + "y" * 60, "-----BEGIN {} KEY-----", "host=h Password = {}"],
)
def test_what_looks_like_a_secret_in_the_wrong_place_is_not_quoted(shape: str, search: Search) -> None:
    """A DSN, or a key instead of the path to it, is refused without a piece of it, however long it is."""
    value = shape.replace("{}", RIGHT)
    if value == RIGHT:
        value = f"postgresql://u:{RIGHT}@h"
    for options in (
        {"hosts": value},
        {"hosts": [value]},
        {"ssl": True, "ssl_root_cert": value},
        {"topology_keys": value},
    ):
        with pytest.raises(ysactor.ConfigurationError) as caught:
            Config.of(None, options, environ={})
        search.error("out of place", caught.value)
    for variable in ("PGHOST", "PGPORT", "PGSSLMODE", "PGSSLROOTCERT", "PGSSLKEY", "PGSSLCERT"):
        environ = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": "system", variable: value}
        with pytest.raises(ysactor.ConfigurationError) as caught:
            Config.of(None, {}, environ=environ)
        search.error("out of place", caught.value)


# --- keys ------------------------------------------------------------------------------------------------------------


async def test_a_key_file_and_its_password_are_shown_nowhere(
    search: Search, authority: Authority, server: PostgresServer, driver: str, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    made = authority.issue(common_name="scram")
    key = serialization.load_pem_private_key(made.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(RIGHT.encode()),
        )
    )
    broken = tmp_path / "broken.key"
    broken.write_text(f"-----BEGIN PRIVATE KEY-----\n{RIGHT}\n-----END PRIVATE KEY-----\n")
    base = f"postgresql://scram@{server.host}:{server.port}/yugabyte?sslmode=require&sslcert={made.chain}"
    for key_file, password in ((locked, WRONG), (broken, RIGHT)):
        with pytest.raises(ysactor.ConfigurationError) as caught:
            async with ysactor.open_cluster(f"{base}&sslkey={key_file}&sslpassword={password}"):
                pass
        search.error("a key", caught.value)
    for name in ("ssl_root_cert", "sslcrl"):
        with pytest.raises(ysactor.ConfigurationError) as caught:
            environ = {
                "PGSSLMODE": "verify-ca",
                "PGSSLROOTCERT": str(broken if name == "ssl_root_cert" else authority.root),
            }
            Config.of(None, {}, environ=environ | ({"PGSSLCRL": str(broken)} if name == "sslcrl" else {}))
        search.error("a file", caught.value)
    with trio.fail_after(PATIENCE):
        good = f"{base}&sslkey={locked}&sslpassword={RIGHT}"
        async with ysactor.open_cluster(good, driver=driver) as cluster:  # type: ignore[arg-type]
            search.objects("a cluster", cluster, cluster.info(), cluster._config)
            assert not any(map(holds, reachable(cluster)))
            with pytest.raises(ysactor.ConnectFailed) as caught_later:
                async with cluster.connect():
                    pass
            search.error("no TLS", caught_later.value)


def test_a_context_and_options_of_asyncpg_are_shown_nowhere(search: Search) -> None:
    class Telling(ssl.SSLContext):
        def __repr__(self) -> str:
            return RIGHT

    options = {"ssl": Telling(ssl.PROTOCOL_TLS_CLIENT), "asyncpg_options": {"krbsrvname": RIGHT}}
    config = Config.of(None, options, environ={})
    search.objects("a config", config, config.tls)
    with pytest.raises(ysactor.ConfigurationError) as caught:
        Config.of(None, options | {"port": 0}, environ={})
    search.error("a bad port", caught.value)


# --- the fake cluster ------------------------------------------------------------------------------------------------


async def test_the_fake_cluster_keeps_a_programs_secrets_as_well(search: Search) -> None:
    cluster = FakeCluster.of(1, password=RIGHT)
    for password in (WRONG, WRONG.encode(), lambda: WRONG):
        async with ysactor.open_cluster(hosts=["10.0.0.1"], password=password, driver=FakeDriver(cluster)) as client:
            with pytest.raises(ysactor.ConnectFailed) as caught:
                async with client.connect():
                    pass
            search.error("a wrong password", caught.value)
            search.objects("the client", client, client.info(), client._config)


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["check"], ["check", "--json"], ["demo", "--seconds", "1", "--url"]])
def test_the_commands_print_no_password_when_it_is_wrong(
    arguments: list[str], search: Search, server: PostgresServer, capfd: pytest.CaptureFixture[str]
) -> None:
    dsn = f"postgresql://scram:{WRONG}@{server.host}:{server.port}/yugabyte"
    code = main([*arguments, dsn])
    told = capfd.readouterr()
    search.look("the command", told.out + told.err)
    assert code in (1, 2)
    assert "password authentication failed" in told.out + told.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "postgresql://h/d", "--password", RIGHT],
        ["check", "postgresql://h/d", f"--password={RIGHT}"],
        ["check", "postgresql://h/d", f"--pasword={RIGHT}"],
        ["check", "postgresql://h/d", "--pasword", RIGHT],
        ["check", "postgresql://h/d", f"host=h password={RIGHT}"],
        ["check", "postgresql://h/d", f"u:{RIGHT}@h"],
        ["demo", f"postgresql://u:{RIGHT}@h/d"],
        ["check", "--timeout", f"postgresql://u:{RIGHT}@h/d"],
        [f"postgresql://u:{RIGHT}@h/d"],
        [f"u:{RIGHT}@h/d"],
        ["check", f"host=h password={RIGHT}"],
        ["check", "postgresql://h/d", "--ssl", f"postgresql://u:{RIGHT}@h/d"],
    ],
)
def test_arguments_in_the_wrong_place_are_not_repeated(
    arguments: list[str], search: Search, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    told = capfd.readouterr()
    search.look("the command", told.out + told.err)
    assert code == 2
    assert told.err
