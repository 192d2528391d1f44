"""Reports: held-out accuracy against adapting anew, folds, what is not judged, suspected labels."""

import time
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from comln_serve.bundle.head import Head, HorizonLaw, SolverSettings
from comln_serve.domain.report import HeldOutReport, Report, note_of_alike
from comln_serve.flow import FlowSolution, reduced_is_cheaper
from comln_serve.report import Adaptation, adapt, folds, held_out, make_report, similarity
from comln_serve.report.folds import assign, count_folds, fold_cost
from comln_serve.report.held_out import TOLERANCE, hold_out
from comln_serve.report.suspects import ONLY_ONE, THRESHOLD, listed, suspicion
from comln_serve.report.unknown import nearest_other

SOLVER = SolverSettings(rtol=1e-6, atol=1e-6, max_steps=200_000)
CLASSES = np.array([2, 0, 1, 1, 2, 2, 0, 3, 2, 1, 2, 2])  # class 3 has a single example
ALONE = np.arange(len(CLASSES))  # no near-duplicates
PROTOTYPE = Head("prototype", 20.0, 0.0, "balanced", SOLVER, alpha=2.0)


def clusters(classes: NDArray[np.intp], d: int = 32, noise: float = 0.5) -> NDArray[np.float32]:
    """Embeddings (M, d) around a centre for each class."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(int(classes.max()) + 1, d)) / np.sqrt(d)
    spread = noise * rng.normal(size=(len(classes), d)) / np.sqrt(d)
    return (centres[classes] + spread).astype(np.float32)


def report_on(
    phi: NDArray[np.float32],
    classes: NDArray[np.intp],
    head: Head = PROTOTYPE,
    *,
    cancel: NDArray[np.bool_] | None = None,
    **options: object,
) -> Report:
    ways = int(classes.max()) + 1
    names = [f"class {c}" for c in range(ways)]
    adaptation = adapt(head, phi, classes, ways)
    if cancel is not None:  # once the classifier is there
        found = hold_out(head, phi, classes, ways, assign(classes, np.arange(len(classes)), ways, 6), cancel=cancel)
        adaptation = replace(adaptation, found=found)
    return make_report(adaptation, classes, names, own_horizon=True, **options)


def held_out_of(report: Report) -> HeldOutReport:
    assert report.held_out is not None
    return report.held_out


@pytest.mark.parametrize("d", [4, 32], ids=["weights", "reduced"])
@pytest.mark.parametrize("horizon", [None, 7.0])
@pytest.mark.parametrize("folds", [6, 4])
@pytest.mark.parametrize(
    "head",
    [
        Head("zero", 20.0, 0.0, "uniform", SOLVER),
        Head("zero", 20.0, 0.05, "balanced", SOLVER),
        PROTOTYPE,
        replace(PROTOTYPE, weighting="uniform", similarity=0.3),
        replace(PROTOTYPE, exponents=HorizonLaw(0.3, -0.2, 0.5)),
        Head("learned", 20.0, 0.0, "balanced", SOLVER),
        replace(PROTOTYPE, whitening=3.0),
        Head("learned", 20.0, 0.0, "balanced", SOLVER, whitening=0.5),
        replace(PROTOTYPE, similarity=0.3, shot_offset=1.5),
    ],
    ids=[
        "zero",
        "regularised",
        "prototype",
        "levelled",
        "horizon law",
        "learned",
        "whitened",
        "learned, whitened",
        "shot offset",
    ],
)
def test_held_out_answers_are_those_of_adapting_without(head: Head, folds: int, horizon: float | None, d: int) -> None:
    """The Gram matrix, weights of 0 and starts from what is left, against `Head.adapt` itself."""
    phi = clusters(CLASSES, d)
    assert reduced_is_cheaper(*phi.shape) == (d == 32)
    if head.start == "learned":
        W0 = np.random.default_rng(1).normal(size=(4, d)).astype(np.float32)
        head = replace(head, W0=W0)
    left_out = assign(CLASSES, ALONE, 4, folds)
    factors = np.array([0.01, 1.0, 30.0])
    found = hold_out(head, phi, CLASSES, 4, left_out, horizon=horizon, factors=factors)
    assert found.folds == folds
    assert found.cut is None
    np.testing.assert_array_equal(found.judged, CLASSES != 3)
    for fold in range(folds):
        out, kept = left_out[fold] & ~left_out[:fold].any(axis=0), ~left_out[fold]
        for i, factor in enumerate(factors):
            T = factor * (head.horizon_of(phi[kept], 4) if horizon is None else horizon)
            W = head.adapt(phi[kept], CLASSES[kept], 4, horizon=T).W
            expected = phi[out].astype(np.float64) @ W.T
            np.testing.assert_allclose(found.logits[i, out], expected, atol=20 * TOLERANCE)
            alike = similarity(phi[out], W.astype(np.float32))
            np.testing.assert_allclose(found.similarity[i, out], alike, atol=20 * TOLERANCE)
    assert np.isnan(found.logits[:, CLASSES == 3]).all()


@pytest.mark.parametrize("d", [6, 64], ids=["weights", "reduced"])
@pytest.mark.parametrize("head", [PROTOTYPE, replace(PROTOTYPE, whitening=3.0, exponents=HorizonLaw(0.3, -0.2, 0.5))])
def test_all_views_of_an_image_are_examples_and_are_held_out_together(head: Head, d: int) -> None:
    rng = np.random.default_rng(2)
    phi = clusters(CLASSES, d)[:, None] + 0.1 * rng.normal(size=(len(CLASSES), 3, d)).astype(np.float32) / d**0.5
    flat, of_class = phi.reshape(-1, d), CLASSES.repeat(3)
    assert reduced_is_cheaper(*flat.shape) == (d == 64)
    adaptation = adapt(head, phi, CLASSES, 4)
    assert adaptation.horizon == head.horizon_of(flat, 4)
    np.testing.assert_array_equal(adaptation.solution.W, head.adapt(flat, of_class, 4).W)
    np.testing.assert_array_equal(head.adapt(phi, CLASSES, 4).W, head.adapt(flat, of_class, 4).W)
    np.testing.assert_array_equal(head.initial_weights(phi, CLASSES, 4), head.initial_weights(flat, of_class, 4))
    found = adaptation.found
    assert found is not None
    np.testing.assert_array_equal(found.judged, CLASSES != 3)
    left_out = assign(CLASSES, ALONE, 4, found.folds)
    for fold in range(found.folds):
        out, kept = left_out[fold] & ~left_out[:fold].any(axis=0), ~left_out[fold]
        W = head.adapt(phi[kept], CLASSES[kept], 4).W
        np.testing.assert_allclose(found.logits[0, out], phi[out, 0].astype(np.float64) @ W.T, atol=20 * TOLERANCE)
    report = make_report(adaptation, CLASSES, [f"class {c}" for c in range(4)], own_horizon=True)
    assert held_out_of(report).judged == (CLASSES != 3).sum()


def test_of_many_images_only_the_first_views_are_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    head = replace(PROTOTYPE, exponents=HorizonLaw(0.3, -0.2, 0.5))
    phi = np.stack([clusters(CLASSES), clusters(CLASSES)[::-1]], axis=1)
    work = (4 + 100) * (2 * len(CLASSES)) ** 2  # 24 examples, fewer than twice the 32 features
    monkeypatch.setattr(folds, "_MOST_WORK", work)
    every = adapt(head, phi, CLASSES, 4)
    np.testing.assert_array_equal(every.solution.W, head.adapt(phi, CLASSES, 4).W)
    monkeypatch.setattr(folds, "_MOST_WORK", work - 1)
    first, alone = adapt(head, phi, CLASSES, 4), adapt(head, phi[:, 0], CLASSES, 4)
    np.testing.assert_array_equal(first.solution.W, alone.solution.W)
    assert first.horizon == first.learned == alone.horizon == head.horizon_of(phi[:, 0], 4)
    assert first.found is not None
    assert alone.found is not None
    np.testing.assert_array_equal(first.found.logits, alone.found.logits)
    notes = [
        make_report(made, CLASSES, [f"class {c}" for c in range(4)], own_horizon=True).notes
        for made in (every, first, alone)
    ]
    assert [any("only one view" in note for note in of_one) for of_one in notes] == [False, True, False]


def test_labels_that_differ_only_in_case_or_blanks_are_named() -> None:
    made = adapt(PROTOTYPE, clusters(CLASSES), CLASSES, 4)
    first, *_ = make_report(made, CLASSES, ["Lemon", "lemon ", "red", "Straße"], own_horizon=True).notes
    differ = "Labels that differ only in case, blanks or the encoding of letters are different classes:"
    said = f"{differ} 'Lemon' and 'lemon '."
    assert first == f"{said} Rename one to make them one class."
    # Names of folders that were made on macOS look the same as others, but for a program.
    first, *_ = make_report(made, CLASSES, ["th\xe9", "the\u0301", "Thé", "red"], own_horizon=True).notes
    assert first.startswith(rf"{differ} 'th\xe9' and 'the\u0301' and 'Thé'.")
    first, *_ = make_report(made, CLASSES, ["Strasse 1", "STRASSE1", "stra\xdfe 1", "red"], own_horizon=True).notes
    assert first.startswith(f"{differ} 'Strasse 1' and 'STRASSE1' and 'stra\xdfe 1'.")
    notes = make_report(made, CLASSES, ["lemon", "lemons", "red", "rad"], own_horizon=True).notes
    assert not any("differ only" in note for note in notes)


def test_labels_that_look_alike_are_compared_in_linear_time() -> None:
    """Normalising 255 accents takes 0.2 ms: for each pair of 500 labels it took 100 s."""
    accents = "\u0301\u0316" * 123
    cased = ["".join(letters) for letters in product("aA", repeat=9)]
    labels = [f"{letters}{accents}" for letters in cased[:500]]
    began = time.process_time()
    (note,) = note_of_alike(labels)
    assert time.process_time() - began < 10
    assert repr(labels[0]) in note
    assert "and 490 more" in note


@pytest.mark.parametrize("d", [4, 32], ids=["weights", "reduced"])
def test_large_support_sets_are_held_out_some_folds_at_a_time(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    phi, left_out = clusters(CLASSES, d), assign(CLASSES, ALONE, 4, 6)
    whole = hold_out(PROTOTYPE, phi, CLASSES, 4, left_out)
    monkeypatch.setattr(held_out, "_MOST_NUMBERS", 4 * 4 * len(CLASSES))
    found = hold_out(PROTOTYPE, phi, CLASSES, 4, left_out)
    assert found.folds == 6
    np.testing.assert_array_equal(found.logits, whole.logits)
    np.testing.assert_array_equal(found.similarity, whole.similarity)


@pytest.mark.parametrize("folds", [2, 3, 5, 6])
def test_every_fold_leaves_out_the_same_number_of_every_class(folds: int) -> None:
    left_out = assign(CLASSES, ALONE, 4, folds)
    np.testing.assert_array_equal(left_out.any(axis=0), CLASSES != 3)
    shares = np.array([np.bincount(CLASSES[fold], minlength=4) for fold in left_out])
    expected = np.ceil(np.bincount(CLASSES) / folds) * [1, 1, 1, 0]
    np.testing.assert_array_equal(shares, np.tile(expected, (folds, 1)))
    assert (expected < np.bincount(CLASSES)).all()


def test_the_number_of_folds_follows_the_cost() -> None:
    assert count_folds(5, cost=1e6, examples=25) == 5, "one of each class at a time"
    assert count_folds(20, cost=1e6, examples=100) == 20
    assert count_folds(30, cost=1e6, examples=100) == 15, "two at a time"
    assert count_folds(20, cost=4e7, examples=100) == 7
    assert count_folds(20, cost=4e8, examples=100) == 5, "worth more than further ones"
    assert count_folds(20, cost=9e8, examples=100) == count_folds(20, cost=2e9, examples=100) == 2, "no fewer"
    assert count_folds(20, cost=3e9, examples=100) == 0
    assert count_folds(2, cost=1.0, examples=3) == 2
    assert count_folds(1, cost=1.0, examples=5) == 0, "all classes of one image"


HEADS = {
    "zero": Head("zero", 20.0, 0.0, "uniform", SOLVER),
    "prototype": PROTOTYPE,
    "levelled": replace(PROTOTYPE, similarity=0.4),
    "whitened": replace(PROTOTYPE, similarity=0.8, whitening=3.0),
    "auto": replace(PROTOTYPE, whitening=3.0, horizon_rule="auto"),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(("ways", "shots"), [(20, 2), (5, 2), (5, 5)])
def test_held_out_accuracy_of_random_labels_is_that_of_guessing(head: Head, ways: int, shots: int) -> None:
    """It was 0.01 to 0.5, by the head, while a class had fewer examples where it was judged."""
    classes = np.repeat(np.arange(ways), shots)
    right: list[float] = []
    for seed in range(600 // len(classes)):
        # As an embedding is, of no sign but one.
        phi = np.maximum(np.random.default_rng(seed).normal(0.3, 1.0, (len(classes), 64)), 0.0)
        phi /= np.linalg.norm(phi, axis=1, keepdims=True)
        report = held_out_of(report_on(phi.astype(np.float32), classes, head))
        assert report.judged == len(classes)
        right.append(report.accuracy)
    chance = 1 / ways
    error = np.sqrt(chance * (1 - chance) / 600)
    assert abs(np.mean(right) - chance) < 5 * error


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_held_out_accuracy_is_that_of_new_images_under_as_many_examples(head: Head) -> None:
    """With one in five left out it estimates what four examples of each class are worth."""
    ways, found, new = 5, [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        centres = rng.normal(0.0, 0.35, (ways, 64))

        def draw(count: int, rng: np.random.Generator = rng, centres: Any = centres) -> Any:
            classes = np.repeat(np.arange(ways), count)
            phi = np.maximum(rng.normal(0.3, 1.0, (len(classes), 64)) + centres[classes], 0.0)
            phi /= np.linalg.norm(phi, axis=1, keepdims=True)
            return phi.astype(np.float32), classes

        phi, classes = draw(5)
        found.append(held_out_of(report_on(phi, classes, head)).accuracy)
        fewer = np.arange(len(classes)) % 5 > 0
        W = adapt(head, phi[fewer], classes[fewer], ways, judge=False).solution.W
        phi, classes = draw(40)
        new.append(float(((phi @ W.T).argmax(axis=1) == classes).mean()))
    assert 0.4 < np.mean(new) < 0.9
    assert abs(np.mean(found) - np.mean(new)) < 0.1


def test_a_longer_solve_costs_more() -> None:
    solution = FlowSolution(np.zeros((5, 64)), 10, 0)
    longer = replace(solution, accepted=20)
    assert fold_cost(longer, 25, 64) == 2 * fold_cost(solution, 25, 64)
    assert fold_cost(solution, 500, 64) < 25 * fold_cost(solution, 100, 64), "two products in W"


def test_the_confusion_matrix_counts_what_was_judged() -> None:
    report = held_out_of(report_on(clusters(CLASSES), CLASSES))
    confusion = np.array(report.confusion)
    assert confusion.shape == (4, 4)
    np.testing.assert_array_equal(confusion.sum(axis=1), [2, 3, 6, 0])
    assert (report.judged, report.folds) == (11, 6)
    assert report.accuracy == pytest.approx(confusion.trace() / 11)


def test_classes_of_one_image_are_named_and_not_counted() -> None:
    report = report_on(clusters(CLASSES), CLASSES)
    (note,) = report.notes
    assert note.startswith("Classes of a single image were not judged, as nothing is left without it: 'class 3'. ")
    alone = np.arange(5)
    report = report_on(clusters(alone), alone)
    assert report.held_out is None
    assert report.unknown_threshold is None
    assert report.nearest_other_class is not None
    assert report.notes == ["Every class has a single image: without it nothing is left to judge it by."]
    many = np.concatenate([np.arange(30), [0]])
    (note,) = report_on(clusters(many), many).notes
    assert "'class 10' and 19 more. " in note


def test_wrong_labels_are_found_and_right_ones_are_not() -> None:
    classes = np.repeat(np.arange(4), 6)
    phi = clusters(classes, d=64)
    head = replace(PROTOTYPE, horizon=200.0, alpha=10.0)
    assert held_out_of(report_on(phi, classes, head)).suspects == []
    given = classes.copy()
    given[[3, 20]] = [2, 0]
    suspects = held_out_of(report_on(phi, given, head)).suspects
    assert {(s.number, s.label, s.likelier) for s in suspects} == {
        (4, "class 2", "class 0"),
        (21, "class 0", "class 3"),
    }
    scores = [s.score for s in suspects]
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] >= THRESHOLD


def test_of_very_many_suspects_the_worst_are_listed() -> None:
    classes = np.arange(3200) % 32
    given = classes.copy()
    given[:640] = (classes[:640] + 1 + np.arange(640) // 32) % 32  # 20 of each class, each to another class
    report = report_on(clusters(classes, d=64, noise=0.1), given, replace(PROTOTYPE, horizon=200.0, alpha=10.0))
    suspects = held_out_of(report).suspects
    assert len(suspects) == 500
    assert {s.number for s in suspects} <= set(range(1, 641))
    assert any("640 images" in note for note in report.notes)


def test_suspicion_is_the_odds_of_two_labels() -> None:
    logits = np.array([[1.0, 3.0, 2.0], [0.0, -900.0, -5.0]])
    scores, likelier = suspicion(logits, np.array([0, 0]), temperature=2.0)
    np.testing.assert_array_equal(likelier, [1, 2])
    np.testing.assert_allclose(scores, [1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(2.5))])


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.1, ONLY_ONE, 0.69], [False, True, False]),
        ([0.1, ONLY_ONE, 0.8], [False, False, False]),
        ([0.1, 0.94, THRESHOLD], [False, False, True]),
        ([0.96, 0.97, 0.3], [True, True, False]),
        ([0.1, 0.2], [False, False]),
    ],
)
def test_one_outstanding_suspicion_is_listed_at_a_lower_score(scores: list[float], expected: list[bool]) -> None:
    np.testing.assert_array_equal(listed(np.array(scores)), expected)


def test_a_report_has_a_threshold_or_what_a_calibration_makes_one_of() -> None:
    few, many = np.repeat(np.arange(3), [1, 1, 2]), np.repeat(np.arange(3), 3)
    adaptation = adapt(PROTOTYPE, clusters(few), few, 3)
    report = make_report(adaptation, few, list("abc"), own_horizon=True)
    assert report.unknown_threshold is None
    W = adaptation.solution.W.astype(np.float32)
    assert report.nearest_other_class == nearest_other(clusters(few), few, W)
    report = report_on(clusters(many), many)
    assert report.unknown_threshold is not None
    assert report.nearest_other_class is None


def test_a_flow_that_is_too_long_is_left_out_with_the_reason() -> None:
    phi = clusters(CLASSES)
    endless = FlowSolution(np.zeros((4, 32)), 100_000, 0)
    assert count_folds(6, fold_cost(endless, *phi.shape), len(phi)) == 0
    nothing = np.zeros(len(phi), dtype=np.bool_)
    report = make_report(
        Adaptation(endless, phi, 20.0, 20.0, None, None, nothing, ALONE), CLASSES, list("abcd"), own_horizon=True
    )
    assert report.held_out is None
    assert report.notes[-1].startswith("Nothing was held out: adapting took 100000 steps")


def test_answers_are_ranked_as_predictions_are() -> None:
    """After next to no adaptation all probabilities are equal, and the first label is answered: as the server does."""
    phi = clusters(CLASSES)
    adaptation = adapt(replace(PROTOTYPE, start="zero"), phi, CLASSES, 4, horizon=1e-18)
    held_out = held_out_of(make_report(adaptation, CLASSES, list("abcd"), own_horizon=False))
    assert {label for label in held_out.predicted or [] if label is not None} == {0}
    assert held_out.accuracy == pytest.approx((CLASSES == 0).sum() / 11)


def test_out_of_time_before_the_first_fold() -> None:
    report = report_on(clusters(CLASSES), CLASSES, cancel=np.ones(1, dtype=np.bool_))
    assert report.held_out is None
    assert report.notes[-1].startswith("0 of 11 images were judged: ")
    assert "cancelled" in report.notes[-1]


def test_out_of_time_after_some_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was judged by then counts, and nothing else."""
    phi, cancel = clusters(CLASSES), np.zeros(1, dtype=np.bool_)
    whole = hold_out(PROTOTYPE, phi, CLASSES, 4, assign(CLASSES, ALONE, 4, 6))
    calls: list[int] = []
    weights = Head.example_weights

    def late(head: Head, *arguments: object) -> object:
        calls.append(1)
        cancel[0] = len(calls) > 4
        return weights(head, *arguments)

    monkeypatch.setattr(Head, "example_weights", late)
    found = hold_out(PROTOTYPE, phi, CLASSES, 4, assign(CLASSES, ALONE, 4, 6), cancel=cancel)
    assert (found.folds, found.judged.sum()) == (4, 9), "two of 2, all 3, and four of 6"
    assert found.cut is not None
    np.testing.assert_array_equal(found.logits[0, found.judged], whole.logits[0, found.judged])


def test_probabilities_do_not_depend_on_how_far_a_report_came() -> None:
    adaptation = adapt(PROTOTYPE, clusters(CLASSES), CLASSES, 4)
    assert adaptation.found is not None
    late = replace(adaptation, found=replace(adaptation.found, cut="it was cancelled"))
    reports = [make_report(of, CLASSES, list("abcd"), own_horizon=True) for of in (adaptation, late)]
    assert reports[0].temperature is not None
    assert reports[1].temperature is None


def test_equal_images_under_different_labels_and_embeddings_of_zeros() -> None:
    classes = np.array([0, 1, 0, 1])
    for phi in (np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32)):
        report = report_on(phi, classes)
        assert held_out_of(report).judged == 4
        Report.model_validate_json(report.model_dump_json())
