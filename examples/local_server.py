"""Runs a command with a server that has the module, unless $REDIS_URL already names one:

    python local_server.py uvicorn --factory app:create_app

The command gets the address in $REDIS_URL. When the command ends, the server ends too. Both also
end with this script, with the terminal, and with a process whose id is given by --parent before
the command.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support import binaries, files, freshness, lifetime  # noqa: E402
from support.ports import HOST, reserve_port  # noqa: E402

DEFAULT_MODULE = REPOSITORY / "target/release/libredis_ratelimit.so"


def main() -> None:
    _, *command = sys.argv
    lifetime.end_in_order()
    if command[:1] == ["--parent"]:
        lifetime.end_with(int(command[1]))
        del command[:2]
    if not command:
        sys.exit(__doc__)
    files.allow_many()
    if os.environ.get("REDIS_URL"):
        sys.exit(run(command, os.environ["REDIS_URL"]))
    with local_server() as url:
        print(f"a Redis with the module is at {url}", flush=True)
        sys.exit(run(command, url))


def run(command: list[str], url: str) -> int:
    with lifetime.start(command, env=os.environ | {"REDIS_URL": url}) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                pass  # the command gets the signal too, and ends by itself
            except SystemExit:
                process.terminate()
                raise


@contextmanager
def local_server() -> Iterator[str]:
    """Starts a server on a free port with a temporary directory. Yields its URL."""
    module = Path(os.environ.get("RATELIMIT_MODULE", DEFAULT_MODULE)).absolute()
    if not module.is_file():
        sys.exit(
            f"{module} is missing: run `make build` in the repository, or set RATELIMIT_MODULE"
        )
    if warning := freshness.why_stale(module):
        print(warning, file=sys.stderr)
    try:
        program = binaries.to_run(os.environ.get("SERVER")).path
    except ValueError as error:
        sys.exit(str(error))
    with ExitStack() as resources:
        port = reserve_port(resources)
        directory = resources.enter_context(tempfile.TemporaryDirectory(prefix="ratelimit-"))
        options = {"bind": HOST, "port": port, "dir": directory, "save": ""}
        arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        # Servers before 7.2 have policies only with these arguments.
        arguments += ["--loadmodule", str(module), "policies", "yes"]
        log = Path(directory, "server.log")
        with log.open("wb") as output:
            server = lifetime.start(
                [program, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal must not reach the server: this script ends it last.
                start_new_session=True,
            )
        try:
            while not is_answering(port):
                if server.poll() is not None:
                    sys.exit(f"the server did not start:\n{log.read_text()}")
                time.sleep(0.05)  # poll until it answers
            yield f"redis://{HOST}:{port}"
        finally:
            server.terminate()
            server.wait()


def is_answering(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


if __name__ == "__main__":
    main()
