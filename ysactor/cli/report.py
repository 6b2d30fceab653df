"""What a demo came to: the verdict in words and as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .bank import Audit, Outcome
from .events import Event

_SHOWN = 20
"""How many of the numbers of wrong transfers go into the JSON."""


@dataclass(frozen=True, slots=True)
class Failover:
    """What the fault showed."""

    victim: str
    zone: str
    elsewhere: int
    """Commits on other servers while it was down."""
    longest_gap: float | None
    """Seconds without a commit, at most, while it was down."""
    seconds_back: float | None
    """From its restart until every connection was on it again; None if that did not happen."""

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for each thing that should have happened and did not."""
        found: list[str] = []
        if not self.elsewhere:
            found.append(f"no transfer was committed elsewhere while {self.victim} was down")
        if self.seconds_back is None:
            found.append(f"the load did not come back to {self.victim} after it was restarted")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Result:
    """All there is to say at the end."""

    seconds: float
    """How long the load lasted."""
    seed: int
    audit: Audit
    failed: int
    declined: int
    retried: int
    by_server: dict[str, int]
    """Transfers reported as committed, by server."""
    errors: dict[str, int]
    """What failed transfers failed of."""
    failover: Failover | None
    """None where nothing was killed."""
    events: tuple[Event, ...]
    clean_up: str | None = None
    """What could not be cleaned up."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Every reason why this is not a success."""
        return (
            *self.audit.problems,
            *(() if self.audit.committed else ("no transfer was committed at all",)),
            *(() if self.failover is None else self.failover.problems),
            *(() if self.clean_up is None else (self.clean_up,)),
        )

    @property
    def ok(self) -> bool:
        """Whether the demo has shown what it set out to show."""
        return not self.problems


def words(result: Result) -> list[str]:
    """The verdict, in lines."""
    audit = result.audit
    where = ", ".join(money.where for money in audit.money)
    lines: list[str] = []
    if audit.sound:
        lines += [
            f"Nothing lost: {audit.committed} transfers were reported as committed, and each is there exactly once.",
            f"Money conserved: {sum(money.found for money in audit.money)} in all, as at first, on {where}; "
            "every balance is what the journal makes of it.",
        ]
    lines += [_outcomes(result)]
    if (failover := result.failover) is not None:
        lines += [_failover(failover)]
    lines += [f"  failed of: {text} ({count} times)" for text, count in result.errors.items()]
    lines += [f"PROBLEM: {problem}" for problem in result.problems]
    lines += ["Verdict: passed" if result.ok else "Verdict: FAILED"]
    return lines


def as_json(result: Result) -> dict[str, Any]:
    """The same for programs."""
    audit = result.audit
    return {
        "ok": result.ok,
        "problems": list(result.problems),
        "seconds": round(result.seconds, 3),
        "seed": result.seed,
        "transfers": {
            "committed": audit.committed,
            "unknown": {"present": audit.unknown_present, "absent": audit.unknown_absent},
            "cut_off": {"present": audit.cut_off_present, "absent": audit.cut_off_absent},
            Outcome.FAILED.value: result.failed,
            Outcome.DECLINED.value: result.declined,
            "retried": result.retried,
            "by_server": result.by_server,
        },
        "faults": {
            name: {"count": len(found), "first": list(found[:_SHOWN])}
            for name, found in {
                "lost": audit.lost,
                "doubled": audit.doubled,
                "undead": audit.undead,
                "strangers": audit.strangers,
                "altered": audit.altered,
                "misplaced": audit.misplaced,
                "wrong_accounts": audit.wrong_accounts,
                "negative": audit.negative,
            }.items()
        },
        "money": [asdict(money) for money in audit.money],
        "failover": None if result.failover is None else asdict(result.failover),
        "errors": result.errors,
        "events": [{"at": event.at, "text": event.text} for event in result.events],
    }


def _outcomes(result: Result) -> str:
    audit = result.audit
    unknown = audit.unknown_present + audit.unknown_absent
    parts = [f"{result.retried} run{'' if result.retried == 1 else 's'} retried"]
    parts.append(f"{unknown} of unknown outcome" + _resolved(audit.unknown_present, audit.unknown_absent))
    parts.append(f"{result.failed} failed")
    parts.append(f"{result.declined} declined for want of money")
    cut = audit.cut_off_present + audit.cut_off_absent
    if cut:
        parts.append(f"{cut} cut off" + _resolved(audit.cut_off_present, audit.cut_off_absent))
    return f"Besides: {', '.join(parts)}."


def _resolved(present: int, absent: int) -> str:
    return f" ({present} turned out committed, {absent} not)" if present + absent else ""


def _failover(failover: Failover) -> str:
    gap = "unknown" if failover.longest_gap is None else f"{failover.longest_gap:.2f} s"
    back = (
        "the load did not come back"
        if failover.seconds_back is None
        else f"the whole load was back {failover.seconds_back:.1f} s after the restart"
    )
    return (
        f"Failover: {failover.victim} ({failover.zone}) was killed; {failover.elsewhere} transfers were committed "
        f"elsewhere meanwhile, the longest gap without a commit was {gap}, and {back}."
    )
