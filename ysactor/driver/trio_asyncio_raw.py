"""asyncpg's connection as the trio-asyncio driver has it: it tells of its end at once, and waits for COPY's files."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

from .leftovers import tidied
from .trio_asyncio_work import pause, read_on


def connection_class(asyncpg: Any) -> Any:
    """asyncpg's connection, on the loop itself once it is open, and able to interrupt its server after its end."""
    base: Any = tidied(asyncpg.Connection, importlib.import_module("asyncpg.protocol.protocol"))
    cancel: Any = importlib.import_module("asyncpg.connect_utils")._cancel

    def init(self: Any, protocol: Any, transport: Any, loop: Any, addr: Any, config: Any, params: Any) -> None:
        addr = loop.address(addr)
        self.on_end = _nothing
        self.on_outdated = []
        self.on_sinks_error = _nothing
        base.__init__(self, protocol, transport, loop.loop, addr, config, params)
        pid, secret = protocol.backend_pid, protocol.backend_secret
        self.expect_rows = loop.expect_rows
        self.interrupt = lambda: cancel(
            loop=loop.loop, addr=addr, params=params, backend_pid=pid, backend_secret=secret
        )

    def cleanup(self: Any) -> None:
        # A termination listener is called by the loop, some turns later: until then the connection would be closed, and
        # what is asked of it refused, without anybody's knowing why.
        base._cleanup(self)
        on_end, self.on_end = self.on_end, _nothing
        on_end()

    # asyncpg's own reach the other connections through the proxy of its own pool, which there is none of here.

    def drop_statements(self: Any) -> None:
        base._drop_global_statement_cache(self)
        self.tell_outdated(False)

    def drop_types(self: Any) -> None:
        base._drop_global_type_cache(self)
        self.tell_outdated(True)

    def tell_outdated(self: Any, types: bool) -> None:
        for tell in self.on_outdated:
            tell(types)

    def copy_in(self: Any, *args: Any) -> Any:
        return base._copy_in(FromFile(self), *args)

    def copy_out(self: Any, *args: Any) -> Any:
        self.expect_rows()
        return base._copy_out(ToFile(self), *args)

    members = {
        "__slots__": ("expect_rows", "interrupt", "on_end", "on_outdated", "on_sinks_error"),
        "__init__": init,
        "_cleanup": cleanup,
        "_copy_in": copy_in,
        "_copy_out": copy_out,
        "_drop_global_statement_cache": drop_statements,
        "_drop_global_type_cache": drop_types,
        "tell_outdated": tell_outdated,
    }
    return type("Connection", (base,), members)


class _Patient:
    """asyncpg's connection, as its COPY from and to files sees it: a thread is not left before it has ended.

    trio-asyncio loses a cancellation that meets a thread.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def _loop(self) -> _Patient:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class FromFile(_Patient):
    """What a COPY from a file sees. A cancellation is given to it as the thread ends, and no further piece is read."""

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        """asyncio-flavoured."""
        loop = self._connection._loop
        task: Any = asyncio.current_task(loop)
        future = loop.run_in_executor(executor, function, *args)
        is_left = False

        def put_off(msg: Any = None) -> bool:
            nonlocal is_left
            is_left = True
            return True

        def ended(_: Any) -> None:  # called before the task goes on, since the task began to wait later than this
            del future.cancel
            if is_left:
                task.cancel()

        if task is not None:
            future.cancel = put_off
            future.add_done_callback(ended)
        return future


class ToFile(_Patient):
    """What a COPY to a file sees: a cancellation is given to the task where that waits next.

    That is also right for the thread that writes the last piece; see `Work`. So is it for what a write raises.
    """

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        """asyncio-flavoured."""
        loop, transport = self._connection._loop, self._connection._transport
        task: Any = asyncio.current_task(loop)
        if function is open:  # before the COPY begins
            return loop.run_in_executor(executor, function, *args)
        failure: list[Exception] = []

        def write() -> None:
            try:
                function(*args)
            except Exception as error:
                failure.append(error)

        future = loop.run_in_executor(executor, write)

        def written(_: Any) -> None:
            if failure:
                self._connection.on_sinks_error(failure.pop())

        def cancel(_: Any) -> None:  # called after the task itself has been
            is_paused = pause(transport)
            task.cancel()
            if is_paused:
                loop.call_soon(read_on, transport)

        def put_off(msg: Any = None) -> bool:
            future.add_done_callback(cancel)
            return True

        future.add_done_callback(written)
        if task is not None:
            future.cancel = put_off
        return future


def _nothing(*_: object) -> None:
    """It has no session yet."""
