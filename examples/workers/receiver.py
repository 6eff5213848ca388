"""Placeholder for the service that the jobs call, which counts concurrent calls.

Like a real service, it executes an Idempotency-Key once and only answers repetitions, because a
worker may die between its call and the acknowledgement of the job.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


class Call(NamedTuple):
    job: str
    # Process id of the worker.
    worker: int
    # 1 for the first call of this job.
    attempt: int


class Receiver:
    """Serves http://127.0.0.1:port/hook in a thread, as a context manager.

    A call takes `duration_of(call)` seconds, unless the caller disconnects earlier.
    """

    def __init__(
        self, duration_of: Callable[[Call], float], log: Callable[[str], object] = lambda _: None
    ) -> None:
        # Running calls, and the maximum number of concurrent calls so far.
        self.running: list[Call] = []
        self.maximum = 0
        # Number of times that each job was begun, completed, and repeated after its completion.
        self.begun: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self._keys_done: set[str] = set()
        self._duration_of = duration_of
        self._log = log
        app = Starlette(routes=[Route("/hook", self._hook, methods=["POST"])])
        # The shutdown waits for hanging calls at most one second.
        config = uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)  # poll until the server has started
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    @property
    def url(self) -> str:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/hook"

    async def _hook(self, request: Request) -> Response:
        job = (await request.body()).decode()
        key = request.headers["Idempotency-Key"]
        if key in self._keys_done:
            self.repeated[job] += 1
            self._log(f"{job}: was done before")
            return PlainTextResponse("thank you again")
        self.begun[job] += 1
        worker = int(request.headers["User-Agent"].removeprefix("worker/"))
        call = Call(job, worker, self.begun[job])
        self.running.append(call)
        self.maximum = max(self.maximum, len(self.running))
        self._log(f"{job}: begun by worker {worker}, {len(self.running)} at work")
        try:
            async with asyncio.timeout(self._duration_of(call)):
                while (await request.receive())["type"] != "http.disconnect":
                    pass
            outcome = f"worker {worker} has hung up"
        except TimeoutError:
            outcome = "done"
        finally:
            self.running.remove(call)
        # After the removal from the list, so that no thread sees a completed job as running.
        if outcome == "done" and key not in self._keys_done:
            self._keys_done.add(key)
            self.done[job] += 1
        self._log(f"{job}: {outcome}")
        return PlainTextResponse("thank you")
