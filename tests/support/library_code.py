"""Code of client libraries, as docs/clients.md shows it, and in the test programs."""

import re
import textwrap

from support import markdown
from support.libraries import Library
from support.server import REPOSITORY

DOCUMENT = (REPOSITORY / "docs" / "clients.md").read_text()

PART = re.compile(
    r"^[ \t]*(?:#|//|--) \[([\w ]+)\]\n(.*?)^[ \t]*(?:#|//|--) \[end\]$", re.DOTALL | re.MULTILINE
)


# Names of a program's parts, by the document's text before their code. The first block of a section
# has no such text.
NAMES = {
    "In a cluster": "cluster",
    "Peeks at": "replicas",
    "Never send a call again": "never twice",
    "": "one server",
}


def parts(library: Library) -> dict[str, str]:
    """Returns the parts of a library's program. Parts with one name are combined to one block."""
    texts_by_name: dict[str, list[str]] = {}
    for name, text in PART.findall(library.source.read_text()):
        texts_by_name.setdefault(name, []).append(textwrap.dedent(text).strip())
    return {name: "\n\n".join(texts) for name, texts in texts_by_name.items()}


def sections() -> dict[str, str]:
    """Returns the sections of tested libraries by heading."""
    _, *found = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
    return dict(section.split("\n", 1) for section in found)


# Reference of a section to another library, with the words that differ in the code.
FORK = re.compile(r"\[.*?\]\(#([\w-]+)\).*?, with (`.+? in place of `.+?`)\.")
IN_PLACE = re.compile(r"`([^`]+)` in place of `([^`]+)`")


def shown_code(library: str) -> dict[str, str]:
    """Returns the code in the library's section of the document, completed by the code of the
    library to which the section refers.
    """
    section = sections()[library]
    blocks: dict[str, str] = {}
    for block in markdown.blocks(section):
        name = next(name for words, name in NAMES.items() if words in block.before)
        assert name not in blocks, (library, name)
        blocks[name] = block.text.strip()
    if fork := FORK.search(section):
        anchor, words = fork.groups()
        (other,) = (name for name in sections() if markdown.anchor(name) == anchor)
        other_blocks = shown_code(other)
        for ours, theirs in IN_PLACE.findall(words):
            other_blocks = {name: text.replace(theirs, ours) for name, text in other_blocks.items()}
        return other_blocks | blocks
    return blocks
