"""What is handed on: run-time parameters to the server (`server_settings`), arguments to asyncpg (`asyncpg_options`).

asyncpg itself is not imported: which of its arguments make sense here is a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from .readers import Invalid, Reader, encodable, integer, seconds

_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*")
_SETTINGS = "a mapping of parameter names to text; write numbers and truth values as the server reads them: '4MB', 'on'"
_TEXT = "text without NUL; write numbers and truth values as the server reads them: '4MB', 'on'"
_RESERVED_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "user": "user is an option of its own",
        "database": "database is an option of its own",
        "client_encoding": "client_encoding is always UTF-8",
        "replication": "replication connections are not supported",
    }
)


def server_settings(value: object) -> Mapping[str, str]:
    """More run-time parameters. Values are text and nothing else: True would be sent as a word nobody chose.

    Of what is wrong only a name is ever shown, and none that could not be one.
    """
    if not isinstance(value, Mapping):
        raise Invalid(_SETTINGS)
    settings: dict[str, str] = {}
    folded: set[str] = set()
    for name, setting in cast("Mapping[object, object]", value).items():
        if not isinstance(name, str) or not _SETTING.fullmatch(name):
            raise Invalid(f"{_SETTINGS}; one of the names is none that a parameter can have")
        if not isinstance(setting, str) or not encodable(setting):
            raise Invalid(reason=f"{name} takes {_TEXT}")
        if (reason := _RESERVED_SETTINGS.get(name.lower())) is not None:
            raise Invalid(reason=reason)
        if name.lower() in folded:
            raise Invalid(reason=f"{name.lower()} is given twice: the server ignores case")
        folded.add(name.lower())
        settings[name] = setting
    return MappingProxyType(settings)


def _record_class(value: object) -> type:
    # The class is recognised by its name, as importing asyncpg is the driver's business.
    if isinstance(value, type) and any(
        base.__name__ == "Record" and base.__module__.partition(".")[0] == "asyncpg" for base in value.__mro__
    ):
        return value
    raise Invalid("asyncpg.Record or a class derived from it")


def _service_name(value: object) -> str:
    if not isinstance(value, str) or not value or not encodable(value):
        raise Invalid("text that is not empty")
    return value


def _gss_library(value: object) -> str:
    if not isinstance(value, str) or value not in {"gssapi", "sspi"}:
        raise Invalid("'gssapi' or 'sspi'")
    return value


_PASSED: Mapping[str, Reader] = MappingProxyType(
    {
        "command_timeout": seconds(zero=False, limitless=True),
        "gsslib": _gss_library,
        "krbsrvname": _service_name,
        "max_cacheable_statement_size": integer(0),
        "max_cached_statement_lifetime": integer(0),
        "record_class": _record_class,
        "statement_cache_size": integer(0),
    }
)
"""asyncpg's arguments that are passed on, and what they take."""

STATEMENT_CACHE_SIZE = 100
MAX_CACHEABLE_STATEMENT_SIZE = 15 * 1024
"""asyncpg's defaults: how many prepared statements a connection keeps, and of how many characters at most."""

_OWN: Mapping[str, str] = MappingProxyType(
    {
        "connection_class": "ysactor brings its own",
        "database": "use the option database",
        "direct_tls": "TLS without PostgreSQL's request for it is not supported",
        "dsn": "use the argument dsn",
        "host": "use the option hosts",
        "loop": "ysactor brings its own",
        "passfile": "use the option password, or PGPASSFILE",
        "password": "use the option password",
        "port": "use the option port",
        "server_settings": "use the option server_settings",
        "service": "service files are not read",
        "servicefile": "service files are not read",
        "ssl": "use the option ssl",
        "target_session_attrs": "use the option target_session_attrs",
        "timeout": "use the option connect_timeout",
        "user": "use the option user",
    }
)
"""asyncpg's arguments that are not, and what to do instead."""


def asyncpg_options(value: object) -> Mapping[str, Any]:
    """Arguments for asyncpg's connect. Nothing of the value is ever shown."""
    if not isinstance(value, Mapping):
        raise Invalid("a mapping of asyncpg's arguments")
    passed: dict[str, Any] = {}
    wrong: list[str] = []
    for name, given in cast("Mapping[object, object]", value).items():
        reader = _PASSED.get(name) if isinstance(name, str) else None
        if reader is None:
            # A name that asyncpg has is safe to show; any other may be a value in the wrong place.
            known = name if isinstance(name, str) and name in _OWN else None
            wrong.append(f"{known} is not passed on: {_OWN[known]}" if known else "one of the names is not known")
            continue
        try:
            passed[cast("str", name)] = reader(given)
        except Invalid as invalid:
            wrong.append(f"{name} takes {invalid}")
    if wrong:
        raise Invalid(reason=", ".join(wrong) + f"; passed on are {', '.join(_PASSED)}")
    return MappingProxyType(passed)
