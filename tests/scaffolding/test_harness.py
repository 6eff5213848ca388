"""The test harness: limits on open files, and the check that the module is up to date."""

import os
import random
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from conftest import SharedCluster
from support import files, freshness
from support.ports import reserve_port
from support.server import REPOSITORY, without_spaces

# No server is needed.
pytestmark = pytest.mark.once


def run(code: str, *words: str, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"PYTHONPATH": f"{REPOSITORY}/tests"},
        capture_output=True,
        text=True,
        check=False,
        **settings,
    )


@pytest.mark.parametrize("soft", [256, 1024])
def test_processes_that_start_servers_may_open_as_many_files_as_the_account(soft: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource, sys; from support import binaries; from support.server import Server;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        "server = Server(binaries.chosen(), module=None);"
        "server.close(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == min(hard, files.LIMIT)


def test_the_hard_limit_stays_and_the_soft_one_never_falls() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    files.allow_many()
    files.allow_many()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == before[1]
    assert soft >= before[0]


def test_open_files_are_detected() -> None:
    before = files.open_files()
    with socket.socket() as opened:
        assert files.open_files().keys() - before.keys() == {opened.fileno()}
    assert files.open_files() == before


def test_a_test_that_leaves_a_socket_open_fails(pytester_folder: Path) -> None:
    (pytester_folder / "test_leak.py").write_text(
        "import socket\nleft = []\n"
        "def test_leaks():\n    left.append(socket.socket())\n"
        "def test_closes():\n    socket.socket().close()\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(pytester_folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert "2 passed, 1 error" in result
    assert "1 files stay open; these are new: ['socket:" in result


@pytest.fixture
def pytester_folder(tmp_path: Path) -> Path:
    """Creates a folder outside the repository whose tests use our fixtures."""
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(REPOSITORY / 'tests')!r})\n"
        "from conftest_of_ours import *\n"
    )
    (tmp_path / "conftest_of_ours.py").symlink_to(REPOSITORY / "tests/conftest.py")
    return tmp_path


# A module and its sources


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Creates a module that is newer than its two sources, in a path with a space. Returns the
    module and a source.
    """
    repository = tmp_path / "my clone"
    sources = [repository / "src" / name for name in ("lib.rs", "other.rs")]
    module = repository / "target/release/libmodule.so"
    for path in (*sources, module):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for source in sources:
        os.utime(source, (1, 1))
    escaped = " ".join(str(path).replace(" ", "\\ ") for path in sources)
    module.with_suffix(".d").write_text(f"{str(module).replace(' ', chr(92) + ' ')}: {escaped}\n")
    monkeypatch.setattr(freshness, "REPOSITORY", repository)
    freshness.why_stale.cache_clear()
    return module, sources[1]


def test_a_module_newer_than_its_sources_is_fresh(built: tuple[Path, Path]) -> None:
    assert freshness.why_stale(built[0]) is None


def test_a_module_that_is_older_than_a_source_is_stale(built: tuple[Path, Path]) -> None:
    module, source = built
    os.utime(source)
    os.utime(module, (2, 2))
    assert freshness.why_stale(module) == f"{module} is older than src/other.rs: run `make build`"


def test_a_module_with_a_deleted_source_is_stale(built: tuple[Path, Path]) -> None:
    module, source = built
    source.unlink()
    assert "src/other.rs: run `make build`" in freshness.why_stale(module)


def test_a_source_that_is_not_part_of_the_module_is_ignored(built: tuple[Path, Path]) -> None:
    module, source = built
    os.utime(module, (2, 2))
    source.with_name("tests.rs").touch()
    assert freshness.why_stale(module) is None


@pytest.mark.parametrize("missing", ["the module", "its list"])
def test_a_module_that_was_built_elsewhere_is_not_checked(
    built: tuple[Path, Path], missing: str
) -> None:
    module, source = built
    os.utime(module, (2, 2))
    os.utime(source)
    (module if missing == "the module" else module.with_suffix(".d")).unlink()
    assert freshness.why_stale(module) is None


def test_a_module_of_sources_in_another_folder_is_not_checked(
    built: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    os.utime(built[0], (0, 0))
    monkeypatch.setattr(freshness, "REPOSITORY", tmp_path / "another")
    assert freshness.why_stale(built[0]) is None


def test_a_module_in_a_path_with_spaces_gets_a_path_without_spaces(
    built: tuple[Path, Path],
) -> None:
    module, _ = built
    other = without_spaces(module)
    assert " " not in str(other)
    assert other.samefile(module)
    assert other.parent.name == module.parent.name
    assert without_spaces(other) == other


def test_broken_shared_cluster_fails_only_the_next_test() -> None:
    class Nodes:
        is_well = True

        def empty(self) -> None:
            if not self.is_well:
                raise ConnectionError

    running: list[Nodes] = []

    @contextmanager
    def start() -> Iterator[Nodes]:
        running.append(Nodes())
        yield running[-1]
        running.pop()

    with closing(SharedCluster(start)) as shared:
        first = shared.emptied()
        assert shared.emptied() is first
        first.is_well = False
        with pytest.raises(ConnectionError):
            shared.emptied()
        assert running == []
        second = shared.emptied()
        assert second is not first
        assert running == [second]
    assert running == []


def test_a_reserved_port_is_not_reserved_again(monkeypatch):
    with ExitStack() as first_stack, ExitStack() as second_stack:
        first, second = reserve_port(first_stack), reserve_port(second_stack)
        second_stack.close()
        random_ports = iter([first, first, second])
        monkeypatch.setattr(random, "choice", lambda _: next(random_ports))
        assert reserve_port(second_stack) == second
