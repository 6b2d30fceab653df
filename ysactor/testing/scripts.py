"""Scripted statements: what a test says a statement answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from .rows import Result
from .sql import first_word, tidy

if TYPE_CHECKING:
    from .executor import Executor
    from .server import FakeServer


class Statement:
    """What a scripted callable is given: the statement, and the transaction it runs in."""

    __slots__ = ("_session", "args", "sql")

    def __init__(self, sql: str, args: tuple[Any, ...], session: Executor) -> None:
        self.sql = sql
        self.args = args
        self._session = session

    @property
    def server(self) -> FakeServer:
        """The server it runs on."""
        return self._session.server

    @property
    def pid(self) -> int:
        """The session it runs in."""
        return self._session.pid

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key of the cluster's table, as this transaction sees it."""
        return self._session.changes.get(key, default)

    def put(self, key: str, value: Any) -> None:
        """Change a key in this transaction. Raises: 25006 on a standby or in a read-only transaction."""
        self._session.check_writable(first_word(self.sql))
        self._session.changes.put(key, value)

    def delete(self, key: str) -> None:
        """Remove a key in this transaction. Raises: 25006 on a standby or in a read-only transaction."""
        self._session.check_writable(first_word(self.sql))
        self._session.changes.delete(key)


Outcome: TypeAlias = Result | Sequence[Mapping[str, Any]] | str | None
Answer: TypeAlias = Outcome | BaseException | Callable[[Statement], Outcome | Awaitable[Outcome]]
"""Rows (mappings), a command tag, a `Result` with both, an error to raise, None for no rows, or a function, sync or
async, of the `Statement` that returns or raises one of these."""

_TAGS = {"insert": "INSERT 0 1", "update": "UPDATE 1", "delete": "DELETE 1", "select": "SELECT 0"}


@dataclass(eq=False, slots=True)
class Script:
    """One answer, and the statements it is for."""

    pattern: str | re.Pattern[str]
    answer: Answer
    times: int | None = None
    """How many more statements it answers; None is all."""

    def matches(self, sql: str) -> bool:
        """Whether it answers this statement. Text is compared without regard to white space and case."""
        if self.times == 0:
            return False
        if isinstance(self.pattern, str):
            return tidy(self.pattern).lower() == sql.lower()
        return self.pattern.fullmatch(sql) is not None

    def use(self) -> None:
        """Use up one of its times."""
        if self.times is not None:
            self.times -= 1

    def refusal(self) -> Exception | None:
        """The error that it answers before the statement is run, when it is prepared."""
        sqlstate = getattr(self.answer, "sqlstate", None)
        if not isinstance(self.answer, Exception) or not str(sqlstate).startswith("42"):
            return None
        return self.answer.with_traceback(None)

    async def __call__(self, statement: Statement) -> Result:
        """Answer one statement."""
        answer = self.answer
        if callable(answer):
            made = answer(statement)
            answer = await made if inspect.isawaitable(made) else made
        if isinstance(answer, BaseException):
            raise answer.with_traceback(None)
        if isinstance(answer, Result):
            return answer
        if isinstance(answer, str):
            return Result(tag=answer)
        if answer is None:
            verb = first_word(statement.sql)
            return Result(tag=_TAGS.get(verb, verb.upper()))
        return Result.of(answer)


class Scripts:
    """The scripted answers of a server or a cluster; the newest that matches is taken."""

    def __init__(self) -> None:
        self._scripts: list[Script] = []

    def add(self, pattern: str | re.Pattern[str], answer: Answer, times: int | None) -> None:
        """Answer these statements from now on."""
        self._scripts.append(Script(pattern, answer, times))

    def find(self, sql: str) -> Script | None:
        """The script for this statement, if it were run."""
        return next((script for script in reversed(self._scripts) if script.matches(sql)), None)

    def take(self, sql: str) -> Script | None:
        """The script for this statement, one of its times used up."""
        script = self.find(sql)
        if script is not None:
            script.use()
        return script
