"""A lock, or places, that tenants get in turns; a request that is given up waits no longer and hands its turn on."""

import asyncio

import pytest

from comln_serve.engine.line import Line
from comln_serve.errors import ErrorCode, ServiceError


def order_of(*names: str, leaving: tuple[str, ...] = ()) -> list[str]:
    """The order in which requests such as `a1`, of tenant `a`, have their turns; the first has it when the others come.

    Args:
        leaving: requests that are cancelled before anybody hands on a turn.
    """

    async def run() -> list[str]:
        line, order = Line(), []

        async def request(name: str) -> None:
            async with line.turn(name[0], 60):
                order.append(name)
                for _ in range(4):
                    await asyncio.sleep(0)
                    assert order[-1] == name, "one at a time"

        tasks = {name: asyncio.create_task(request(name)) for name in names}
        await asyncio.sleep(0)
        for name in leaving:
            tasks[name].cancel()
        await asyncio.wait_for(asyncio.wait(tasks.values()), 10)
        assert {name for name, task in tasks.items() if task.cancelled()} == set(leaving)
        await asyncio.gather(request("y9"), request("z9"))  # nobody has kept the turn, and it is still one
        return order

    return asyncio.run(run())


def test_tenants_take_turns() -> None:
    assert order_of("a1", "a2", "a3", "b1", "b2") == ["a1", "a2", "b1", "a3", "b2", "y9", "z9"]


def test_requests_that_are_given_up_leave_the_line() -> None:
    assert order_of("a1", "a2", "b1", "c1", leaving=("a2", "c1")) == ["a1", "b1", "y9", "z9"]
    assert order_of("a1", "b1", leaving=("a1",)) == ["a1", "b1", "y9", "z9"]
    assert order_of("a1", "b1", "b2", "c1", leaving=("b1",)) == ["a1", "b2", "c1", "y9", "z9"]


def test_a_request_that_is_given_up_and_passed_over_hands_on_nothing() -> None:
    """The turn goes to the next one before the request has noticed that it was given up."""

    async def run() -> list[str]:
        line, free, having = Line(), asyncio.Event(), list[str]()

        async def request(name: str) -> None:
            async with line.turn(name):
                having.append(name)
                await free.wait()
                if name == "a":
                    return
                for _ in range(4):
                    await asyncio.sleep(0)
                    assert having[-1] == name, "one at a time"

        tasks = [asyncio.create_task(request(name)) for name in "abcd"]
        await asyncio.sleep(0)
        free.set()  # wakes the first, before
        tasks[1].cancel()  # the second
        done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert [error for error in done if isinstance(error, AssertionError)] == []
        return having

    assert asyncio.run(run()) == ["a", "c", "d"]


def test_a_turn_that_comes_as_its_request_is_given_up_is_handed_on() -> None:
    async def run() -> bool:
        line, free = Line(), asyncio.Event()

        async def first() -> None:
            async with line.turn("a"):
                await free.wait()
            waiting.cancel()  # it has been handed the turn, and has not run since

        async def other() -> None:
            async with line.turn("b"):
                pass

        holding = asyncio.create_task(first())
        await asyncio.sleep(0)
        waiting = asyncio.create_task(other())
        await asyncio.sleep(0)
        free.set()
        await holding
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(other(), 10)
        return waiting.cancelled()

    assert asyncio.run(run())


def test_of_several_places_one_that_is_free_is_taken_at_once() -> None:
    async def run() -> list[str]:
        line, free, order = Line(2), asyncio.Event(), list[str]()

        async def request(name: str) -> None:
            async with line.turn(name[0]):
                order.append(name)
                await free.wait()

        tasks = [asyncio.create_task(request(name)) for name in ("a1", "a2", "a3", "a4", "b1")]
        await asyncio.sleep(0)
        assert order == ["a1", "a2"]
        free.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        return order

    assert asyncio.run(run()) == ["a1", "a2", "a3", "b1", "a4"]


def test_a_request_waits_for_a_bounded_time() -> None:
    async def run() -> None:
        line = Line()
        async with line.turn("a"):
            with pytest.raises(ServiceError) as caught:
                async with line.turn("b", 0.01):
                    pass
            assert caught.value.code is ErrorCode.QUEUE_TIMEOUT
        for _ in range(2):  # it has left the line
            async with line.turn("b", 0.01):
                pass

    asyncio.run(run())
