"""Stands for the service that the jobs call, and is the witness: it sees how many do at once.

It does what such a service should: a call whose Idempotency-Key it knows is answered, and is
not done again. The worker that called before may have died before it could say so.
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
    # The process id of the worker.
    worker: int
    # 1 if it is the first for this job.
    attempt: int


class Receiver:
    """Serves http://127.0.0.1:port/hook in a thread, from `with` to its end. Each call takes as
    long as `takes` says, unless the caller hangs up before.
    """

    def __init__(
        self, takes: Callable[[Call], float], tell: Callable[[str], object] = lambda _: None
    ) -> None:
        # What is being worked at now, and the most that ever was at once.
        self.at_work: list[Call] = []
        self.most = 0
        # How often each job was begun, done, and asked for again when it was done.
        self.begun: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self._keys_done: set[str] = set()
        self._takes = takes
        self._tell = tell
        app = Starlette(routes=[Route("/hook", self._hook, methods=["POST"])])
        # At the end, calls that still hang are not waited for.
        config = uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)  # poll until it has started
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
            self._tell(f"{job}: was done before")
            return PlainTextResponse("thank you again")
        self.begun[job] += 1
        worker = int(request.headers["User-Agent"].removeprefix("worker/"))
        call = Call(job, worker, self.begun[job])
        self.at_work.append(call)
        self.most = max(self.most, len(self.at_work))
        self._tell(f"{job}: begun by worker {worker}, {len(self.at_work)} at work")
        try:
            async with asyncio.timeout(self._takes(call)):
                while (await request.receive())["type"] != "http.disconnect":
                    pass
            outcome = f"worker {worker} has hung up"
        except TimeoutError:
            outcome = "done"
        finally:
            self.at_work.remove(call)
        # After it is off the list: who sees it done, in another thread, sees nobody at it.
        if outcome == "done" and key not in self._keys_done:
            self._keys_done.add(key)
            self.done[job] += 1
        self._tell(f"{job}: {outcome}")
        return PlainTextResponse("thank you")
