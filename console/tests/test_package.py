"""Debian package and systemd unit of the console."""

import shutil
from pathlib import Path

import pytest
from console_process import BINARY

from support.debian_package import build_and_unpack, verify_unit


# Slow, because it compresses a debug build.
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not shutil.which("dpkg-shlibdeps"), reason="needs dpkg-dev")
def test_debian_package_can_be_unpacked_and_run(tmp_path: Path) -> None:
    build_and_unpack("console", BINARY, tmp_path)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    verify_unit("console", BINARY, tmp_path)
