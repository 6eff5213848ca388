"""Client libraries of docs/clients.md, each in a small program that answers questions.

The arguments of a program are a mode and a port. The modes "server" (one server) and "cluster" use
the library's defaults; "server-no-resends" and "cluster-no-resends" never resend a call; "replicas"
reads from the replicas of a cluster. A question is a line:

* first: the reply to the first call in the document;
* call WORDS: a call to one server;
* plain WORDS: a call to a cluster, without the code that the document shows for a cluster;
* one KEY, several TAG, pipeline KEY...: the calls that the document shows for a cluster;
* plain-pipeline KEY...: a pipeline to a cluster, without the code that the document shows;
* peek KEY: the peek that the document shows.

The answer is a line: "=" and the integers of the reply, or "!" and the error. The program ignores
other lines, which the library prints. The document shows the parts of a program between [name] and
[end].
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import pytest

from support.server import REPOSITORY

PROGRAMS = REPOSITORY / "tests" / "clients"
BUILT = REPOSITORY / "target" / "clients"

# Timeout of an answer in seconds: some clients wait for a lost connection for long.
REPLY_TIMEOUT = 60


class LibraryError(Exception):
    """Error that a library raised instead of a reply."""


@dataclass(frozen=True)
class Library:
    """Client library, and the program that uses it."""

    # Name in the document's heading.
    name: str
    # Source of the program. The document shows parts of it.
    source: Path
    # Builds the program from its source. Returns the words that start it.
    build: Callable[[Path], list[str]]
    # Returns the tested version, from the lock file or the installed package.
    version: Callable[[Path], str]
    # `True` if every run of the suite tests the library; `make clients` tests all libraries.
    in_suite: bool = False

    def program(self, mode: str, port: int) -> "Program":
        return Program([*built(self), mode, str(port)])


class Program:
    """Running program of a library, within a `with` block."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        return self

    def __exit__(self, *_: object) -> None:
        # If the program has ended, closing its input may fail to write the last question.
        with suppress(BrokenPipeError), self._process:
            self._process.kill()

    def ask(self, *words: object) -> list[int]:
        print(*words, file=self._process.stdin, flush=True)
        # Kills a program that does not answer, so that its output ends.
        watchdog = threading.Timer(REPLY_TIMEOUT, self._process.kill)
        watchdog.start()
        answer = next((line for line in self._process.stdout if line[0] in "=!"), None)
        watchdog.cancel()
        if answer is None:
            raise AssertionError(f"{self._words} ended, or did not reply to {words}")
        if answer[0] == "!":
            raise LibraryError(answer[1:].strip())
        return [int(word) for word in answer[1:].split()]


# Builds of programs


@cache
def built(library: Library) -> list[str]:
    """Builds the program of a library once. Returns the words that start it."""
    with build_lock():
        return library.build(library.source)


def by_this_python(source: Path) -> list[str]:
    return [sys.executable, str(source)]


def by_python(package: str) -> Callable[[Path], list[str]]:
    """Returns a builder for a library in a package that `make clients` installs."""

    def build(source: Path) -> list[str]:
        if find_spec(package) is None:
            skip_without(f"the group client-libraries of pyproject.toml ({package})")
        return by_this_python(source)

    return build


def by_node(source: Path) -> list[str]:
    if not has_node() and os.environ.get("CI") != "true":
        skip_without("npm and Node.js 20 or later")
    directory = BUILT / "node"
    lock_file = source.with_name("package-lock.json")

    def install_packages() -> None:
        for file in (source.with_name("package.json"), lock_file):
            shutil.copy(file, directory)
        run("npm", "ci", "--no-audit", "--no-fund", "--silent", cwd=directory)

    run_once(directory, lock_file, install_packages)
    # Node.js looks for modules beside the importing file.
    for file in source.parent.glob("*.js"):
        copy_if_changed(file, directory)
    return ["node", str(directory / source.name)]


def has_node() -> bool:
    if not (shutil.which("node") and shutil.which("npm")):
        return False
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    return int(version.stdout.removeprefix("v").split(".")[0]) >= 20


def by_cargo(source: Path) -> list[str]:
    package = source.parents[1]
    # In the folder of the package, cargo does not apply the flags of the module's build.
    run("cargo", "build", "--locked", "--target-dir", BUILT / package.name, cwd=package)
    return [str(BUILT / package.name / "debug" / f"ask-{package.name}")]


def by_debian(interpreter: str, packages: str) -> Callable[[Path], list[str]]:
    """Returns a builder for an interpreter and a library in Debian packages."""

    def build(source: Path) -> list[str]:
        needs_packages(packages)
        return [interpreter, str(source)]

    return build


def by_cc(source: Path) -> list[str]:
    needs_packages("libhiredis-dev")
    directory = BUILT / source.stem
    program = directory / source.stem
    options = ("-O1", "-Wall", "-Wextra", "-lhiredis")
    run_once(directory, source, lambda: run("cc", "-o", program, source, *options))
    return [str(program)]


def by_go(source: Path) -> list[str]:
    """Builds a program with the libraries of Debian's packages, which are in Go's path for code
    without modules.
    """
    needs_packages("golang-go golang-github-gomodule-redigo-dev golang-github-mna-redisc-dev")
    directory = BUILT / source.stem
    program = directory / source.stem
    environment = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": ""}
    run_once(directory, source, lambda: run("go", "build", "-o", program, source, env=environment))
    return [str(program)]


def needs_packages(packages: str) -> None:
    """Skips the test unless these Debian packages are installed."""
    if any(debian_field(name, "db:Status-Status") != "installed" for name in packages.split()):
        skip_without(f"the Debian packages {packages}")


def debian_field(package: str, field: str) -> str:
    if not shutil.which("dpkg-query"):
        return ""
    result = subprocess.run(
        ["dpkg-query", "--show", f"--showformat=${{{field}}}", package],
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout


# Tested versions


def in_this_python(package: str) -> Callable[[Path], str]:
    return lambda _: metadata.version(package)


def in_requirements(package: str) -> Callable[[Path], str]:
    def version(_: Path) -> str:
        lines = (REPOSITORY / "requirements.txt").read_text()
        return re.search(rf"^{package}==(\S*)", lines, re.MULTILINE)[1]

    return version


def in_package_lock(package: str) -> Callable[[Path], str]:
    def version(source: Path) -> str:
        locked = json.loads(source.with_name("package-lock.json").read_text())
        return locked["packages"][f"node_modules/{package}"]["version"]

    return version


def in_cargo_lock(package: str) -> Callable[[Path], str]:
    def version(source: Path) -> str:
        locked = tomllib.loads((source.parents[1] / "Cargo.lock").read_text())
        return next(found["version"] for found in locked["package"] if found["name"] == package)

    return version


def in_debian(package: str) -> Callable[[Path], str]:
    """Returns a function for the version of a Debian package, without epoch and revision."""

    def version(_: Path) -> str:
        needs_packages(package)
        return re.search(r"(?:^|:)([\d.]+)", debian_field(package, "Version"))[1]

    return version


LIBRARIES = [
    Library(
        "redis-py",
        PROGRAMS / "python/redis_py.py",
        by_this_python,
        in_this_python("redis"),
        in_suite=True,
    ),
    Library(
        "valkey-py",
        PROGRAMS / "python/valkey_py.py",
        by_python("valkey"),
        in_requirements("valkey"),
    ),
    Library(
        "coredis",
        PROGRAMS / "python/coredis_py.py",
        by_python("coredis"),
        in_requirements("coredis"),
    ),
    Library(
        "valkey-glide for Python",
        PROGRAMS / "python/valkey_glide.py",
        by_python("glide"),
        in_requirements("valkey-glide"),
    ),
    Library(
        "ioredis",
        PROGRAMS / "node/ioredis.js",
        by_node,
        in_package_lock("ioredis"),
        in_suite=True,
    ),
    Library("iovalkey", PROGRAMS / "node/iovalkey.js", by_node, in_package_lock("iovalkey")),
    Library(
        "node-redis",
        PROGRAMS / "node/node-redis.js",
        by_node,
        in_package_lock("redis"),
        in_suite=True,
    ),
    Library(
        "valkey-glide for Node.js",
        PROGRAMS / "node/valkey-glide.js",
        by_node,
        in_package_lock("@valkey/valkey-glide"),
    ),
    Library(
        "redis-rs",
        PROGRAMS / "redis-rs/src/main.rs",
        by_cargo,
        in_cargo_lock("redis"),
    ),
    Library("fred", PROGRAMS / "fred/src/main.rs", by_cargo, in_cargo_lock("fred")),
    Library(
        "valkey-glide for Rust",
        PROGRAMS / "valkey-glide-rs/src/main.rs",
        by_cargo,
        in_cargo_lock("valkey-glide"),
    ),
    Library("hiredis", PROGRAMS / "c/hiredis.c", by_cc, in_debian("libhiredis-dev")),
    Library(
        "redigo",
        PROGRAMS / "go/redigo.go",
        by_go,
        in_debian("golang-github-gomodule-redigo-dev"),
    ),
    Library(
        "redis-rb",
        PROGRAMS / "ruby/redis-rb.rb",
        by_debian("ruby", "ruby ruby-redis"),
        in_debian("ruby-redis"),
    ),
    Library(
        "phpredis",
        PROGRAMS / "php/phpredis.php",
        by_debian("php", "php-cli php-redis"),
        in_debian("php-redis"),
    ),
    Library(
        "predis",
        PROGRAMS / "php/predis.php",
        by_debian("php", "php-cli php-predis"),
        in_debian("php-predis"),
    ),
    Library(
        "Redis of CPAN",
        PROGRAMS / "perl/redis.pl",
        by_debian("perl", "libredis-perl"),
        in_debian("libredis-perl"),
    ),
    Library(
        "Redis::Fast",
        PROGRAMS / "perl/fast.pl",
        by_debian("perl", "libredis-fast-perl"),
        in_debian("libredis-fast-perl"),
    ),
    Library(
        "redis-lua",
        PROGRAMS / "lua/redis-lua.lua",
        by_debian("lua5.1", "lua5.1 lua-redis"),
        in_debian("lua-redis"),
    ),
]

TEST_ALL = os.environ.get("RATELIMIT_CLIENTS") == "all"
TESTED = [library for library in LIBRARIES if TEST_ALL or library.in_suite]

# Timeout of a test in seconds. The first test builds the library, which takes minutes, or a quarter
# of an hour.
MAX_TIMEOUT = 3600 if TEST_ALL else 600

each_library = pytest.mark.parametrize("library", TESTED, ids=lambda library: library.name)


def skip_without(requirement: str) -> None:
    pytest.skip(f"not asked: it needs {requirement}")


def run_once(directory: Path, source: Path, build: Callable[[], None]) -> None:
    """Runs a build into the directory, unless it has been run for the same content of `source`."""
    built_source = directory / "installed"
    if not built_source.exists() or built_source.read_bytes() != source.read_bytes():
        directory.mkdir(parents=True, exist_ok=True)
        build()
        shutil.copy(source, built_source)


def copy_if_changed(file: Path, directory: Path) -> None:
    """Replaces a file atomically if its content differs, as other processes may be reading it."""
    installed = directory / file.name
    if not installed.exists() or installed.read_bytes() != file.read_bytes():
        Path(shutil.copy(file, directory / "copy")).replace(installed)


@contextmanager
def build_lock() -> Iterator[None]:
    """Holds a lock, as tests in several processes share the builds."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*words: str | Path, cwd: Path = REPOSITORY, env: Mapping[str, str] | None = None) -> None:
    result = subprocess.run(
        words, cwd=cwd, env=os.environ | (env or {}), capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        pytest.fail(f"{' '.join(map(str, words))} failed:\n{result.stdout}{result.stderr}")
