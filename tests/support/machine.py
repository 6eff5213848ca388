"""Simulated machine that lacks programs: a copy of the repository, and a PATH where programs are
missing, too old or fake.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from support.server import REPOSITORY

# Tools of any system that has `make`.
TOOLS = [
    *("sh", "cat", "chmod", "cp", "date", "dirname", "expand", "find", "grep", "gzip", "head"),
    *("install", "ln", "ls", "mkdir", "mv", "rm", "sed", "sort", "tar", "touch", "uname"),
]

# Fake Python with the parts of venv and pip that make uses; LACKS names the missing one.
PYTHON3 = """\
case "$*" in
  *python_version*) echo "$VERSION" ;;
  *"sys.version_info < (3, 11)"*) case "$VERSION" in 3.[0-9].*|3.10.*) exit 1 ;; esac ;;
  *"import ensurepip"*) test "$LACKS" != venv ;;
  *base_prefix*) echo "of $0" ;;
  "-m venv --clear .venv" | "-m venv .venv")
    rm -rf .venv; mkdir -p .venv/bin; cp "$VENV_PYTHON" .venv/bin/python; echo "of $0" > .venv/of
    test "$LACKS" != ensurepip || exit 1
    echo > .venv/has-pip
    test "$LACKS" != time || exit 1
    echo > .venv/bin/activate ;;
  *) echo "not expected: $*" >&2; exit 1 ;;
esac
"""
VENV_PYTHON = """\
case "$*" in
  *"import pip"*) test -e .venv/has-pip && echo True ;;
  *base_prefix*) cat .venv/of ;;
  "-m pip install"*) test -e .venv/has-pip && echo "pip $*" >> calls ;;
  *) exec "$REAL_PYTHON" "$@" ;;
esac
"""
CARGO = """\
echo "cargo $*" >> calls
case "$1" in
  build) mkdir -p target/release; echo module > target/release/libredis_ratelimit.so ;;
  install)
    test "$3" = --root || exit 1
    mkdir -p "$4/bin"; program="$4/bin/${5%@*}"
    printf '#!/bin/sh\\necho "%s $*" >> calls\\n' "${5%@*}" > "$program"; chmod +x "$program" ;;
esac
"""


class Machine:
    """Clone of the repository in a folder of any name, with all programs on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "my clone"
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        for tool in TOOLS:
            (self.programs / tool).symlink_to(shutil.which(tool))
        for name in (
            *("Makefile", "Cargo.toml", "requirements.txt", "README.md", "CHANGELOG.md"),
            *("LICENSE", "redis.conf.example", "docs", "monitoring", "scripts", "tests/support"),
        ):
            (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
            copy(REPOSITORY / name, self.clone / name)
        self.has("cc", "cat >/dev/null")
        self.has("cargo", CARGO)
        self.has("rustc", "echo 'rustc 1.95.0 (f2d3ce0bd 2026-03-21)'")
        self.has("python3", PYTHON3)
        self.has("ldconfig", "")
        self.environment = {
            "PATH": str(self.programs),
            "VERSION": "3.11.2",
            "VENV_PYTHON": str(self.script(folder / "venv-python", VENV_PYTHON)),
            "REAL_PYTHON": sys.executable,
        }
        self.make_program = shutil.which("make")

    def has(self, program: str, script: str) -> Path:
        return self.script(self.programs / program, script)

    @staticmethod
    def script(path: Path, text: str) -> Path:
        path.write_text(f"#!{shutil.which('sh')}\n{text}\n")
        path.chmod(0o755)
        return path

    def lacks(self, program: str) -> None:
        (self.programs / program).unlink()

    def make(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs make without the environment of this test, such as that of an outer make."""
        return subprocess.run(
            [self.make_program, *words],
            cwd=self.clone,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    def calls(self, program: str) -> list[str]:
        file = self.clone / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(f"{program} ")]

    def from_pypi(self) -> list[str]:
        """Returns the packages that pip was asked for, one at a time."""
        return [call.split()[-1] for call in self.calls("pip")]


def missing(run: subprocess.CompletedProcess[str]) -> list[str]:
    assert run.returncode != 0
    return [line for line in run.stderr.splitlines() if not line.startswith("make:")]
