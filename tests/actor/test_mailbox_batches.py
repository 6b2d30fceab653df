"""An inbox is read a batch at a time: what that keeps, and what it must not take from others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ysactor.actor import Ended, Inbox, Ref, Reply, open_mailbox


@dataclass(frozen=True)
class Ask:
    reply: Reply[str]


def numbers() -> tuple[Ref[int], Inbox[int]]:
    return open_mailbox()


def questions() -> tuple[Ref[Ask], Inbox[Ask]]:
    return open_mailbox()


async def test_messages_are_read_in_the_order_they_were_sent_whenever_they_came() -> None:
    ref, inbox = numbers()
    read: list[int] = []

    async def serve() -> None:
        async for number in inbox:
            read.append(number)
            if number == 1:
                ref.cast(4)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            ref.cast(number)
        nursery.start_soon(serve)
        await wait_all_tasks_blocked()
        ref.cast(5)
        ref.cast(6)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert read == [0, 1, 2, 4, 5, 6]


async def test_a_burst_of_messages_takes_one_pass_of_the_scheduler() -> None:
    ref, inbox = numbers()
    read: list[int] = []

    async def serve() -> None:
        async for number in inbox:
            read.append(number)  # noqa: PERF401  it is cancelled on the way

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await wait_all_tasks_blocked()
        for number in range(100):
            ref.cast(number)
        assert read == []
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert len(read) == 100
        nursery.cancel_scope.cancel()


async def test_an_actor_that_always_has_a_message_lets_others_run_and_can_be_cancelled() -> None:
    ref, inbox = numbers()
    turns = 0

    async def serve() -> None:
        async for number in inbox:
            ref.cast(number + 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        ref.cast(0)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
            turns += 1
        nursery.cancel_scope.cancel()
    assert turns == 5


async def test_is_empty_counts_what_was_taken_and_not_read_yet() -> None:
    ref, inbox = numbers()
    ref.cast(1)
    assert not inbox.is_empty()
    ref.cast(2)
    assert await inbox.__anext__() == 1
    assert not inbox.is_empty()
    assert await inbox.__anext__() == 2
    assert inbox.is_empty()


async def test_an_actor_that_ends_in_the_middle_of_a_batch_refuses_the_rest_of_it_and_what_came_during_it() -> None:
    ref, inbox = questions()
    refused = 0

    async def ask() -> None:
        nonlocal refused
        with pytest.raises(Ended):
            await ref.call(Ask)
        refused += 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        message = await inbox.__anext__()
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        inbox.close()
        assert message.reply.refuse(Ended())
    assert refused == 4


async def test_a_message_is_read_or_stays_whenever_the_reader_is_cancelled() -> None:
    ref, inbox = numbers()
    read: list[int] = []

    async def serve(scope: trio.CancelScope) -> None:
        with scope:
            async for number in inbox:
                read.append(number)  # noqa: PERF401  it is cancelled on the way

    async with trio.open_nursery() as nursery:
        before, after = trio.CancelScope(), trio.CancelScope()
        nursery.start_soon(serve, before)
        await wait_all_tasks_blocked()
        before.cancel()
        await wait_all_tasks_blocked()
        ref.cast(1)
        assert not inbox.is_empty()
        nursery.start_soon(serve, after)
        await wait_all_tasks_blocked()
        ref.cast(2)
        after.cancel()
    assert read == [1, 2]


async def test_who_insists_is_not_cancelled_before_the_answer_has_come() -> None:
    ref, inbox = questions()
    got: list[str] = []
    after: list[str] = []
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def insist() -> None:
            with scope:
                got.append(await ref.insist(Ask))
                await trio.lowlevel.checkpoint()
                after.append("it went on")

        scope.cancel()
        nursery.start_soon(insist)
        await wait_all_tasks_blocked()
        assert not got
        message = await inbox.__anext__()
        assert message.reply.offer("yes")
    assert got == ["yes"]
    assert scope.cancelled_caught
    assert not after


async def test_who_insists_on_an_actor_that_has_ended_or_ends_is_told() -> None:
    ref, inbox = questions()
    async with trio.open_nursery() as nursery:

        async def insist() -> None:
            with pytest.raises(Ended):
                await ref.insist(Ask)

        nursery.start_soon(insist)
        await wait_all_tasks_blocked()
        inbox.close()
    with pytest.raises(Ended):
        await ref.insist(Ask)


async def test_an_answer_is_taken_once() -> None:
    ref, inbox = questions()

    async def serve() -> None:
        message = await inbox.__anext__()
        assert message.reply.offer("first")
        assert not message.reply.offer("second")
        assert not message.reply.refuse(ValueError())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        assert await ref.call(Ask) == "first"
