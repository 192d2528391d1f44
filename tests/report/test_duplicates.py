"""Near-duplicates: which images are grouped, how they are left out, and what the report says of them."""

from itertools import chain, combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from comln_serve.bundle.head import Head, SolverSettings
from comln_serve.domain.report import Report
from comln_serve.report import adapt, make_report
from comln_serve.report.duplicates import find_among, group_near_duplicates, photos_of_several_classes
from comln_serve.report.folds import assign, count_distinct

HEAD = Head("prototype", 20.0, 0.0, "balanced", SolverSettings(rtol=1e-6, atol=1e-6, max_steps=200_000), alpha=2.0)


def flipped(bits: int, count: int) -> int:
    """The hash with its `count` lowest bits changed."""
    return bits ^ (2**count - 1)


def scenes(sizes: list[list[int]], seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.intp], list[int | None]]:
    """Embeddings, classes and hashes of classes of scenes, each photographed `size` times."""
    rng = np.random.default_rng(seed)
    phi, classes, hashes = [], [], list[int | None]()
    for c, of_class in enumerate(sizes):
        centre = rng.normal(size=64)
        for size in of_class:
            scene, bits = centre + rng.normal(size=64), int(rng.integers(2**63))
            phi += [scene + 0.05 * rng.normal(size=64) for _ in range(size)]
            hashes += [flipped(bits, int(rng.integers(5))) for _ in range(size)]
            classes += [c] * size
    return np.array(phi, np.float32), np.array(classes), hashes


def report_on(sizes: list[list[int]]) -> Report:
    phi, classes, hashes = scenes(sizes)
    adaptation = adapt(HEAD, phi, classes, len(sizes), hashes=hashes)
    return make_report(adaptation, classes, [f"class {c}" for c in range(len(sizes))], own_horizon=True)


@pytest.mark.parametrize(
    ("cosines", "bits", "classes", "expected"),
    [
        ([1.0, 0.85], [0, 20], [0, 0], [0, 0]),
        ([1.0, 0.85], [0, 21], [0, 0], [0, 1]),
        ([1.0, 0.75], [0, 0], [0, 0], [0, 1]),
        ([1.0, 1.0], [0, 0], [0, 1], [0, 1]),
        ([1.0, 1.0], [0, None], [0, 0], [0, 1]),
        ([1.0, 1.0], [None, None], [0, 0], [0, 1]),
        # The third is near the second only.
        ([1.0, 1.0, 1.0, 0.0, 0.0], [0, 15, 30, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 3, 3]),
        # A pair of five or fewer attracts what is nearly as close, one of six does not.
        ([1.0, 1.0, 0.7, 0.0, 0.0], [0, 0, 24, None, None], [0] * 5, [0, 0, 0, 3, 4]),
        ([1.0, 1.0, 0.7, 0.0, 0.0, 0.0], [0, 0, 24, None, None, None], [0] * 6, [0, 0, 2, 3, 4, 5]),
    ],
)
def test_near_duplicates_are_of_one_class_and_close_in_embedding_and_hash(
    cosines: list[float], bits: list[int | None], classes: list[int], expected: list[int]
) -> None:
    angles = np.arccos(cosines)
    phi = 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    hashes = [None if count is None else flipped(0, count) for count in bits]
    np.testing.assert_array_equal(group_near_duplicates(phi, np.array(classes), hashes), expected)


def test_images_may_join_a_large_group_one_by_one() -> None:
    """Each is close to half of the group only once those before it have joined."""
    burst = np.linspace(0, 0.6, 20)  # angles; each is a near-duplicate of most others
    angles = 0.6 + np.arccos(0.6 / np.sqrt(0.7)) - 0.3 * (1 - np.arange(-1, 8) / 20)
    # Of their own directions, as of different photos of one scene: none begins a group with another.
    joining = np.sqrt(0.7) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    phi = np.zeros((29, 2 + len(angles)), np.float32)
    phi[:20, :2] = np.stack([np.cos(burst), np.sin(burst)], axis=1)
    phi[20:, :2], phi[20:, 2:] = joining, np.sqrt(0.3) * np.eye(len(angles))
    groups = group_near_duplicates(phi, np.zeros(29, int), [0] * 29)
    np.testing.assert_array_equal(groups, 0)
    last_alone = group_near_duplicates(phi[[*range(20), 28]], np.zeros(21, int), [0] * 21)
    np.testing.assert_array_equal(last_alone, [0] * 20 + [20])


def test_of_many_photos_that_are_alike_no_chain_makes_one_group() -> None:
    """Of different signs of a kind one pair in ten is as close as frames of a burst."""
    rng = np.random.default_rng(0)
    phi = (1 + 0.3 * rng.normal(size=(80, 64))).astype(np.float32)
    hashes = [int.from_bytes(np.packbits(rng.random(64) < 0.25).tobytes(), "big") for _ in range(80)]
    near = [(a ^ b).bit_count() <= 20 for a, b in combinations(hashes, 2)]
    assert 0.05 < np.mean(near) < 0.3
    groups = group_near_duplicates(phi, np.zeros(80, int), hashes)
    assert np.bincount(groups).max() <= 10


def test_near_duplicates_are_left_out_together_and_every_class_loses_as_many_scenes() -> None:
    phi, classes, hashes = scenes([[3, 1, 1], [1] * 6, [5], [1]])
    groups = group_near_duplicates(phi, classes, hashes)
    np.testing.assert_array_equal(count_distinct(classes, groups, 4), [3, 6, 1, 1])
    left_out = assign(classes, groups, 4, folds=3)
    for fold in left_out:
        assert {bool(fold[groups == group].all()) for group in groups[fold]} == {True}
        lost = count_distinct(classes[fold], groups[fold], 4)
        np.testing.assert_array_equal(lost, [1, 2, 0, 0])
    np.testing.assert_array_equal(left_out.any(axis=0), classes < 2)


@pytest.mark.parametrize("shape", [[1, 1, 3], [2, 2, 2]])
def test_held_out_accuracy_of_random_labels_stays_that_of_guessing(shape: list[int]) -> None:
    """Also where some classes have repeated photos and others have none."""
    right: list[bool] = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sizes = [shape if c % 2 else [1, 1, 1] for c in range(4)]
        classes = np.repeat(np.arange(4), [sum(s) for s in sizes])
        of_photo = np.repeat(np.arange(12), list(chain(*sizes)))
        photos = np.maximum(rng.normal(0.3, 1.0, (12, 64)), 0.0)
        phi = (photos / np.linalg.norm(photos, axis=1, keepdims=True)).astype(np.float32)[of_photo]
        bits = rng.integers(2**63, size=12)[of_photo]
        report = make_report(
            adapt(HEAD, phi, classes, 4, hashes=bits.tolist()), classes, list("abcd"), own_horizon=True
        )
        assert report.held_out is not None
        # Each photo counts once.
        first = np.unique(of_photo, return_index=True)[1]
        assert report.held_out.predicted is not None
        right += [report.held_out.predicted[i] == classes[i] for i in first]
    assert abs(np.mean(right) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(right))


def test_the_report_names_near_duplicates_and_keeps_every_prediction() -> None:
    report = report_on([[1, 3, 1, 1], [1, 1, 2], [2], [1]])
    assert report.near_duplicates == [[2, 3, 4], [9, 10], [11, 12]]
    alone, same, near = report.notes
    assert "without it: 'class 3'. " in alone
    assert "all nearly the same photo were not judged" in same
    assert "'class 2'. Add" in same
    assert near.startswith("7 images are nearly the same photo as others of their class")
    assert ": 2, 3, 4 of 'class 0'; 9, 10 of 'class 1'; 11, 12 of 'class 2'. " in near
    assert report.held_out is not None
    assert report.held_out.judged == 10
    predicted = report.held_out.predicted
    assert predicted is not None
    assert [i for i, found in enumerate(predicted) if found is None] == [10, 11, 12]
    confusion = np.zeros((4, 4), int)
    for given, found in zip([0] * 6 + [1] * 4, predicted, strict=False):
        confusion[given, found] += 1
    assert confusion.tolist() == report.held_out.confusion


def test_the_same_photo_under_several_labels_is_named() -> None:
    phi, classes, hashes = scenes([[1] * 4, [1] * 4, [1] * 4])
    for copy, of in ((5, 0), (9, 0), (10, 4), (3, 2)):  # the last within its class
        phi[copy], hashes[copy] = phi[of], hashes[of]
    hashes[8] = hashes[1]  # another photo of the same hash
    hashes[11] = hashes[7] = None
    phi[11] = phi[7]
    found = photos_of_several_classes(phi, classes, hashes)
    assert [photo.tolist() for photo in found] == [[0, 5, 9], [4, 10]]
    adaptation = adapt(HEAD, phi, classes, 3, hashes=hashes)
    report = make_report(adaptation, classes, ["kiwi", "lime", "pear"], own_horizon=True)
    assert report.contradictory == [[1, 6, 10], [5, 11]]
    note, *_ = report.notes
    assert note == (
        "2 photos were sent under different labels: 1 ('kiwi') and 6 ('lime') and 10 ('pear'); 5 ('lime') and 11 "
        "('pear'). Remove the examples whose label is wrong."
    )
    assert photos_of_several_classes(*scenes([[2, 3], [2, 2]])) == []
    assert photos_of_several_classes(phi, classes, [None] * 12) == []


def test_where_most_images_are_of_single_scenes_there_is_no_accuracy() -> None:
    report = report_on([[5], [5], [3, 1, 1]])
    assert report.held_out is None
    assert report.notes[-1].startswith("The held-out accuracy is not known: most images belong to")
    report = report_on([[5], [1] * 5, [3, 1, 1]])
    assert report.held_out is not None
    assert report.held_out.judged == 10
    assert report.temperature is not None
    report = report_on([[12], [12], [1] * 10])
    assert (report.held_out, report.temperature) == (None, None)
    report = report_on([[2], [2]])
    assert (report.held_out, len(report.notes)) == (None, 3)


def test_images_that_are_examples_are_found_among_them() -> None:
    """Frames of a burst are not, nor does the length of an embedding matter."""
    phi, _, _ = scenes([[4, 3], [3]])
    rounded = np.round(phi / 0.0005).astype(np.int16).astype(np.float32)
    new = np.random.default_rng(1).normal(size=(1, 64)).astype(np.float32)
    images = np.concatenate([3 * rounded[[7, 0, 7]], new, np.zeros((1, 64), np.float32)])
    assert find_among(images, phi) == [7, 0, 7, None, None]
    assert find_among(phi[:1] + np.float32(0.05) * new, phi[1:]) == [None]
