"""How the addresses of one name share the time there is, and which failure is one address's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.testing

from ysactor.driver.protocol import ConnectFailure, NoPassword, Phase
from ysactor.driver.tries import Tries

Server = Callable[[trio.CancelScope], Awaitable[str]]

Clock = trio.testing.MockClock


async def silent(_: trio.CancelScope) -> str:
    await trio.sleep_forever()
    raise AssertionError("unreachable")


async def after(seconds: float, _: trio.CancelScope) -> str:
    await trio.sleep(seconds)
    return "a session"


def failing(failure: ConnectFailure, cause: BaseException | None = None) -> Server:
    async def log_in(_: trio.CancelScope) -> str:
        raise failure from cause

    return log_in


def refusing() -> Server:
    return failing(ConnectFailure(Phase.CONNECT, "Connection refused"), ConnectionRefusedError())


async def tried(timeout: float, **servers: Server) -> str:
    """Try these addresses in this order; which one it was, and when."""
    tries = Tries[str](timeout, str)
    tries.add(servers)

    async def dial() -> tuple[str, str]:
        return tries.left[0], tries.left[0]

    async def log_in(address: str, share: trio.CancelScope) -> str:
        return f"{await servers[address](share)} on {address} at {trio.current_time():.4g}"

    return await tries.first(dial, log_in)


async def test_c16_a_silent_address_has_its_share_of_the_time_and_no_more(autojump_clock: Clock) -> None:
    assert await tried(10, a=silent, b=partial(after, 4)) == "a session on b at 8.95"


async def test_the_shares_are_of_what_is_left_so_who_takes_less_leaves_more_to_the_others(
    autojump_clock: Clock,
) -> None:
    assert await tried(9, a=refusing(), b=silent, c=partial(after, 4)) == "a session on c at 8.455"


async def test_when_all_fail_the_error_names_each_and_comes_before_the_callers_own_limit(autojump_clock: Clock) -> None:
    reset = failing(ConnectFailure(Phase.LOGIN, "the server hung up"), ConnectionResetError())

    with trio.fail_after(10), pytest.raises(ConnectFailure) as told:
        await tried(10, a=refusing(), b=silent, c=reset, d=silent)

    assert str(told.value) == (
        "a: Connection refused; b: no answer within 3.3 s; c: the server hung up; d: no answer within 6.6 s"
    )
    assert told.value.phase is Phase.CONNECT
    assert isinstance(told.value.__cause__, TimeoutError)
    assert trio.current_time() == pytest.approx(9.9)


async def test_when_all_fail_the_last_ones_phase_code_and_cause_are_the_errors(autojump_clock: Clock) -> None:
    cause = Exception("starting up")
    starting = failing(ConnectFailure(Phase.LOGIN, "starting up", sqlstate="57P03"), cause)

    with pytest.raises(ConnectFailure) as told:
        await tried(10, a=refusing(), b=starting)

    assert (str(told.value), told.value.phase) == ("a: Connection refused; b: starting up", Phase.LOGIN)
    assert (told.value.sqlstate, told.value.__cause__) == ("57P03", cause)


async def test_of_many_addresses_an_error_names_five(autojump_clock: Clock) -> None:
    with pytest.raises(ConnectFailure, match=r"^a: Connection refused; .*; e: Connection refused; and 2 more$"):
        await tried(10, **{address: refusing() for address in "abcdefg"})


@pytest.mark.parametrize(
    "failure",
    [
        ConnectFailure(Phase.LOGIN, "password authentication failed", sqlstate="28P01"),
        ConnectFailure(Phase.LOGIN, "too many clients", sqlstate="53300"),
        ConnectFailure(Phase.TLS, "the server refuses TLS"),
        ConnectFailure(Phase.LOGIN, "the answer to the login is not PostgreSQL's"),
        NoPassword(Phase.LOGIN, "the password function raised ConnectionRefusedError"),
    ],
    ids=str,
)
async def test_an_answer_is_the_names_and_no_other_address_is_asked(
    autojump_clock: Clock, failure: ConnectFailure
) -> None:
    cause = ConnectionRefusedError() if isinstance(failure, NoPassword) else None

    with pytest.raises(ConnectFailure) as told:
        await tried(10, a=failing(failure, cause), b=partial(after, 0))
    assert told.value is failure

    with pytest.raises(ConnectFailure) as told:
        await tried(10, a=refusing(), b=failing(failure, cause))
    assert told.value is failure


@pytest.mark.parametrize(
    "server",
    [
        failing(ConnectFailure(Phase.LOGIN, "starting up", sqlstate="57P03")),
        failing(ConnectFailure(Phase.LOGIN, "unable to connect", sqlstate="08001")),
        failing(ConnectFailure(Phase.TLS, "the server hung up"), ConnectionResetError()),
        failing(ConnectFailure(Phase.LOGIN, "the server hung up"), EOFError()),
    ],
)
async def test_an_address_that_hangs_up_or_is_starting_up_is_passed_over(autojump_clock: Clock, server: Server) -> None:
    assert await tried(10, a=server, b=partial(after, 1)) == "a session on b at 1"


async def test_a_single_address_has_the_callers_time_and_its_failure_comes_out_as_it_is(autojump_clock: Clock) -> None:
    assert await tried(1, a=partial(after, 20)) == "a session on a at 20"
    refusal = ConnectFailure(Phase.CONNECT, "Connection refused")
    with pytest.raises(ConnectFailure) as told:
        await tried(1, a=failing(refusal))
    assert told.value is refusal


async def test_an_earlier_deadline_of_the_callers_is_what_is_shared(autojump_clock: Clock) -> None:
    with trio.fail_after(2):
        assert await tried(10, a=silent, b=partial(after, 0.5)) == "a session on b at 1.49"


async def test_who_is_cancelled_meanwhile_is_gone_at_once(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(tried, 10, a=silent, b=silent))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert trio.current_time() == 1
