"""What stands behind the proxies."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Origin(ThreadingHTTPServer):
    """Answers each request; those for /slow once they are let go.

    A POST is answered with its body; one to /broken not at all, and one to /500 as an error.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.release = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.tokens = 1200
        self.posts: list[str] = []


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
