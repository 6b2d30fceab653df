"""What one session's statements do on the fake server: its transaction, its settings, what it listens to.

Rules. The state of the transaction is that of PostgreSQL: a failed statement fails it, a failed one answers 25P02
until it is rolled back, and COMMIT of a failed one answers ROLLBACK. Every statement runs in a transaction: the open
one, that of its query string, or one of its own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never

import trio

from .blocks import Kind, Transaction
from .pgerrors import error, is_server_error
from .rows import Result
from .scripts import Statement
from .settings import Settings
from .sql import WRITES, Command, command, first_word, known, split, tidy
from .table import Changes

if TYPE_CHECKING:
    from .server import FakeServer

State: TypeAlias = Literal["active", "idle", "idle in transaction", "idle in transaction (aborted)"]
"""As pg_stat_activity calls them."""


_ACCESS = re.compile(r"\bread\s+(only|write)\b", re.IGNORECASE)
_YES = frozenset({"on", "true", "yes", "1"})


class Gone(Exception):
    """The session was ended by the very statement it was running."""


Work: TypeAlias = Callable[["Executor"], Awaitable[Result]]
"""What a request does that is not the text of a statement."""


class Executor:
    """Runs the statements of one session, one at a time."""

    def __init__(
        self,
        server: FakeServer,
        pid: int,
        settings: Settings,
        *,
        is_over: Callable[[], bool],
        cut: Callable[[str], None],
    ) -> None:
        self.server = server
        self.pid = pid
        self.settings = settings
        self.channels: set[str] = set()
        self.prepared: dict[str, None] = {}
        """The statements that were prepared, oldest first."""
        self.copying = False
        """COPY has begun and its data has not come yet."""
        self._transaction: Transaction | None = None
        self._is_over = is_over
        self._cut = cut

    @property
    def rest_state(self) -> State:
        """The state but for a statement that is running: what the client was last told."""
        if self._transaction is None or self._transaction.kind != "block":
            return "idle"
        return "idle in transaction (aborted)" if self._transaction.failed else "idle in transaction"

    @property
    def in_block(self) -> bool:
        """Whether what runs shares its transaction with other statements."""
        return self._transaction is not None and self._transaction.kind != "single"

    def notify(self, channel: str, payload: str) -> None:
        """Queue a notification; COMMIT sends it."""
        assert self._transaction is not None, "bug: every statement runs in a transaction"
        self._transaction.notifications.append((channel, payload))

    @property
    def is_read_only(self) -> bool:
        """Whether a transaction that begins without saying so is read-only: default_transaction_read_only."""
        own = self.settings.get("default_transaction_read_only")
        return self.server.is_read_only if own is None else own.lower() in _YES

    def setting(self, name: str) -> str | None:
        """The value SHOW gives, None if there is no such parameter."""
        match name:
            case "default_transaction_read_only":
                return _on_or_off(self.is_read_only)
            case "transaction_read_only":
                own = self._transaction is not None and self._transaction.read_only
                return _on_or_off(self.server.is_standby or own)
            case "in_hot_standby":
                return _on_or_off(self.server.is_standby)
            case "server_version":
                return self.server.cluster.server_version
            case _:
                return self.settings.get(name)

    # The data, for scripted statements.

    @property
    def changes(self) -> Changes:
        """The running transaction's view of the table."""
        assert self._transaction is not None, "bug: every statement runs in a transaction"
        return self._transaction.changes

    def check_writable(self, verb: str) -> None:
        """Refuse a write where none is possible (25006)."""
        if self.server.is_standby:
            raise error("25006", f"cannot execute {verb.upper()} during recovery")
        if self._transaction is not None and self._transaction.read_only:
            raise error("25006", f"cannot execute {verb.upper()} in a read-only transaction")

    async def run_statement(self, sql: str, args: tuple[Any, ...]) -> Result:
        """One statement inside the running one's transaction: what `executemany` repeats."""
        return await self._answer(sql, args)

    def prepare(self, sql: str) -> None:
        """Prepare a statement without running it.

        What is wrong with its text or its names fails here already: scripted errors of SQLSTATE class 42, no others.
        """
        refusal = self.server.refusal_of(sql)
        if refusal is not None:
            raise refusal
        self.prepared[sql] = None

    async def query(self, sql: str, args: tuple[Any, ...]) -> Result:
        """What one request asks for: a statement, or a string of several."""
        statements = [tidy(sql)] if args else split(sql)
        result = Result()
        several = len(statements) > 1
        for statement in statements:
            if several and self._transaction is None:
                self._begin("string")
            result = await self._statement(statement, args)
        if self._transaction is not None and self._transaction.kind == "string":
            self._commit()
        return result

    async def _statement(self, sql: str, args: tuple[Any, ...]) -> Result:
        kind = command(sql)
        failed = self._transaction is not None and self._transaction.failed
        if failed and (kind is None or kind[0] not in (Command.COMMIT, Command.ROLLBACK, Command.ROLLBACK_TO)):
            raise _aborted()
        if kind is None:
            return await self.inside(self._answer(sql, args))
        script = self.server.script_for(sql)
        if script is not None:
            try:
                await script(Statement(sql, args, self))
            except Exception as raised:
                if kind[0] is Command.COMMIT:
                    self.roll_back()
                elif is_server_error(raised):
                    self.fail()
                raise
        return self._move(*kind)

    async def _answer(self, sql: str, args: tuple[Any, ...]) -> Result:
        verb = first_word(sql)
        if verb in WRITES:
            self.check_writable(verb)
        script = self.server.script_for(sql)
        if script is not None:
            return await script(Statement(sql, args, self))
        answer = known(sql, args, self)
        if isinstance(answer, Result):
            return answer
        await trio.sleep(answer)
        return Result.of([{"pg_sleep": ""}])

    async def inside(self, work: Awaitable[Result]) -> Result:
        """Run in the open transaction, or in one of its own."""
        if self._transaction is not None and self._transaction.failed:
            if inspect.iscoroutine(work):
                work.close()
            raise _aborted()
        own = self._transaction is None
        if own:
            self._begin("single")
        try:
            result = await work
            if self._is_over():
                raise Gone
            if own:
                self._commit()
        except Exception as raised:
            if is_server_error(raised):
                self.fail()
            elif own:
                self.roll_back()
            raise
        return result

    # The transaction.

    def _move(self, kind: Command, rest: str) -> Result:
        match kind:
            case Command.BEGIN:
                if self._transaction is None or self._transaction.kind != "block":
                    self._begin("block", rest)
                return Result(tag="START TRANSACTION" if rest.lower().startswith("transaction ") else "BEGIN")
            case Command.COMMIT:
                return self._end_block()
            case Command.ROLLBACK:
                self.roll_back()
                return Result(tag="ROLLBACK")
            case Command.SAVEPOINT:
                self._block("SAVEPOINT").save(rest)
                return Result(tag="SAVEPOINT")
            case Command.RELEASE:
                self._block("RELEASE SAVEPOINT").release(rest)
                return Result(tag="RELEASE")
            case Command.ROLLBACK_TO:
                self._block("ROLLBACK TO SAVEPOINT").go_back(rest)
                return Result(tag="ROLLBACK")
            case _:
                assert_never(kind)

    def _begin(self, kind: Kind, modes: str = "") -> None:
        before = self._transaction
        changes = Changes(self.server.cluster.table) if before is None else before.changes
        if before is None:
            self.settings.begin()
        access = _ACCESS.search(modes)
        is_read_only = self.is_read_only if access is None else access[1].lower() == "only"
        self._transaction = Transaction(changes, kind, is_read_only)

    def _end_block(self) -> Result:
        if self._transaction is None:
            return Result(tag="COMMIT")  # PostgreSQL warns, and answers just so
        if self._transaction.failed:
            self.roll_back()
            return Result(tag="ROLLBACK")
        cut = self.server.take_cut()
        if cut != "before":
            self._commit()
        if cut is not None:
            self._cut("cut at COMMIT")
            raise Gone
        return Result(tag="COMMIT")

    def _commit(self) -> None:
        transaction = self._transaction
        if transaction is None:
            return
        try:
            transaction.changes.commit()
        except Exception:
            self.roll_back()
            raise
        self._transaction = None
        self.settings.commit()
        for channel, payload in transaction.notifications:
            self.server.cluster.notify(self.pid, channel, payload)

    def roll_back(self) -> None:
        """Undo the open transaction, if there is one."""
        if self._transaction is not None:
            self.settings.roll_back()
            self._transaction = None

    def fail(self) -> None:
        """A statement failed: an explicit transaction is failed from here on, any other is over."""
        if self._transaction is None:
            return
        if self._transaction.kind != "block":
            self.roll_back()
        else:
            self._transaction.failed = True

    def _block(self, what: str) -> Transaction:
        if self._transaction is None or self._transaction.kind != "block":
            raise error("25P01", f"{what} can only be used in transaction blocks")
        return self._transaction


def _on_or_off(value: bool) -> str:
    return "on" if value else "off"


def _aborted() -> Exception:
    return error("25P02", "current transaction is aborted, commands ignored until end of transaction block")
