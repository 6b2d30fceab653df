"""Whether servers are reached at their host or their public address."""

from __future__ import annotations

import pytest

from ysactor.policy.addresses import Choice, Column, choose, dialled, names
from ysactor.servers import Server

HOST, PUBLIC = Choice(Column.HOST, True), Choice(Column.PUBLIC_IP, True)
GUESS_HOST, GUESS_PUBLIC = Choice(Column.HOST), Choice(Column.PUBLIC_IP)
ROWS = (Server("a", 5433, public_ip="pa"), Server("b", 5433, public_ip="pb"))


@pytest.mark.parametrize(
    ("answered", "resolved", "expected"),
    [
        ("1.1.1.1", {"a": "1.1.1.1", "pa": "9.9.9.1"}, HOST),
        ("9.9.9.2", {"a": "1.1.1.1", "pa": "9.9.9.1", "b": "1.1.1.2", "pb": "9.9.9.2"}, PUBLIC),
        ("7.7.7.7", {"a": "1.1.1.1", "pa": "1.1.1.1"}, HOST),
        # Row by row: the first row's "both the same" comes before the second row's public address.
        ("9.9.9.2", {"a": "1.1.1.1", "pa": "1.1.1.1", "pb": "9.9.9.2"}, HOST),
        ("9.9.9.1", {"a": "9.9.9.1", "pa": "9.9.9.1"}, HOST),
        # Undecided: a guess.
        ("7.7.7.7", {"a": "1.1.1.1", "pa": "9.9.9.1", "b": "1.1.1.2", "pb": "9.9.9.2"}, GUESS_PUBLIC),
        ("7.7.7.7", {"a": "1.1.1.1", "pa": "9.9.9.1", "b": "1.1.1.2", "pb": None}, GUESS_HOST),
        # What does not resolve equals nothing, not even another such name or a dialled name without an address.
        ("7.7.7.7", {"a": None, "pa": None, "b": None, "pb": None}, GUESS_HOST),
        (None, {"a": None, "pa": None, "b": None, "pb": None}, GUESS_HOST),
        ("::ffff:1.1.1.1", {"a": "1.1.1.1"}, HOST),
        ("1.1.1.1", {"a": "::ffff:1.1.1.1"}, HOST),
        ("2001:db8::1", {"a": "2001:0db8:0:0::1"}, HOST),
    ],
)
def test_the_first_row_that_settles_it_decides(
    answered: str | None, resolved: dict[str, str | None], expected: Choice
) -> None:
    assert choose(Choice(), answered, ROWS, resolved) == expected


def test_the_decision_stands_whatever_comes_later() -> None:
    assert choose(PUBLIC, "1.1.1.1", ROWS, {"a": "1.1.1.1"}) == PUBLIC


def test_a_guess_is_made_again() -> None:
    assert choose(GUESS_PUBLIC, "7.7.7.7", ROWS, {"pa": "9.9.9.1", "pb": None}) == GUESS_HOST


def test_one_server_without_a_public_address_makes_the_guess_host() -> None:
    rows = (Server("a", 5433, public_ip="pa"), Server("b", 5433))

    assert choose(Choice(), "7.7.7.7", rows, {"a": "1.1.1.1", "pa": "9.9.9.1", "b": "1.1.1.2"}) == GUESS_HOST


def test_a_server_without_a_public_address_is_reached_at_its_host_either_way() -> None:
    rows = (Server("a", 5433, public_ip="pa"), Server("b", 5433))

    assert [server.host for server in dialled(rows, Column.PUBLIC_IP)] == ["pa", "b"]
    assert [server.host for server in dialled(rows, Column.HOST)] == ["a", "b"]


def test_two_rows_that_are_dialled_alike_are_one_server_the_first() -> None:
    rows = (
        Server("a", 5433, zone="1", public_ip="nat"),
        Server("b", 5433, public_ip="pb"),
        Server("c", 5433, zone="3", public_ip="nat"),
    )

    found = dialled(rows, Column.PUBLIC_IP)

    assert [(server.host, server.zone) for server in found] == [("nat", "1"), ("pb", "")]


def test_every_name_is_looked_up_once() -> None:
    assert names((*ROWS, Server("a", 5434))) == {"a", "b", "pa", "pb"}
