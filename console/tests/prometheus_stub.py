"""Prometheus with invented series, which answers as the real one does."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

# Labels and the value at each time, in seconds.
Series = list[tuple[dict[str, str], dict[int, float]]]


class PrometheusStub(ThreadingHTTPServer):
    """Answers queries of all calls and of policies with its series."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.all_calls: Series = []
        self.policies: Series = []
        # Seconds between two samples, if there are recent ones.
        self.interval: int | None = 15
        # Status and error in place of answers.
        self.failure: tuple[int, dict[str, str]] | None = None
        # Requests wait until it is set.
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.requests: list[tuple[str, dict[str, str], str | None]] = []
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.server_port}"

    def use_tls(self, folder: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "own.crt", folder / "own.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.scheme = "https"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that reject the certificate or do not wait."""

    def queries(self) -> list[dict[str, str]]:
        """Returns the arguments of range queries since the last call, that of all calls first."""
        taken, self.requests = self.requests, []
        ranges = [arguments for path, arguments, _ in taken if path.endswith("/query_range")]
        return sorted(ranges, key=lambda arguments: arguments["query"], reverse=True)

    def answer(self, path: str, arguments: dict[str, str]) -> tuple[int, dict]:
        if self.failure is not None:
            status, error = self.failure
            return status, {"status": "error", **error}
        if path.endswith("/query"):
            result = []
            if self.interval is not None:
                times = range(int(arguments["time"]) - 299, int(arguments["time"]), self.interval)
                result = [{"metric": {}, "values": [[time + 0.125, "7"] for time in times]}]
            data = {"resultType": "matrix", "result": result}
            return 200, {"status": "success", "data": data}
        series = self.all_calls if arguments["query"].startswith("sum by (key)") else self.policies
        start, end, step = (int(arguments[name]) for name in ("start", "end", "step"))
        result = []
        for labels, values in series:
            times = (time for time in range(start, end + 1, step) if time in values)
            found = [[time, f"{values[time]:g}"] for time in times]
            if found:
                result.append({"metric": labels, "values": found})
        return 200, {"status": "success", "data": {"resultType": "matrix", "result": result}}


class Handler(BaseHTTPRequestHandler):
    """Handler of a request to the stub. Closes each connection, so that none outlives the stub."""

    server: PrometheusStub

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        arguments = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self.server.requests.append((parts.path, arguments, self.headers["Authorization"]))
        self.server.may_answer.wait()
        status, answer = self.server.answer(parts.path, arguments)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def prometheus_stub(tls: Path | None = None) -> Iterator[PrometheusStub]:
    with PrometheusStub() as stub:
        if tls is not None:
            stub.use_tls(tls)
        thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield stub
        finally:
            stub.may_answer.set()
            stub.shutdown()
            thread.join()
