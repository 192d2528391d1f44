"""Maps over threads, also nested."""

import threading

import pytest

from training.gradient_flow.workers import thread_map

# A deadlocked map would never return.
pytestmark = pytest.mark.timeout(30)


def test_results_come_in_the_order_of_the_arguments() -> None:
    assert thread_map(divmod, range(100), [7] * 100) == list(map(divmod, range(100), [7] * 100))


def test_an_empty_map_is_empty() -> None:
    assert thread_map(divmod, [], []) == []


def test_a_nested_map_ends() -> None:
    """With more calls at both levels than there are threads, and also with a single outer call."""

    def row(i: int) -> list[int]:
        return thread_map(lambda j: i * j, range(50))

    expected = [[i * j for j in range(50)] for i in range(50)]
    assert thread_map(row, range(50)) == expected
    assert thread_map(row, [3]) == [expected[3]]


def test_a_nested_map_stays_in_its_thread() -> None:
    def names(_: int) -> set[str]:
        inner = thread_map(lambda _: threading.current_thread().name, range(5))
        return {threading.current_thread().name, *inner}

    for seen in thread_map(names, range(20)):
        assert len(seen) == 1


def test_a_single_call_stays_in_this_thread() -> None:
    assert thread_map(lambda _: threading.current_thread(), [0]) == [threading.current_thread()]


@pytest.mark.parametrize("outer", [1, 8])
@pytest.mark.parametrize("inner", [1, 8])
def test_an_exception_is_raised_by_both_maps_and_the_threads_continue(outer: int, inner: int) -> None:
    def fail(i: int) -> None:
        raise ArithmeticError(f"call {i} failed")

    with pytest.raises(ArithmeticError, match="call 0 failed"):
        thread_map(lambda _: thread_map(fail, range(inner)), range(outer))
    assert thread_map(abs, range(20)) == list(range(20))


def test_maps_from_several_threads_at_once_do_not_mix() -> None:
    results: dict[int, list[int]] = {}

    def caller(k: int) -> None:
        results[k] = thread_map(lambda i: k * i, range(200))

    threads = [threading.Thread(target=caller, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: [k * i for i in range(200)] for k in range(6)}
