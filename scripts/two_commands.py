"""README.md's two commands as somebody types them: `make run`, until a call of its server has been
answered and Ctrl-C has ended it, and `make test` in its short form.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.ports import reserve_port

# The first of README.md, and what it says.
CALL = b"RL.TOKENBUCKET user:42 200 100 60s\r\n"
REPLY = b"*5\r\n:1\r\n:200\r\n:199\r\n:0\r\n:600\r\n"

# A soft limit that an ordinary account has.
FILES = 1024


def run_both(
    there: Callable[[list[str]], list[str]],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> None:
    """`there` has the words that run these where, and as whom, it is to be."""
    limited = ["sh", "-c", f'ulimit -Sn {FILES} && exec "$@"', "sh"]
    started = time.monotonic()
    with ExitStack() as reserved:
        port = reserve_port(reserved)
        make_run(there([*limited, "make", "run", f"PORT={port}"]), port, environment, folder)
    ran = time.monotonic()
    make_test(there([*limited, "make", "test", "SHORT=yes"]), environment, folder)
    tested = time.monotonic()
    print(f"make run: {ran - started:.0f} s, make test SHORT=yes: {tested - ran:.0f} s", flush=True)


def make_run(
    words: list[str], port: int, environment: Mapping[str, str] | None, folder: Path | None
) -> None:
    # A shell starts what it runs in the background with Ctrl-C ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    make = subprocess.Popen(
        words,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with make:
        try:
            for line in make.stdout:
                print(line, end="", flush=True)
                if line.startswith("Ctrl-C"):
                    break
            else:
                sys.exit("make run has ended")
            if (reply := call(port)) != REPLY:
                sys.exit(f"the first call was answered {reply!r}")
            os.killpg(make.pid, signal.SIGINT)
            make.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(make.pid, signal.SIGKILL)
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            sys.exit("a server is there after Ctrl-C")


def make_test(words: list[str], environment: Mapping[str, str] | None, folder: Path | None) -> None:
    ended = subprocess.run(
        words, env=environment, cwd=folder, stdin=subprocess.DEVNULL, check=False
    )
    if ended.returncode:
        sys.exit("make test SHORT=yes has failed")


def call(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(CALL)
        reply = b""
        while len(reply) < len(REPLY) and (more := connection.recv(100)):
            reply += more
        return reply
