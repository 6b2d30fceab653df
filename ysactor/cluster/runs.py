"""The runs of failures that are on, by subject, and the lines they deserve."""

from __future__ import annotations

from collections.abc import Collection

from ..policy import notices
from ..policy.notices import Run, Subject
from ..servers import Kind
from .effects import ArmNotice, Effects, Log


class Runs:
    """One run at most for each server, and one for discovery. Plain data; the rules are `policy.notices`."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[Subject, Run] = {}

    def failed(self, subject: Subject, kind: Kind, detail: str, now: float) -> Effects:
        """An attempt failed."""
        self._runs[subject], notice = notices.failed(self._runs.get(subject), subject, kind, detail, now)
        return () if notice is None else (Log(notice),)

    def opened(self, subject: Subject, now: float) -> Effects:
        """A connection opened, or a discovery succeeded."""
        run = self._runs.get(subject)
        if run is None or run.opened:
            return ()
        run = self._runs[subject] = notices.opened(run)
        wait = run.last + notices.WINDOW - now
        return (ArmNotice(subject, run.last, wait),) if wait > 0 else self.due(subject, run.last)

    def due(self, subject: Subject, last: float) -> Effects:
        """A minute has passed since the failure at `last`: the run ends, unless something has failed since."""
        run = self._runs.get(subject)
        if run is None or run.last != last or not run.opened:
            return ()
        del self._runs[subject]
        return (Log(notices.ended(subject, run)),)

    def forget_all_but(self, subjects: Collection[Subject]) -> None:
        """Servers that are gone start afresh if they come back. Discovery's own run stays."""
        self._runs = {
            subject: run for subject, run in self._runs.items() if subject in subjects or subject == "discovery"
        }
