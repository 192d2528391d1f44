"""Classifiers evaluated on labelled images: the figures, what is refused, and what `comln evaluate` prints."""

import json
import random
import shutil
from pathlib import Path

import pytest
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, precision_score, recall_score

from comln_serve.client import Client, InputError
from comln_serve.client.evaluation import evaluation_of
from comln_serve.client.results import Prediction, Predictions, Skipped
from tests.client.pictures import COLOURS, class_folder
from tests.client.wires import Run, Wire
from tests.support.image_files import image_bytes
from tests.support.messages import GREEN, RED


@pytest.fixture
def shop(comln: Client, tmp_path: Path) -> str:
    return comln.adapt_folder(class_folder(tmp_path / "support", each=10), name="shop", horizon=1000.0).reference


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    """Images of the classes, one of them in the wrong folder."""
    folder = class_folder(tmp_path / "query", each=4, seed=100)
    (folder / "red" / "0.png").write_bytes(image_bytes(COLOURS["blue"], seed=109))
    return folder


def test_the_figures_are_those_of_scikit_learn(comln: Client, shop: str) -> None:
    classifier = comln.classifier(shop)
    draw = random.Random(0)
    given = [draw.choice(classifier.labels) for _ in range(60)]
    taken = [label if draw.random() < 0.6 else draw.choice(classifier.labels) for label in given]
    predictions = tuple(
        Prediction(label=label, probability=draw.random(), top=(), image=f"image {number}")
        for number, label in enumerate(taken)
    )
    found = evaluation_of(
        Predictions(
            classifier=classifier.id,
            predictions=predictions,
            calibrated=False,
            unknown_threshold=None,
            timings_ms={},
            skipped=(Skipped(image="a", reason="b"),),
        ),
        {f"image {number}": label for number, label in enumerate(given)},
        classifier,
    )
    labels = list(classifier.labels)
    assert (found.judged, len(found.images), found.skipped[0].image, found.unknown) == (60, 60, "a", None)
    assert found.accuracy == pytest.approx(sum(map(str.__eq__, given, taken)) / 60)
    assert found.interval[0] < found.accuracy < found.interval[1]
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(given, taken))
    assert found.confidence == pytest.approx(sum(one.probability for one in predictions) / 60)
    scores = {score.label: score for score in found.classes}
    recalls = recall_score(given, taken, labels=labels, average=None)
    assert [score.recall for score in found.classes] == pytest.approx(list(recalls))
    precisions = precision_score(given, taken, labels=labels, average=None)
    assert [score.precision for score in found.classes] == pytest.approx(list(precisions))
    table = confusion_matrix(given, taken, labels=labels)
    for row, label in zip(table, labels, strict=True):
        mistaken = {item.label: item.images for item in scores[label].taken_for}
        assert mistaken == {other: n for other, n in zip(labels, row, strict=True) if n and other != label}
        assert list(mistaken.values()) == sorted(mistaken.values(), reverse=True)


def test_a_folder(comln: Client, shop: str, held_out: Path) -> None:
    (held_out / "red" / "bad.png").write_bytes(b"none")
    found = comln.evaluate_folder(held_out, "shop")
    assert (found.reference, found.classifier) == (shop, comln.classifier(shop).id)
    assert (found.judged, found.accuracy) == (12, pytest.approx(11 / 12))
    assert [score.recall for score in found.classes] == [1.0, 1.0, 0.75]
    wrong = [item for item in found.images if not item.right]
    assert [(item.image, item.label, item.predicted) for item in wrong] == [
        (str(held_out / "red" / "0.png"), "red", "blue")
    ]
    assert [Path(item.image).name for item in found.skipped] == ["bad.png"]
    with pytest.raises(InputError, match=r"bad\.png"):
        comln.evaluate_folder(held_out, "shop", on_bad="raise")


def test_images_in_memory_by_the_version_that_was_evaluated_first(comln: Client, line: Wire, shop: str) -> None:
    """Should the name be promoted meanwhile, all images are still classified by one version."""
    found = comln.evaluate([RED, GREEN, RED], ["red", "green", "green"], shop.partition("@")[0])
    assert [item.right for item in found.images] == [True, True, False]
    assert line.requests[-2:] == ["GET /classifiers/shop", "POST /predict"]
    assert found.classifier == comln.classifier(shop).id
    blue = found.classes[0]  # no image, no prediction
    assert (blue.images, blue.recall, blue.precision, blue.taken_for) == (0, None, None, ())
    assert found.balanced_accuracy == pytest.approx((1 + 1 / 2) / 2)


def test_images_of_other_classes(comln: Client, shop: str, held_out: Path) -> None:
    """They need `unknown`, and count only there."""
    alone = comln.evaluate_folder(held_out, shop)
    (held_out / "stripes").mkdir()
    for number in range(3):
        (held_out / "stripes" / f"{number}.png").write_bytes(image_bytes((90, 90, 90), seed=number))
    below = f"Rename or move the folders: a label is a folder's path below {held_out}, or ask"
    with pytest.raises(
        InputError, match=rf"no class 'stripes'; it has .*'red'\. {below} .*\(unknown=True, or --unknown\)"
    ):
        comln.evaluate_folder(held_out, shop)
    found = comln.evaluate_folder(held_out, shop, unknown=True)
    assert found.judged == 12
    assert (found.classes, found.accuracy) == (alone.classes, alone.accuracy)
    assert found.unknown is not None
    assert (found.unknown.known, found.unknown.others) == (12, 3)
    refused = [item for item in found.images if item.unknown]
    assert found.unknown.known_refused == sum(item.right is not None for item in refused)
    assert found.unknown.others_refused == sum(item.right is None for item in refused)


def test_names_composed_otherwise_are_the_same(comln: Client) -> None:
    """Files of a Mac have an accent as a letter of its own."""
    comln.adapt([RED, GREEN], ["K\u00e4se", "other"], name="cheese")
    found = comln.evaluate([RED, RED], ["Ka\u0308se", "K\u00e4se"], "cheese")
    assert [item.right for item in found.images] == [True, True]
    assert [score.images for score in found.classes] == [2, 0]


def test_what_cannot_be_evaluated(comln: Client, line: Wire, shop: str) -> None:
    sent = len(line.requests)
    with pytest.raises(InputError, match="2 images and 1 labels"):
        comln.evaluate([RED, GREEN], ["red"], shop)
    with pytest.raises(
        InputError, match=r"no class 'pink', 'grey'; it has .*; some images must be of these\. Correct the"
    ):
        comln.evaluate([RED, GREEN], ["pink", "grey"], shop, unknown=True)
    with pytest.raises(InputError, match=r"a\.png is given as 'red' and as 'blue'"):
        comln.evaluate(["a.png", "a.png"], ["red", "blue"], shop)
    with pytest.raises(InputError, match="the classifier is None; give an id"):
        comln.evaluate([RED], ["red"], None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="on_bad is 'stop'; give 'skip' or 'raise'"):
        comln.evaluate([RED], ["red"], shop, on_bad="stop")  # type: ignore[arg-type]
    assert "POST /predict" not in line.requests[sent:]
    with pytest.raises(InputError, match="no image of the classifier's classes could be used"):
        comln.evaluate([b"none", RED], ["red", "pink"], shop, unknown=True, on_bad="skip")


def test_the_command(run: Run, tmp_path: Path, held_out: Path) -> None:
    def told(*arguments: object) -> tuple[int, str, str]:
        result = run(*arguments)
        return result.exit_code, result.stdout, result.stderr

    more = class_folder(tmp_path / "more", each=6)
    run("adapt", more, "--name", "shop", "--horizon", 1000, "--model", "tiny-prototype")
    code, text, beside = told("evaluate", held_out, "--classifier", "shop")
    assert (code, beside) == (0, "")
    lines = text.splitlines()
    assert lines[0].startswith("shop@1 (clf_")
    assert lines[1].startswith("accuracy: 91.7 % (95% interval ")
    assert lines[1].endswith(", of 12 images")
    assert "red    4       75.0 %   100.0 %    blue 1" in lines
    assert lines[-1].startswith(f"  {held_out}/red/0.png: red, taken for blue (")
    code, text, _ = told("evaluate", held_out, "--classifier", "shop", "--unknown", "--json")
    found = json.loads(text)
    assert (code, found["judged"], len(found["images"]), found["unknown"]["known"]) == (0, 12, 12, 12)
    assert found["classes"][2]["taken_for"] == [{"label": "blue", "images": 1}]
    run("adapt", class_folder(tmp_path / "few", each=1), "--name", "few", "--model", "tiny-prototype")
    code, text, beside = told("evaluate", held_out, "--classifier", "few", "--unknown")
    assert (code, "found unknown" in text, "has no threshold" in beside) == (0, False, True)
    code, text, beside = told("evaluate", held_out, "--classifier", "shop", "--unknown")
    assert (code, beside) == (0, "")
    assert text.splitlines()[3].startswith("found unknown: ")
    assert text.splitlines()[3].endswith(" of 12 images of its classes")
    code, text, beside = told("evaluate", more, "--classifier", "shop@1")
    assert (code, beside.splitlines()[0]) == (
        0,
        "shop@1 was adapted to 18 of these 18 images, which says nothing about new ones",
    )
    assert beside.splitlines()[1].startswith(f"  {more}/blue/0.png is its example 1")
    assert beside.splitlines()[-1] == "  and 15 more (--json lists all)"
    run("examples", "add", "shop", class_folder(tmp_path / "again", each=9))
    (held_out / "red").rename(held_out / "pink")
    code, text, _ = told("evaluate", held_out, "--classifier", "shop", "--unknown")
    assert (code, "other classes: pink 4" in text.splitlines()) == (0, True)
    accepted = [line for line in text.splitlines() if line.startswith(f"  {held_out}/pink/")]
    assert len(accepted) == 4 - int(text.partition("classes, ")[2].partition(" of 4")[0])
    assert ("of other classes, the surest first:" in text) == bool(accepted)
    code, _, beside = told("evaluate", held_out, "--classifier", "shop")
    assert code == 2
    assert "no class 'pink'" in beside


def test_images_that_the_classifier_was_adapted_to_are_named(comln: Client, shop: str, held_out: Path) -> None:
    own = class_folder(held_out.parent / "support-again", each=10)
    for label in COLOURS:
        shutil.copy(own / label / "3.png", held_out / label / "own.png")
    found = comln.evaluate_folder(held_out, shop)
    labels = {item.number: item.label for item in comln.examples(shop)}
    assert {item.image: labels[item.example] for item in found.images if item.example is not None} == {
        str(held_out / label / "own.png"): label for label in COLOURS
    }
    (plain,) = comln.predict([own / "red" / "3.png"], shop)
    assert plain.example is None, "not asked for"


def test_the_command_compares(run: Run, comln: Client, shop: str, held_out: Path) -> None:
    comln.rename_classes(shop, {"red": "green", "green": "red"}, promote=False)
    result = run("evaluate", held_out, "--classifier", "shop@1", "--against", "shop@2")
    assert (result.exit_code, result.stderr) == (0, "")
    compared = result.stdout.partition("\ncompared with shop@2: ")[2].splitlines()
    assert compared[0] == "accuracy 33.3 % -> 91.7 %, of 12 images of classes that both have"
    assert compared[1].startswith(
        "  7 are right only by shop@1, 0 only by shop@2; probability of such a difference by chance: "
    )
    assert len([line for line in compared if line.startswith("  now right: ")]) == 7
    as_json = json.loads(run("evaluate", held_out, "--classifier", "shop", "--against", "shop@2", "--json").stdout)
    assert (as_json["reference"], as_json["against"]["other"], len(as_json["against"]["gained"])) == (shop, "shop@2", 7)
    same = run("evaluate", held_out, "--classifier", "shop", "--against", "shop@1")
    assert (same.exit_code, "--against shop@1 is shop@1, which is evaluated" in same.stderr) == (2, True)
