"""scripts/doc_comments.py finds doc comments that begin with a vague word."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.server import REPOSITORY

WORDS = [
    *("What", "Whether", "How", "Why", "Where", "Of", "By", "As", "So", "That", "Those", "These"),
    *("It", "Its", "One", "None", "Nothing", "Nobody", "Behind", "The same", "Likewise"),
]
SOURCES = {
    "core/src/lib.rs": """
//! Of the crate.
//! So it goes on.

/// What it is.
pub struct Vague;

    ///
    /// The same as that.
    pub fn vague() {}

/// Returns one.
/// It is not the first line.
//// Nothing documents this.
// None of this either.
pub fn good() {}
/// One-way hash.
pub fn also_good() {}
""",
    "scripts/run.py": '''
"""As a script."""


class Good:
    """Client of a server.

    It is not the first line.
    """

    async def vague(self) -> str:
        """
        Whether it is vague.
        """
        return """What is no docstring"""
''',
    "clients/js/src/index.ts": """
/** It is vague. */
export const a = 1;
/**
 * By whom it is called.
 */
export const b = "/** None *\\/";
/* How it is no doc comment. */
/** Returns `true`. */
""",
    "clients/js/node_modules/other/index.js": "/** It is another's. */\n",
    "gateway/src/good.rs": "//! Good module.\n",
}
VAGUE = [
    "clients/js/src/index.ts:2: It is vague.",
    "clients/js/src/index.ts:4: By whom it is called.",
    "core/src/lib.rs:2: Of the crate.",
    "core/src/lib.rs:5: What it is.",
    "core/src/lib.rs:9: The same as that.",
    "scripts/run.py:2: As a script.",
    "scripts/run.py:12: Whether it is vague.",
]


def run(tree: Path) -> tuple[int, list[str]]:
    """Returns the status and the lines of the output."""
    script = REPOSITORY / "scripts/doc_comments.py"
    result = subprocess.run(
        [sys.executable, script, tree], capture_output=True, text=True, check=False
    )
    return result.returncode, (result.stdout + result.stderr).splitlines()


def test_vague_doc_comments_fail_with_file_and_line(tmp_path: Path) -> None:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    status, (_, *lines) = run(tmp_path)
    assert status == 1
    assert sorted(lines) == sorted(VAGUE)


@pytest.mark.parametrize("word", WORDS)
def test_vague_first_word_is_rejected(tmp_path: Path, word: str) -> None:
    file = tmp_path / "src/lib.rs"
    file.parent.mkdir()
    file.write_text(f"/// {word} limits.\n")
    assert run(tmp_path)[0] == 1
    file.write_text(f"/// Limits, {word}.\n")
    assert run(tmp_path)[0] == 0


def test_repository_has_no_vague_doc_comments() -> None:
    assert run(REPOSITORY) == (0, [])
