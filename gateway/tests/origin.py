"""What stands behind the proxies."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Origin(ThreadingHTTPServer):
    """Answers each request; those for /slow once they are let go."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.release = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.tokens = 1200


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Origin

    def do_GET(self) -> None:
        if self.path.startswith("/slow"):
            self.server.waiting.release()
            self.server.release.wait(30)
        body = b"hello\n"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-tokens", str(self.server.tokens))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
