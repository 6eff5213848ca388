"""Process of a console, and requests to it."""

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from support import poll
from support.ports import reserve_port

REPOSITORY = Path(__file__).parents[2]
BINARY = Path(
    os.environ.get("RATELIMIT_CONSOLE", REPOSITORY / "target/gateway/debug/ratelimit-console")
).absolute()


def run_console(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a console that ends by itself, and returns it with its output."""
    return subprocess.run(
        [BINARY, *words], capture_output=True, text=True, check=False, timeout=60, **options
    )


class Answer(NamedTuple):
    """HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def json(self) -> object:
        return json.loads(self.body)


class ConsoleProcess:
    """Process of a console, as a context manager. `options` are words of its command line."""

    def __init__(
        self,
        server: str | int,
        *options: str | Path,
        environment: dict[str, str] | None = None,
        scheme: str = "http",
    ) -> None:
        self._owned = ExitStack()
        self.port = reserve_port(self._owned)
        address = f"redis://127.0.0.1:{server}" if isinstance(server, int) else server
        addresses = [
            "--server",
            address,
            "--listen",
            f"127.0.0.1:{self.port}",
        ]
        self._words = [BINARY, "serve", *addresses, *options]
        self._environment = os.environ | (environment or {})
        # With https, only the port is polled, because no certificate has this address.
        self._scheme = scheme
        self._process: subprocess.Popen[str] | None = None
        self.log = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._owned:
            if self._process is not None:
                self.end(signal.SIGKILL)

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._words, env=self._environment, stderr=subprocess.PIPE, text=True
        )
        poll.until(self._answers, "the console answers", timeout=60)

    def _answers(self) -> bool:
        if (status := self._process.poll()) is not None:
            raise AssertionError(f"ended with {status}: {self._process.stderr.read()}")
        try:
            if self._scheme == "https":
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            return self.get("/").status == 200
        except OSError:
            return False

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, signal_number: int = signal.SIGTERM) -> int:
        """Ends the process and returns its status; `log` has its log then."""
        process, self._process = self._process, None
        process.send_signal(signal_number)
        _, self.log = process.communicate(timeout=30)
        return process.returncode

    def get(self, path: str, method: str = "GET", data: object = None, **headers: str) -> Answer:
        body = None if data is None else json.dumps(data).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data=body, method=method)
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return Answer(response.status, response.headers, response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read().decode())
