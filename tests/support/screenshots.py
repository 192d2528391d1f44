"""Pictures of the page for the documentation, made with the demo's groceries.

`make screenshots` writes docs/images/*.png: `python -m tests.support.screenshots FOLDER`.
"""

import argparse
import io
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

from PIL import Image

from tests.support.browser import Visitor
from tests.support.browsers import Chromium
from tests.support.live import live_server
from tests.support.paths import REPOSITORY

GROCERIES = REPOSITORY / "examples" / "groceries"
WIDTH, COLOURS = 1000, 128
NARROW = 390


def main() -> None:
    """Make every picture anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        browser = Chromium(place)
        with closing(browser), live_server(REPOSITORY / "models", place) as server:
            visitor = Visitor(browser, server.url)
            visitor.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
            visitor.resize(WIDTH)
            browser.cdp("Emulation.setScrollbarsHidden", hidden=True)
            visitor.visit()
            _take_pictures(visitor, place, folder)


def _take_pictures(visitor: Visitor, place: Path, folder: Path) -> None:
    support = place / "groceries"
    classes = [path for path in sorted(GROCERIES.iterdir()) if path.is_dir()]
    for path in classes:
        shutil.copytree(path / "support", support / path.name)
    visitor.send(visitor.one("#folder"), [support])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 5 * len(classes))
    visitor.write("#name", "groceries")
    visitor.make()
    _save(visitor, folder / "quality.png", (WIDTH, 1150))
    query = [path for product in classes for path in sorted((product / "query").iterdir())[:2]]
    visitor.sort(query)
    visitor.wait(lambda: len(visitor.all("#results .share")) == len(query))
    visitor.slide("#least-probability", 60)
    visitor.run("document.querySelector('#results').scrollIntoView(); scrollTo(0, 0)")
    _save(visitor, folder / "sort.png", (WIDTH, 900))
    visitor.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    visitor.step("quality")
    _save(visitor, folder / "phone.png", (NARROW, 844))


def _save(visitor: Visitor, path: Path, size: tuple[int, int]) -> None:
    """Write the visible page as a PNG of few colours: a third of the bytes, and hardly to be seen."""
    visitor.resize(*size)
    loaded = "return [...document.querySelectorAll('img')].every((e) => !e.checkVisibility() || e.complete)"
    visitor.wait(lambda: visitor.run(loaded))
    visitor.run("scrollTo(0, 0); document.activeElement.blur()")
    picture = Image.open(io.BytesIO(visitor.driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
