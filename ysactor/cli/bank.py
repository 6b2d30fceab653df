"""The demo's books, and what they say beside what the servers hold. Pure: nothing here waits or asks anybody.

Every transfer has a number of its own, given out once by this client. The servers keep a journal of the transfers
that they carried out, in the same transaction as the transfer itself. The journal has no unique key: a transfer that
was carried out twice must be able to show up twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

ACCOUNTS = 100
OPENING = 1000
"""What every account holds at first."""


class Outcome(Enum):
    """What the client was told of a transfer, and so what the servers may hold of it."""

    COMMITTED = "committed"
    """There, exactly once."""
    UNKNOWN = "unknown"
    """The answer to COMMIT was lost: there once, or not at all."""
    FAILED = "failed"
    """An error came out that says nothing was committed: not there."""
    DECLINED = "declined"
    """Rolled back on purpose, as the account held too little: not there."""
    CUT_OFF = "cut off"
    """The client stopped waiting, and was told nothing: there once, or not at all."""


MAY_BE_THERE = frozenset({Outcome.COMMITTED, Outcome.UNKNOWN, Outcome.CUT_OFF})


@dataclass(frozen=True, slots=True)
class Transfer:
    """An amount to be moved from one account to another."""

    number: int
    source: int
    target: int
    amount: int


@dataclass(frozen=True, slots=True)
class Booking:
    """A transfer that was given out, and what became of it as far as the client was told."""

    transfer: Transfer
    outcome: Outcome = Outcome.CUT_OFF
    server: str | None = None
    """The server that reported the commit; for other outcomes None."""


class Books:
    """What the client knows of every transfer it has given out."""

    def __init__(self) -> None:
        self._bookings: dict[int, Booking] = {}
        self._totals: Counter[Outcome] = Counter()

    def issue(self, source: int, target: int, amount: int) -> Transfer:
        """Give a transfer out. Until something else is booked it counts as cut off."""
        transfer = Transfer(len(self._bookings) + 1, source, target, amount)
        self._bookings[transfer.number] = Booking(transfer)
        self._totals[Outcome.CUT_OFF] += 1
        return transfer

    def book(self, transfer: Transfer, outcome: Outcome, server: str | None = None) -> None:
        """Note what the client was told."""
        self._totals[self._bookings[transfer.number].outcome] -= 1
        self._totals[outcome] += 1
        self._bookings[transfer.number] = Booking(transfer, outcome, server)

    def total(self, outcome: Outcome) -> int:
        """How many transfers have this outcome now. Those under way count as cut off."""
        return self._totals[outcome]

    def __len__(self) -> int:
        return len(self._bookings)

    def __iter__(self) -> Iterator[Booking]:
        return iter(self._bookings.values())


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one database holds after the load: a server that keeps its own data, or a cluster that shares it."""

    where: str
    accounts: Mapping[int, int]
    journal: Sequence[Transfer]


@dataclass(frozen=True, slots=True)
class Money:
    """The sum of all balances in one database."""

    where: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class Audit:
    """The books beside the servers. The tuples hold the numbers of transfers; in a sound database all are empty."""

    committed: int
    unknown_present: int
    unknown_absent: int
    cut_off_present: int
    cut_off_absent: int
    lost: tuple[int, ...]
    """Reported as committed, and nowhere."""
    doubled: tuple[int, ...]
    """There more than once."""
    undead: tuple[int, ...]
    """Reported as failed or declined, and there."""
    strangers: tuple[int, ...]
    """There, and never given out."""
    altered: tuple[int, ...]
    """There with other accounts, or another amount, than were given out."""
    misplaced: tuple[int, ...]
    """Reported as committed by one server, and there on another. Only where servers keep their own data."""
    money: tuple[Money, ...]
    wrong_accounts: tuple[str, ...]
    """Accounts that are missing, or new, or whose balance is not the opening one plus what the journal says."""
    negative: tuple[str, ...]
    """Accounts that hold less than nothing."""

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for each kind of fault that was found."""
        faults: Mapping[str, tuple[object, ...]] = {
            "reported as committed and missing": self.lost,
            "there more than once": self.doubled,
            "reported as not committed and there": self.undead,
            "there and never sent": self.strangers,
            "there with other accounts or another amount": self.altered,
            "there on another server than the one that committed them": self.misplaced,
        }
        sentences = [f"transfers {words}: {_some(found)}" for words, found in faults.items() if found]
        sentences += [
            f"money on {money.where}: {money.found} instead of {money.expected}"
            for money in self.money
            if money.found != money.expected
        ]
        if self.wrong_accounts:
            sentences.append(f"balances that the journal does not explain: {_some(self.wrong_accounts)}")
        if self.negative:
            sentences.append(f"accounts below zero: {_some(self.negative)}")
        return tuple(sentences)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def audit(
    books: Books, holdings: Sequence[Holdings], *, apart: bool, accounts: int = ACCOUNTS, opening: int = OPENING
) -> Audit:
    """Hold the books against what is there.

    `apart`: each of `holdings` is one server with data of its own, named as the bookings name it, and all of them
    together must hold every transfer once. Otherwise there is one, and it is what all servers show.
    """
    found = Counter(row.number for held in holdings for row in held.journal)
    issued = {booking.transfer.number: booking for booking in books}
    rows = [(held.where, row) for held in holdings for row in held.journal]
    known = [(where, row, issued[row.number]) for where, row in rows if row.number in issued]

    def there(outcome: Outcome) -> int:
        return sum(found[number] > 0 for number, booking in issued.items() if booking.outcome is outcome)

    def those(wanted: bool, *outcomes: Outcome) -> tuple[int, ...]:
        return tuple(n for n, booking in issued.items() if booking.outcome in outcomes and (found[n] > 0) is wanted)

    return Audit(
        committed=books.total(Outcome.COMMITTED),
        unknown_present=there(Outcome.UNKNOWN),
        unknown_absent=books.total(Outcome.UNKNOWN) - there(Outcome.UNKNOWN),
        cut_off_present=there(Outcome.CUT_OFF),
        cut_off_absent=books.total(Outcome.CUT_OFF) - there(Outcome.CUT_OFF),
        lost=those(False, Outcome.COMMITTED),
        doubled=tuple(sorted(number for number, times in found.items() if times > 1)),
        undead=those(True, *(outcome for outcome in Outcome if outcome not in MAY_BE_THERE)),
        strangers=tuple(sorted({row.number for _, row in rows if row.number not in issued})),
        altered=tuple(sorted({row.number for _, row, booking in known if row != booking.transfer})),
        misplaced=tuple(
            row.number
            for where, row, booking in known
            if apart and booking.outcome is Outcome.COMMITTED and booking.server != where
        ),
        money=tuple(Money(held.where, accounts * opening, sum(held.accounts.values())) for held in holdings),
        wrong_accounts=tuple(
            f"{account} on {held.where}" for held in holdings for account in _unexplained(held, accounts, opening)
        ),
        negative=tuple(
            f"{account} on {held.where}" for held in holdings for account, sum_ in held.accounts.items() if sum_ < 0
        ),
    )


def _unexplained(held: Holdings, accounts: int, opening: int) -> list[int]:
    """The accounts that are not what the journal makes of them. Every half-done transfer shows in two."""
    due = dict.fromkeys(range(1, accounts + 1), opening)
    for row in held.journal:
        due[row.source] = due.get(row.source, 0) - row.amount
        due[row.target] = due.get(row.target, 0) + row.amount
    return sorted(
        account for account in due.keys() | held.accounts.keys() if due.get(account) != held.accounts.get(account)
    )


def _some(found: Sequence[object], shown: int = 5) -> str:
    """How many, and the first few."""
    first = ", ".join(str(one) for one in found[:shown])
    return f"{len(found)} ({first}{', …' if len(found) > shown else ''})"
