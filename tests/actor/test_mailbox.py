"""The promises of the kernel's mailboxes, each by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ysactor.actor import Ended, Inbox, Ref, Reply, open_mailbox


@dataclass(frozen=True)
class Ask:
    reply: Reply[str]


def mailbox() -> tuple[Ref[Ask], Inbox[Ask]]:
    return open_mailbox()


async def test_an_answer_reaches_the_caller_that_waits() -> None:
    ref, inbox = mailbox()

    async def serve() -> None:
        message = await inbox.__anext__()
        assert message.reply.offer("yes")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        assert await ref.call(Ask) == "yes"


async def test_an_offer_to_a_caller_that_was_cancelled_is_refused() -> None:
    ref, inbox = mailbox()
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def ask() -> None:
            with scope:
                await ref.call(Ask)

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        message = await inbox.__anext__()
        scope.cancel()
        await wait_all_tasks_blocked()

        assert not message.reply.offer("too late")


async def test_what_was_offered_arrives_even_if_the_caller_is_cancelled_in_the_same_pass() -> None:
    ref, inbox = mailbox()
    got: list[str] = []
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def ask() -> None:
            with scope:
                got.append(await ref.call(Ask))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        message = await inbox.__anext__()

        assert message.reply.offer("handed over")
        scope.cancel()
        await wait_all_tasks_blocked()

        assert got == ["handed over"]


async def test_a_caller_that_is_cancelled_before_asking_receives_nothing() -> None:
    ref, inbox = mailbox()
    with trio.CancelScope() as scope:
        scope.cancel()
        await ref.call(Ask)
    assert scope.cancelled_caught
    message = await inbox.__anext__()
    assert not message.reply.offer("nobody is there")


async def test_an_actor_that_ends_refuses_what_is_left_and_what_comes() -> None:
    ref, inbox = mailbox()
    errors: list[BaseException] = []

    async def ask() -> None:
        try:
            await ref.call(Ask)
        except Ended as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        inbox.close()
    assert len(errors) == 2
    with pytest.raises(Ended):
        await ref.call(Ask)


async def test_a_cast_works_in_a_cancelled_scope_and_tells_whether_anybody_reads() -> None:
    ref: Ref[int]
    inbox: Inbox[int]
    ref, inbox = open_mailbox()
    with trio.CancelScope() as scope:  # noqa: ASYNC100  that there is no checkpoint is what is tested
        scope.cancel()
        assert ref.cast(1)
    assert await inbox.__anext__() == 1
    inbox.close()
    assert not ref.cast(2)


async def test_a_refusal_is_raised_by_the_caller() -> None:
    ref, inbox = mailbox()

    async def serve() -> None:
        (await inbox.__anext__()).reply.refuse(ValueError("no"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with pytest.raises(ValueError, match="no"):
            await ref.call(Ask)
