"""Checks of the Debian package and the systemd unit of a program."""

import re
import subprocess
from pathlib import Path

from support.server import REPOSITORY


def build_and_unpack(component: str, binary: Path, folder: Path) -> Path:
    """Builds and unpacks the package of a program, and checks its content. Returns the folder with
    its files.
    """
    program = f"ratelimit-{component}"
    script = REPOSITORY / "scripts/deb.sh"
    words = ["sh", script, component, binary, folder / "made", "somebody <somebody@localhost>"]
    package = output(words).strip()
    root = folder / "root"
    subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    version = output([root / "usr/bin" / program, "--version"])
    assert re.fullmatch(rf"{program} \d+\.\d+\.\d+\n", version)
    unit = (root / f"usr/lib/systemd/system/{program}.service").read_text()
    for pattern in (r"ExecStart=(\S+)", r"file://(\S+)"):
        assert (root / re.search(pattern, unit)[1].lstrip("/")).is_file()
    fields = output(["dpkg-deb", "--field", package, "Depends", "Maintainer"])
    assert "libc6" in fields
    assert "somebody" in fields
    return root


def verify_unit(component: str, binary: Path, folder: Path) -> None:
    """Checks the systemd unit of a program with the paths of this machine."""
    program = f"ratelimit-{component}"
    text = (REPOSITORY / component / f"packaging/{program}.service").read_text()
    # systemd-analyze requires that the program and the document exist.
    installed = {f"/usr/bin/{program}": binary, f"/usr/share/doc/{program}": REPOSITORY / "docs"}
    for path, existing in installed.items():
        assert path in text
        text = text.replace(path, str(existing))
    unit = folder / f"{program}.service"
    unit.write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def output(words: list[str | Path]) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
