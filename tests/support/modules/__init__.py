"""Modules in C that tests load beside ours, or that load ours."""

import subprocess
from pathlib import Path


def build(name: str, directory: Path, *more: str) -> Path:
    """Compiles NAME.c into a directory, with additional flags."""
    module = directory / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    flags = ["-O2", "-Wall", "-Wextra", "-shared", "-fPIC", *more]
    subprocess.run(["cc", *flags, source, "-o", module], check=True)
    return module
