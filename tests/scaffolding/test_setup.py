"""`make` reports a missing tool in one line, and makes .venv anew only if it has to."""

import shutil
import venv

import pytest

from support.machine import PYTHON3, Machine, missing
from support.server import REPOSITORY

# No server answers here but those that `make` starts, of PyPI or made up; $SERVER is not asked.
pytestmark = pytest.mark.once


# Tools that make cannot install by itself


def test_an_old_python_is_reported_first_in_one_line(machine):
    run = machine.make("run", VERSION="3.9.2")
    assert missing(run) == [
        "missing: Python 3.11 or later: python3 is 3.9.2. Name another, such as PYTHON3=python3.12"
    ]
    assert not (machine.clone / ".venv").exists()
    assert machine.calls("cargo") == []


def test_another_python_can_be_named(machine):
    shutil.copy(machine.programs / "python3", machine.programs / "python3.12")
    machine.has("python3", "echo 3.9.2")
    assert machine.make(".venv/.has-redis", "PYTHON3=python3.12").returncode == 0
    assert machine.make(".venv/.has-tqdm").returncode == 0, "it is not needed a second time"


def with_example(machine: Machine) -> None:
    for name in ("module.mk", "python.mk", "workers/Makefile", "workers/requirements.txt"):
        (machine.clone / "examples" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / "examples" / name, machine.clone / "examples" / name)


def test_the_examples_take_the_python_that_is_named(machine):
    (machine.programs / "python3").rename(machine.programs / "python3.12")
    with_example(machine)
    run = machine.make("-C", "examples/workers", ".venv/.ready", "PYTHON3=python3.12")
    assert run.returncode == 0, run.stderr
    assert (machine.clone / "examples/workers/.venv/.ready").exists()


@pytest.mark.parametrize("folder", [".", "examples/workers"])
def test_a_venv_of_another_python_than_the_named_one_is_made_anew(machine, folder):
    with_example(machine)
    shutil.copy(machine.programs / "python3", machine.programs / "python3.12")
    target = ".venv/.has-redis" if folder == "." else ".venv/.ready"

    def made(*words: str) -> tuple[bool, str]:
        """Returns whether it was made, and with which Python."""
        run = machine.make("-C", folder, target, *words)
        assert run.returncode == 0, run.stderr
        of = (machine.clone / folder / ".venv/of").read_text().strip()
        return "-m venv" in run.stdout, of.rpartition("/")[2]

    assert made() == (True, "python3")
    assert made() == (False, "python3")
    assert made("PYTHON3=python3.12") == (True, "python3.12")
    assert made("PYTHON3=python3.12") == (False, "python3.12")
    assert made() == (False, "python3.12"), "none is named"
    assert made("PYTHON3=python3") == (True, "python3")


def test_an_invalid_named_python_is_reported_despite_a_venv(machine):
    assert machine.make(".venv/.has-redis").returncode == 0
    (line,) = missing(machine.make("run", "PYTHON3=python3.99"))
    assert line.startswith("missing: Python 3.11 or later: python3.99 does not run")


@pytest.mark.parametrize("target", ["run", "test", "lint", "build"])
def test_a_python_without_venv_is_reported_in_one_line(machine, target):
    (line,) = missing(machine.make(target, LACKS="venv"))
    assert line.endswith("the venv module of python3 (Debian, Ubuntu: apt install python3-venv)")
    assert machine.calls("cargo") == []


@pytest.mark.parametrize(
    ("program", "script", "line"),
    [
        ("python3", None, "missing: Python 3.11 or later: python3 does not run"),
        ("cc", None, "missing: a C compiler"),
        ("cc", "cat >/dev/null; exit 1", "missing: the headers of the C library"),
        ("cargo", None, "missing: Rust 1.88 or later: no cargo is on the PATH"),
        ("rustc", "echo 'rustc 1.63.0'", "missing: Rust 1.88 or later: this is rustc 1.63.0"),
        ("rustc", "exit 1", "missing: Rust 1.88 or later: rustc does not run"),
        ("rustc", "echo tea", "missing: Rust 1.88 or later: rustc tells no version, but: tea"),
    ],
)
def test_a_missing_tool_is_reported_in_one_line(machine, program, script, line):
    machine.lacks(program)
    if script is not None:
        machine.has(program, script)
    (told,) = missing(machine.make("run"))
    assert told.startswith(line)
    assert machine.calls("cargo") == []


# The output while it fetches the toolchain of rust-toolchain.toml.
RUSTUP = """\
echo "info: syncing channel updates for '1.95.0-x86_64-unknown-linux-gnu'" >&2
echo "warning: a newer rustup is to be had" >&2
"""


def test_rustups_progress_is_shown_and_not_taken_for_a_version(machine):
    machine.has("rustc", f"{RUSTUP}echo 'rustc 1.95.0 (f2d3ce0bd 2026-03-21)'")
    run = machine.make("build", LIBCLANG_PATH="/usr/lib")
    assert run.returncode == 0, run.stderr
    assert run.stderr.splitlines()[0].startswith("info: syncing channel updates")
    assert machine.calls("cargo") == ["cargo build --release --locked"]


def test_a_missing_compiler_is_reported_by_rustups_error(machine):
    machine.has("rustc", f"{RUSTUP}echo 'error: no network' >&2; exit 1")
    *told, line = missing(machine.make("run"))
    assert told[-1] == "error: no network"
    assert line == "missing: Rust 1.88 or later: rustc does not run"


def test_a_python_with_warnings_is_recognized_by_its_version(machine):
    machine.has("python3", f"echo a warning >&2\n{PYTHON3}")
    *_, line = missing(machine.make("run", VERSION="3.9.2"))
    assert "python3 is 3.9.2. Name another" in line


def test_all_missing_tools_are_reported_together(machine):
    for program in ("python3", "cc", "cargo"):
        machine.lacks(program)
    assert len(missing(machine.make("run"))) == 3


def test_with_a_libclang_a_build_needs_no_python(machine):
    machine.lacks("python3")
    assert machine.make("build", LIBCLANG_PATH="/usr/lib").returncode == 0
    assert machine.calls("cargo") == ["cargo build --release --locked"]


@pytest.mark.parametrize("path", ["/usr/lib", ""], ids=["the system's", "of PyPI"])
def test_a_libclang_without_headers_finds_those_of_the_compiler(machine, path):
    machine.has("cc", "case $1 in -E) cat >/dev/null ;; *) echo /where/cc/has/${1#*=} ;; esac")
    machine.has("cargo", 'echo "cargo $BINDGEN_EXTRA_CLANG_ARGS" >> calls')
    assert machine.make("build", LIBCLANG_PATH=path).returncode == 0
    assert machine.calls("cargo") == ["cargo -idirafter/where/cc/has/include"]


def test_downloads_are_kept_in_the_clone_if_the_home_is_read_only(machine, tmp_path):
    machine.has("cargo", 'echo "cargo ${CARGO_HOME:-none} ${npm_config_cache:-none}" >> calls')
    # Root may write to any folder whatever its mode, but not into a file.
    for home in (tmp_path, tmp_path / "not yet there", "/dev/null"):
        run = machine.make("build", LIBCLANG_PATH="/usr/lib", HOME=str(home))
        assert run.returncode == 0, run.stderr
    here = machine.clone / "target/home"
    assert machine.calls("cargo") == ["cargo none none"] * 2 + [f"cargo {here}/cargo {here}/npm"]


# .venv


def test_venv_writes_activate_only_once_pip_is_there(tmp_path, monkeypatch):
    def no_ensurepip(*_: object) -> None:
        raise ModuleNotFoundError

    monkeypatch.setattr(venv.EnvBuilder, "_setup_pip", no_ensurepip)
    with pytest.raises(ModuleNotFoundError):
        venv.EnvBuilder(with_pip=True).create(tmp_path)
    assert (tmp_path / "bin/python").exists()
    assert not (tmp_path / "bin/activate").exists()


@pytest.mark.parametrize("lacks", ["ensurepip", "time"])
def test_a_venv_that_was_half_made_is_made_anew(machine, lacks):
    assert machine.make(".venv/.has-redis", LACKS=lacks).returncode != 0
    assert (machine.clone / ".venv/bin/python").exists()
    run = machine.make(".venv/.has-redis")
    assert run.returncode == 0
    assert "-m venv --clear" in run.stdout
    assert len(machine.calls("pip")) == 1


@pytest.mark.parametrize("broken", ["another Python", "no Python", "no pip"])
def test_a_venv_that_no_longer_works_is_made_anew_with_all_that_was_in_it(machine, broken):
    assert machine.make(".venv/.has-redis", ".venv/.has-tqdm").returncode == 0
    python = machine.clone / ".venv/bin/python"
    match broken:
        case "another Python":
            machine.script(python, "echo False")
        case "no Python":
            python.unlink()
            python.symlink_to("/nowhere/python3")
        case "no pip":
            (machine.clone / ".venv/has-pip").unlink()
    assert machine.make(".venv/.has-redis").returncode == 0
    assert len(machine.calls("pip")) == 3
    assert not (machine.clone / ".venv/.has-tqdm").exists()


def test_a_venv_that_works_is_left_alone(machine):
    for _ in range(2):
        assert machine.make(".venv/.has-redis").returncode == 0
    assert len(machine.calls("pip")) == 1


def test_an_unfinished_pip_install_is_repeated(machine):
    assert machine.make(".venv/.has-redis").returncode == 0
    python = machine.clone / ".venv/bin/python"
    works = python.read_text()
    machine.script(python, 'case "$*" in *"import pip"*) echo True ;; *) exit 1 ;; esac')
    assert machine.make(".venv/.has-tqdm").returncode != 0
    python.write_text(works)
    assert machine.make(".venv/.has-redis", ".venv/.has-tqdm").returncode == 0
    assert machine.from_pypi() == ["redis", "tqdm"]


def test_nothing_is_installed_on_the_system_unless_requested(machine):
    assert "apt-get" not in machine.make("--dry-run", "test").stdout
    assert "apt-get" in machine.make("--dry-run", "test", CI="true").stdout
