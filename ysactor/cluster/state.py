"""What the cluster's actor knows: servers, failures, counts, and the refresh clock.

Plain data and transitions. Nothing here waits, reads a clock or draws at random: `now` and the chooser come in, and
what has to be done goes out as effects, which the actor carries out in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, assert_never

from ..config import Config, LoadBalance
from ..policy import fallback, health, placement
from ..policy.addresses import Choice
from ..policy.health import Record
from ..policy.notices import Notice
from ..policy.placement import Chooser
from ..policy.topology import first_level
from ..servers import HostPort, Kind, Server
from .effects import Effects, Log, StartDiscovery, StartProbe, StopProbe
from .info import ClusterInfo, View
from .ledger import Ledger
from .messages import Discovered, Failure, Listing, NoListing, NotYugabyte, Nowhere, Reservation
from .refreshes import RefreshClock, RefreshTickets
from .runs import Runs

_SHOWN = 3
"""How many servers a text names that are being connected to."""

_REMEMBERED = 64
"""For how many different sets of tried servers the places are remembered at a time."""

_NOTHING = frozenset[HostPort]()


class ClusterState:
    """The whole truth about the cluster, as this client knows it."""

    __slots__ = (
        "_choice",
        "_clock",
        "_config",
        "_discovering",
        "_ledger",
        "_places",
        "_probes",
        "_rechecked",
        "_records",
        "_runs",
        "_servers",
        "_static",
        "_tickets",
        "_unfit",
        "_warned_keys",
        "_warned_rows",
        "ready",
    )

    def __init__(self, config: Config) -> None:
        self._config = config
        self._servers: tuple[Server, ...] = ()
        self._places: dict[frozenset[HostPort], tuple[Server, ...]] = {}
        """Where a connection may go, by what counts of what it has tried, once it has been asked for. It follows from
        which servers there are and which are out, and is forgotten with any change of these."""
        self._static = config.load_balance is LoadBalance.OFF
        self.ready = self._static
        """Whether connections may be placed: the first discovery has ended, either way, or there is none."""
        self._choice = Choice()
        self._records: dict[HostPort, Record] = {}
        self._unfit: set[HostPort] = set()
        """Where the user's own set-up of a connection failed last, since the last refresh. They count as up."""
        self._probes: dict[HostPort, int] = {}
        self._rechecked: set[HostPort] = set()
        """Those of the probes that somebody asked for, of servers that had not failed."""
        self._ledger = Ledger()
        self._runs = Runs()
        self._clock = RefreshClock(config.yb_servers_refresh_interval)
        self._tickets = RefreshTickets()
        self._discovering = False
        self._warned_keys = False
        self._warned_rows = False

    # Connections

    def place(self, tried: frozenset[HostPort], now: float, choose: Chooser) -> tuple[Reservation | Nowhere, Effects]:
        """Choose a server for a connection that has tried `tried`, and count it there.

        One that finds no server brings no refresh forward: failed servers come back at the next one.
        """
        effects = self._refresh(now) if not tried and self._clock.is_due(now) else ()
        server = self._first_choice(choose) if not tried else self._next_choice(tried, choose)
        if server is None:
            return Nowhere(fallback.refusal(self._config, self._servers)), effects
        return self._ledger.reserve(server, now), effects

    def _first_choice(self, choose: Chooser) -> Server | None:
        """As `_next_choice` for one that has tried nothing, which is nearly every one: it looks at no server again."""
        tied = self._ledger.quietest(self._places_after(_NOTHING))
        return choose(tied) if tied else None

    def _next_choice(self, tried: frozenset[HostPort], choose: Chooser) -> Server | None:
        # A server that is out is passed over anyway, tried or not; a seed is not. So most have tried the same: nothing.
        counts = frozenset(at for at in tried if at not in self._records or at in self._config.hosts)
        if not counts:
            return self._first_choice(choose)
        places = self._places_after(counts)
        return placement.pick(places, self._ledger.load, choose) if places else None

    def _places_after(self, tried: frozenset[HostPort]) -> tuple[Server, ...]:
        """What `fallback.places` says, which looks at every server: for a thousand connections that fail in the same
        moment that would hold up the whole program."""
        known = self._places.get(tried)
        if known is None:
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            known = self._places[tried] = fallback.places(self._config, self._servers, self._records, tried)
        return known

    def opened(self, reservation: Reservation, now: float) -> Effects:
        """A connection opened: its server is up, and a probe of it has nothing left to tell."""
        if not self._ledger.opened(reservation):
            return ()
        self._unfit.discard(reservation.at)
        return (*self._stop_probe(reservation.at), *self._healed(reservation.at, now))

    def open_failed(self, reservation: Reservation, failure: Failure, now: float) -> Effects:
        """A connection failed to open. Any such failure brings a refresh forward, or is dropped."""
        if not self._ledger.give_back(reservation):
            return ()
        effects = self._failed(reservation.at, failure, reservation.number, now)
        return (*effects, *self._refresh(now)) if self._clock.may_follow_a_failure(now) else effects

    def gave_up(self, reservation: Reservation, is_unfit: bool = False) -> Effects:
        """An attempt was cancelled, or failed by itself: its place is free again, and no server is marked.

        `is_unfit`: until one opens there, or the next refresh, the server is none to move connections to.
        """
        if self._ledger.give_back(reservation) and is_unfit:
            self._unfit.add(reservation.at)
        return ()

    def released(self, reservation: Reservation) -> Effects:
        """A connection has ended. Nothing that happens on an open connection says anything about its server."""
        # A holder that ends before it has said "opened" still gives its place back.
        if not self._ledger.released(reservation):
            self._ledger.give_back(reservation)
        return ()

    # Refreshes

    def start(self, now: float) -> Effects:
        """The first refresh. It counts as one also where there is nothing to discover."""
        return self._refresh(now)

    def refresh_due(self, number: int, now: float) -> Effects:
        """The timer ran out."""
        return self._refresh(now) if number == self._clock.armed else ()

    def refresh_asked(self, now: float) -> tuple[int, Effects]:
        """Somebody asked for a refresh now: a ticket, for which `RefreshEnded` comes, at once or later."""
        effects = self._refresh(now)
        ticket, ended = self._tickets.issue(self._discovering, self._probes.items())
        return ticket, (*effects, *ended)

    def recheck_asked(self, at: HostPort) -> tuple[int, Effects]:
        """Somebody doubts that a server is what it was: a probe, and a ticket for its end."""
        effects: Effects = ()
        if at not in self._probes:
            self._rechecked.add(at)
            self._probes[at] = self._ledger.next_number()
            effects = (StartProbe(at, self._probes[at]),)
        ticket, ended = self._tickets.issue(False, [(at, self._probes[at])])
        return ticket, (*effects, *ended)

    def discovery_ended(self, result: Discovered, now: float) -> Effects:
        """Take over what a discovery found. It marks no server and heals none."""
        self._discovering = False
        self.ready = True
        effects: list[Effects] = []
        match result:
            case Listing():
                effects += [self._runs.opened("discovery", now), self._listed(result), self._probe_due(now)]
            case NotYugabyte(by):
                self._static = True
                known = "the servers known stay" if self._servers else "the configured hosts are used, in their order"
                text = f"server {by} has no yb_servers(), so this is not YugabyteDB: {known}"
                effects += [self._runs.opened("discovery", now), (Log(Notice("info", text)),)]
            case NoListing(detail):
                self._clock.due_again = True
                effects += [self._runs.failed("discovery", Kind.UNREACHABLE, detail, now)]
            case _:
                assert_never(result)
        effects += [self._clock.arm(), self._tickets.discovery_ended(self._probes.items())]
        return tuple(effect for some in effects for effect in some)

    def _refresh(self, now: float) -> Effects:
        """Start a refresh: probe what is due, and discover, unless that is running already or there is nothing to."""
        self._clock.started = now
        self._unfit.clear()
        probes = self._probe_due(now)
        if self._static:
            return (*probes, *self._clock.arm())
        if self._discovering:
            return probes
        self._discovering = True
        self._clock.due_again = False
        seeds = tuple(dict.fromkeys(self._config.hosts))
        others = tuple(server.at for server in self._servers if server.at not in seeds)
        return (*probes, StartDiscovery(seeds, others, self._choice))

    def _listed(self, listing: Listing) -> Effects:
        choice, self._choice = self._choice, listing.choice
        effects: list[Log | StopProbe] = []
        if listing.choice != choice:
            how = "decided" if listing.choice.decided else "assumed"
            text = f"servers are reached at their {listing.choice.column.value} ({how}; asked {listing.by})"
            effects.append(Log(Notice("debug", text)))
        if listing.skipped and not self._warned_rows:
            text = f"server {listing.by} lists {listing.skipped} unusable row(s), without a host or a port"
            effects.append(Log(Notice("warning", text)))
        self._warned_rows = bool(listing.skipped)
        if not listing.servers:
            return effects
        self._servers = listing.servers
        self._places.clear()
        unmatched = bool(self._config.topology_keys) and first_level(self._servers, self._config.topology_keys) is None
        if unmatched and not self._warned_keys:
            effects.append(Log(Notice("warning", "no server is in any of the placements of topology_keys")))
        self._warned_keys = unmatched
        return (*effects, *self._forget())

    def _forget(self) -> Effects:
        """Forget the failures of servers that are neither listed nor seeds: one that comes back starts afresh."""
        known = {server.at for server in self._servers}.union(self._config.hosts)
        gone = [at for at in self._probes if at not in known]
        self._records = {at: record for at, record in self._records.items() if at in known}
        self._runs.forget_all_but(known)
        return tuple(effect for at in gone for effect in self._stop_probe(at))

    # Failed servers

    def is_down(self, at: HostPort) -> bool:
        """Whether a server could not be connected to, rather than turned a connection away."""
        record = self._records.get(at)
        return record is not None and record.kind is Kind.UNREACHABLE

    def probe_opened(self, at: HostPort, number: int, now: float) -> Effects:
        """A probe's connection opened. The probe runs on until that is closed again."""
        return self._healed(at, now) if self._probes.get(at) == number else ()

    def probe_ended(self, at: HostPort, number: int, failure: Failure | None, now: float) -> Effects:
        """A probe ended. A failure starts another delay, and no refresh; one that was stopped tells nothing."""
        if self._probes.get(at) != number:
            return ()
        del self._probes[at]
        if at in self._rechecked:
            self._rechecked.discard(at)
            if failure is not None and failure.kind is not Kind.READ_ONLY and at not in self._records:
                # A server that is full of our own connections, say, has not failed.
                failure = None
        effects = () if failure is None else self._failed(at, failure, number, now)
        return (*effects, *self._tickets.probe_ended((at, number)))

    def notice_due(self, subject: HostPort | Literal["discovery"], last: float) -> Effects:
        """A run of failures may have ended."""
        return self._runs.due(subject, last)

    def _probe_due(self, now: float) -> Effects:
        """Probe every failed server whose delay has passed, one probe at a time each.

        A server that is neither listed nor a seed is not dialled: a discovery will list it again, or forget it.
        """
        known = {server.at for server in self._servers}.union(self._config.hosts)
        started: list[StartProbe] = []
        for at, record in self._records.items():
            if at in known and at not in self._probes and health.is_due(record, now):
                self._probes[at] = self._ledger.next_number()
                started.append(StartProbe(at, self._probes[at]))
        return started

    def _stop_probe(self, at: HostPort) -> Effects:
        number = self._probes.pop(at, None)
        if number is None:
            return ()
        self._rechecked.discard(at)
        return (StopProbe(at, number), *self._tickets.probe_ended((at, number)))

    def _healed(self, at: HostPort, now: float) -> Effects:
        if self._records.pop(at, None) is not None:
            self._places.clear()
        return self._runs.opened(at, now)

    def _failed(self, at: HostPort, failure: Failure, attempt: int, now: float) -> Effects:
        if at not in self._records:
            self._places.clear()
        self._records[at] = health.failed(
            self._config, self._records.get(at), failure.kind, attempt=attempt, latest=self._ledger.last, now=now
        )
        return self._runs.failed(at, failure.kind, failure.detail, now)

    # What it shows

    def view(self) -> View:
        """Where connections should be."""
        places = fallback.places(self._config, self._servers, self._records)
        kept = fallback.kept(self._config, self._servers, self._records)
        load = {(at := server.at): self._ledger.load(at) for server in places}
        return View(frozenset(load), kept, frozenset(self._records).union(self._unfit), load)

    def waits_for(self, now: float) -> str:
        """What a connection is waited for, in words that go on after others: "; opening to 10.0.0.1:5433 for 5 s".

        Empty if nothing is being opened.
        """
        if not self.ready:
            return f"; reading the first list of servers for {round(now - self._clock.started, 1):g} s"
        opening = [f"{at} for {round(now - since, 1):g} s" for at, since in self._ledger.under_way().items()]
        more = len(opening) - _SHOWN
        shown = [*opening[:_SHOWN], f"{more} more"] if more > 0 else opening
        return f"; opening to {', '.join(shown)}" if shown else ""

    def info(self) -> ClusterInfo:
        """The snapshot for people."""
        servers = self._as_servers(server.at for server in self._servers) or self._as_servers(self._config.hosts)
        view = self.view()
        kinds = {kind: [at for at, record in self._records.items() if record.kind is kind] for kind in Kind}
        return ClusterInfo(
            mode="static" if self._static else "discovering",
            discovered=bool(self._servers),
            servers=servers,
            placement=self._as_servers(view.placement),
            allowed=self._as_servers(view.kept),
            failed=self._as_servers(kinds[Kind.UNREACHABLE]),
            read_only=self._as_servers(kinds[Kind.READ_ONLY]),
            rejected=self._as_servers(kinds[Kind.REJECTED]),
            counts=self._ledger.counts(servers),
            pending=self._ledger.pending(servers),
        )

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers discovered, in the listing's order; empty until there are any."""
        return self._servers

    @property
    def failed(self) -> dict[HostPort, Kind]:
        """The servers that are out, and as what each counts."""
        return {at: record.kind for at, record in self._records.items()}

    def load(self, at: HostPort) -> int:
        """The connections to a server, being opened or open."""
        return self._ledger.load(at)

    def _as_servers(self, places: Iterable[HostPort]) -> tuple[Server, ...]:
        return tuple(fallback.as_server(at, self._servers) for at in sorted(set(places)))
