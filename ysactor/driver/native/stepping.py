"""Running asyncpg's coroutines by hand in a Trio task: one scheduler pass for a query, and leaving one half-way."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

import trio
from trio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled, wait_readable

from ..copy_in import raise_what_a_source_raises
from ..copy_out import CopyOut
from .bounds import Expired, Grace
from .copying import COPIES_IN
from .link import Link
from .loop import StartedCall, ThreadCall, TrioCall
from .names import enter_task, get_running_loop, is_cancelling, leave_task, other_notion_of_the_loop, set_running_loop

T = TypeVar("T")
Future = asyncio.Future
CancelledError = asyncio.CancelledError

_START: Any = object()

_MOST_STEPS = 100
"""A coroutine that is being left and waits yet again, this many times, will never end by itself."""


async def run(link: Link, call: Coroutine[Any, Any, T], grace: Grace | None = None, waiting: Any = _START) -> T:
    """Run a coroutine of asyncpg's to its end. Interrupted, it has left it (see `leave`) when the exception comes out.

    Its body is one long function on purpose: each coroutine in between costs every wait 0.06 µs (measured).

    No variable of it may hold what comes out as an exception, nor the future that held it: the exception's traceback
    holds this frame, and the call with its arguments, which only the garbage collector would then find.
    """
    loop = link.loop
    task = loop.task
    other = other_notion_of_the_loop()
    sock, read, feed = link.sock, link.read, link.feed
    value: Any = None
    error: BaseException | None = None
    original: BaseException | None = None
    result: T = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    parked = False
    if waiting is _START:
        if id(getattr(call, "cr_code", None)) in COPIES_IN:
            raise_what_a_source_raises(link.wire)
        try:
            await checkpoint_if_cancelled()  # or a call of a cancelled caller would be sent, and cancelled afterwards
        except BaseException:
            call.close()
            raise
    while True:
        if isinstance(waiting, Future):
            if original is not None:  # of a sink, which was not told to asyncpg
                leave(link, call, waiting)
                break
            put_off = False
            try:
                while not waiting.done():
                    if loop.odd:
                        if link.closed:
                            break
                        await link.turn(waiting)  # pyright: ignore[reportUnknownArgumentType]
                        continue
                    await wait_readable(sock)
                    parked = True
                    try:
                        data = read()
                    except BlockingIOError:
                        continue
                    except OSError as failure:
                        link.ended(failure)
                        continue
                    feed(data)
            except trio.ClosedResourceError:
                if not link.closed:
                    raise
            except BaseException as interruption:
                put_off = grace is not None and grace.covers(interruption)
                if not put_off:
                    leave(link, call, waiting)
                    raise
            if put_off and grace is not None:
                rest, waiting = run(link, call, None, waiting), None
                with grace.shield():
                    return await rest
                raise Expired  # and the call has been left all the same
            if not waiting.done():  # closed, and asyncpg does not fail those futures
                error = ConnectionResetError(link.reason)
        elif waiting is not _START:
            parked = True
            value, error, raised = await _attend(link, call, waiting)
            original, raised = raised or original, None
        if loop.odd and loop.task.cancel_due and error is None:
            loop.task.cancel_due = False
            error = CancelledError()
        outer = get_running_loop()
        set_running_loop(loop)
        enter_task(loop, task)
        token = None if other is None else other.set(loop)
        waiting = None
        try:
            waiting = call.send(value) if error is None else call.throw(error)
        except StopIteration as end:
            result = end.value
            break
        except CancelledError:
            if original is None:
                raise
            break
        except Exception:
            raise
        except BaseException:
            # Trio's cancellation went through asyncpg's own frames (a user's Trio code in COPY that was not given as
            # `source` or `sink`), and asyncpg does not clean up after that.
            link.shut("a call was torn out of asyncpg")
            raise
        finally:
            value = error = None
            leave_task(loop, task)
            set_running_loop(outer)
            if other is not None and token is not None:
                other.reset(token)
    if original is not None:
        link.users_error = original
        try:
            raise original
        finally:
            del original
    if not parked:
        await cancel_shielded_checkpoint()  # shielded: what the call did cannot be undone
    return result


async def run_plain(link: Link, call: Coroutine[Any, Any, T], grace: Grace | None = None) -> T:
    """`run` for a call that wants nothing of asyncio but futures, such as a `fetch`; it goes on for what is not quick.

    Measured: asyncio's running loop and current task, twice for each query, were 10 % of the processor time of a pooled
    `SELECT 1` on Python 3.11, which asks the kernel for its process number each time.
    """
    loop, sock, read, feed = link.loop, link.sock, link.read, link.feed
    try:
        await checkpoint_if_cancelled()
    except BaseException:
        call.close()
        raise
    if loop.odd:
        return await run(link, call, grace)
    waiting: Any = _START
    while True:
        try:
            waiting = call.send(None)
        except StopIteration as end:
            if waiting is _START:
                await cancel_shielded_checkpoint()
            result: T = end.value
            return result
        if not isinstance(waiting, Future):
            break
        try:
            while not (loop.odd or waiting.done()):
                await wait_readable(sock)
                try:
                    data = read()
                except BlockingIOError:
                    continue
                except OSError as failure:
                    link.ended(failure)
                    continue
                feed(data)
        except trio.ClosedResourceError:
            if not link.closed:
                raise
        except BaseException as interruption:
            if grace is None or not grace.covers(interruption):
                leave(link, call, waiting)  # pyright: ignore[reportUnknownArgumentType]
                raise
            rest, waiting = run(link, call, None, waiting), None
            with grace.shield():
                return await rest
            raise Expired from None
        if loop.odd:
            break
        waiting = None  # see `run`
    rest, waiting = run(link, call, grace, waiting), None
    return await rest


async def run_with_users_code(link: Link, call: Coroutine[Any, Any, T], grace: Grace | None = None) -> T:
    """`run` for COPY: one scope around the whole call, so that the end of the socket ends what the user's code awaits.

    Raises `ConnectionResetError` then.
    """
    with trio.CancelScope() as link.errand:
        try:
            return await run(link, call, grace)
        finally:
            link.errand = None
    raise ConnectionResetError(link.reason)


async def _attend(
    link: Link, call: Coroutine[Any, Any, Any], waiting: Any
) -> tuple[Any, BaseException | None, BaseException | None]:
    """See to what is no future: the value or error to go on with, and the user's error if it stands behind that."""
    if isinstance(waiting, TrioCall):
        return await _serve(link, call, waiting)  # pyright: ignore[reportUnknownArgumentType]
    if waiting is not None:
        return await _pass_on(waiting), None, None
    try:
        await link.breathe()
    except BaseException:
        leave(link, call, waiting)
        raise
    return None, ConnectionResetError(link.reason) if link.closed else None, None


async def _serve(
    link: Link, call: Coroutine[Any, Any, Any], request: TrioCall[Any]
) -> tuple[Any, BaseException | None, BaseException | None]:
    """Run the user's code where it belongs: under Trio, with asyncpg's frames out of its way."""
    outer, link.away = link.errand, True
    try:
        if isinstance(request, StartedCall):
            return await request.run(), None, None
        with trio.CancelScope(deadline=link.loop.next_due()) as link.errand:
            return await request.run(), None, None
    except StopAsyncIteration as end:
        return None, end, None
    except Exception as error:
        if isinstance(request, ThreadCall):
            return None, error, None
        # asyncpg before 0.32 puts the text of an exception into a message of limited length; a cancellation has none.
        return None, CancelledError(), error
    except BaseException:
        leave(link, call, request)
        raise
    finally:
        link.errand, link.away = outer, False
    if link.closed:
        return None, ConnectionResetError(link.reason), None
    link.loop.run_due()
    if link.loop.task.cancel_due:
        link.loop.task.cancel_due = False
        return None, CancelledError(), None
    return None, TimeoutError(), None


@types.coroutine
def _pass_on(trap: Any) -> Generator[Any, Any, Any]:
    """Hand one of Trio's own traps, yielded by the user's code inside the call, to Trio."""
    return (yield trap)


def leave(link: Link, call: Coroutine[Any, Any, Any], waiting: Any) -> None:
    """Step out of a call that waits for `waiting`, now. asyncpg asks for a cancellation where one is needed.

    The coroutine gets what asyncpg cleans up after: the cancellation of its own future, which makes it ask; a time-out
    where it waits to write, since there it takes a cancellation for the end of the data (`executemany`) and the
    server would wait for the rest; a plain cancellation everywhere else.

    The rows of a COPY out are then passed on uncut: asyncpg throws them away, and would not ask for what was left over.
    """
    _leave(link, call, waiting)
    rows = link.receive
    if isinstance(rows, CopyOut) and is_cancelling(link.wire) and (left_over := rows.let_go()):
        link.feed(left_over)


def _leave(link: Link, call: Coroutine[Any, Any, Any], waiting: Any) -> None:
    value: Any = None
    for _ in range(_MOST_STEPS):
        error = _parting(link, waiting)
        try:
            waiting = _step(link, call, value, error)
            while isinstance(waiting, ThreadCall):  # closing a file: no thread is waited for while leaving
                waiting = _step(link, call, waiting.function(), None)  # pyright: ignore[reportUnknownArgumentType]
        except (CancelledError, Exception):  # it has ended, one way or the other
            return
    call.close()
    link.shut("a call that was left would not end")


def _parting(link: Link, waiting: Any) -> BaseException | None:
    if link.closed or is_cancelling(link.wire) or isinstance(waiting, TrioCall):
        return CancelledError()
    if not isinstance(waiting, Future):
        return TimeoutError()
    waiting.cancel()  # pyright: ignore[reportUnknownMemberType]
    return None if is_cancelling(link.wire) else TimeoutError()


def _step(link: Link, call: Coroutine[Any, Any, Any], value: Any, error: BaseException | None) -> Any:
    loop, task, outer, other = link.loop, link.loop.task, get_running_loop(), other_notion_of_the_loop()
    set_running_loop(loop)
    enter_task(loop, task)
    token = None if other is None else other.set(loop)
    try:
        return call.send(value) if error is None else call.throw(error)
    finally:
        leave_task(loop, task)
        set_running_loop(outer)
        if other is not None and token is not None:
            other.reset(token)
