"""The documentation's text, and the blocks of code in it."""

import re

from tests.support.paths import REPOSITORY


def document(name: str) -> str:
    """A file of docs."""
    return (REPOSITORY / "docs" / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The content of each block of code in this language."""
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
