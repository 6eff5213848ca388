"""Gateways that a console reads: the real program, and one whose metrics a test sets."""

import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from console_process import REPOSITORY

from support import poll
from support.ports import reserve_port

BINARY = Path(
    os.environ.get("RATELIMIT_GATEWAY", REPOSITORY / "target/gateway/debug/ratelimit-gateway")
).absolute()


class GatewayProcess:
    """Process of a gateway of a server, as a context manager."""

    def __init__(self, server: int, *options: str | Path) -> None:
        self._owned = ExitStack()
        grpc, self.port = (reserve_port(self._owned) for _ in range(2))
        addresses = ["--grpc", f"127.0.0.1:{grpc}", "--http", f"127.0.0.1:{self.port}"]
        # Metrics are not cached, so that each read has the present values.
        timing = ["--metrics-cache", "0s", "--drain", "0s", "--timeout", "5s"]
        server_words = ["--server", f"redis://127.0.0.1:{server}"]
        self._words = [BINARY, "serve", *server_words, *addresses, *timing, *options]
        self.name = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.name}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._owned:
            self.end()

    def start(self) -> None:
        self._process = subprocess.Popen(self._words, stderr=subprocess.DEVNULL)
        poll.until(self._is_ready, "the gateway is ready", timeout=60)

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _is_ready(self) -> bool:
        try:
            return self.get("/readyz") == 200
        except OSError:
            return False

    def get(self, path: str) -> int:
        """Requests a path, and returns the status."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as response:
                return response.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def has_outage(self) -> bool:
        """Returns `True` if the gateway knows that a server is away."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            return b"\nratelimit_gateway_outage 1\n" in response.read()


HEALTHY = """
ratelimit_gateway_outage 0
ratelimit_gateway_outage_start_time_seconds 0
ratelimit_gateway_outage_mode{mode="open"} 1
ratelimit_gateway_shadow 0
ratelimit_gateway_configuration_refused 0
"""


class FakeGateway:
    """Gateway whose metrics are `page`, with the response `status`, as a context manager."""

    def __init__(self) -> None:
        self.page, self.status = HEALTHY, 200
        # Path and Authorization header of each request.
        self.requests: list[tuple[str, str | None]] = []

    def __enter__(self) -> Self:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                page, status = fake.page.encode(), fake.status
                fake.requests.append((self.path, self.headers["Authorization"]))
                self.send_response(status)
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.name = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.name}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
