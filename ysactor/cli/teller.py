"""The bank's tables, one transfer between two accounts, and reading back what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import Rollback
from .bank import ACCOUNTS, OPENING, Holdings, Transfer

if TYPE_CHECKING:
    from ..connection.handle import Connection


class Bank:
    """Two tables in a schema of their own, and nothing outside it. The schema's name is ours: it needs no quoting."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._add = f"UPDATE {schema}.account SET balance = balance + $2 WHERE id = $1 RETURNING balance"
        self._note = f"INSERT INTO {schema}.transfer (number, source, target, amount) VALUES ($1, $2, $3, $4)"
        self.accounts = f"SELECT id, balance FROM {schema}.account"
        """Reads every account."""
        self.journal = f"SELECT number, source, target, amount FROM {schema}.transfer"
        """Reads every transfer."""

    def create(self) -> list[str]:
        """Statements that make it, each by itself: YugabyteDB's DDL is its own transaction."""
        # No unique key on the journal: it would hide a transfer that was carried out twice.
        return [
            f"CREATE SCHEMA {self.schema}",
            f"CREATE TABLE {self.schema}.account (id int PRIMARY KEY, balance bigint NOT NULL)",
            f"CREATE TABLE {self.schema}.transfer"
            " (number bigint NOT NULL, source int NOT NULL, target int NOT NULL, amount bigint NOT NULL)",
            f"INSERT INTO {self.schema}.account SELECT id, {OPENING} FROM generate_series(1, {ACCOUNTS}) AS id",
        ]

    def drop(self) -> list[str]:
        """Statements that remove it. Without CASCADE: what somebody else has put there is not ours to drop."""
        return [
            f"DROP TABLE IF EXISTS {self.schema}.transfer",
            f"DROP TABLE IF EXISTS {self.schema}.account",
            f"DROP SCHEMA IF EXISTS {self.schema}",
        ]

    async def carry_out(self, conn: Connection, transfer: Transfer) -> str | None:
        """One transfer, inside a transaction: the server that it ran on, or None where the money did not suffice.

        It has no side effects outside the database, so it may be run again after a failure.
        """
        steps = sorted([(transfer.source, -transfer.amount), (transfer.target, transfer.amount)])
        left = 0
        # In the order of the accounts, so that two transfers never wait for each other.
        for account, change in steps:
            balance = await conn.fetchval(self._add, account, change)
            left = balance if account == transfer.source else left
        if left < 0:
            raise Rollback(None)
        await conn.execute(self._note, transfer.number, transfer.source, transfer.target, transfer.amount)
        return str(conn.server)


def holdings(where: str, accounts: Iterable[Sequence[object]], journal: Iterable[Sequence[object]]) -> Holdings:
    """What was read, of whatever client and so as numbers or as text."""

    def numbers(row: Sequence[object]) -> list[int]:
        return [int(str(value)) for value in row]

    read = [numbers(row) for row in accounts]
    return Holdings(where, {row[0]: row[1] for row in read}, [Transfer(*numbers(row)) for row in journal])
