"""What makes a new session ready for its first holder: the user's `on_connect`, then `prepare_on_connect`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ..driver.protocol import Status
from ..errors import ConnectionLost, Error
from ..policy.classify import is_trouble_of_the_servers, sqlstate_of
from .actor import undo
from .handle import Connection
from .hook import HookFailed
from .warming import WarmUp
from .wording import unlisten

if TYPE_CHECKING:
    from ..config import Config
    from ..driver.protocol import Session
    from .record import Record

T = TypeVar("T")


class Preparation:
    """What every new connection of one pool goes through before it has a holder."""

    __slots__ = ("_hook", "_patience", "_warm_up")

    def __init__(self, config: Config) -> None:
        self._hook = config.on_connect
        self._patience = config.cancel_timeout
        self._warm_up = WarmUp(config) if config.prepare_on_connect else None

    def of(self, record: Record) -> Callable[[Session], Awaitable[None]] | None:
        """That of one connection, to be run once; None where there is nothing to do."""
        hook, warm_up = self._hook, self._warm_up
        if hook is None:
            return None if warm_up is None else warm_up.run

        async def prepare(session: Session) -> None:
            await self._call(hook, record, session)
            if warm_up is not None:
                # After the hook: it may set the search path, and asyncpg drops statements when it is given a codec.
                await warm_up.run(session)

        return prepare

    async def _call(self, hook: Callable[[Any], Awaitable[None]], record: Record, session: Session) -> None:
        record.session = session
        record.reason = record.unknown = None  # of an attempt before this one, on another server
        record.opener = trio.lowlevel.current_task()
        conn = _Unserved(record, self._patience)
        try:
            await _run_hook(hook, conn)
            await conn.finish()
            record.role_is_hooks = conn._role_changed
        except Exception as error:
            if isinstance(error, HookFailed):
                raise
            # What another pool met, say, is not this server's doing, though it may look the same.
            if isinstance(error, ConnectionLost):
                is_servers = error is conn.met or session.status is Status.CLOSED
            else:
                is_servers = error is conn.met and is_trouble_of_the_servers(sqlstate_of(error))
            if is_servers:
                raise
            raise HookFailed.of(session.host, error) from error
        finally:
            conn.met = None  # its traceback holds this frame
            conn._end()
            record.session = record.opener = None
            record.reason = record.unknown = None


@trio.lowlevel.disable_ki_protection
async def _run_hook(hook: Callable[[Any], Awaitable[None]], conn: Connection) -> None:
    """The user's code is interrupted anywhere, as all of the user's is."""
    done = hook(conn)
    # It may be any callable that returns something to await, which shows only now.
    if not inspect.isawaitable(done):
        raise HookFailed.not_async(done)
    await done


class _Unserved(Connection):
    """The connection while it is in `on_connect`: no actor serves it yet, so what a call or a block leaves there is put
    right in the same task, before the next call or at the end."""

    __slots__ = ("_owed", "met")

    def __init__(self, record: Record, patience: float) -> None:
        super().__init__(record, patience)
        self._owed: list[str] = []
        self.met: Exception | None = None
        """The last error that a call on this connection raised."""

    async def finish(self) -> None:
        """Make it ready for its first holder. Raises `Error` if the hook left it in a state that nobody may have."""
        self._drop_unsent_begin()
        await self._sync()
        await self._put_right()
        await self._unlisten()
        if not self._session().is_clean():
            raise Error("it left the connection inside a transaction or a call")

    async def _put_right(self) -> None:
        # A settling that is cancelled costs the connection: a block that is left by a cancellation must not start one.
        await trio.lowlevel.checkpoint_if_cancelled()
        session = self._session()
        settled = session.status is not Status.ABANDONED or await session.settle(self._patience)
        while settled and self._owed:
            settled = await undo(session, self._owed.pop(0), self._patience)
        if not settled:
            session.terminate("closed")
            raise Error("what was cancelled in it could not be put right in time")

    async def _unlisten(self) -> None:
        raw = self._session().raw
        for channel, heard in self._ears:
            await self._run(raw.remove_listener(channel, heard), None)
        for channel in self._unsure:
            await self._run(raw.execute(unlisten(channel)), None)

    def _owe(self, sql: str) -> None:
        if self._is_live():
            self._owed.append(sql)

    def _is_left(self) -> bool:
        session = self._record.session
        return session is not None and session.status is Status.ABANDONED

    async def _ready(self, timeout: float | None = None) -> float | None:
        await self._put_right()
        return timeout

    async def _run(self, call: Coroutine[Any, Any, T], timeout: float | None, writes_first: bool = False) -> T:
        try:
            await self._put_right()
        except BaseException:
            call.close()
            raise
        try:
            return await super()._run(call, timeout, writes_first)
        except Exception as error:
            self.met = error
            raise
