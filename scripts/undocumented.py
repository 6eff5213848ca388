"""Fail for what is pub and has no doc: undocumented.py [ROOT ...], the first file of each crate.

rustc's missing_docs asks only for what is reachable from outside, and from outside of a cdylib
nothing is. Clippy's missing_docs_in_private_items asks for each field and constant of everybody's
own, too, many of which a name explains, and takes another pass of the compiler. So the sources are
read: each line that says pub, be it for the crate or for the folder above, has a doc above it.
rustfmt sees to it that an item, a field and a method begin their lines.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOTS = ["core/src/lib.rs", "src/lib.rs"]

PUBLIC = re.compile(r"\s*pub(?:\([^)]*\))? (?!use |extern crate )")
MODULE = re.compile(r"\s*(?:pub(?:\([^)]*\))? )?mod (\w+)([;{])")
OF_TESTS = "#[cfg(test)]"


def main() -> None:
    files = [file for root in sys.argv[1:] or ROOTS for file in crate(Path(root))]
    if undocumented := [each for file in files for each in without_doc(file)]:
        sys.exit("\n".join(["no doc:", *undocumented]))


def crate(root: Path) -> Iterator[Path]:
    """The file and those of its modules, but for the tests'."""
    yield root
    for _, line, _ in read(root):
        if (module := MODULE.match(line)) and module[2] == ";":
            yield from crate(file_of(module[1], root))


def file_of(module: str, parent: Path) -> Path:
    is_folders = parent.stem in ("lib", "main", "mod")
    folder = parent.parent if is_folders else parent.with_suffix("")
    beside = folder / f"{module}.rs"
    return beside if beside.exists() else folder / module / "mod.rs"


def without_doc(file: Path) -> Iterator[str]:
    for number, line, above in read(file):
        if not PUBLIC.match(line) or any(map(is_doc, above)):
            continue
        module = MODULE.match(line)
        if module and module[2] == ";" and file_of(module[1], file).read_text().startswith("//!"):
            continue
        yield f"{file}:{number}: {line.strip()}"


def is_doc(text: str) -> bool:
    return text.startswith("///") or "#[doc" in text


def read(file: Path) -> Iterator[tuple[int, str, list[str]]]:
    """The lines that are code, with their numbers, and the docs, comments and attributes right
    above each. What is only there in tests is left out.
    """
    above: list[str] = []
    open_brackets = 0
    end: str | None = None
    for number, line in enumerate(file.read_text().splitlines(), 1):
        text = line.strip()
        if end is not None:
            # rustfmt puts the end of an item under its beginning.
            end = None if line == end else end
        elif open_brackets or text.startswith(("//", "#[", "$(#[")):
            above.append(text)
            # An attribute may take several lines.
            if not text.startswith("//"):
                open_brackets += text.count("[") - text.count("]")
        elif OF_TESTS in above:
            if text.endswith("{"):
                end = line[: len(line) - len(line.lstrip())] + "}"
            above = []
        else:
            yield number, line, above
            above = []


if __name__ == "__main__":
    main()
