"""Parser of the parts of a document that tests check: blocks, code spans, links, anchors."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """Fenced block, with the text between the previous block and it."""

    language: str
    text: str
    before: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    end = 0
    for found in FENCED.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(found[2], textwrap.dedent(found[3]), text[end : found.start()], line)
        end = found.end()
    if re.search(r"^\s*```", FENCED.sub("", text), re.MULTILINE):
        raise ValueError("a block that is not closed, or that has more than a word behind ```")


def spans(text: str) -> list[str]:
    """Returns the code spans of the text, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", FENCED.sub("", text))


def links(text: str) -> list[tuple[str, str]]:
    """Returns the path and anchor of each link, except links to the web."""
    found = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", FENCED.sub("", text))
    return [(path, anchor) for path, anchor in found if "://" not in path]


def anchors(document: Path) -> set[str]:
    """Returns the anchors of a document: those that GitHub derives from its headings."""
    heads = re.findall(r"^#+ (.*)$", FENCED.sub("", document.read_text()), re.MULTILINE)
    return {anchor(head) for head in heads}


def anchor(head: str) -> str:
    """Returns the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")
