"""Running gateway, and requests to it."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

import grpc
from envoy_data_plane.envoy.extensions.common.ratelimit import v3 as common
from envoy_data_plane.envoy.service.ratelimit import v3 as rls
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support import poll
from support.ports import reserve_port

REPOSITORY = Path(__file__).parents[2]
BINARY = Path(
    os.environ.get("RATELIMIT_GATEWAY", REPOSITORY / "target/gateway/debug/ratelimit-gateway")
).absolute()
OK, OVER = rls.RateLimitResponseCode.OK, rls.RateLimitResponseCode.OVER_LIMIT


class Answer(NamedTuple):
    """HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: str


class Gateway:
    """Process of a gateway, as a context manager. `options` are words of its command line."""

    def __init__(
        self,
        server: str | int,
        *options: str | Path,
        environment: dict[str, str] | None = None,
        wait_until_ready: bool = True,
        scheme: str = "http",
    ) -> None:
        self._owned = ExitStack()
        self.grpc, self.http = (reserve_port(self._owned) for _ in range(2))
        self.server = f"redis://127.0.0.1:{server}" if isinstance(server, int) else server
        self._options = [str(option) for option in options]
        if "--timeout" not in self._options:
            # Longer than the default, for busy machines. Most tests do not depend on it.
            self._options += ["--timeout", "5s"]
        if "--drain" not in self._options:
            self._options += ["--drain", "0s"]
        # Tests poll metrics, which must not be cached.
        self._options += ["--metrics-cache", "0s"]
        self._environment = os.environ | (environment or {})
        self._wait_until_ready = wait_until_ready
        # With https, only the port is polled, because no certificate has this address.
        self._scheme = scheme
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file = Path(self._owned.enter_context(tempfile.TemporaryDirectory()), "log")
        self.log = ""
        self.channel: grpc.Channel | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._owned:
            if self._process is not None:
                self.end(signal.SIGKILL)

    def _command(self) -> list[str | Path]:
        addresses = {"--server": self.server, "--grpc": f"127.0.0.1:{self.grpc}"}
        addresses["--http"] = f"127.0.0.1:{self.http}"
        words = [word for pair in addresses.items() for word in pair]
        return [BINARY, "serve", *words, *self._options]

    def start(self) -> None:
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(self._command(), env=self._environment, stderr=log)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc}")
        self._should_rate_limit = self.channel.unary_unary(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            rls.RateLimitRequest.SerializeToString,
            rls.RateLimitResponse.FromString,
        )
        path = "/readyz" if self._wait_until_ready else "/healthz"
        poll.until(lambda: self._answers(path), f"the gateway answers {path}", timeout=60)

    def _answers(self, path: str) -> bool:
        if self._process is not None and (status := self._process.poll()) is not None:
            raise AssertionError(f"ended with {status}: {self.log_so_far()}")
        try:
            if self._scheme == "https":
                socket.create_connection(("127.0.0.1", self.http), 1).close()
                return True
            return self.get(path).status == 200
        except OSError:
            return False

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, set `log`, and return the exit status."""
        self._process.send_signal(number)
        return self.wait_for_end()

    def wait_for_end(self) -> int:
        """Wait for the end, set `log`, and return the exit status."""
        process, self._process = self._process, None
        status = process.wait(timeout=30)
        self.log = self.log_so_far()
        self.channel.close()
        return status

    def log_so_far(self) -> str:
        return self._log_file.read_text()

    def ask(self, *descriptors: common.RateLimitDescriptor, domain: str = "api", hits: int = 0):
        """Return the response of the rate limit service."""
        request = rls.RateLimitRequest(
            domain=domain, descriptors=list(descriptors), hits_addend=hits
        )
        return self._should_rate_limit(request, timeout=30)

    def passes(self, *descriptors: common.RateLimitDescriptor, **keywords: object) -> bool:
        return self.ask(*descriptors, **keywords).overall_code == OK

    def health(self, service: str = "") -> str:
        stub = health_pb2_grpc.HealthStub(self.channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    def get(
        self,
        path: str,
        method: str = "GET",
        data: object = None,
        port: int | None = None,
        **headers: str,
    ) -> Answer:
        """Send a request to the HTTP listener, or to another port."""
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port or self.http}{path}", data=body, method=method
        )
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return Answer(response.status, response.headers, response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read().decode())

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over the series with these labels."""
        lines = self.get("/metrics").body.splitlines()
        pairs = [f'{label}="{value}"' for label, value in labels.items()]
        series = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(
            float(line.split()[-1]) for line in series if all(pair in line for pair in pairs)
        )


class Ratelimit(Gateway):
    """Gateway under the name `ratelimit`, with an environment of envoyproxy/ratelimit only.

    `folder` gets a link to the program, and the files of limits under data/ratelimit/config.
    """

    def __init__(
        self,
        server: int,
        folder: Path,
        limits: Mapping[str, str],
        *arguments: str,
        **environment: str,
    ) -> None:
        super().__init__(server)
        self._arguments = arguments
        self.debug = reserve_port(self._owned)
        self._program = folder / "ratelimit"
        self._program.symlink_to(BINARY)
        self.config = folder / "data/ratelimit/config"
        self.config.mkdir(parents=True)
        for name, text in limits.items():
            (self.config / name).write_text(text)
        ports = {"PORT": self.http, "GRPC_PORT": self.grpc, "DEBUG_PORT": self.debug}
        hosts = dict.fromkeys(("HOST", "GRPC_HOST", "DEBUG_HOST"), "127.0.0.1")
        # Variables of envoyproxy/ratelimit's docker-compose-integration-test.yml.
        others = {
            "USE_STATSD": "true",
            "STATSD_HOST": "statsd",
            "STATSD_PORT": "9125",
            "LOG_LEVEL": "debug",
            "REDIS_SOCKET_TYPE": "tcp",
            "REDIS_URL": f"127.0.0.1:{server}",
            # Longer than the default, for busy machines.
            "REDIS_TIMEOUT": "5s",
            "RUNTIME_ROOT": str(folder / "data"),
            "RUNTIME_SUBDIRECTORY": "ratelimit",
            "RUNTIME_WATCH_ROOT": "false",
            "RESPONSE_DYNAMIC_METADATA": "true",
        }
        ports = {name: str(port) for name, port in ports.items()}
        self._environment = {"PATH": os.environ["PATH"]} | hosts | ports | others | environment

    def _command(self) -> list[str | Path]:
        return [self._program, *self._arguments]

    def hits(self, kind: str, **labels: str) -> float:
        """Return a metric under its name in envoyproxy/ratelimit."""
        return self.metric(f"ratelimit_service_rate_limit_{kind}", **labels)


def descriptor(
    *, hits: int | None = None, negative: bool = False, limit: object = None, **entries: str
) -> common.RateLimitDescriptor:
    """Create a descriptor of named entries; `rl_id` and `rl_settle` are `rl.id` and `rl.settle`."""
    pairs = [
        (f"rl.{key[3:]}" if key.startswith("rl_") else key, value) for key, value in entries.items()
    ]
    return common.RateLimitDescriptor(
        entries=[common.RateLimitDescriptorEntry(key=key, value=value) for key, value in pairs],
        hits_addend=hits,
        is_negative_hits=negative,
        limit=limit,
    )
