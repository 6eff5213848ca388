"""Clients that keep a cluster busy, and count granted units."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import count

from redis import ConnectionError as RedisConnectionError
from redis import RedisCluster
from redis import TimeoutError as RedisTimeoutError
from redis.exceptions import AskError, ClusterError, SlotNotCoveredError, TryAgainError

from support import poll
from support.cluster import Cluster, slot_of
from support.load import Load
from support.workload import Limiter, Word

# Errors of calls that were not executed, and of calls that may have been executed.
NOT_EXECUTED = (AskError, TryAgainError, ClusterError, SlotNotCoveredError)
UNANSWERED = (RedisConnectionError, RedisTimeoutError)


class Taking(Load):
    """Clients with separate entry nodes that take single units: mostly of one key, sometimes of
    several keys in one slot by RL.MTAKE.

    Counts units by key: `admitted`; `kept`, which are admitted and acknowledged by a replica, only
    with `asks_replicas`; and `unanswered`, which may have been charged. A call without a reply
    fails the test unless `may_lose` is set.
    """

    def __init__(
        self,
        cluster: Cluster,
        limiters: Mapping[str, Limiter],
        *,
        clients: int = 4,
        steps: int | None = None,
        may_lose: bool = False,
        asks_replicas: bool = False,
    ) -> None:
        super().__init__(clients)
        self._cluster, self._limiters = cluster, dict(limiters)
        self._max_steps = steps
        self._opened = ExitStack()
        self._may_lose, self._asks_replicas = may_lose, asks_replicas
        self._neighbours = {
            key: [other for other in limiters if slot_of(other) == slot_of(key)] for key in limiters
        }
        self._counts = {
            outcome: [Counter() for _ in range(clients)]
            for outcome in ("admitted", "kept", "unanswered")
        }

    def __exit__(self, *problem: object) -> None:
        with self._opened:
            super().__exit__(*problem)

    @property
    def admitted(self) -> Counter[str]:
        return self._sum("admitted")

    @property
    def kept(self) -> Counter[str]:
        return self._sum("kept")

    @property
    def unanswered(self) -> Counter[str]:
        return self._sum("unanswered")

    def _sum(self, outcome: str) -> Counter[str]:
        return sum((counter.copy() for counter in self._counts[outcome]), Counter())

    def step(self, number: int) -> Callable[[], bool]:
        servers = self._cluster.servers
        client = self._cluster.client(servers[number % len(servers)])
        self._opened.callback(client.close)
        choose = random.Random(number)
        # Holders unique to this client and load: each lease is one more unit.
        holder = f"{random.randrange(2**60)}"
        names = list(self._limiters)
        numbers = count()
        admitted, kept, unanswered = (counters[number] for counters in self._counts.values())

        def take_step() -> bool:
            step = next(numbers)
            if step == self._max_steps:
                return False
            key = choose.choice(names)
            neighbours = self._neighbours[key]
            is_mtake = len(neighbours) > 2 and choose.random() < 0.1
            keys = choose.sample(neighbours, 3) if is_mtake else [key]
            limiters = [self._limiters[key].for_holder(f"{holder} {step}") for key in keys]
            call = limiters[0].take(keys[0])
            if is_mtake:
                specs = [word for limiter in limiters for word in limiter.words()]
                call = ("RL.MTAKE", 3, *keys, *specs)
            try:
                was_admitted, was_kept = self._ask(client, keys[0], call)
            except UNANSWERED:
                if not self._may_lose:
                    raise
                unanswered.update(keys)
            except NOT_EXECUTED:
                pass
            else:
                admitted.update(keys * was_admitted)
                kept.update(keys * was_kept)
                return True
            # A peek charges nothing, so it may be repeated; it also updates the client's layout.
            peek = limiters[0].peek(keys[0])
            poll.until(lambda: _is_answered(client, peek), f"{peek} is answered", timeout=120)
            return True

        return take_step

    def _ask(self, client: RedisCluster, key: str, call: tuple[Word, ...]) -> tuple[bool, bool]:
        """Sends a call. Returns if it was granted, and if a replica acknowledged it."""
        if not self._asks_replicas:
            return client.execute_command(*call)[0] == 1, False
        node = client.get_redis_connection(client.get_node_from_key(key))
        # WAIT applies only to the writes of the same connection.
        with node.pipeline(transaction=False) as pipeline:
            pipeline.execute_command(*call).execute_command("WAIT", 1, 200)
            reply, replicas = pipeline.execute(raise_on_error=False)
        if isinstance(reply, Exception):
            raise reply
        return reply[0] == 1, reply[0] == 1 and isinstance(replicas, int) and replicas >= 1


def _is_answered(client: RedisCluster, call: tuple[Word, ...]) -> bool:
    try:
        client.execute_command(*call)
    except (*NOT_EXECUTED, *UNANSWERED):
        return False
    return True
