"""Merges the sources of options and checks what holds between them: keyword > DSN > environment > default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from .dsn import Dsn, parse_dsn
from .hosts import Seed, libpq_ports, libpq_seeds, resolve
from .passthrough import MAX_CACHEABLE_STATEMENT_SIZE, STATEMENT_CACHE_SIZE
from .pgpass import PassFile, default_path, read_passfile
from .readers import Invalid, Reader, shown
from .table import ENVIRONMENT, LIBPQ, OPTIONS, Option, suggestion, unknown_in_dsn
from .tls import FURTHER, Given, Tls, TlsMode, make_tls, strengthened, unused

_DEFAULT_USER = "yugabyte"
_DEFAULT_PORT = 5433
_DEFAULT_SIZE = 10
# These two are lists in libpq's text, which no option's own text is.
_LIBPQ_TEXT: Mapping[str, Callable[[str], Any]] = MappingProxyType({"hosts": libpq_seeds, "port": libpq_ports})


class Source(IntEnum):
    """Where a value came from; the lower comes first."""

    KEYWORD = 0
    DSN = 1
    ENVIRONMENT = 2
    DEFAULT = 3


def read_options(
    dsn: str | None, options: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields of `Config` that differ from its defaults, and every problem that was found."""
    reading = _Reading(environ)
    reading.keywords(options)
    if dsn is not None:
        reading.dsn(dsn)
    fields = reading.fields()
    return fields, tuple(dict.fromkeys(reading.problems))


class _Reading:
    """Options being read: the values found so far, and what is wrong with the others."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.default_port = _DEFAULT_PORT
        self.found: dict[str, Any] = {}
        # Options with a value that cannot be used: no rule is applied to them, and no other source asked.
        self.failed: set[str] = set()
        self.sources: dict[str, Source] = {}
        self.problems: list[str] = []

    # --- the sources ---

    def keywords(self, options: Mapping[str, Any]) -> None:
        for name in sorted(str(name) for name in options if name not in OPTIONS):
            self.problems.append(f"unknown option {shown(name)}{suggestion(name)}")
        for name, option in OPTIONS.items():
            if name in options:
                self.take(name, option, options[name], Source.KEYWORD)

    def dsn(self, dsn: str) -> None:
        parsed = parse_dsn(dsn, unknown_in_dsn)
        self.problems.extend(parsed.problems)
        if parsed.port is None:
            # Nothing is known of it, so the environment must not fill in.
            self.failed.update(ENVIRONMENT.keys() - self.found.keys())
            return
        self.default_port = parsed.port
        if parsed.problems:
            self.failed.update({"hosts", "port", "user", "password", "database"} - self.found.keys())
        self.dsn_hosts(parsed)
        for name, given in parsed.text.items():
            self.take_text(name, given, Source.DSN, "the DSN")

    def dsn_hosts(self, parsed: Dsn) -> None:
        # A list of ports belongs to the hosts beside it, and goes with them if a keyword takes their place.
        replaced = parsed.hosts is not None and self.has("hosts")
        if parsed.hosts is not None:
            self.keep("hosts", parsed.hosts, Source.DSN)
        if parsed.ports is not None and not (replaced and isinstance(parsed.ports, tuple)):
            self.keep("port", parsed.ports, Source.DSN)

    def environment(self, names: Iterable[str]) -> None:
        """Fill in what no other source gives. A variable that is empty counts as not set."""
        for name in names:
            variable = ENVIRONMENT.get(name)
            if variable is None or self.has(name) or not (given := self.environ.get(variable)):
                continue
            self.take_text(name, given, Source.ENVIRONMENT, variable)

    # --- one value ---

    def has(self, name: str) -> bool:
        return name in self.found or name in self.failed

    def take_text(self, name: str, given: str, source: Source, where: str) -> None:
        option = OPTIONS.get(name) or LIBPQ[name]
        if name in _LIBPQ_TEXT:
            option = Option(cast("Reader", _LIBPQ_TEXT[name]))
        value = given if option.parse is None else option.parse(given)
        self.take(name, option, value, source, f" (in {where})")

    def take(self, name: str, option: Option, value: object, source: Source, where: str = "") -> None:
        """Read one value. A value that an earlier source gave stands, but a later one must be valid too."""
        try:
            read = option.read(value)
        except Invalid as invalid:
            self.failed.add(name)
            self.found.pop(name, None)
            sentence = invalid.reason or f"expected {invalid}"
            hidden = option.secret or source is Source.DSN or invalid.reason
            echo = "" if hidden else f", not {shown(value)}"
            self.problems.append(f"{name}: {sentence}{echo}{where}")
        else:
            self.keep(name, read, source)

    def keep(self, name: str, value: object, source: Source) -> None:
        if not self.has(name):
            self.found[name] = value
            self.sources[name] = source

    def report(self, name: str, sentence: str) -> None:
        self.problems.append(f"{name}: {sentence}")

    # --- what holds between options ---

    def fields(self) -> dict[str, Any]:
        self.environment(("hosts", "user", "password", "database", "ssl", "target_session_attrs"))
        made: dict[str, Any] = {"tls": self.tls(), "hosts": self.hosts()}
        made["database"] = self.found.get("database", self.found.get("user", _DEFAULT_USER))
        made |= self.sizes()
        self.delays()
        self.statements()
        made["server_settings"] = self.settings()
        made |= self.passwords(made)
        own = {"port", "ssl", "pool_size", "server_settings", *FURTHER, *LIBPQ}
        return {name: value for name, value in self.found.items() if name not in own} | made

    def hosts(self) -> Any:
        found: tuple[Seed, ...] = self.found.get("hosts", (Seed("localhost", None),))
        if any(seed.port is None for seed in found):
            self.environment(("port",))
        if not self.failed.isdisjoint({"hosts", "port"}):
            return ()
        try:
            return resolve(found, self.found.get("port", self.default_port), self.default_port)
        except Invalid as invalid:
            self.report("port", str(invalid.reason))
            return ()

    def tls(self) -> Tls:
        if "ssl" in self.failed:
            return Tls()
        wanted = self.found.get("ssl", TlsMode.OFF)
        given: dict[str, Given] = {}
        for name in FURTHER:
            no_effect = unused(wanted, name) is not None
            if not no_effect:
                self.environment((name,))
            value = self.found.get(name)
            # One without effect is a mistake, unless a stronger source has changed `ssl` over its head.
            if value is None or (no_effect and self.sources[name] > self.sources.get("ssl", Source.DEFAULT)):
                continue
            given[name] = Given(value, quotable=self.sources[name] is not Source.DSN)
            wanted = strengthened(wanted, root_cert="ssl_root_cert" in given)
        return make_tls(wanted, given, self.report)

    def sizes(self) -> dict[str, int]:
        """`pool_size` fixes the size; else each of the others is 10 if left out, or what the other one allows."""
        given = [name for name in ("min_size", "max_size") if self.has(name)]
        if self.has("pool_size"):
            for name in given:
                self.report("pool_size", f"it stands for min_size and max_size together, and {name} is given as well")
            size = self.found.get("pool_size", _DEFAULT_SIZE)
            return {"min_size": size, "max_size": size}
        least, most = self.found.get("min_size"), self.found.get("max_size")
        if least is not None and most is not None and least > most:
            self.report("min_size", f"{least} is more than max_size, {most}")
        if least is None:
            least = _DEFAULT_SIZE if most is None else min(_DEFAULT_SIZE, most)
        return {"min_size": least, "max_size": max(_DEFAULT_SIZE, least) if most is None else most}

    def delays(self) -> None:
        most = self.found.get("failed_host_max_delay_secs")
        if most is None or "failed_host_reconnect_delay_secs" in self.failed:
            return
        delay = self.found.get("failed_host_reconnect_delay_secs", 5)
        if delay == 0:
            self.report("failed_host_max_delay_secs", "a failed_host_reconnect_delay_secs of 0 takes none")
        elif most < delay:
            self.report("failed_host_max_delay_secs", f"{most} is less than failed_host_reconnect_delay_secs, {delay}")

    def statements(self) -> None:
        """What `prepare_on_connect` lists has to fit where asyncpg keeps prepared statements."""
        texts: tuple[str, ...] = self.found.get("prepare_on_connect", ())
        if not texts or "asyncpg_options" in self.failed:
            return
        options = cast("Mapping[str, Any]", self.found.get("asyncpg_options", {}))
        room = options.get("statement_cache_size", STATEMENT_CACHE_SIZE)
        longest = options.get("max_cacheable_statement_size", MAX_CACHEABLE_STATEMENT_SIZE)
        if room == 0:
            self.report(
                "prepare_on_connect", "a statement_cache_size of 0, in asyncpg_options, keeps none: leave one out"
            )
        elif len(texts) > room:
            excess = f"it lists {len(texts)} statements, and a connection keeps {room}"
            self.report("prepare_on_connect", f"{excess}: list fewer, or raise statement_cache_size in asyncpg_options")
        for number, text in enumerate(texts, 1):
            if 0 < longest < len(text):
                excess = f"statement {number} has {len(text)} characters, and one of more than {longest} is not kept"
                advice = "raise max_cacheable_statement_size in asyncpg_options, where 0 is no limit"
                self.report("prepare_on_connect", f"{excess}: {advice}")

    def settings(self) -> Mapping[str, str]:
        """`server_settings` without what has an option of its own."""
        settings = dict(cast("Mapping[str, str]", self.found.get("server_settings", {})))
        by_option = {name.lower(): name for name in settings}
        for option in ("application_name", "statement_timeout"):
            if option in by_option and self.has(option):
                self.report("server_settings", f"{option} is given as an option and again here")
        if "application_name" in by_option and not self.has("application_name"):
            self.found["application_name"] = settings.pop(by_option["application_name"])
        if "options" in self.found and "options" not in by_option:
            settings["options"] = self.found["options"]
        return MappingProxyType(settings)

    def passwords(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """The password file is for whoever has no password from anywhere else."""
        if self.has("password"):
            return {}
        self.environment(("passfile",))
        named = self.found.get("passfile")
        path = default_path(self.environ) if named is None else Path(named)
        passfile = PassFile() if path is None else read_passfile(path)
        user = self.found.get("user", _DEFAULT_USER)
        password = passfile.first(made["hosts"], made["database"], user)
        return {"passfile": passfile if passfile.entries else None, "password": password}
