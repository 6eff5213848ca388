"""Real HTTP: applications behind the servers that people run them on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from support import poll
from werkzeug.serving import WSGIRequestHandler, make_server


@contextmanager
def uvicorn_serves(app: Any) -> Iterator[str]:
    """The URL of an ASGI application."""
    # uvloop does not close a loop of another thread while a connection is left in it.
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
    """The URL of a WSGI application."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(WSGIRequestHandler):
    def log(self, *_: object) -> None:
        pass
