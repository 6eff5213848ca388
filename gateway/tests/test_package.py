"""The Debian package and its unit."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from running import BINARY, REPOSITORY

GATEWAY = REPOSITORY / "gateway"


# It compresses a debug build.
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not shutil.which("dpkg-shlibdeps"), reason="needs dpkg-dev")
def test_debian_package_can_be_unpacked_and_run(tmp_path: Path) -> None:
    script = REPOSITORY / "scripts/deb.sh"
    words = ["sh", script, "gateway", BINARY, tmp_path / "made", "somebody <somebody@localhost>"]
    made = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "--extract", made, root], check=True)
    version = subprocess.run(
        [root / "usr/bin/ratelimit-gateway", "--version"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert re.fullmatch(r"ratelimit-gateway \d+\.\d+\.\d+\n", version)
    unit = (root / "usr/lib/systemd/system/ratelimit-gateway.service").read_text()
    started, document = re.search(r"ExecStart=(\S+)", unit)[1], re.search(r"file://(\S+)", unit)[1]
    assert all((root / path.lstrip("/")).is_file() for path in (started, document))
    fields = subprocess.run(
        ["dpkg-deb", "--field", made, "Depends", "Maintainer"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert "libc6" in fields
    assert "somebody" in fields
    example = root / "usr/share/doc/ratelimit-gateway/gateway.example.yaml"
    subprocess.run([root / "usr/bin/ratelimit-gateway", "check", example], check=True)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (GATEWAY / "packaging/ratelimit-gateway.service").read_text()
    # What it starts has to be there, and so has the page that it names.
    installed = {"/usr/bin/ratelimit-gateway": str(BINARY)}
    installed["/usr/share/doc/ratelimit-gateway"] = str(REPOSITORY / "docs")
    for path, here in installed.items():
        assert path in text
        text = text.replace(path, here)
    unit = tmp_path / "ratelimit-gateway.service"
    unit.write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
