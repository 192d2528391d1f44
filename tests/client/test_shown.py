"""How results are shown in a line, and in a terminal's columns."""

from dataclasses import replace
from pathlib import Path

from comln_serve.client import Client
from comln_serve.client.commands.tables import table
from tests.client.pictures import class_folder


def test_results_of_many_images_are_one_line(comln: Client, photos: Path) -> None:
    """A notebook shows what a cell ends with."""
    shop = comln.classifier("shop")
    assert repr(shop) == f"<ClassifierDetail shop@1 (promoted), {shop.id}: 3 classes, 6 images, {shop.model}>"
    assert repr(comln.add_examples_folder(shop, photos, promote=False)).startswith("<Adapted shop@2 (not promoted), ")
    assert repr(comln.adapt_folder(photos)).startswith("<Adapted clf_")
    (photos / "red" / "bad.png").write_bytes(b"none")
    found = comln.predict_folder(photos, shop)
    counts = {label: sum(item.label == label for item in found) for label in shop.labels}
    shown = repr(found)
    assert shown.startswith(f"<Predictions by {shop.id}: 6 images, ")
    assert all(f"{label!r} {count}" in shown for label, count in counts.items() if count)
    assert shown.endswith("; 1 skipped>")
    many = replace(found, predictions=tuple(replace(found[0], label=str(number)) for number in range(9)))
    assert "'4' 1 and 4 other classes" in repr(many)
    assert "top" not in repr(found[0])
    assert str(shop.report).count("(") < 20
    default, other = comln.models()[:2]
    assert repr(default) == "<Model tiny (default): any classes, 16 pixels, cpu>"
    assert repr(other) == "<Model tiny-learned: 5 classes, 16 pixels, cpu>"


def test_an_evaluation_is_one_line(comln: Client, photos: Path, tmp_path: Path) -> None:
    found = comln.evaluate_folder(class_folder(tmp_path / "query", each=4), "shop@1")
    low, high = found.interval
    expected = f"{found.accuracy:.1%} of 12 images are right, 95% interval {low:.1%} to {high:.1%}"
    assert repr(found) == f"<Evaluation of shop@1: {expected}>"


def test_columns_are_those_of_a_terminal() -> None:
    """Which gives two to the characters of Chinese, Japanese and Korean, and none to an accent."""
    assert table({"CLASS": ["梨", "a\u0308pple"], "IMAGES": ["1", "2"]}).splitlines() == [
        "CLASS  IMAGES",
        "梨     1",
        "a\u0308pple  2",
    ]
