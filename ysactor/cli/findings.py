"""What ``ysactor check`` found out, and the words for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..config import Config, LoadBalance
from ..policy.explain import Explanation, Finding, Reason
from ..servers import HostPort, Kind, Server
from .table import table


@dataclass(frozen=True, slots=True)
class Visit:
    """What came of dialling one server, once."""

    kind: Kind | None = None
    """As what it failed; None if a connection opened."""
    detail: str = ""
    """What it failed of."""
    seconds: float | None = None
    """How long opening the connection took."""
    standby: bool = False
    """Whether it said that it is in recovery."""
    sessions: int | None = None
    """The sessions that it has besides this one, as it counts them; None if it did not say."""


UNVISITED = Visit()


@dataclass(frozen=True, slots=True)
class Made:
    """The connection that was made in the end."""

    server: Server
    seconds: float
    version: str
    tls: str | None
    """The protocol's version, or None for a plain connection."""


Source = Literal["yb_servers", "off", "not yugabyte", "unknown"]
"""Where the servers are from: the list; or the configured hosts, because balancing is off, because the database has no
such list, or because it could not be read."""


@dataclass(frozen=True, slots=True)
class Findings:
    """All of it."""

    config: Config
    source: Source
    explanation: Explanation
    visits: Mapping[HostPort, Visit]
    made: Made | None
    error: str | None
    """Why no connection was made."""

    @property
    def ok(self) -> bool:
        """Whether there is a connection to be had."""
        return self.made is not None

    def visit(self, server: Server) -> Visit:
        """What came of dialling it."""
        return self.visits.get(server.at, UNVISITED)

    def state(self, server: Server) -> str:
        """``up``, ``standby``, ``read-only``, ``down``, ``rejected``, or ``?`` if it had not answered in time."""
        visit = self.visit(server)
        if visit.kind is not None:
            return _STATES[visit.kind]
        if visit.standby:
            return "standby"
        return "?" if visit.seconds is None else "up"

    def is_candidate(self, finding: Finding) -> bool | None:
        """Whether a new connection may go there now; None if that hangs on an answer that did not come in time."""
        if finding.reason not in _YES:
            return False
        return None if self.state(finding.server) == "?" else True


_STATES = {Kind.UNREACHABLE: "down", Kind.REJECTED: "rejected", Kind.READ_ONLY: "read-only"}
_YES = frozenset({Reason.TAKEN, Reason.BUSIER, Reason.SEED_TAKEN, Reason.SEED_LAST_RESORT})
_TAKES: Mapping[LoadBalance, str] = {
    LoadBalance.ONLY_PRIMARY: "takes primaries only",
    LoadBalance.ONLY_RR: "takes read replicas only",
    LoadBalance.PREFER_PRIMARY: "takes primaries while there are any",
    LoadBalance.PREFER_RR: "takes read replicas while there are any",
}
_KINDS: Mapping[Kind, str] = {
    Kind.UNREACHABLE: "it could not be reached",
    Kind.REJECTED: "it turned the connection away",
    Kind.READ_ONLY: "it accepts no writes, and target_session_attrs asks for a server that does",
}


def why(findings: Findings, finding: Finding) -> str:
    """Whether a new connection would go to a server, and why, in words."""
    if findings.is_candidate(finding) is None:
        return "not known: there was no answer before the time was over"
    return _WHY[finding.reason](findings, finding)


def _taken(findings: Findings, _: Finding) -> str:
    tied = sum(findings.state(server) != "?" for server in findings.explanation.taken)
    return "yes" if tied == 1 else f"yes: one of {tied} that tie, at random"


def _out(findings: Findings, finding: Finding) -> str:
    detail = findings.visit(finding.server).detail
    words = _KINDS[finding.kind] if finding.kind is not None else "it has failed"
    return f"no: {words}: {detail}" if detail else f"no: {words}"


def _wrong_type(findings: Findings, _: Finding) -> str:
    mode = findings.config.load_balance
    return f"no: load_balance={mode.value} {_TAKES.get(mode, 'takes others')}"


def _less_preferred(findings: Findings, finding: Finding) -> str:
    used = findings.explanation.level
    return f"no: level {finding.level} waits until level {used} has no server" if used else "no: less preferred"


def _outside(findings: Findings, _: Finding) -> str:
    used = findings.explanation.level
    return "no: not in topology_keys" + (f", and level {used} has a server" if used else ", and only those may be used")


def _last_resort(findings: Findings, finding: Finding) -> str:
    detail = findings.visit(finding.server).detail
    return "as the last resort, since every host has failed" + (f": {detail}" if detail else "")


def _seed_refused(findings: Findings, _: Finding) -> str:
    return f"no: it is not in the list of servers, and load_balance={findings.config.load_balance.value} uses no others"


_WHY: Mapping[Reason, Callable[[Findings, Finding], str]] = {
    Reason.TAKEN: _taken,
    Reason.BUSIER: lambda _findings, _finding: "yes, but another holds fewer connections",
    Reason.OUT: _out,
    Reason.WRONG_TYPE: _wrong_type,
    Reason.LESS_PREFERRED: _less_preferred,
    Reason.OUTSIDE_KEYS: _outside,
    Reason.SEED_TAKEN: lambda _findings, _finding: "yes: the first host that works",
    Reason.SEED_LAST_RESORT: _last_resort,
    Reason.SEED_IN_RESERVE: lambda _findings, _finding: "only if everything before it fails",
    Reason.SEED_REFUSED: _seed_refused,
}


def words(findings: Findings) -> list[str]:
    """All of it, in lines."""
    rows = [_row(findings, finding) for finding in findings.explanation.findings]
    header = ("server", "placement", "type", "level", "state", "sessions", "opened in", "a new connection goes there")
    return [_heading(findings), "", *table(header, rows), "", _end(findings)]


def _row(findings: Findings, finding: Finding) -> Sequence[str]:
    server, visit = finding.server, findings.visit(finding.server)
    return (
        str(server),
        _placement(server) or ("-" if finding.listed else "(host)"),
        server.node_type.replace("_", " ") if finding.listed else "-",
        "-" if finding.level is None else str(finding.level),
        findings.state(server),
        "-" if visit.sessions is None else str(visit.sessions),
        "-" if visit.seconds is None else _duration(visit.seconds),
        why(findings, finding),
    )


def _placement(server: Server) -> str:
    return ".".join(part or "?" for part in (server.cloud, server.region, server.zone)) if server.zone else ""


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _heading(findings: Findings) -> str:
    listed = sum(finding.listed for finding in findings.explanation.findings)
    mode = findings.config.load_balance.value
    sources: Mapping[Source, str] = {
        "yb_servers": f"yb_servers() lists {listed} server{'' if listed == 1 else 's'}; load_balance={mode}"
        + _keys(findings),
        "off": "load_balance is off: connections go to the first of the configured hosts that works",
        "not yugabyte": "there is no yb_servers(), so this is not YugabyteDB: connections go to the first of the "
        "configured hosts that works",
        "unknown": "the list of servers could not be read: connections go to the configured hosts, in their order",
    }
    return sources[findings.source]


def _keys(findings: Findings) -> str:
    if not findings.config.topology_keys:
        return ""
    level = findings.explanation.level
    if level is None:
        return ", and no level of topology_keys has a server"
    return f", level {level} of topology_keys in use"


def _end(findings: Findings) -> str:
    made = findings.made
    if made is None:
        return f"No connection: {findings.error}"
    place = _placement(made.server)
    return (
        f"Connected to {made.server}{f' ({place})' if place else ''} in {_duration(made.seconds)}: "
        f"PostgreSQL {made.version}, {made.tls or 'no TLS'}"
    )


def as_json(findings: Findings) -> dict[str, Any]:
    """The same for programs."""
    made, explanation = findings.made, findings.explanation
    return {
        "ok": findings.ok,
        "source": findings.source,
        "load_balance": findings.config.load_balance.value,
        "level": explanation.level,
        "refused": explanation.refused,
        "servers": [
            {
                "host": finding.server.host,
                "port": finding.server.port,
                "cloud": finding.server.cloud,
                "region": finding.server.region,
                "zone": finding.server.zone,
                "node_type": finding.server.node_type if finding.listed else None,
                "listed": finding.listed,
                "level": finding.level,
                "state": findings.state(finding.server),
                "detail": findings.visit(finding.server).detail or None,
                "sessions": findings.visit(finding.server).sessions,
                "seconds": findings.visit(finding.server).seconds,
                "candidate": findings.is_candidate(finding),
                "reason": "not known" if findings.is_candidate(finding) is None else finding.reason.value,
                "why": why(findings, finding),
            }
            for finding in explanation.findings
        ],
        "connection": None
        if made is None
        else {
            "host": made.server.host,
            "port": made.server.port,
            "seconds": made.seconds,
            "version": made.version,
            "tls": made.tls,
        },
        "error": findings.error,
    }
