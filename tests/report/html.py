"""Just enough of an HTML reader to ask a page what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "hr", "input"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str) -> list[Element]:
        found = [self] if self.tag == tag else []
        for child in self.children:
            if isinstance(child, Element):
                found += child.all(tag)
        return found

    def by_id(self, name: str) -> Element:
        return next(element for element in self.everything() if element.attributes.get("id") == name)

    def everything(self) -> list[Element]:
        return [
            self,
            *(e for child in self.children if isinstance(child, Element) for e in child.everything()),
        ]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("document", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {key: value or "" for key, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(page: str) -> Element:
    """The page as a tree; fails where a tag is left open or closed out of turn."""
    reader = _Reader()
    reader.feed(page)
    assert len(reader.open) == 1, f"<{reader.open[-1].tag}> is never closed"
    return reader.open[0]
