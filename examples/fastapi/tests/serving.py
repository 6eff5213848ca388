"""Application in uvicorn."""

import threading
from collections.abc import Callable
from dataclasses import replace

import uvicorn
from app import Settings, create_app
from redis_ratelimit import Sliding, TokenBucket

from support import poll
from support.server import Server

# Timeout of calls in seconds, long enough for a busy machine. Tests of outages have their own.
TIMEOUT = 20.0

# The refill is too slow to matter in a test.
ENDPOINT = {"endpoint:{endpoint}": TokenBucket(10_000, 1, "1h", name="endpoint")}
USER = {"user:{user}": TokenBucket(120, 1, "1h", name="user")}
IP = {"ip:{ip}": Sliding(1000, "10h", name="ip")}


class Serve:
    """Starts applications: `serve(shadow=True)` returns the address of one with these settings."""

    def __init__(self, server: Callable[[], Server]) -> None:
        self._server = server
        self._running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def __call__(self, forwarded_allow_ips: str = "", **settings: object) -> str:
        if "redis_url" not in settings:
            settings["redis_url"] = f"redis://127.0.0.1:{self._server().port}"
        app = create_app(
            replace(Settings(timeout=TIMEOUT, limits=ENDPOINT | USER | IP), **settings)
        )
        config = uvicorn.Config(
            app, port=0, forwarded_allow_ips=forwarded_allow_ips, log_config=None
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        self._running.append((server, thread))
        poll.until(lambda: server.started, "uvicorn has started", timeout=20)
        port = server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """Stops all applications gracefully, as a deployment does."""
        for server, _ in self._running:
            server.should_exit = True
        for _, thread in self._running:
            thread.join()
        self._running.clear()
