"""A refusal waits half a second, and longer where many wait."""

import asyncio

import pytest

from comln_serve.api.errors import Refusals


def waits_of(count: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that so many refusals at once wait."""
    waits = list[float]()
    over = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await over.wait()

    async def run() -> None:
        refusals = Refusals()
        for _ in range(2):  # those that have been sent count no more
            over.clear()
            waits.clear()
            waiting = [asyncio.ensure_future(refusals.wait()) for _ in range(count)]
            while len(waits) < count:
                await real(0)
            over.set()
            await asyncio.gather(*waiting)

    real = asyncio.sleep
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep)
        asyncio.run(run())
    return waits


def test_few_wait_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waits_of(250, monkeypatch) == [0.5] * 250


def test_more_are_sent_at_most_five_hundred_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = waits_of(900, monkeypatch)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(900 / 500)


def test_none_waits_longer_than_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(waits_of(3000, monkeypatch)) == 2.0
