"""Clients, each in a thread, that concurrently charge keys of every kind and count the replies.

A load lasts as long as its `with` block, or until its server dies; its duration is bounded.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from typing import Self

from redis import ConnectionError as RedisConnectionError
from redis import Redis, ResponseError

from support import poll
from support.clock import Clock
from support.server import Server
from support.workload import HOUR, LIMITERS, Limiter, Word, Workload

# Bounds of a load, for each client.
MAX_STEPS = 100_000
MAX_SECONDS = 120.0

# Pause between two steps of a client in seconds. Without it, clients would use entire processors
# while a replica reconnects, which a Valkey replica tries once a second.
PAUSE = 0.002

# Limit above any load, and no higher than the number of leases that a key may have.
ENDLESS = 100_000


def wide(limiter: Limiter, limit: int) -> Limiter:
    """Returns the limiter with another limit, under which usage does not recover during a test: a
    bucket is refilled as slowly as possible, by a unit in a few hours of the test clock.
    """
    words: dict[Word, Word] = {10: limit, "1h": "3650d"}
    spec = [words.get(word, word) for word in limiter.spec]
    if limiter.spec[0] in ("TOKENBUCKET", "LEAKYBUCKET"):
        spec[2] = -(-limit // 10)
    return limiter._replace(spec=tuple(spec))


def used(client: Redis, limiter: Limiter, key: Word, limit: int) -> int:
    """Returns the usage of the limit by the server's own count."""
    return limit - client.execute_command(*limiter.for_holder("onlooker").peek(key, 1))[2]


def total(counters: Iterable[Counter[str]]) -> Counter[str]:
    """Sums the counters of clients, which may be counting concurrently."""
    return sum((counter.copy() for counter in counters), Counter())


class Load:
    """Threads that take steps while they get replies. A subclass defines a step."""

    def __init__(self, clients: int = 4) -> None:
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._steps = [0] * clients
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(clients)
        ]

    @property
    def steps(self) -> int:
        return sum(self._steps)

    @property
    def is_over(self) -> bool:
        """`True` if all clients have ended."""
        return not any(thread.is_alive() for thread in self._threads)

    def wait_for(self, steps: int, timeout: float = poll.TIMEOUT) -> None:
        """Waits until a number of further steps were taken. Raises if that is impossible."""
        target = self.steps + steps

        def is_reached() -> bool:
            self.check()
            return self.steps >= target

        poll.until(is_reached, f"{steps} steps under load", timeout)

    def check(self) -> None:
        """Raises an unexpected error of a client."""
        for error in self._errors:
            raise error

    def join(self) -> None:
        """Waits until all clients have ended by themselves, because their server died."""
        for thread in self._threads:
            thread.join()
        self.check()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def _run(self, number: int) -> None:
        deadline = time.monotonic() + MAX_SECONDS
        try:
            take_step = self.step(number)
            while self._steps[number] < MAX_STEPS and time.monotonic() < deadline:
                if self._over.is_set() or not take_step():
                    return
                self._steps[number] += 1
                time.sleep(PAUSE)  # pace of the load, not a wait
        except Exception as error:  # raised in the thread of the test
            self._errors.append(error)

    def step(self, number: int) -> Callable[[], bool]:
        """Returns a function that takes a step of a client. It returns `False` when the client is
        done.
        """
        raise NotImplementedError


ENDLESS_LIMITERS = [wide(limiter, ENDLESS) for limiter in LIMITERS]
# Limiters of the keys of `Charging`. Each kind has a key that is charged alone, and a key that is
# charged together with the keys of all other kinds.
CHARGED = {
    f"{scope} {limiter.name}": limiter for scope in ("alone", "all") for limiter in ENDLESS_LIMITERS
}


class Mixed(Load):
    """Calls of every command with every option, mostly on nearly exhausted keys, while the clock
    advances. The result depends on their order, so only a server that executed all of them in order
    has the same bytes.
    """

    def __init__(self, server: Server, clock: Clock, seed: int = 0, clients: int = 4) -> None:
        super().__init__(clients)
        self._server, self._clock, self._seed = server, clock, seed

    def step(self, number: int) -> Callable[[], bool]:
        client = self._server.client()
        workload = Workload(self._seed * 100 + number).steps(MAX_STEPS)

        def take_step() -> bool:
            step = next(workload)
            # The clock is not moved by hours, after which most usage would have expired.
            if number == 0 and abs(step.move) < HOUR:
                self._clock.advance(step.move)
            client.execute_command(*step.command)
            return True

        return take_step


class Charging(Load):
    """Charges of single units to limits that are never reached, some by a call for one key, some by
    an RL.MTAKE of all kinds. Counts sent and answered calls: the server must have charged each
    answered call, and may have charged each sent call. Ends when the server dies.
    """

    def __init__(self, server: Server, clock: Clock, clients: int = 4, tick: int | str = 1) -> None:
        """Creates the load. The clock moves by a tick after each step of the first client."""
        super().__init__(clients)
        self._server, self._clock, self._tick = server, clock, tick
        self._lost: list[BaseException] = []
        self._sent = [Counter() for _ in range(clients)]
        self._answered = [Counter() for _ in range(clients)]

    @property
    def sent(self) -> Counter[str]:
        return total(self._sent)

    @property
    def answered(self) -> Counter[str]:
        return total(self._answered)

    @staticmethod
    def used(client: Redis) -> Counter[str]:
        """Returns the usage of each key on the server. Each RL.MTAKE must be charged entirely or
        not at all.
        """
        usage = Counter(
            {key: used(client, limiter, key, ENDLESS) for key, limiter in CHARGED.items()}
        )
        by_mtake = {usage[key] for key in CHARGED if key.startswith("all ")}
        assert len(by_mtake) == 1, f"an RL.MTAKE was charged on some of its keys only: {usage}"
        return usage

    def check(self) -> None:
        super().check()
        # Only a server that the test has killed may leave a call without a reply.
        if self._server.is_running:
            for error in self._lost:
                raise error

    def step(self, number: int) -> Callable[[], bool]:
        client = self._server.client()
        # Holders unique to this client and load: each lease is one more unit.
        holder = f"{random.randrange(2**60)}"
        numbers = count()
        sent, answered = self._sent[number], self._answered[number]

        def charge(keys: Iterable[str], call: tuple[Word, ...]) -> bool:
            sent.update(keys)
            try:
                reply = client.execute_command(*call)
            except RedisConnectionError as error:
                self._lost.append(error)
                return False
            assert reply[0] == 1, (call, reply)
            answered.update(keys)
            return True

        def take_step() -> bool:
            if number == 0:
                self._clock.advance(self._tick)
            step = next(numbers)
            limiters = [limiter.for_holder(f"{holder} {step}") for limiter in ENDLESS_LIMITERS]
            if step % len(limiters) == 0:
                keys = [f"all {limiter.name}" for limiter in limiters]
                specs = [word for limiter in limiters for word in limiter.words(1)]
                return charge(keys, ("RL.MTAKE", len(keys), *keys, *specs))
            limiter = limiters[(step + number) % len(limiters)]
            return charge([f"alone {limiter.name}"], limiter.take(f"alone {limiter.name}", 1))

        return take_step


class Hammering(Load):
    """Clients that exhaust limits with single units, first on one primary and, after it is lost, on
    its successor, until the successor denies the calls.

    After every few calls they WAIT for a replica. Units are counted by kind: `kept`, granted by the
    primary and acknowledged by a replica; `unacknowledged`, granted and not acknowledged;
    `unanswered`, of which the client does not know if they were granted; and `after`, granted by
    the successor. At least half of each limit is left for the successor.
    """

    def __init__(
        self,
        limit: int,
        before: Callable[[], Redis],
        after: Callable[[], Redis],
        seed: int = 0,
        clients: int = 4,
    ) -> None:
        super().__init__(clients)
        self.limit, self.clients, self._seed = limit, clients, seed
        self.limiters = [wide(limiter, limit) for limiter in LIMITERS]
        self._before, self._after = before, after
        self._kept = [Counter() for _ in range(clients)]
        self._unacknowledged = [Counter() for _ in range(clients)]
        self._unanswered = [Counter() for _ in range(clients)]
        self._granted_after = [Counter() for _ in range(clients)]

    @property
    def kept(self) -> Counter[str]:
        return total(self._kept)

    @property
    def unacknowledged(self) -> Counter[str]:
        return total(self._unacknowledged)

    @property
    def unanswered(self) -> Counter[str]:
        return total(self._unanswered)

    @property
    def after(self) -> Counter[str]:
        return total(self._granted_after)

    def used(self, client: Redis) -> Counter[str]:
        return Counter(
            {
                limiter.name: used(client, limiter, limiter.name, self.limit)
                for limiter in self.limiters
            }
        )

    def step(self, number: int) -> Callable[[], bool]:
        choose = random.Random(self._seed * 100 + number)
        holders = (f"{number} {holder}" for holder in count())
        kept, pending = self._kept[number], self._unacknowledged[number]
        unanswered, after = self._unanswered[number], self._granted_after[number]
        client = self._before()
        lost = False
        denied = Counter()

        def take(limiter: Limiter) -> bool:
            call = limiter.for_holder(next(holders)).take(limiter.name)
            return bool(client.execute_command(*call)[0])

        def call_primary() -> bool:
            """Sends a few calls, and a WAIT for a replica."""
            nonlocal client, lost
            limiter = None
            try:
                for limiter in choose.choices(self.limiters, k=choose.randint(1, 5)):
                    if (self.kept + self.unacknowledged)[limiter.name] >= self.limit // 2:
                        continue
                    unanswered[limiter.name] += 1
                    granted = take(limiter)
                    unanswered[limiter.name] -= 1
                    pending[limiter.name] += granted
                client.execute_command("WAIT", 1, 0)
            except (RedisConnectionError, ResponseError) as error:
                # The primary is gone. Or it was demoted, which unblocks WAIT and rejects calls
                # without charging them.
                if str(error).startswith("You can't write against a read only replica"):
                    unanswered[limiter.name] -= 1
                elif isinstance(error, ResponseError) and not str(error).startswith("UNBLOCKED"):
                    raise
                client, lost = self._after(), True
            else:
                kept.update(pending)
                pending.clear()
            return True

        def call_successor() -> bool:
            """Sends a call to the successor, of a kind that it has not denied three times."""
            limiter = choose.choice(
                [limiter for limiter in self.limiters if denied[limiter.name] < 3]
            )
            if take(limiter):
                after[limiter.name] += 1
            else:
                denied[limiter.name] += 1
            return any(denied[limiter.name] < 3 for limiter in self.limiters)

        return lambda: call_successor() if lost else call_primary()
