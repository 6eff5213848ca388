"""The code of client libraries: as docs/clients.md shows it, and in the programs that are asked."""

import re
import textwrap

from support import markdown
from support.libraries import Library
from support.server import REPOSITORY

DOCUMENT = (REPOSITORY / "docs" / "clients.md").read_text()

PART = re.compile(
    r"^[ \t]*(?:#|//|--) \[([\w ]+)\]\n(.*?)^[ \t]*(?:#|//|--) \[end\]$", re.DOTALL | re.MULTILINE
)


# The names of a program's parts, by what the document says before their code. The first code of a
# section has no such words.
NAMES = {
    "In a cluster": "cluster",
    "Peeks at": "replicas",
    "Never send a call again": "never twice",
    "": "one server",
}


def parts(library: Library) -> dict[str, str]:
    """Of its program, as the document shows them: what has one name is shown as one block."""
    shown: dict[str, list[str]] = {}
    for name, text in PART.findall(library.source.read_text()):
        shown.setdefault(name, []).append(textwrap.dedent(text).strip())
    return {name: "\n\n".join(texts) for name, texts in shown.items()}


def sections() -> dict[str, str]:
    """By heading, those that are of a library that is asked."""
    _, *found = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
    return dict(section.split("\n", 1) for section in found)


# For some libraries, the document names another one, and the words that differ in its code.
FORK = re.compile(r"\[.*?\]\(#([\w-]+)\).*?, with (`.+? in place of `.+?`)\.")
IN_PLACE = re.compile(r"`([^`]+)` in place of `([^`]+)`")


def shown(library: str) -> dict[str, str]:
    """The code that a reader of the document has for the library: where it has none of its own,
    that of the library which it names.
    """
    section = sections()[library]
    blocks: dict[str, str] = {}
    for block in markdown.blocks(section):
        name = next(name for words, name in NAMES.items() if words in block.before)
        assert name not in blocks, (library, name)
        blocks[name] = block.text.strip()
    if fork := FORK.search(section):
        place, words = fork.groups()
        (other,) = (name for name in sections() if markdown.place(name) == place)
        others = shown(other)
        for ours, theirs in IN_PLACE.findall(words):
            others = {name: text.replace(theirs, ours) for name, text in others.items()}
        return others | blocks
    return blocks
