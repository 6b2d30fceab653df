"""The verdict: it must fail for every fault that a database could show, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ysactor.cli.bank import Audit, Books, Holdings, Outcome, Transfer, audit

ACCOUNTS = 4
OPENING = 100
SERVERS = ("a:1", "b:1")


def settled(where: str, journal: Sequence[Transfer]) -> Holdings:
    """What a server holds that has carried out exactly these transfers."""
    accounts = dict.fromkeys(range(1, ACCOUNTS + 1), OPENING)
    for row in journal:
        accounts[row.source] -= row.amount
        accounts[row.target] += row.amount
    return Holdings(where, accounts, list(journal))


def judge(books: Books, *holdings: Holdings, apart: bool = True) -> Audit:
    return audit(books, holdings, apart=apart, accounts=ACCOUNTS, opening=OPENING)


def three_committed() -> tuple[Books, list[Transfer]]:
    books = Books()
    transfers = [books.issue(1, 2, 10), books.issue(2, 3, 5), books.issue(3, 4, 1)]
    for transfer in transfers:
        books.book(transfer, Outcome.COMMITTED, "a:1")
    return books, transfers


def test_everything_where_it_should_be_is_sound() -> None:
    books, transfers = three_committed()
    found = judge(books, settled("a:1", transfers), settled("b:1", []))
    assert found.sound
    assert found.committed == 3
    assert [money.found for money in found.money] == [400, 400]


def row_missing(held: Holdings) -> Holdings:
    """The transfer's money has moved, and its row is gone."""
    return replace(held, journal=held.journal[1:])


def undone(held: Holdings) -> Holdings:
    """The whole transaction is gone, as if it had never been: balances and journal agree."""
    return settled(held.where, held.journal[1:])


def carried_out_twice(held: Holdings) -> Holdings:
    return settled(held.where, [*held.journal, held.journal[0]])


def half_done(held: Holdings) -> Holdings:
    return replace(held, accounts={**held.accounts, 1: held.accounts[1] + 10})


def one_in_a_strangers_pocket(held: Holdings) -> Holdings:
    """The sum is right, the balances are not."""
    return replace(held, accounts={**held.accounts, 1: held.accounts[1] + 1, 4: held.accounts[4] - 1})


def account_missing(held: Holdings) -> Holdings:
    return replace(held, accounts={account: sum_ for account, sum_ in held.accounts.items() if account != 4})


def account_of_its_own(held: Holdings) -> Holdings:
    return replace(held, accounts={**held.accounts, 99: 0})


def never_sent(held: Holdings) -> Holdings:
    return settled(held.where, [*held.journal, Transfer(77, 1, 2, 3)])


def another_amount(held: Holdings) -> Holdings:
    return settled(held.where, [replace(held.journal[0], amount=9), *held.journal[1:]])


def below_zero(held: Holdings) -> Holdings:
    return settled(held.where, [replace(held.journal[0], amount=OPENING + 1), *held.journal[1:]])


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (row_missing, ["reported as committed and missing: 1 (1)", "balances that the journal does not explain"]),
        (undone, ["reported as committed and missing: 1 (1)"]),
        (carried_out_twice, ["there more than once: 1 (1)"]),
        (half_done, ["money on a:1: 410 instead of 400", "journal does not explain: 1 (1 on a:1)"]),
        (one_in_a_strangers_pocket, ["journal does not explain: 2 (1 on a:1, 4 on a:1)"]),
        (account_missing, ["money on a:1", "journal does not explain: 1 (4 on a:1)"]),
        (account_of_its_own, ["journal does not explain: 1 (99 on a:1)"]),
        (never_sent, ["there and never sent: 1 (77)"]),
        (another_amount, ["with other accounts or another amount: 1 (1)"]),
        (below_zero, ["another amount: 1 (1)", "below zero: 1 (1 on a:1)"]),
    ],
)
def test_a_fault_is_found_and_named(harm: Callable[[Holdings], Holdings], words: list[str]) -> None:
    books, transfers = three_committed()
    found = judge(books, harm(settled("a:1", transfers)), settled("b:1", []))
    assert not found.sound
    for part in words:
        assert any(part in problem for problem in found.problems), found.problems
    assert len(found.problems) == len(words)


def test_a_transfer_that_two_servers_carried_out_is_doubled() -> None:
    books, transfers = three_committed()
    found = judge(books, settled("a:1", transfers), settled("b:1", transfers[:1]))
    assert found.doubled == (1,)
    assert found.misplaced == (1,)


def test_a_commit_that_is_on_another_server_than_the_one_that_reported_it_is_misplaced() -> None:
    books, transfers = three_committed()
    assert judge(books, settled("a:1", transfers[1:]), settled("b:1", transfers[:1])).misplaced == (1,)


def test_where_the_data_is_shared_it_does_not_matter_which_server_reported_a_commit() -> None:
    books, transfers = three_committed()
    assert judge(books, settled("the database", transfers), apart=False).sound


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.DECLINED])
def test_what_was_reported_as_not_committed_must_not_be_there(outcome: Outcome) -> None:
    books = Books()
    transfer = books.issue(1, 2, 10)
    books.book(transfer, outcome)
    assert judge(books, settled("a:1", [])).sound
    assert judge(books, settled("a:1", [transfer])).undead == (1,)


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.CUT_OFF])
def test_an_unknown_outcome_may_be_there_once_or_not_at_all_but_not_twice(outcome: Outcome) -> None:
    books = Books()
    transfer = books.issue(1, 2, 10)
    books.book(transfer, outcome)

    def counted(found: Audit) -> tuple[int, int]:
        if outcome is Outcome.UNKNOWN:
            return found.unknown_present, found.unknown_absent
        return found.cut_off_present, found.cut_off_absent

    absent, once = judge(books, settled("a:1", [])), judge(books, settled("a:1", [transfer]))
    assert absent.sound
    assert once.sound
    assert (counted(absent), counted(once)) == ((0, 1), (1, 0))
    assert judge(books, settled("a:1", [transfer, transfer])).doubled == (1,)


def test_a_transfer_that_nobody_has_booked_counts_as_cut_off() -> None:
    books = Books()
    books.issue(1, 2, 10)
    assert judge(books, settled("a:1", [])).cut_off_absent == 1


@st.composite
def histories(draw: st.DrawFn) -> tuple[Books, dict[str, list[Transfer]]]:
    """Books, and journals that agree with them."""
    books = Books()
    journals: dict[str, list[Transfer]] = {server: [] for server in SERVERS}
    for _ in range(draw(st.integers(1, 12))):
        source, target = draw(st.permutations(range(1, ACCOUNTS + 1)))[:2]
        transfer = books.issue(source, target, draw(st.integers(1, 8)))
        outcome, server = draw(st.sampled_from(Outcome)), draw(st.sampled_from(SERVERS))
        books.book(transfer, outcome, server if outcome is Outcome.COMMITTED else None)
        happened = outcome is Outcome.COMMITTED or (
            outcome in {Outcome.UNKNOWN, Outcome.CUT_OFF} and draw(st.booleans())
        )
        if happened:
            journals[server].append(transfer)
    return books, journals


@given(histories())
def test_whatever_the_outcomes_servers_that_kept_their_word_are_sound(history: tuple[Books, dict[str, list[Transfer]]]):
    books, journals = history
    found = judge(books, *(settled(server, journal) for server, journal in journals.items()))
    assert found.sound, found.problems
    there = sum(map(len, journals.values()))
    assert found.committed + found.unknown_present + found.cut_off_present == there


@given(histories(), st.data())
def test_no_row_can_be_taken_away_added_or_changed_unseen(
    history: tuple[Books, dict[str, list[Transfer]]], data: st.DataObject
):
    books, journals = history
    full = [server for server, journal in journals.items() if journal]
    if not full:
        return
    server = data.draw(st.sampled_from(full))
    journal = journals[server]
    index = data.draw(st.integers(0, len(journal) - 1))
    row = journal[index]
    harmed = data.draw(
        st.sampled_from(
            [
                [*journal, row],
                [*journal[:index], replace(row, amount=row.amount + 1), *journal[index + 1 :]],
                [*journal[:index], *journal[index + 1 :]],
            ]
        )
    )
    booked = next(booking for booking in books if booking.transfer == row)
    found = judge(books, *(settled(s, harmed if s == server else j) for s, j in journals.items()))
    may_go = len(harmed) < len(journal) and booked.outcome is not Outcome.COMMITTED
    assert found.sound is may_go


def test_totals_move_with_the_bookings() -> None:
    books = Books()
    transfer = books.issue(1, 2, 10)
    assert books.total(Outcome.CUT_OFF) == 1
    books.book(transfer, Outcome.UNKNOWN)
    assert (books.total(Outcome.CUT_OFF), books.total(Outcome.UNKNOWN), len(books)) == (0, 1, 1)
