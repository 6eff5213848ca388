"""`make package` puts the right files into a tarball and a Debian package."""

import platform
import re
import subprocess
import tomllib

import pytest

from support.machine import missing
from support.server import REPOSITORY

# No server answers here but those that `make` starts, of PyPI or made up; $SERVER is not asked.
pytestmark = pytest.mark.once


# Packages


def test_all_links_of_a_package_lead_into_it(machine, tmp_path):
    machine.has("dpkg-shlibdeps", "")
    run = machine.make("package", LIBCLANG_PATH="/usr/lib")
    assert run.returncode == 0, run.stderr
    (archive,) = (machine.clone / "target/package").glob("*.tar.gz")
    (tmp_path / "opened").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path / "opened"], check=True)
    (folder,) = (tmp_path / "opened").iterdir()
    assert (folder / "libredis_ratelimit.so").read_text() == "module\n"
    links = [
        (document, link)
        for document in folder.rglob("*.md")
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
        if "://" not in link
    ]
    assert len(links) > 10
    for document, link in links:
        target = (document.parent / link).resolve()
        assert target.exists(), (document.name, link)
        assert target.is_relative_to(folder), (document.name, link)


@pytest.mark.parametrize(
    ("host", "ends"), [("x86_64-unknown-linux-musl", "-musl"), ("x86_64-unknown-linux-gnu", "")]
)
def test_the_name_of_a_tarball_says_musl(machine, host, ends):
    machine.has("rustc", f"echo 'rustc 1.95.0'; test $1 = --version || echo 'host: {host}'")
    assert machine.make("tarball", LIBCLANG_PATH="/usr/lib").returncode == 0
    (archive,) = (machine.clone / "target/package").glob("*.tar.gz")
    assert archive.name.endswith(f"-linux-{platform.machine()}{ends}.tar.gz")


def test_the_debian_package_has_the_same_documents_and_an_address_of_no_made_up_host():
    package = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["package"]["metadata"]["deb"]
    assert ["target/package/doc/**/*", "usr/share/doc/redis-ratelimit/", "644"] in package["assets"]
    assert re.fullmatch(r"[\w -]+ <[\w-]+@localhost>", package["maintainer"])


def test_without_dpkg_dev_only_a_tarball_is_made(machine):
    (line,) = missing(machine.make("package", LIBCLANG_PATH="/usr/lib"))
    assert line.startswith("made the tarball, but no .deb")
    assert line.endswith("(Debian, Ubuntu: apt install dpkg-dev)")
    (made,) = (machine.clone / "target/package").iterdir()
    assert made.name.endswith(".tar.gz")
    assert len(machine.calls("cargo")) == 1, "nothing was installed"
