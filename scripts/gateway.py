"""Starts a server with the module, the gateway and the console, shows a first request for each
listener, and serves until Ctrl-C.
"""

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import redis

import run
from run import HOST, START_SECONDS

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support import binaries, files, lifetime  # noqa: E402

POLICIES = {"http|client": "FIXED 2 1m", "api|user": "FIXED 2 1m"}
REQUEST = {"domain": "api", "descriptors": [{"entries": [{"key": "user", "value": "42"}]}]}
METHOD = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
CODES = {1: "OK", 2: "OVER_LIMIT"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", type=Path, help="the module's shared library")
    parser.add_argument("gateway", type=Path, help="the gateway's program")
    parser.add_argument("console_program", type=Path, help="the console's program")
    parser.add_argument("--port", default="6379", help="port of the server")
    parser.add_argument("--grpc", default="8081", help="port of the rate limit service for Envoy")
    parser.add_argument("--http", default="8080", help="port of forward auth for other proxies")
    parser.add_argument("--console", default="8090", help="port of the console")
    parser.add_argument("--server", help="what to start (default: one on the PATH, or PyPI's)")
    parser.add_argument("--parent", type=int, help="the process with which this ends")
    arguments = parser.parse_args()

    ports = (arguments.port, arguments.grpc, arguments.http, arguments.console)
    port, grpc_port, http_port, console_port = (run.free_port(word) for word in ports)
    token = secrets.token_urlsafe(12)
    try:
        binary = binaries.to_run(arguments.server)
    except ValueError as error:
        sys.exit(str(error))
    lifetime.end_in_order()
    if arguments.parent:
        lifetime.end_with(arguments.parent)
    files.allow_many()
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        log = Path(directory, "server.log")
        with terminated_at_end(run.start(binary.path, port, arguments.module, log)) as server:
            with redis.Redis(
                host=HOST, port=port, protocol=2, socket_timeout=START_SECONDS
            ) as client:
                run.wait_until_ready(client, server, log)
                for name, limit in POLICIES.items():
                    client.execute_command("RL.POLICYSET", name, *limit.split())
            server_options = ("serve", "--server", f"redis://{HOST}:{port}")
            gateway_words = [
                *(arguments.gateway, *server_options, "--drain", "0s"),
                *("--grpc", f"{HOST}:{grpc_port}", "--http", f"{HOST}:{http_port}"),
            ]
            console_words = [
                arguments.console_program,
                *server_options,
                *("--listen", f"{HOST}:{console_port}"),
                *("--gateway", f"http://{HOST}:{http_port}"),
            ]
            environment = os.environ | {"RATELIMIT_CONSOLE_WRITE_TOKEN": token}
            with (
                terminated_at_end(lifetime.start(gateway_words, start_new_session=True)) as gateway,
                terminated_at_end(
                    lifetime.start(console_words, start_new_session=True, env=environment)
                ) as console,
            ):
                wait_until_ready(http_port, "/readyz", gateway, "gateway")
                wait_until_ready(console_port, "/", console, "console")
                try:
                    show_first_requests(port, grpc_port, http_port)
                    print(f"\nThe console: http://{HOST}:{console_port}/")
                    print(f"  its token for changes is {token}")
                    print("Ctrl-C shuts all of them down.", flush=True)
                    lifetime.wait_for_end(gateway)
                    sys.exit("the gateway has ended")
                except KeyboardInterrupt:
                    print("\nshutting all of them down")


@contextlib.contextmanager
def terminated_at_end(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Ends the process at the end of the block, gracefully if possible."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_until_ready(port: int, path: str, program: subprocess.Popen[bytes], name: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while program.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if fetch(port, path)[0] == 200:
                return
        time.sleep(0.05)  # poll until it answers
    sys.exit(f"the {name} did not start")


def fetch(port: int, path: str, data: object = None) -> tuple[int, dict[str, str], str]:
    body = None if data is None else json.dumps(data).encode()
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", body, timeout=30) as response:
            return response.status, dict(response.headers), response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


def show_first_requests(port: int, grpc_port: int, http_port: int) -> None:
    print("\nThe policies. A change applies to the next request:")
    for name, limit in POLICIES.items():
        print(f"  redis-cli -p {port} RL.POLICYSET '{name}' {limit}")
    print("\nForward auth, for Traefik, Caddy, nginx and HAProxy:")
    print(f"  curl -i http://{HOST}:{http_port}/check")
    for _ in range(3):
        status, headers, _ = fetch(http_port, "/check")
        lowered = {name.lower(): value for name, value in headers.items()}
        retry_after = f", Retry-After {lowered['retry-after']}" if "retry-after" in lowered else ""
        print(f"    {status}  RateLimit: {lowered.get('ratelimit')}{retry_after}")
    request = json.dumps(REQUEST)
    print("\nEnvoy's rate limit service, over gRPC:")
    print(f"  grpcurl -plaintext -d '{request}' \\\n    {HOST}:{grpc_port} {METHOD}")
    with grpc.insecure_channel(f"{HOST}:{grpc_port}") as channel:
        should_rate_limit = channel.unary_unary(f"/{METHOD}")
        for _ in range(2):
            print(f"    {overall_code(should_rate_limit(encoded_request(), timeout=30))}")
    print("\nThe same service in JSON:")
    print(f"  curl -d '{request}' \\\n    http://{HOST}:{http_port}/json")
    status, _, body = fetch(http_port, "/json", REQUEST)
    print(f"    {status}  {json.loads(body)['overallCode']}")
    print(f"\nMetrics: http://{HOST}:{http_port}/metrics")
    print("docs/gateway.md has the lines for each proxy.")


def encoded_request() -> bytes:
    """Encodes the request as a message of protobuf: numbered fields, each with its length."""

    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    (descriptor,) = REQUEST["descriptors"]
    entries = [
        field(1, field(1, entry["key"].encode()) + field(2, entry["value"].encode()))
        for entry in descriptor["entries"]
    ]
    return field(1, REQUEST["domain"].encode()) + field(2, b"".join(entries))


def overall_code(message: bytes) -> str:
    """Returns the overall code of an answer, which is its first field."""
    assert message[0] == 1 << 3, message
    return CODES[message[1]]


if __name__ == "__main__":
    main()
