"""Two classifiers compared on the same images: which images count, and the sign test; `comln evaluate --against`."""

import json
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest
from scipy.stats import binomtest

from comln_serve.client import Client, InputError, compare
from comln_serve.client.evaluation import Evaluation, Judged
from tests.client.pictures import COLOURS, class_folder
from tests.client.wires import Run, Wire
from tests.support.image_files import image_bytes
from tests.support.messages import GREEN, RED


def judged(number: int, *, right: bool | None = True, label: str = "red", example: int | None = None) -> Judged:
    predicted = label if right else "other"
    return Judged(
        image=f"{number}.png", label=label, predicted=predicted, probability=0.9, right=right, example=example
    )


def evaluation(reference: str, images: Sequence[Judged], *, revision: int = 1) -> Evaluation:
    """Of a classifier that has a name, or is its id."""
    return Evaluation(
        classifier=f"clf_{reference}",
        reference=reference,
        revision=revision,
        judged=len(images),
        accuracy=0.5,
        interval=(0.0, 1.0),
        balanced_accuracy=0.5,
        confidence=0.5,
        classes=(),
        unknown=None,
        images=tuple(images),
    )


def test_images_that_one_of_the_two_was_adapted_to_are_left_out() -> None:
    """Those of the later version would all be gained."""
    later = evaluation("shop@2", [judged(n, example=n if n < 6 else None) for n in range(1, 11)])
    before = [judged(n, right=n > 8, example=10 if n == 10 else None) for n in range(1, 11)]
    found = compare(later, evaluation("shop@1", before))
    assert (found.judged, found.examples) == (4, 6)
    assert (found.gained, found.lost) == (("6.png", "7.png", "8.png"), ())
    assert (found.accuracy, found.other_accuracy) == (1.0, 0.25)
    back = compare(evaluation("shop@1", before), later)
    assert (back.examples, back.gained, back.lost, back.chance) == (6, (), found.gained, found.chance)
    # Of a class that one of them does not have: in no figure.
    more = evaluation("shop@2", [*later.images, judged(11, right=None, label="pink", example=3)])
    assert compare(more, evaluation("shop@1", [*before, judged(11, label="pink")])).examples == 6
    known = evaluation("shop@2", [judged(n, example=n) for n in range(1, 11)])
    with pytest.raises(InputError, match=r"shop@2 or shop@1 was adapted to each of the 10 images"):
        compare(known, evaluation("shop@1", before))


def test_a_classifier_that_changed_in_place_is_compared_with_itself() -> None:
    now, before = [judged(1), judged(2)], [judged(1), judged(2, right=False)]
    found = compare(evaluation("clf_1", now, revision=4), evaluation("clf_1", before, revision=3))
    assert (found.judged, found.gained) == (2, ("2.png",))
    with pytest.raises(InputError, match="both are clf_1; give two classifiers"):
        compare(evaluation("clf_1", now, revision=4), evaluation("clf_1", before, revision=4))


def test_an_image_has_one_label() -> None:
    with pytest.raises(InputError, match=r"2\.png was evaluated as 'red' and as 'blue'"):
        compare(evaluation("a@1", [judged(1), judged(2)]), evaluation("b@1", [judged(1), judged(2, label="blue")]))
    composed, decomposed = judged(1, label="K\u00e4se"), judged(1, label="Ka\u0308se")
    assert compare(evaluation("a@1", [composed]), evaluation("b@1", [decomposed])).judged == 1


@pytest.mark.parametrize(
    ("gained", "lost"),
    [(0, 0), (1, 0), (0, 2), (3, 3), (4, 5), (1, 9), (40, 25), (700, 801), (0, 2000), (4150, 4300), (0, 20_000)],
)
def test_the_probability_of_a_difference_by_chance(gained: int, lost: int) -> None:
    numbers = range(gained + lost + 1)  # one image that both get right
    one = evaluation("a@1", [judged(n, right=n <= gained) for n in numbers])
    other = evaluation("b@1", [judged(n, right=n == 0 or n > gained) for n in numbers])
    found = compare(one, other)
    assert (len(found.gained), len(found.lost)) == (gained, lost)
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert found.chance == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_two_evaluations_of_one_classifier_have_its_revisions(comln: Client) -> None:
    unnamed = comln.adapt([RED, GREEN], ["red", "green"])
    before = comln.evaluate([image_bytes(seed=9)], ["red"], unnamed)
    changed = comln.add_examples(unnamed, [image_bytes(COLOURS["green"], seed=8)], ["green"])
    after = comln.evaluate([image_bytes(seed=9)], ["red"], unnamed)
    assert (before.revision, after.revision, after.classifier) == (unnamed.revision, changed.revision, unnamed.id)
    assert compare(after, before).judged == 1


def test_the_command_leaves_out_the_examples_of_either(run: Run, comln: Client, photos: Path, tmp_path: Path) -> None:
    more = class_folder(tmp_path / "more", seed=50)
    comln.add_examples_folder("shop", more)
    for label in COLOURS:
        (more / label / "new.png").write_bytes(image_bytes(COLOURS[label], seed=90))
    result = run("evaluate", more, "--classifier", "shop", "--against", "shop@1")
    assert result.exit_code == 0
    assert "shop@2 was adapted to 6 of these 9 images" in result.stderr
    lines = result.stdout.partition("\ncompared with shop@1: ")[2].splitlines()
    assert (lines[0].partition(", ")[2], lines[1]) == (
        "of 3 images of classes that both have",
        "  left out: 6 images that one of them was adapted to",
    )
    none = run("evaluate", photos, "--classifier", "shop", "--against", "shop@1")
    assert (none.exit_code, none.stdout.startswith("shop@2 (clf_")) == (2, True)
    assert "was adapted to each of the 6 images" in none.stderr


def test_nothing_is_sent_where_no_folder_is_of_a_class_of_both(
    run: Run, comln: Client, line: Wire, photos: Path
) -> None:
    comln.adapt([RED, GREEN], ["lemon", "lime"], name="fruit")
    line.requests.clear()
    refused = run("evaluate", photos, "--classifier", "shop", "--against", "fruit")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "no folder in it is of a class that both shop@1 and fruit@1 have" in refused.stderr
    (photos / "red").rename(photos / "lemon")  # of the other only
    refused = run("evaluate", photos, "--classifier", "shop", "--against", "fruit", "--unknown")
    assert (refused.exit_code, "that both shop@1 and fruit@1 have" in refused.stderr) == (2, True)
    other = run("evaluate", photos, "--classifier", "shop", "--against", "fruit@1")
    assert (other.exit_code, "both shop@1 and fruit@1" in other.stderr) == (2, True)
    assert "POST /predict" not in line.requests


def test_the_first_evaluation_is_printed_where_the_other_fails(
    run: Run, comln: Client, line: Wire, photos: Path
) -> None:
    comln.add_examples("shop", [image_bytes(seed=70)], ["red"])
    error = {"error": {"code": "model_changed", "message": "Its model changed.", "detail": {}, "request_id": "r"}}
    predicted: list[httpx2.Request] = []

    def refused(request: httpx2.Request) -> httpx2.Response | None:
        predicted.extend([request] * (request.url.path == "/predict"))
        return httpx2.Response(409, json=error) if len(predicted) == 2 else None

    def interrupted(request: httpx2.Request) -> httpx2.Response | None:
        if refused(request):
            raise KeyboardInterrupt
        return None

    command = ("evaluate", photos, "--classifier", "shop", "--against", "shop@1")
    for fault, status, said in ((refused, 1, "(model_changed)"), (interrupted, 130, "comln: interrupted")):
        line.before = fault
        predicted.clear()
        result = run(*command)
        assert (result.exit_code, result.stdout.startswith("shop@2 (clf_")) == (status, True)
        assert "accuracy: " in result.stdout
        assert said in result.stderr
        predicted.clear()
        as_json = run(*command, "--json")
        found = json.loads(as_json.stdout)
        assert (as_json.exit_code, found["reference"], found["judged"]) == (status, "shop@2", 6)
        assert found.get("error", {}).get("code") == ("model_changed" if status == 1 else None)
