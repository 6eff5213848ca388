"""Fail if doc comments that begin with a vague word become more: doc_comments.py [--record] [ROOT].

A doc comment begins with a verb in the third person or with a noun phrase, so that it makes sense
alone, in a tooltip. Older files break that rule. doc_comments.toml has their counts, which may only
fall; any other file must have none. --record writes counts that have fallen.
"""

import argparse
import ast
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
COUNTS = "scripts/doc_comments.toml"
FOLDERS = [
    *("benches", "clients", "console", "core", "examples", "fuzz", "gateway", "link"),
    *("scripts", "src", "tests"),
]
NOT_SOURCES = {"__pycache__", "build", "dist", "node_modules", "target", "vendor"}

WORDS = """What Whether How Why Where Of By As So That Those These It Its One None Nothing Nobody
Behind Likewise"""
VAGUE = re.compile(rf"(?:{'|'.join(WORDS.split())}|The same)(?![\w-])", re.IGNORECASE)
RUST_DOC = re.compile(r"\s*//(?:/(?!/)|!)(.*)")
BLOCK_DOC = re.compile(r"^[ \t]*/\*\*(?![*/])(.*?)\*/", re.DOTALL | re.MULTILINE)
HEADER = """\
# Number of doc comments in each file that begin with a vague word: see doc_comments.py. A count may
# only fall; `python scripts/doc_comments.py --record` writes that. Any other file has none.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("root", nargs="?", type=Path, default=REPOSITORY)
    arguments = parser.parse_args()
    root = arguments.root
    recorded = tomllib.loads((root / COUNTS).read_text())
    found = {file: list(vague(root / file)) for file in sources(root)}
    counts = {file: len(vague) for file, vague in found.items() if vague}

    if more := [file for file in counts if counts[file] > recorded.get(file, 0)]:
        lines = ["doc comments must not begin with a vague word (a renamed file keeps its line in"]
        lines[0] += f" {COUNTS}):"
        for file in more:
            lines.append(f"{file}: {counts[file]}, and {recorded.get(file, 0)} are recorded:")
            lines += [f"  {file}:{line}: {text}" for line, text in found[file]]
        sys.exit("\n".join(lines))
    totals = Counter[str]()
    for file, count in counts.items():
        totals[folder(file)] += count
    told = ", ".join(f"{name} {count}" for name, count in sorted(totals.items()))
    print(f"doc comments that begin with a vague word: {totals.total()} ({told})")
    if counts == recorded:
        return
    if arguments.record:
        lines = (f'"{file}" = {count}\n' for file, count in sorted(counts.items()))
        (root / COUNTS).write_text(HEADER + "".join(lines))
    else:
        fewer = sum(recorded.values()) - totals.total()
        print(f"{fewer} fewer than recorded: run python scripts/doc_comments.py --record")


def sources(root: Path) -> Iterator[str]:
    for name in FOLDERS:
        for where, folders, files in os.walk(root / name):
            folders[:] = [one for one in folders if one not in NOT_SOURCES and one[0] != "."]
            for file in files:
                if Path(file).suffix in PARSERS:
                    yield Path(where, file).relative_to(root).as_posix()


def folder(file: str) -> str:
    first, second, *_ = file.split("/")
    return f"{first}/{second}" if first == "clients" else first


def vague(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the vague doc comments of a file: line and text."""
    for line, text in PARSERS[file.suffix](file.read_text()):
        if VAGUE.match(text):
            yield line, text


def of_rust(source: str) -> Iterator[tuple[int, str]]:
    is_first = True
    for number, line in enumerate(source.splitlines(), 1):
        doc = RUST_DOC.match(line)
        if doc is None:
            is_first = True
        elif is_first and doc[1].strip():
            is_first = False
            yield number, doc[1].strip()


def of_python(source: str) -> Iterator[tuple[int, str]]:
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (text := (ast.get_docstring(node) or "").strip()):
            yield node.body[0].lineno, text.splitlines()[0]


def of_blocks(source: str) -> Iterator[tuple[int, str]]:
    """Parse the comments of JSDoc and phpDocumentor."""
    for block in BLOCK_DOC.finditer(source):
        lines = (line.strip().removeprefix("*").strip() for line in block[1].splitlines())
        if text := next(filter(None, lines), None):
            yield source.count("\n", 0, block.start()) + 1, text


BLOCK_LANGUAGES = [".cjs", ".js", ".mjs", ".php", ".ts", ".tsx"]
PARSERS = {".rs": of_rust, ".py": of_python} | dict.fromkeys(BLOCK_LANGUAGES, of_blocks)

if __name__ == "__main__":
    main()
