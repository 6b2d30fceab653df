"""The table of `open_tree`, one test for each row."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ysactor.actor import open_tree


async def fail(error: BaseException) -> None:
    raise error


async def fail_when_cancelled(error: BaseException) -> None:
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        raise error from None


async def test_the_blocks_exception_comes_out_itself_with_its_own_context() -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with open_tree() as tree:
            tree.start_soon(trio.sleep_forever)
            try:
                raise ZeroDivisionError
            except ZeroDivisionError:
                raise mine  # noqa: B904  the context is what is tested
    assert caught.value is mine
    assert isinstance(mine.__context__, ZeroDivisionError)
    assert mine.__cause__ is None
    assert not mine.__suppress_context__


async def test_the_cause_of_the_blocks_exception_is_kept() -> None:
    cause = ValueError("cause")
    with pytest.raises(KeyError) as caught:
        async with open_tree():
            raise KeyError from cause
    assert caught.value.__cause__ is cause


async def test_a_childs_bug_comes_out_in_its_group() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_tree() as tree:
            tree.start_soon(fail, ValueError("bug"))
            await trio.sleep_forever()
    assert [str(error) for error in caught.value.exceptions] == ["bug"]


async def test_both_raise_and_the_blocks_comes_out_with_the_childs_as_its_context() -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with open_tree() as tree:
            tree.start_soon(fail_when_cancelled, ValueError("bug"))
            await trio.testing.wait_all_tasks_blocked()
            raise mine
    assert caught.value is mine
    assert isinstance(mine.__context__, BaseExceptionGroup)
    assert [str(error) for error in mine.__context__.exceptions] == ["bug"]


async def test_a_keyboard_interrupt_of_a_child_comes_out() -> None:
    with pytest.raises(KeyboardInterrupt):
        async with open_tree() as tree:
            tree.start_soon(fail, KeyboardInterrupt())
            await trio.sleep_forever()


async def test_a_keyboard_interrupt_of_the_block_comes_out() -> None:
    with pytest.raises(KeyboardInterrupt):
        async with open_tree() as tree:
            tree.start_soon(fail_when_cancelled, ValueError("bug"))
            await trio.testing.wait_all_tasks_blocked()
            raise KeyboardInterrupt


async def test_the_callers_own_group_passes_through_untouched() -> None:
    mine = ExceptionGroup("mine", [ValueError("a"), KeyError("b")])
    with pytest.raises(ExceptionGroup) as caught:
        async with open_tree() as tree:
            tree.start_soon(trio.sleep_forever)
            raise mine
    assert caught.value is mine


async def test_a_cancellation_from_outside_is_an_ordinary_one() -> None:
    with trio.move_on_after(0) as scope:
        async with open_tree() as tree:
            tree.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_leaving_the_block_cancels_the_children() -> None:
    with trio.fail_after(1):
        async with open_tree() as tree:
            tree.start_soon(trio.sleep_forever)
