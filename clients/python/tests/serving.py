"""Real HTTP servers for applications."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from support import poll
from werkzeug.serving import WSGIRequestHandler, make_server


@contextmanager
def uvicorn_serves(app: Any) -> Iterator[str]:
    """Serves an ASGI application and yields its URL."""
    # uvloop does not close the loop of another thread while it has a connection.
    config = uvicorn.Config(app, port=0, log_config=None, ws="none", loop="asyncio")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        poll.until(lambda: server.started, "the application serves", timeout=20)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def werkzeug_serves(app: Any) -> Iterator[str]:
    """Serves a WSGI application and yields its URL."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_QuietHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _QuietHandler(WSGIRequestHandler):
    def log(self, *_: object) -> None:
        pass
