"""Debian package and systemd unit of the gateway."""

import shutil
import subprocess
from pathlib import Path

import pytest
from running import BINARY

from support.debian_package import build_and_unpack, verify_unit


# Compresses a debug build.
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not shutil.which("dpkg-shlibdeps"), reason="needs dpkg-dev")
def test_debian_package_can_be_unpacked_and_run(tmp_path: Path) -> None:
    root = build_and_unpack("gateway", BINARY, tmp_path)
    example = root / "usr/share/doc/ratelimit-gateway/gateway.example.yaml"
    subprocess.run([root / "usr/bin/ratelimit-gateway", "check", example], check=True)
    assert (root / "usr/bin/ratelimit").readlink() == Path("ratelimit-gateway")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    verify_unit("gateway", BINARY, tmp_path)
