"""The documentation's website: built by `make site`, it needs nothing from elsewhere."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.html import Page
from tests.support.paths import REPOSITORY
from tests.support.programs import python


def loaded_by(page: Page) -> list[str]:
    """Addresses that a browser fetches to show a page."""
    return [*page.values("src", "srcset"), *(link.attributes["href"] for link in page.all("link"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = python("-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_address_is_a_file_of_the_site(site: Path) -> None:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    documents = {path.with_suffix(".html").name for path in (REPOSITORY / "docs").glob("*.md")}
    assert documents <= {str(path.relative_to(site)) for path in pages}
    for path, page in pages.items():
        assert not [address for address in loaded_by(page) if urlsplit(address).scheme], path
        for address in page.values("src", "srcset", "href"):
            parts = urlsplit(address)
            if parts.scheme or not parts.path:
                continue
            assert (path.parent / unquote(parts.path)).is_file(), (path, address)
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8")


def test_files_outside_docs_are_part_of_it(site: Path) -> None:
    assert "universal_head.py.html" in (site / "backbones.html").read_text(encoding="utf-8")
    shown = (site / "repository/training/bundles/universal_head.py.html").read_text(encoding="utf-8")
    assert "prototype" in shown
    assert (site / "repository/benchmarks/results/meta_gradient.png").is_file()


def test_notebooks_are_pages_with_their_outputs(site: Path) -> None:
    source = (site / "notebook.html").read_text(encoding="utf-8")
    assert (site / "notebook.ipynb").read_bytes() == (REPOSITORY / "docs" / "notebook.ipynb").read_bytes()
    assert "adapt_folder" in source
    assert "84% of 50 photos" in source
    pictures = [address for address in loaded_by(Page(source)) if address.endswith(".jpg")]
    assert len(pictures) == 3
    assert 'href="notebook.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_formulas_are_mathml(site: Path) -> None:
    source = (site / "derivation.html").read_text(encoding="utf-8")
    formulas = re.findall(r"(?<!`)\$\$?[^$`]+\$\$?(?!`)", (REPOSITORY / "docs" / "derivation.md").read_text("utf-8"))
    assert source.count("<math") == len(formulas) > 100
    assert 'class="arithmatex"' not in source
    assert not re.search(r"<mi>\\", source), "a command of TeX that was not understood"
