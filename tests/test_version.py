"""The version stands in Cargo.toml, and every other place that states it agrees."""

import re
import shutil
import subprocess
import tomllib

import pytest

from support.server import REPOSITORY

CARGO = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())
VERSION = CARGO["workspace"]["package"]["version"]

# Files that state the version: how often, and the pattern that finds it.
PLACES = {
    "Cargo.lock": (2, r'^name = "(?:redis-ratelimit|ratelimit-core)"\nversion = "(.*)"$'),
    "fuzz/Cargo.lock": (1, r'^name = "ratelimit-core"\nversion = "(.*)"$'),
    "gateway/Cargo.toml": (1, r'^\[workspace\.package\]\nversion = "(.*)"$'),
    "gateway/Cargo.lock": (
        4,
        r'^name = "ratelimit-(?:gateway|console|link|core)"\nversion = "(.*)"$',
    ),
    "clients/python/pyproject.toml": (1, r'^version = "(.*)"$'),
    "clients/python/src/redis_ratelimit/__init__.py": (1, r'^__version__ = "(.*)"$'),
    "clients/js/package.json": (1, r'^  "version": "(.*)",$'),
    "clients/js/package-lock.json": (
        2,
        r'^ *"name": "redis-ratelimit-client",\n *"version": "(.*)",$',
    ),
    "examples/express/package-lock.json": (
        1,
        r'^ *"version": "(.*)",\n *"resolved": "file:../../clients/js",$',
    ),
    "clients/rust/Cargo.toml": (1, r'^name = "redis-ratelimit-client"\nversion = "(.*)"$'),
    "clients/rust/Cargo.lock": (
        2,
        r'^name = "(?:redis-ratelimit-client|ratelimit-core)"\nversion = "(.*)"$',
    ),
    "clients/ruby/lib/redis_ratelimit/version.rb": (1, r'^  VERSION = "(.*)"$'),
    "docs/observability.md": (1, r"^ratelimit_version:(.*)$"),
}

# The project's name followed by a version, as in redis-ratelimit-client==N or "redis-ratelimit":
# "^N".
PROJECT_VERSION = re.compile(r"ratelimit[\w-]*?[\"'/@:=~^<>v_ -]+(\d+\.\d+\.\d+)(?![\d.])")


@pytest.mark.parametrize("file", PLACES)
def test_stated_versions_equal_the_version_in_cargo_toml(file: str) -> None:
    count, pattern = PLACES[file]
    text = (REPOSITORY / file).read_text()
    assert re.findall(pattern, text, re.MULTILINE) == [VERSION] * count


@pytest.mark.parametrize("member", [".", *CARGO["workspace"]["members"]])
def test_a_crate_takes_its_version_from_the_workspace(member: str) -> None:
    package = tomllib.loads((REPOSITORY / member / "Cargo.toml").read_text())["package"]
    assert package["version"] == {"workspace": True}


def test_the_changelog_has_the_version() -> None:
    assert re.search(
        rf"^(?:## \[{VERSION}\]|The first release will be {VERSION}\.)",
        (REPOSITORY / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )


def test_no_file_states_another_version_next_to_the_project_name() -> None:
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("there is no git to list the files of the repository")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    others = []
    for name in listed.rstrip("\0").split("\0"):
        path = REPOSITORY / name
        if path.is_file():
            text = path.read_text(errors="replace")
            others += [
                f"{name}: {found[0]}"
                for found in PROJECT_VERSION.finditer(text)
                if found[1] != VERSION
            ]
    assert others == []


# N stands for a version, since this file is also searched for versions.
@pytest.mark.parametrize(
    "text",
    [
        "redis-ratelimit-client==N",
        '"redis-ratelimit-client": "^N"',
        'redis-ratelimit = "N"',
        "redis-ratelimit-N-linux-x86_64.tar.gz",
        "redis-ratelimit_N-1_amd64.deb",
        "docker pull redis-ratelimit:vN",
        "ratelimit_version:N",
    ],
)
def test_version_next_to_the_project_name_is_found(text: str) -> None:
    assert PROJECT_VERSION.findall(text.replace("N", "1.2.3")) == ["1.2.3"]


def test_version_of_a_server_is_not_found() -> None:
    assert not PROJECT_VERSION.findall("redis-ratelimit on Redis 7.0.15")
