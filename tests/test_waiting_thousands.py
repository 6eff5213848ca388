"""A thousand waiting callers are served in order, and leave no memory allocated."""

import random
import selectors
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from redis import Connection
from redis import ConnectionError as RedisConnectionError

from support import poll
from support.clock import Clock
from support.scale import first_on_every_server, scaled
from support.waiting import GRANTED, Queue, error_of
from support.workload import Word

pytestmark = pytest.mark.every_server


# Memory


def test_grant_without_memory_is_an_error(own_queue: Queue) -> None:
    queue = own_queue
    queue.acquire("a")
    b, c = queue.join_all("b", "c")
    queue.client.config_set("maxmemory", 1)
    queue.release("a")
    for waiter in (b, c):
        assert error_of(waiter.reply).startswith(("OOM", "command not allowed when used memory"))
    queue.client.config_set("maxmemory", 0)
    assert not queue.client.exists("k")
    assert queue.acquire("d") == GRANTED


def quiet_memory(queue: Queue) -> int:
    """Returns the used memory without the buffers of a busy connection."""
    queue.client.connection_pool.disconnect()
    queue.client.info("memory")
    return queue.client.info("memory")["used_memory"]


CLIENTS = 1000


@pytest.mark.timeout(scaled(180, 900))
def test_many_past_waits_leave_no_memory_allocated(own_queue: Queue) -> None:
    queue = own_queue
    queue.acquire("a")

    def join_and_go() -> None:
        with Connections(queue, CLIENTS) as callers:
            for number in range(CLIENTS):
                callers.send(number, "RL.ACQUIRE", "k", 1, "60s", f"h{number}", "BLOCK", "1h")
            poll.until(lambda: queue.blocked == CLIENTS, "all wait", timeout=60)
            with queue.client.pipeline(transaction=False) as pipeline:
                for number in range(0, CLIENTS, 2):
                    pipeline.execute_command("CLIENT", "KILL", "ID", callers.ids[number])
                assert set(pipeline.execute()) == {1}
        poll.until(lambda: queue.is_empty, "all have gone", timeout=60)
        poll.until(
            lambda: queue.client.info("clients")["connected_clients"] <= 2,
            "the server has closed their connections",
            timeout=60,
        )

    # At first the server allocates memory for so many callers, which it keeps.
    join_and_go()
    before = quiet_memory(queue)
    join_and_go()
    # Less than if each caller had leaked a word.
    poll.until(lambda: quiet_memory(queue) < before + 8 * CLIENTS, "the memory is free again", 60)


# A thousand callers


class Connections:
    """Many connections, which are opened at the beginning of the `with` block."""

    def __init__(self, queue: Queue, size: int) -> None:
        self.queue, self.size = queue, size
        # Connections of a pool do not reconnect if they are killed, as in `support.waiting.Caller`.
        self._client = queue.server.client(over_tcp=True)
        self._opened = ExitStack()
        self.connections: list[Connection] = []
        self.ids: list[int] = []

    def __enter__(self) -> "Connections":
        pool = self._client.connection_pool
        pool.max_connections = self.size
        self._opened.callback(self._client.close)
        self._opened.callback(pool.disconnect)
        for _ in range(self.size):
            connection = pool.get_connection()
            connection.send_command("CLIENT", "ID")
            self.connections.append(connection)
            self.ids.append(connection.read_response())
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def send(self, number: int, *words: Word) -> None:
        self.connections[number].send_command(*words)

    def reply(self, number: int) -> object:
        return self.connections[number].read_response()

    def join_in_order(self, *options: Word, limit: int, block: str = "0") -> None:
        """Calls RL.ACQUIRE for holders "h0", "h1" ..., each when the previous one waits."""
        for number in range(self.size):
            words = ("RL.ACQUIRE", "k", limit, "60s", f"h{number}", *options, "BLOCK", block)
            self.send(number, *words)
            self.queue.until(
                lambda number=number: self.queue.blocked > number, "the next one waits"
            )


@pytest.fixture
def callers(queue: Queue) -> Iterator[Connections]:
    with Connections(queue, CLIENTS) as callers:
        yield callers


# The larger size is more than the module serves in one portion.
@pytest.mark.timeout(scaled(180, 600))
@pytest.mark.parametrize("size", first_on_every_server([5 * CLIENTS // 2, CLIENTS]))
def test_many_waiting_calls_are_served_in_order_of_arrival(queue: Queue, size: int) -> None:
    queue.acquire("a", "COST", size, limit=size)
    with Connections(queue, size) as callers:
        callers.join_in_order(limit=size)
        assert queue.info()["blocked_clients"] == size
        queue.release("a")
        remaining = [callers.reply(number)[2] for number in range(size)]
    assert remaining == list(range(size - 1, -1, -1))
    assert queue.is_empty


@pytest.mark.timeout(scaled(180, 600))
def test_thousand_waiting_calls_are_served_as_leases_end(
    queue: Queue, callers: Connections, clock: Clock
) -> None:
    queue.acquire("a", "COST", 8, limit=8)
    callers.join_in_order(limit=8)
    clock.advance("60s")
    for number in range(CLIENTS):
        assert callers.reply(number)[:2] == [1, 8], number
        if number % 100 == 99:
            queue.settle()
            # Exactly as many callers are served as there are units.
            assert queue.blocked == max(0, CLIENTS - number - 8), number
        queue.release(f"h{number}")
    assert queue.is_empty
    assert not queue.client.exists("k")


@pytest.mark.timeout(scaled(180, 600))
def test_thousand_waiting_calls_are_denied_at_their_deadlines(
    queue: Queue, callers: Connections, clock: Clock
) -> None:
    queue.acquire("a")
    callers.join_in_order(limit=1, block="10s")
    clock.advance("10s")
    replies = {tuple(callers.reply(number)) for number in range(CLIENTS)}
    assert replies == {(0, 1, 0, 50_000, 50_000)}
    assert queue.is_empty


class Workers:
    """Callers that each acquire a lease, release it after a while and start over until their jobs
    are done. Some are killed while they wait.

    Counts units as held from when the holder receives its reply until it sends the release.
    """

    def __init__(self, callers: Connections, limit: int, jobs: int, seed: int) -> None:
        self.callers, self.limit, self.jobs = callers, limit, jobs
        self._random = random.Random(seed)
        self._costs = [self._random.choice([1, 1, 1, 2, 3]) for _ in range(callers.size)]
        self._remaining_jobs = [jobs] * callers.size
        self._working: list[int] = []
        self._release_sent: set[int] = set()
        self.held = self.most_held = self.killed = 0

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for number, connection in enumerate(self.callers.connections):
                selector.register(connection._sock, selectors.EVENT_READ, number)
                self._acquire(number)
            while selector.get_map():
                ready = selector.select(timeout=0 if self._working else 60)
                assert ready or self._working, f"no caller is served: {self.callers.queue.info()}"
                for key, _ in ready:
                    if not self._process_reply(key.data):
                        selector.unregister(key.fileobj)
                if self._working and (not ready or self._random.random() < 0.5):
                    self._release()
                if self._random.random() < 0.05:
                    self._kill(self._random.randrange(self.callers.size))

    def _acquire(self, number: int) -> None:
        words = (self.limit, "1h", f"h{number}", "COST", self._costs[number], "BLOCK", "1h")
        self.callers.send(number, "RL.ACQUIRE", "k", *words)

    def _process_reply(self, number: int) -> bool:
        """Processes a reply. Returns `True` if the caller has jobs left."""
        try:
            reply = self.callers.reply(number)
        except RedisConnectionError:
            self._clean_up(number)
            return False
        if number in self._release_sent:
            assert reply == 1
            self._release_sent.remove(number)
            self._remaining_jobs[number] -= 1
            if self._remaining_jobs[number]:
                self._acquire(number)
            return self._remaining_jobs[number] > 0
        assert reply[:2] == [1, self.limit], reply
        self.held += self._costs[number]
        self.most_held = max(self.most_held, self.held)
        assert self.held <= self.limit
        self._working.append(number)
        return True

    def _release(self) -> None:
        number = self._working.pop(self._random.randrange(len(self._working)))
        # From here on, another caller may get these units.
        self.held -= self._costs[number]
        self._release_sent.add(number)
        self.callers.send(number, "RL.RELEASE", "k", f"h{number}")

    def _clean_up(self, number: int) -> None:
        """Releases the lease that a killed caller may hold if it was answered just before."""
        self.killed += 1
        held = self.callers.queue.release(f"h{number}")
        if number in self._working:
            self._working.remove(number)
            self.held -= self._costs[number]
            assert held == 1
        elif number not in self._release_sent:
            assert held == 0

    def _kill(self, number: int) -> None:
        """Kills the caller if it waits."""
        client = self.callers.queue.client
        listed = client.client_list(client_id=[self.callers.ids[number]])
        if any("b" in client["flags"] for client in listed):
            assert client.client_kill_filter(_id=self.callers.ids[number]) == 1

    @property
    def served(self) -> int:
        return sum(self.jobs - remaining for remaining in self._remaining_jobs)


@pytest.mark.timeout(scaled(180, 900))
@pytest.mark.parametrize("seed", range(scaled(1, 10)))
def test_thousand_workers_are_all_served_within_the_limit(own_queue: Queue, seed: int) -> None:
    with Connections(own_queue, CLIENTS) as callers:
        workers = Workers(callers, limit=8, jobs=scaled(3, 30), seed=seed)
        workers.run()
    assert workers.served > CLIENTS
    assert workers.killed > 0
    # The head of the queue needs at most 3 units. At some time fewer than 3 were free.
    assert workers.most_held > workers.limit - 3
    poll.until(lambda: own_queue.is_empty, "nobody waits")
    assert not own_queue.client.exists("k")
