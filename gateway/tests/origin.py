"""Origin server behind the proxies."""

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Origin(ThreadingHTTPServer):
    """HTTP server that answers each request, and requests for /slow only after `release` is set.

    A path that ends in /json or /stream belongs to a model, which reports its used tokens: in JSON,
    or at the end of an event stream. /unmetered does not report them, and /dead closes the
    connection. /slow-stream pauses after each event until `release` is set.

    The response to a POST has its body. /broken closes the connection, and /500 returns an error.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.release = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.tokens = 1200
        self.model = "small"
        self.posts: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Origin

    def do_GET(self) -> None:
        if self.path.endswith("/dead"):
            self.close_connection = True
            return
        if self.path.endswith("/json"):
            self._model("application/json", [self._usage()])
            return
        if self.path.endswith(("/stream", "/unmetered", "/slow-stream")):
            self._model("text/event-stream", self._events())
            return
        if self.path.startswith("/slow"):
            self.server.waiting.release()
            self.server.release.wait(30)
        body = b"hello\n"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def _events(self) -> Iterator[object]:
        for word in ("one", "two"):
            yield {"choices": [{"delta": {"content": word}}], "usage": None}
            if self.path.endswith("/slow-stream"):
                self.server.waiting.release()
                self.server.release.wait(30)
        if not self.path.endswith("/unmetered"):
            yield self._usage()

    def _usage(self) -> object:
        total, third = self.server.tokens, self.server.tokens // 3
        usage = {"prompt_tokens": total - third, "completion_tokens": third, "total_tokens": total}
        return {"model": self.server.model, "choices": [], "usage": usage}

    def _model(self, kind: str, parts: Iterable[object]) -> None:
        """Write each part as soon as it is available."""
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):
            for part in parts:
                line = json.dumps(part)
                self.wfile.write((line if "json" in kind else f"data: {line}\n\n").encode())
            if "json" not in kind:
                self.wfile.write(b"data: [DONE]\n\n")

    def do_POST(self) -> None:
        self.server.posts.append(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path.startswith("/broken"):
            self.close_connection = True
            return
        self.send_response(500 if self.path.startswith("/500") else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
