"""The catalogue's cache of classifiers: what is evicted first, and how bytes are counted."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from comln_serve.domain.classifier import Classifier
from comln_serve.domain.report import Report
from comln_serve.engine.classifiers.catalogue import Catalogue, memory_of
from comln_serve.storage import Resolved, Store
from tests.support.classifiers import classifier as made_up
from tests.support.classifiers import support

MakeCatalogue = Callable[[int], Catalogue]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(f"sqlite:///{tmp_path / 'classifiers.db'}")) as store:
        yield store


@pytest.fixture
def make(store: Store) -> MakeCatalogue:
    """Makes a catalogue that keeps so many bytes."""
    return lambda most: Catalogue(store, most)


def cached(catalogue: Catalogue, key: str) -> Classifier | None:
    return catalogue._cached(Resolved(key, 1))


def classifier(key: str, features: int = 1000, labels: tuple[str, ...] = ("a", "b")) -> Classifier:
    W = np.zeros((len(labels), features), np.float32)
    return made_up(key, labels=labels, examples=(1,) * len(labels), W=W)


def test_the_least_recently_used_goes_first(make: MakeCatalogue) -> None:
    size = memory_of(classifier("x"))
    cache = make(3 * size)
    made = {key: classifier(key) for key in "abcd"}
    for key in "abc":
        cache.remember(made[key])
    assert cached(cache, "a") is made["a"]
    cache.remember(made["d"])
    assert cached(cache, "b") is None
    assert [cached(cache, key) for key in "acd"] == [made[key] for key in "acd"]
    assert cache._cache.currsize == 3 * size


def test_bytes_are_what_counts(make: MakeCatalogue) -> None:
    small, large = classifier("s", 10), classifier("l", 100_000)
    assert memory_of(large) >= large.W.nbytes
    assert memory_of(classifier("t", 10, ("x" * 5000, "b"))) > memory_of(small) + 4900
    assert memory_of(replace(small, metadata={"a": "x" * 5000})) > memory_of(small) + 4900
    cache = make(memory_of(large) + 1)
    cache.remember(small)
    cache.remember(large)
    assert (cached(cache, "s"), cached(cache, "l")) == (None, large)
    cache.remember(classifier("huge", 200_000))
    assert cached(cache, "l") is large, "what can never fit pushes nothing out"


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
    assert 0.7 < sum(map(memory_of, made)) / taken < 1.4


def test_remembered_again_and_deleted(make: MakeCatalogue, store: Store) -> None:
    cache = make(10**6)
    one = store.for_tenant("").add(made_up("clf_a"), support(), limit=1)
    for _ in range(3):
        cache.remember(one)
    assert cache._cache.currsize == memory_of(one)
    assert cache.delete("clf_a") == "clf_a"
    assert (cached(cache, "clf_a"), cache._cache.currsize) == (None, 0)


def test_nothing_is_kept_without_memory_for_it(make: MakeCatalogue) -> None:
    cache = make(0)
    cache.remember(classifier("a"))
    assert (cached(cache, "a"), cache._cache.currsize) == (None, 0)


def test_many_threads_keep_the_count_right(make: MakeCatalogue) -> None:
    cache = make(5 * memory_of(classifier("x")))

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for key in rng.integers(0, 20, 500):
            cache.remember(classifier(str(key)))
            cached(cache, str(rng.integers(0, 20)))

    threads = [Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache._cache.currsize == sum(map(memory_of, cache._cache.values())) <= cache._cache.maxsize
