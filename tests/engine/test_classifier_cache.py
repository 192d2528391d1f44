"""The cache of classifiers: what is evicted first, and how bytes are counted."""

import json
import tracemalloc
from dataclasses import replace
from threading import Thread

import numpy as np

from comln_serve.domain.classifier import Classifier
from comln_serve.domain.report import Report
from comln_serve.engine.classifiers.cache import ClassifierCache, _size
from tests.support.classifiers import classifier as made_up


def classifier(key: str, features: int = 1000, labels: tuple[str, ...] = ("a", "b")) -> Classifier:
    W = np.zeros((len(labels), features), np.float32)
    return made_up(key, labels=labels, examples=(1,) * len(labels), W=W)


def test_the_least_recently_used_goes_first() -> None:
    size = _size(classifier("x"))
    cache = ClassifierCache(3 * size)
    made = {key: classifier(key) for key in "abcd"}
    for key in "abc":
        cache.put(made[key])
    assert cache.get("a") is made["a"]
    cache.put(made["d"])
    assert cache.get("b") is None
    assert [cache.get(key) for key in "acd"] == [made[key] for key in "acd"]
    assert cache._entries.currsize == 3 * size


def test_bytes_are_what_counts() -> None:
    small, large = classifier("s", 10), classifier("l", 100_000)
    assert _size(large) >= large.W.nbytes
    assert _size(classifier("t", 10, ("x" * 5000, "b"))) > _size(small) + 4900
    assert _size(replace(small, metadata={"a": "x" * 5000})) > _size(small) + 4900
    cache = ClassifierCache(_size(large) + 1)
    cache.put(small)
    cache.put(large)
    assert (cache.get("s"), cache.get("l")) == (None, large)
    cache.put(classifier("huge", 200_000))
    assert cache.get("l") is large, "what can never fit pushes nothing out"


def test_what_is_counted_is_what_it_takes() -> None:
    """Of many classes, most of it is the report's confusion matrix."""
    ways = 200
    labels = tuple(f"class {n}" for n in range(ways))
    held_out = {"folds": 2, "judged": 2, "accuracy": 1, "confusion": np.eye(ways, dtype=int).tolist(), "suspects": []}
    content = {"held_out": held_out, "notes": [], "own_horizon": True, "unknown_threshold": None}
    report = json.dumps(content)
    tracemalloc.start()
    made = [
        replace(classifier(f"{n}", 64, labels), report=Report.model_validate_json(report), metadata={"a": f"{n}"})
        for n in range(20)
    ]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.7 < sum(map(_size, made)) / taken < 1.4


def test_put_again_and_discard() -> None:
    cache = ClassifierCache(10**6)
    one = classifier("a")
    for _ in range(3):
        cache.put(one)
    assert cache._entries.currsize == _size(one)
    cache.discard("a")
    cache.discard("a")
    assert (cache.get("a"), cache._entries.currsize) == (None, 0)


def test_nothing_is_kept_without_memory_for_it() -> None:
    cache = ClassifierCache(0)
    cache.put(classifier("a"))
    assert (cache.get("a"), cache._entries.currsize) == (None, 0)


def test_many_threads_keep_the_count_right() -> None:
    cache = ClassifierCache(5 * _size(classifier("x")))

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for key in rng.integers(0, 20, 500):
            cache.put(classifier(str(key)))
            cache.get(str(rng.integers(0, 20)))
            cache.discard(str(rng.integers(0, 20)))

    threads = [Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache._entries.currsize == sum(map(_size, cache._entries.values())) <= cache._entries.maxsize
