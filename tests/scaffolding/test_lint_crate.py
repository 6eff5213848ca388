"""scripts/lint_crate.sh fails if Clippy or rustdoc finds a mistake, and compiles other crates."""

import os
import subprocess
from pathlib import Path

import pytest

from support.server import REPOSITORY

VALID = "//! A crate.\n\n/// One more than [`u8::MIN`].\npub const ONE: u8 = 1;\n"
LINK_TO_NOTHING = "//! A crate, see [`Nowhere`].\n"
NEEDLESS = "//! A crate.\n\n/// One.\npub fn one() -> u8 {\n    return 1;\n}\n"
PROGRAM = "//! A program, see [`own`].\n\n/// Nothing.\nfn own() {}\n\nfn main() {\n    own();\n}\n"
LIBRARY, BINARY = ("--crate-type", "lib"), ("--crate-type", "bin")


def lint(
    folder: Path, source: str, *words: str, primary: str = "1"
) -> subprocess.CompletedProcess[str]:
    """Runs the script as cargo does, for a crate with this source."""
    (folder / "lib.rs").write_text(source)
    (folder / "debug/deps").mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [
            *(REPOSITORY / "scripts/lint_crate.sh", "rustc", "--crate-name", "made"),
            *("--edition=2024", folder / "lib.rs", *words, "--emit=dep-info,metadata,link"),
            *("--out-dir", folder / "debug/deps"),
        ],
        env=os.environ | {"CARGO_PRIMARY_PACKAGE": primary, "CLIPPY_ARGS": "-Dwarnings"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_library_is_compiled_and_documented(tmp_path: Path) -> None:
    result = lint(tmp_path, VALID, *LIBRARY)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "debug/deps/libmade.rlib").is_file()
    assert (tmp_path / "doc/made/index.html").is_file()


def test_a_programs_docs_may_link_to_private_items(tmp_path: Path) -> None:
    result = lint(tmp_path, PROGRAM, *BINARY)
    assert result.returncode == 0, result.stderr
    result = lint(tmp_path, PROGRAM.replace("[`own`]", "[`Nowhere`]"), *BINARY)
    assert result.returncode != 0
    assert "broken-intra-doc-links" in result.stderr


@pytest.mark.parametrize(
    ("source", "finding"),
    [(LINK_TO_NOTHING, "broken-intra-doc-links"), (NEEDLESS, "needless-return")],
    ids=["by rustdoc", "by Clippy"],
)
def test_lint_finding_is_an_error(tmp_path: Path, source: str, finding: str) -> None:
    result = lint(tmp_path, source, *LIBRARY)
    assert result.returncode != 0
    assert finding in result.stderr


def test_documentation_of_tests_and_dependencies_is_not_checked(tmp_path: Path) -> None:
    for words, primary in [(("--test",), "1"), (LIBRARY, "")]:
        result = lint(tmp_path, LINK_TO_NOTHING, *words, primary=primary)
        assert result.returncode == 0, result.stderr
        assert not (tmp_path / "doc").exists()
