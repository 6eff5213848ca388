"""Process of a playground, and requests to it."""

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from console_process import BINARY, Answer


class Playground:
    """Process of a playground, with the requests that its page sends."""

    def __init__(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [BINARY, "playground", "--listen", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first_line = self._process.stdout.readline()
        self.url = self.first_line.split("at ")[1].split()[0]
        self.port = int(self.url.strip("/").rpartition(":")[2])

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds that the process has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, signal_number: int = signal.SIGTERM) -> int:
        self._process.send_signal(signal_number)
        try:
            self._process.communicate(timeout=20)
        finally:
            self._process.kill()
        return self._process.returncode

    def ask(self, path: str, body: object = None, **headers: str) -> Answer:
        try:
            with self.open(path, body, **headers) as response:
                return Answer(response.status, response.headers, response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read().decode())

    def open(self, path: str, body: object = None, **headers: str):
        data = body.encode() if isinstance(body, str) else body and json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | headers
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        return urllib.request.urlopen(request, timeout=30)

    @contextmanager
    def scene(self, **scene: object) -> Iterator[Iterator[dict]]:
        """Opens a scene. Yields its events: the first has its id, the others are ticks."""
        with self.open("api/playground", scene) as response:
            yield (json.loads(line[5:]) for line in response if line.startswith(b"data:"))
