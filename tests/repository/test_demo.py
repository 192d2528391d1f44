"""`make demo`: what it prints, and the web page of the predicted photos."""

import base64
import re
from pathlib import Path

import pytest

from tests.support.html import Page
from tests.support.paths import REPOSITORY
from tests.support.programs import python

GROCERIES = REPOSITORY / "examples" / "groceries"


def items(page: Page) -> list[str]:
    """The text of each photo."""
    return [item.text for item in page.all("li")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page, str]:
    """What the demo printed, the page it wrote, and the page's source."""
    output = tmp_path_factory.mktemp("output") / "made-by-the-demo"
    done = python("examples/demo.py", "--output", output)
    assert done.returncode == 0, done.stdout + done.stderr
    (named,) = re.findall(r"\S+\.html", done.stdout)
    assert Path(named).parent == output
    source = Path(named).read_text(encoding="utf-8")
    return done.stdout, Page(source), source


def test_every_query_photo_is_in_the_page_once(demo: tuple[str, Page, str]) -> None:
    _, page, _ = demo
    query = sorted(GROCERIES.glob("*/query/*.jpg"))
    assert len(query) == 70
    images = [image.attributes for image in page.all("img")]
    shown = [base64.b64decode(image["src"].partition("base64,")[2]) for image in images]
    assert sorted(shown) == sorted(path.read_bytes() for path in query)
    assert len(items(page)) == len(query)
    for path in query:
        name = str(path.relative_to(GROCERIES))
        assert sum(name in item.split("\n") for item in items(page)) == 1, name
    assert all(image["alt"] for image in images)


def test_the_accuracies_are_those_of_the_photos(demo: tuple[str, Page, str]) -> None:
    printed, page, _ = demo
    wrong = [item for item in items(page) if "Wrong" in item]
    assert items(page)[: len(wrong)] == wrong, "mistakes come first"
    right = len(items(page)) - len(wrong)
    photos, characters = re.findall(r"accuracy: (\d+)/(\d+) \((\d+)%\)", printed)
    assert photos == (str(right), "70", f"{right / 70:.0%}"[:-1])
    assert f"{right}/70" in page.text
    assert characters[1] == "50"
    # Far from chance (7 and 5): the models do what they are for.
    assert right > 35
    assert int(characters[0]) >= 45
    assert re.search(r"held out\): \d+/50 ", printed)
    by_class = re.findall(r"^  (\S+) +(\d)/7 ", printed, flags=re.MULTILINE)
    assert [name for name, _ in by_class] == sorted(p.name for p in GROCERIES.iterdir() if p.is_dir())
    assert sum(int(count) for _, count in by_class) == right


def test_the_page_loads_nothing_from_elsewhere(demo: tuple[str, Page, str]) -> None:
    _, page, source = demo
    links = page.values("src", "srcset", "href")
    assert [link for link in links if not link.startswith("data:image/jpeg;")] == []
    assert not {"script", "link", "iframe"} & page.tags
    assert "url(" not in source
    assert "@import" not in source
