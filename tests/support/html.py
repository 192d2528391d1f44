"""Pages of HTML, read into their elements."""

from dataclasses import dataclass
from html.parser import HTMLParser

_WITHOUT_END = {"br", "hr", "img", "input", "link", "meta"}


@dataclass
class Element:
    """An element; its text is that of the elements within it, too, each piece with a line break behind it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


class Page(HTMLParser):
    """A page.

    Attributes:
        elements: all of them, in the order in which they begin.
        text: all text, in pieces as an element's.
        unclosed: tags of elements that have no end, or end before another that began within them.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.text = ""
        self.unclosed: list[str] = []
        self._open: list[Element] = []
        self.feed(source)
        self.close()
        self.unclosed += [element.tag for element in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))
        if tag not in _WITHOUT_END:
            self._open.append(self.elements[-1])

    def handle_endtag(self, tag: str) -> None:
        if tag in [element.tag for element in self._open]:
            while (ended := self._open.pop().tag) != tag:
                self.unclosed.append(ended)

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"
        for element in self._open:
            element.text += data + "\n"

    @property
    def tags(self) -> set[str]:
        return {element.tag for element in self.elements}

    @property
    def inline(self) -> list[str]:
        """Attributes that are scripts or styles."""
        names = [name for element in self.elements for name in element.attributes]
        return [name for name in names if name.startswith("on") or name == "style"]

    def all(self, *tags: str) -> list[Element]:
        """The elements of these tags."""
        return [element for element in self.elements if element.tag in tags]

    def values(self, *attributes: str) -> list[str]:
        """The values of these attributes, of all elements."""
        return [value for element in self.elements for name, value in element.attributes.items() if name in attributes]
