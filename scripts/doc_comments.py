"""Fails if a doc comment begins with a vague word: doc_comments.py [ROOT].

A doc comment begins with a verb in the third person or with a noun phrase, so that it makes sense
alone, in a tooltip.
"""

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
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


def main() -> None:
    root = Path(sys.argv[1]) if sys.argv[1:] else REPOSITORY
    vague = [line for file in sources(root) for line in vague_lines(root, file)]
    if vague:
        sys.exit("\n".join(["doc comments must not begin with a vague word:", *vague]))


def sources(root: Path) -> Iterator[str]:
    for name in FOLDERS:
        for parent, folders, files in os.walk(root / name):
            folders[:] = [
                folder for folder in folders if folder not in NOT_SOURCES and folder[0] != "."
            ]
            for file in files:
                if Path(file).suffix in PARSERS:
                    yield Path(parent, file).relative_to(root).as_posix()


def vague_lines(root: Path, file: str) -> Iterator[str]:
    path = root / file
    for line, text in PARSERS[path.suffix](path.read_text()):
        if VAGUE.match(text):
            yield f"{file}:{line}: {text}"


def rust_docs(source: str) -> Iterator[tuple[int, str]]:
    is_first = True
    for number, line in enumerate(source.splitlines(), 1):
        doc = RUST_DOC.match(line)
        if doc is None:
            is_first = True
        elif is_first and doc[1].strip():
            is_first = False
            yield number, doc[1].strip()


def python_docs(source: str) -> Iterator[tuple[int, str]]:
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (text := (ast.get_docstring(node) or "").strip()):
            yield node.body[0].lineno, text.splitlines()[0]


def block_docs(source: str) -> Iterator[tuple[int, str]]:
    """Yields the comments of JSDoc and phpDocumentor, each with its line."""
    for block in BLOCK_DOC.finditer(source):
        lines = (line.strip().removeprefix("*").strip() for line in block[1].splitlines())
        if text := next(filter(None, lines), None):
            yield source.count("\n", 0, block.start()) + 1, text


BLOCK_LANGUAGES = [".cjs", ".js", ".mjs", ".php", ".ts", ".tsx"]
PARSERS = {".rs": rust_docs, ".py": python_docs} | dict.fromkeys(BLOCK_LANGUAGES, block_docs)

if __name__ == "__main__":
    main()
