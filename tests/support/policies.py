"""Policies of servers: changed at random, under load, and compared."""

import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple

from redis import ConnectionError as RedisConnectionError
from redis import Redis

from support.clock import Clock
from support.load import Load
from support.server import Server
from support.workload import Word

# Names and specs of policies: names are any bytes, and a policy may have several limits.
NAMES: tuple[bytes, ...] = (
    *(b"plan:%d" % number for number in range(12)),
    b"\x00\xff\r\n$3\r\n",
    b"12",
    b"x" * 256,
)
SPECS: tuple[tuple[Word, ...], ...] = (
    ("TOKENBUCKET", 60, 60, "1m"),
    ("FIXED", 1000, "1d", "COST", "0.5"),
    ("FIXED", 7, "1mo", "ALIGNED", "ANCHOR", 15),
    ("FIXED", 1000, "1h", "AS", "tokens", "FORCE"),
    ("TOKENBUCKET", 10, "0.5", "1s", "AS", "burst", "SLIDING", 100, "1h", "STRICT", "SHADOW"),
    ("SLIDINGLOG", 5, "1h", "CONCURRENCY", 3, "30s", "BAN", 5, "1m", "1h"),
)


class Policy(NamedTuple):
    """State of a policy, without the counts of calls, which differ between servers."""

    version: int
    set_at: int
    scale: bytes
    scale_ms: int
    specs: bytes


def policy(client: Redis, name: Word) -> Policy | None:
    reply = client.execute_command("RL.POLICYGET", name)
    if reply is None:
        return None
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    return Policy(*(fields[field.encode()] for field in Policy._fields))


def policies(client: Redis) -> dict[bytes, Policy]:
    """Returns all policies of a server by name."""
    found = {}
    for name, *listed in client.execute_command("RL.POLICYLIST"):
        one = found[name] = policy(client, name)
        assert one is not None
        assert listed == [one.version, one.specs, one.scale, one.scale_ms]
    return found


def shared_state(client: Redis) -> tuple[object, dict[bytes, tuple[int, int, bytes]]]:
    """Returns the policy state that servers share even if their clocks differ: the digest, which
    covers the entire records, and the fields that do not depend on the clock.
    """
    digest = client.info("ratelimit")["ratelimit_policies_digest"]
    stored = {name: (one.version, one.set_at, one.specs) for name, one in policies(client).items()}
    return digest, stored


def counts(client: Redis, name: Word) -> dict[bytes, int]:
    reply = client.execute_command("RL.POLICYGET", name)
    fields = dict(zip(reply[::2], reply[1::2], strict=True))[b"counts"]
    return dict(zip(fields[::2], fields[1::2], strict=True))


def record(name: bytes, set_at: int, specs: str = "FIXED 5 1h", created_at: int = 0) -> bytes:
    """Encodes the record of a policy that was never scaled. `set_at` is in microseconds."""
    heading = b"rl-policy 1 %d:%s" % (len(name), name)
    return heading + f" {set_at} 0 {created_at} 0 1 1 {len(specs)}:{specs} 0 0 1000000 0".encode()


def knows_deletion(client: Redis, name: bytes) -> bool:
    """Returns `True` if a server remembers the deletion of a policy, and so ignores older
    records.
    """
    assert policy(client, name) is None
    client.execute_command("RL.POLICYEFFECT", record(name, 1))
    return policy(client, name) is None


def set_policy(client: Redis, name: Word, *words: Word) -> int:
    return client.execute_command("RL.POLICYSET", name, *(words or SPECS[0]))


def random_changes(seed: int, length: int) -> Iterable[tuple[Word, ...]]:
    """Yields `length` random changes of policies for a seed. Changes of missing policies are
    rejected.
    """
    rng = random.Random(seed)
    for _ in range(length):
        name = rng.choice(NAMES)
        match rng.randrange(8):
            case 0:
                yield ("RL.POLICYDEL", name, rng.choice(NAMES))
            case 1 | 2:
                factor = rng.choice(("0", "0.25", "1", "3.5", "1000"))
                duration = rng.choice(((), ("FOR", "10m"), ("FOR", "2s"), ("FOR", "3650d")))
                yield ("RL.POLICYSCALE", name, factor, *duration)
            case _:
                yield ("RL.POLICYSET", name, *rng.choice(SPECS))


def change_policies(clock: Clock, seed: int, length: int, *clients: Redis) -> None:
    """Makes the same changes on each of the servers, at the same times."""
    for call in random_changes(seed, length):
        clock.advance("1500ms")
        answers = [_answer(client, call) for client in clients]
        assert all(answer == answers[0] for answer in answers), call


def _answer(client: Redis, call: tuple[Word, ...]) -> object:
    (reply,) = client.pipeline(transaction=False).execute_command(*call).execute(False)
    if isinstance(reply, Exception):
        assert str(reply).startswith("NOPOLICY"), reply
        return str(reply)
    return reply


class ChangingPolicies(Load):
    """Clients that set, scale and delete policies until the server dies. Each client has policies
    of its own, so that it knows their state.
    """

    POLICIES_PER_CLIENT = 6

    def __init__(self, server: Server, clock: Clock, tag: int = 0, clients: int = 4) -> None:
        super().__init__(clients)
        self._server, self._clock, self._tag = server, clock, b"%d:" % tag
        # Specs and scale by name, after the last answered change and after the last sent change.
        self._answered: dict[bytes, tuple[bytes, bytes] | None] = {}
        self._sent: dict[bytes, tuple[bytes, bytes] | None] = {}

    def step(self, number: int) -> Callable[[], bool]:
        client, rng, numbers = self._server.client(), random.Random(number), count(1)

        def take_step() -> bool:
            if number == 0:
                self._clock.advance("10ms")
            name = self._tag + b"%d:%d" % (number, rng.randrange(self.POLICIES_PER_CLIENT))
            call, new_state = self._change(rng, name, next(numbers))
            self._sent[name] = new_state
            try:
                client.execute_command(*call)
            except RedisConnectionError:
                return False
            self._answered[name] = new_state
            return True

        return take_step

    def _change(
        self, rng: random.Random, name: bytes, number: int
    ) -> tuple[tuple[Word, ...], tuple[bytes, bytes] | None]:
        """Returns a random change of a policy, and the specs and scale that result from it."""
        before = self._answered.get(name)
        match rng.randrange(6) if before else 5:
            case 0:
                return ("RL.POLICYDEL", name), None
            case 1 | 2:
                factor = b"%d" % (1 + number % 1000)
                return ("RL.POLICYSCALE", name, factor), (before[0], factor)
            case _:
                specs = b"FIXED %d 1m" % number
                scale = before[1] if before else b"1"
                return ("RL.POLICYSET", name, *specs.split()), (specs, scale)

    def assert_kept(self, client: Redis) -> None:
        """Asserts that each policy has the state after its last answered change, or after a change
        that was sent later.
        """
        stored = {
            name: (one.specs, one.scale)
            for name, one in policies(client).items()
            if name.startswith(self._tag)
        }
        assert stored
        assert stored.keys() <= self._sent.keys()
        for name, sent in self._sent.items():
            assert stored.get(name) in (self._answered.get(name), sent), name
