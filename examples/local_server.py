"""Runs a command beside a server with the module, unless $REDIS_URL already names one:

    python local_server.py uvicorn --factory app:create_app

The command finds the server in $REDIS_URL. When it ends, so does the server.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support import binaries  # noqa: E402

HOST = "127.0.0.1"
BUILT = REPOSITORY / "target/release/libredis_ratelimit.so"


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    # So that an ordinary kill, too, ends the server and removes its directory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if os.environ.get("REDIS_URL"):
        sys.exit(run(sys.argv[1:], os.environ["REDIS_URL"]))
    with local_server() as url:
        print(f"a Redis with the module is at {url}", flush=True)
        sys.exit(run(sys.argv[1:], url))


def run(command: list[str], url: str) -> int:
    with subprocess.Popen(command, env=os.environ | {"REDIS_URL": url}) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                pass  # the terminal told the command too: it ends in its own time
            except SystemExit:
                process.terminate()
                raise


@contextmanager
def local_server() -> Iterator[str]:
    """The URL of a server on a free port, with its files in a directory of its own."""
    module = Path(os.environ.get("RATELIMIT_MODULE", BUILT)).absolute()
    if not module.is_file():
        sys.exit(
            f"{module} is missing: run `make build` in the repository, or set RATELIMIT_MODULE"
        )
    try:
        program = binaries.to_run(os.environ.get("SERVER")).path
    except ValueError as error:
        sys.exit(str(error))
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        options = {"bind": HOST, "port": port, "dir": directory, "save": ""}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        # Before 7.2 a server must be told that it is to have policies.
        words += ["--loadmodule", str(module), "policies", "yes"]
        log = Path(directory, "server.log")
        with log.open("wb") as output:
            server = subprocess.Popen(
                [program, *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                # Out of reach of the terminal's Ctrl-C: this script ends it, last.
                start_new_session=True,
            )
        try:
            while not answers(port):
                if server.poll() is not None:
                    sys.exit(f"the server did not start:\n{log.read_text()}")
                time.sleep(0.05)  # poll until it answers
            yield f"redis://{HOST}:{port}"
        finally:
            server.terminate()
            server.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


if __name__ == "__main__":
    main()
