"""scripts/doc_comments.py counts doc comments that begin with a vague word."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.server import REPOSITORY

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
COUNTS = {"clients/js/src/index.ts": 2, "core/src/lib.rs": 3, "scripts/run.py": 2}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(tree: Path, *words: str, recorded: dict[str, int] | None = None) -> tuple[int, str]:
    """Returns the status and the output."""
    if recorded is not None:
        lines = (f'"{file}" = {count}\n' for file, count in recorded.items())
        (tree / "scripts/doc_comments.toml").write_text("".join(lines))
    script = REPOSITORY / "scripts/doc_comments.py"
    done = subprocess.run(
        [sys.executable, script, *words, tree], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_recorded_counts_pass(tree: Path) -> None:
    status, told = run(tree, recorded=COUNTS)
    assert (status, "7 (clients/js 2, core 3, scripts 2)" in told) == (0, True), told


def test_more_than_recorded_fails_with_each_line(tree: Path) -> None:
    status, told = run(tree, recorded=COUNTS | {"core/src/lib.rs": 2})
    assert status == 1
    assert told.splitlines()[1:] == [
        "core/src/lib.rs: 3, and 2 are recorded:",
        "  core/src/lib.rs:2: Of the crate.",
        "  core/src/lib.rs:5: What it is.",
        "  core/src/lib.rs:9: The same as that.",
    ]


def test_a_new_file_must_have_none(tree: Path) -> None:
    (tree / "gateway/src/new.rs").write_text("/// Nothing good.\n")
    status, told = run(tree, "--record", recorded=COUNTS)
    assert status == 1
    assert "gateway/src/new.rs: 1, and 0 are recorded" in told


def test_fewer_pass_and_are_recorded_on_demand(tree: Path) -> None:
    (tree / "scripts/run.py").unlink()
    status, told = run(tree, recorded=COUNTS | {"core/src/lib.rs": 9})
    assert (status, "8 fewer than recorded" in told) == (0, True), told
    assert run(tree, "--record")[0] == 0
    recorded = tomllib.loads((tree / "scripts/doc_comments.toml").read_text())
    assert recorded == {"clients/js/src/index.ts": 2, "core/src/lib.rs": 3}


def test_repository_keeps_its_counts() -> None:
    status, told = run(REPOSITORY)
    assert status == 0, told
