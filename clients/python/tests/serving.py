"""Real HTTP: applications behind the servers that people run them on."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
import waitress.server
from support import poll


@contextmanager
def uvicorn_serves(app: Any) -> Iterator[str]:
    """The URL of an ASGI application."""
    config = uvicorn.Config(app, port=0, log_config=None, ws="none")
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
def waitress_serves(app: Any) -> Iterator[str]:
    """The URL of a WSGI application."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = waitress.server.create_server(app, sockets=[listening], threads=8)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        # It looks up once a second, unless it is woken.
        server.pull_trigger(server.close)
        thread.join()
        server.task_dispatcher.shutdown()
        listening.close()
