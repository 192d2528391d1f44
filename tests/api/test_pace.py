"""While clients connect, bodies are received one piece at each pass of the event loop; tenants take turns."""

import asyncio

import pytest

from comln_serve.api.receive.pace import MOST_WAITING, Pace
from comln_serve.errors import ErrorCode, ServiceError
from tests.support.engines import Serve


def passes_of(
    *names: str,
    leaving: tuple[str, ...] = (),
    begun: tuple[str, ...] = (),
    most_waiting: int = 9,
    connected: bool = True,
) -> dict[str, int]:
    """The passes of the event loop in which requests such as `a1`, of tenant `a`, receive a piece each, from 0 on; they
    ask for it in one pass, in that order.

    Args:
        leaving: requests that are given up while they wait.
        begun: requests that have received a piece before.
        connected: whether clients have just connected.
    """

    async def run() -> dict[str, int]:
        pace, found, loop = Pace(most_waiting), dict[str, int](), asyncio.get_running_loop()
        over = False
        current = 0

        def count() -> None:
            nonlocal current
            current += 1
            if not over:
                loop.call_soon(count)

        async def request(name: str) -> None:
            if connected:
                pace.connected()
            await pace.turn(name[0], begun=name in begun)
            found[name] = current

        loop.call_soon(count)
        tasks = {name: asyncio.create_task(request(name)) for name in names}
        await asyncio.sleep(0)
        for name in leaving:
            tasks[name].cancel()
        await asyncio.wait_for(asyncio.wait(tasks.values()), 10)
        over = True
        assert {name for name, task in tasks.items() if task.cancelled()} == set(leaving)
        for name, task in tasks.items():
            if name not in leaving:
                await task
        first = min(found.values())
        return {name: number - first for name, number in found.items()}

    return asyncio.run(run())


def test_each_pass_of_the_loop_has_one_piece() -> None:
    passes = passes_of("a1", "a2", "a3", "a4")
    assert list(passes) == ["a1", "a2", "a3", "a4"]
    assert len(set(passes.values())) == 4


def test_tenants_take_turns() -> None:
    assert list(passes_of("a1", "a2", "a3", "a4", "b1", "c1", "b2")) == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


def test_a_request_that_is_given_up_leaves_the_line() -> None:
    passes = passes_of("a1", "a2", "a3", "a4", "b1", leaving=("a2", "b1"))
    assert list(passes) == ["a1", "a3", "a4"]
    assert passes == passes_of("a1", "a3", "a4")  # no pass is lost to them


def test_the_requests_of_a_tenant_that_wait_are_limited() -> None:
    assert len(passes_of("a1", "a2", "a3", "b1", "b2", most_waiting=2)) == 5  # the first does not wait
    with pytest.raises(ServiceError, match="bodies of 2 requests wait") as caught:
        passes_of("a1", "a2", "a3", "a4", most_waiting=2)
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.detail == {"pending": 2, "received": 1, "limit": 2}


def test_a_body_of_which_a_piece_was_received_is_not_refused() -> None:
    assert list(passes_of("a1", "a2", "a3", "a4", begun=("a3", "a4"), most_waiting=1)) == ["a1", "a2", "a3", "a4"]


def test_nobody_waits_while_no_client_connects() -> None:
    passes = passes_of("a1", "a2", "a3", most_waiting=0, connected=False)
    assert passes == {"a1": 0, "a2": 0, "a3": 0}


def test_requests_one_after_another_do_not_wait() -> None:
    async def run() -> None:
        pace = Pace(0)
        for _ in range(3):
            pace.connected()
            await pace.turn("a")
            await asyncio.sleep(0)  # another pass
            await asyncio.sleep(0)

    asyncio.run(run())


@pytest.mark.parametrize("pending", [MOST_WAITING // 2, 3 * MOST_WAITING])
def test_as_many_wait_as_may_be_pending_where_that_is_more(serve: Serve, pending: int) -> None:
    pace: Pace = serve(max_pending_requests=pending).app.state.pace  # type: ignore[attr-defined]

    async def first() -> None:
        pace.connected()
        await pace.turn("a")  # at once

    async def run() -> int:
        others = (pace.turn("a") for _ in range(4 * MOST_WAITING))
        ended = await asyncio.gather(first(), *others, return_exceptions=True)
        return ended.count(None)

    assert asyncio.run(run()) == 1 + max(pending, MOST_WAITING)
