"""`pool.transaction`: a function between BEGIN and COMMIT, run again where nothing was committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from ..connection.transaction import Transaction, begin_statement
from ..errors import CommitOutcomeUnknown, ConfigurationError, Error, Rollback, TransactionEnded
from ..policy.backoff import retry_wait
from ..policy.classify import classify, is_drivers, is_stale_plan
from .lease import Acquire

if TYPE_CHECKING:
    from ..connection.handle import Connection
    from .handle import Pool

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempts:
    """The options of one call, checked before anything runs."""

    attempts: int
    isolation: str | None
    readonly: bool
    deferrable: bool
    checkout_limit: float | None
    max_backoff: float

    def __post_init__(self) -> None:
        problems: list[str] = []
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            problems.append(f"attempts: must be a whole number, 1 or more; got {self.attempts!r}")
        if (
            isinstance(self.max_backoff, bool)
            or not isinstance(self.max_backoff, int | float)
            or not self.max_backoff >= 0
        ):
            problems.append(f"max_backoff: must be a number of seconds, 0 or more; got {self.max_backoff!r}")
        try:
            begin_statement(self.isolation, self.readonly, self.deferrable)
        except ValueError as error:
            problems.append(str(error))
        if problems:
            raise ConfigurationError(problems)


@enable_ki_protection
async def run(pool: Pool, fn: Callable[..., Awaitable[T]], args: tuple[Any, ...], policy: Attempts) -> T:
    """Run it until it is committed, rolled back on purpose, or not to be run again."""
    tally = pool._actor.tally
    retried: Exception | None = None
    attempt = 0
    stale: set[type[Exception]] = set()
    """The kinds of what was cached before the schema changed that have been met. The pool's connections have forgotten
    that kind together; a statement that is prepared anew may still use a type that has changed as well."""
    try:
        while True:
            attempt += 1
            try:
                block = Acquire(pool, policy.checkout_limit)
                conn = await block.__aenter__()
            except Error:
                if retried is not None:
                    # The function has run: what it met is the news, not that no other connection could be had.
                    raise retried from retried.__cause__
                raise
            if retried is not None:
                tally.transactions_retried += 1
            try:
                return await _attempt(pool, block, conn, fn, args, policy)
            except Exception as error:
                is_newly_stale = is_stale_plan(error) and type(error) not in stale
                if attempt >= policy.attempts or not (_nothing_was_committed(error) or is_newly_stale):
                    raise
                if is_newly_stale:
                    stale.add(type(error))
                retried = error
            await trio.sleep(retry_wait(attempt, policy.max_backoff, pool._actor.random()))
    finally:
        del retried  # its traceback holds this frame


@enable_ki_protection
async def _attempt(
    pool: Pool,
    block: Acquire,
    conn: Connection,
    fn: Callable[..., Awaitable[T]],
    args: tuple[Any, ...],
    policy: Attempts,
) -> T:
    tally = pool._actor.tally
    wishes: dict[str, Any] = {
        "isolation": policy.isolation,
        "readonly": policy.readonly,
        "deferrable": policy.deferrable,
    }
    transaction: Transaction | None = None
    try:
        # The lease is entered first: `transaction` raises if the connection has ended, and the lease must end then.
        async with _Entered(block):
            transaction = conn.transaction(**wishes)
            async with transaction:
                value = await _call(fn, conn, args)
    except Rollback as rollback:
        if transaction is not None and transaction.was_ended:
            raise TransactionEnded from rollback
        tally.transactions_rolled_back += 1
        chosen: T = rollback.value
        return chosen
    except CommitOutcomeUnknown:
        tally.commits_unknown += 1
        raise
    except TransactionEnded:
        raise  # nobody knows what the function itself did
    except BaseException as error:
        if transaction is not None and transaction.was_ended:
            if isinstance(error, Exception) and _nothing_was_committed(error):
                # What would have it run again says nothing of what it committed itself.
                raise TransactionEnded from error
            raise
        tally.transactions_rolled_back += 1
        raise
    tally.transactions_committed += 1
    return value


@disable_ki_protection
async def _call(fn: Callable[..., Awaitable[T]], conn: Connection, args: tuple[Any, ...]) -> T:
    """The user's code is interrupted anywhere, as all of the user's is."""
    return await fn(conn, *args)


class _Entered:
    """A block that was entered elsewhere, so that only entering it is treated as a checkout."""

    __slots__ = ("_block",)

    def __init__(self, block: Acquire) -> None:
        self._block = block

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, trace)


def _nothing_was_committed(error: Exception) -> bool:
    """Whether to run the function again. An `OSError` of the function's own doing is not the database's."""
    return is_drivers(error) and classify(error) != "other"
