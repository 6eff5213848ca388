"""Mixed workload on all types of the module, and the state of a server, for comparisons.

A seed determines the calls and the movements of the clock, so two servers with the same workload
must end with the same bytes.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pytest
from redis import Redis

from support.clock import UNITS_US, Clock
from support.scale import first_on_every_server
from support.server import Server

Word = str | int | bytes


class Limiter(NamedTuple):
    """Limiter with 10 units."""

    name: str
    type: bytes
    spec: tuple[Word, ...]
    # Microseconds after which a key has recovered.
    recovery: int

    @property
    def command(self) -> str:
        return "RL.ACQUIRE" if self.spec[0] == "CONCURRENCY" else f"RL.{self.spec[0]}"

    def take(self, key: Word, cost: Word = 1, *options: Word) -> tuple[Word, ...]:
        """Returns a call by the limiter's own command."""
        return (self.command, key, *self.spec[1:], "COST", cost, *options)

    def words(self, cost: Word = 1, *options: Word) -> tuple[Word, ...]:
        """Returns the arguments after the key in RL.TAKE and RL.PEEK."""
        return (*self.spec, "COST", cost, *options)

    def peek(self, key: Word, cost: Word = 1, *options: Word) -> tuple[Word, ...]:
        return ("RL.PEEK", key, *self.words(cost, *options))

    def give_back(self, key: Word, amount: Word = 1000) -> tuple[Word, ...]:
        """Returns a call that gives back units, or releases the entire lease."""
        if self.has_leases:
            return ("RL.RELEASE", key, self.spec[3])
        return self.take(key, f"-{amount}")

    @property
    def has_leases(self) -> bool:
        return self.type == b"rl-leases"

    def for_holder(self, holder: Word) -> "Limiter":
        """Returns the limiter for another holder, if it needs one."""
        return self._replace(spec=(*self.spec[:3], holder)) if self.has_leases else self


HOUR = UNITS_US["h"]
LIMITERS = [
    Limiter("TOKENBUCKET", b"rl-bucket", ("TOKENBUCKET", 10, 10, "1h"), HOUR),
    Limiter("LEAKYBUCKET", b"rl-bucket", ("LEAKYBUCKET", 10, 10, "1h"), HOUR),
    Limiter("FIXED", b"rl-window", ("FIXED", 10, "1h"), HOUR),
    Limiter("FIXED ALIGNED", b"rl-window", ("FIXED", 10, "1h", "ALIGNED"), HOUR),
    Limiter("SLIDING", b"rl-slider", ("SLIDING", 10, "1h"), 2 * HOUR),
    Limiter("SLIDING STRICT", b"rl-strict", ("SLIDING", 10, "1h", "STRICT"), HOUR + HOUR // 60),
    Limiter("SLIDINGLOG", b"rl-reqlog", ("SLIDINGLOG", 10, "1h"), HOUR),
    # Component of a composite key.
    Limiter("TOKENBUCKET AS", b"rl-limits", ("TOKENBUCKET", 10, 10, "1h", "AS", "part"), HOUR),
    Limiter("CONCURRENCY", b"rl-leases", ("CONCURRENCY", 10, "1h", "holder"), HOUR),
]

each_limiter = pytest.mark.parametrize(
    "limiter", LIMITERS, ids=[limiter.name for limiter in LIMITERS]
)
# For tests that take seconds for each limiter, if the server does the same for all limiters.
each_limiter_on_one_server = pytest.mark.parametrize(
    "limiter", first_on_every_server(LIMITERS), ids=[limiter.name for limiter in LIMITERS]
)


class Step(NamedTuple):
    """Movement of the clock in microseconds, and the call after it."""

    move: int
    command: tuple[Word, ...]


class Key(NamedTuple):
    """Tested key with a small limit, so that calls are allowed and denied."""

    name: str
    kind: str
    limit: str
    window: str


KINDS = ("bucket", "window", "slider", "strict", "reqlog", "leases", "limits")
LIMITS = ("3", "8.5", "25")
WINDOWS = ("2s", "30s", "1h")
HOLDERS: tuple[Word, ...] = ("a", "b", "42", "worker-7", b"\x00\xff binary", "x" * 256)
# Few, so that calls repeat and settle them.
IDS: tuple[Word, ...] = ("1", "request-2", b"\x00\xff\r\n", "y" * 256)

# Algorithm and flags of each kind, except leases.
ALGORITHMS = {
    "bucket": (("TOKENBUCKET",), ("LEAKYBUCKET",)),
    "window": (("FIXED",), ("FIXED", "ALIGNED")),
    "slider": (("SLIDING",),),
    "strict": (("SLIDING", "STRICT"),),
    "reqlog": (("SLIDINGLOG",),),
}


def keys(tag: str = "w") -> list[Key]:
    """Returns the keys of a workload. In a cluster, the hash tag places them in one slot."""
    return [
        Key(f"{{{tag}}}:{kind}:{number}", kind, limit, window)
        for kind in KINDS
        for number, (limit, window) in enumerate(zip(LIMITS, WINDOWS, strict=True))
    ]


def steps(seed: int, count: int, tag: str = "w") -> list[Step]:
    """Returns `count` random calls for a seed."""
    return list(Workload(seed, tag).steps(count))


def play(
    workload: Iterable[Step], clock: Clock, *clients: Redis, tag: str = "w"
) -> list[list[object]]:
    """Plays a workload to each client. Returns a list of replies for each client."""
    names = [key.name for key in keys(tag)]
    replies: list[list[object]] = [[] for _ in clients]
    for step in workload:
        clock.advance(step.move)
        for client, client_replies in zip(clients, replies, strict=True):
            pipeline = client.pipeline(transaction=False)
            if step.move > 0:
                # Access all keys, so that each server removes the expired ones. Otherwise, after
                # the clock is set back, a key could exist again on some of the servers only.
                pipeline.exists(*names)
            pipeline.execute_command(*step.command)
            client_replies.append(pipeline.execute()[-1])
    return replies


class Workload:
    """Generator of random calls."""

    def __init__(self, seed: int, tag: str = "w") -> None:
        self._random = random.Random(seed)
        self._keys = keys(tag)

    def steps(self, count: int) -> Iterator[Step]:
        for _ in range(count):
            yield Step(self._move(), tuple(self._command()))

    def _move(self) -> int:
        choose = self._random.randint
        moves = {
            0: 500,
            choose(1, 999): 100,
            choose(1, 900) * UNITS_US["ms"]: 250,
            choose(1, 20) * UNITS_US["s"]: 40,
            choose(1, 5) * UNITS_US["m"]: 5,
            2 * UNITS_US["h"]: 1,
            -choose(1, 999): 40,
            -choose(1, 4_000) * UNITS_US["ms"]: 40,
            -UNITS_US["h"]: 1,
        }
        return self._pick(list(moves), list(moves.values()))

    def _command(self) -> Sequence[Word]:
        key = self._pick(self._keys)
        if key.kind == "limits":
            return self._composite_call(key)
        forms = [self._own_command, self._generic_command, self._peek, self._call_on_several_keys]
        return self._pick(forms, [60, 15, 5, 20])(key)

    def _composite_call(self, key: Key) -> Sequence[Word]:
        """Returns a call on a composite key, which may create it."""
        if self._chance(0.04):
            return ["RL.BAN", key.name, self._pick(["2s", "1500ms", "0"])]
        if self._chance(0.08):
            return ["RL.RELEASE", key.name, *self._random.sample(HOLDERS, 2)]
        specs = self._random.sample(self._component_specs(key), self._random.randint(2, 4))
        options = self._composite_options(any(spec[0] == "TOKENBUCKET" for spec in specs))
        if self._chance(0.2):
            options = ["EACH", *options]
        words = [*options, *(word for spec in specs for word in spec)]
        if self._chance(0.1) and "SETTLE" not in options:
            return ["RL.PEEK", key.name, *words]
        if self._chance(0.1):
            words += ["BAN", "3", "10m", "5s", *self._pick([[], ["MAX", "1m"]])]
        return ["RL.TAKE", key.name, *words]

    def _component_specs(self, key: Key) -> list[list[Word]]:
        """Returns specs that may be combined. They are fewer than the components that a key may
        have.
        """
        limit, window = key.limit, key.window
        own_cost = self._pick([[], [], ["COST", "0.5"], ["COST", "0"]])
        lease = ["CONCURRENCY", limit, window, self._pick(HOLDERS), *self._pick([[], ["NX"]])]
        return [
            ["TOKENBUCKET", limit, self._pick([limit, "0.3"]), window],
            ["TOKENBUCKET", limit, "1", self._pick(WINDOWS), "AS", "named", *own_cost],
            ["LEAKYBUCKET", limit, limit, window, "AS", "queue"],
            ["FIXED", limit, window, *own_cost],
            ["FIXED", limit, self._pick(WINDOWS), "ALIGNED", "AS", "aligned"],
            ["FIXED", limit, "1w", "ALIGNED", "OFFSET", "+09:00"],
            ["SLIDING", limit, window],
            ["SLIDING", limit, window, "STRICT"],
            ["SLIDINGLOG", limit, self._pick([window, "1h"]), "AS", "log", *own_cost],
            lease,
        ]

    def _composite_options(self, has_token_bucket: bool) -> list[Word]:
        identifier = self._pick(IDS)
        once = ["ONCE", identifier, self._pick(["3s", "10m"])]
        options: dict[tuple[Word, ...], int] = {
            (): 20,
            ("COST", self._pick(["0", "0.5", "2"])): 10,
            ("COST", self._pick(["-0.5", "-3", "-1000000"])): 5,
            ("COST", self._pick(["1", "6", "40"]), "FORCE"): 5,
            ("COST", self._pick(["1", "5", "50"]), "UPTO", *once): 6,
            ("KEEP", self._pick(["1", "20%", "100%"])): 5,
            ("COST", self._pick(["0.5", "1", "3.25"]), *once): 25,
            ("COST", self._pick(["1", "6"]), "FORCE", *once): 4,
            ("SETTLE", identifier, self._pick(["0", "0.25", "1", "9"])): 25,
        }
        if has_token_bucket:
            options["MAXWAIT", self._pick(["0", "700ms", "10m"])] = 5
        return list(self._pick(list(options), list(options.values())))

    def _own_command(self, key: Key) -> Sequence[Word]:
        if key.kind == "leases":
            if self._chance(0.3):
                holders = self._random.sample(HOLDERS, self._random.randint(1, 3))
                return ["RL.RELEASE", key.name, *holders]
            return ["RL.ACQUIRE", key.name, *self._spec(key)[1:]]
        if key.kind == "bucket" and self._chance(0.25):
            numbers = self._pick([(2, 3, 2), (7, 8, 30), (24, 25, 3600)])
            return ["RL.THROTTLE", key.name, *numbers, *self._pick([(), (0,), (2,), (50,)])]
        algorithm, *arguments = self._spec(key)
        return [f"RL.{algorithm}", key.name, *arguments]

    def _generic_command(self, key: Key) -> Sequence[Word]:
        return ["RL.TAKE", key.name, *self._spec(key)]

    def _peek(self, key: Key) -> Sequence[Word]:
        return ["RL.PEEK", key.name, *self._spec(key)]

    def _call_on_several_keys(self, _: Key) -> Sequence[Word]:
        chosen = self._random.sample(self._keys, self._random.randint(1, 4))
        specs = [word for key in chosen for word in self._spec(key, alone=False)]
        names = [len(chosen), *(key.name for key in chosen)]
        if self._chance(0.1):
            return ["RL.MPEEK", *names, *specs]
        # An id converts charged keys to composite keys, so only some calls have an id.
        if all(key.kind == "limits" or key.window == "2s" for key in chosen) and self._chance(0.7):
            if self._chance(0.3) and not {"KEEP", "MAXWAIT"} & {*specs}:
                return ["RL.MTAKE", *names, "SETTLE", self._pick(IDS), "0.75", *specs]
            if not any(str(word).startswith("-") for word in specs):
                return ["RL.MTAKE", *names, "ONCE", self._pick(IDS), "3s", *specs]
        return ["RL.MTAKE", *names, *specs]

    def _spec(self, key: Key, alone: bool = True) -> Sequence[Word]:
        limit, window = key.limit, key.window
        if self._chance(0.15):
            limit = self._pick([*LIMITS, "0", "0.5"])
        if self._chance(0.1):
            window = self._pick([*WINDOWS, "7us"])
        if key.kind == "limits":
            return self._pick([spec for spec in self._component_specs(key) if "AS" in spec])
        if key.kind == "leases":
            cost = self._pick([[], ["COST", "2"], ["COST", "0.25"], ["COST", "9"], ["NX"]])
            return ["CONCURRENCY", limit, window, self._pick(HOLDERS), *cost]
        algorithm, *flags = self._pick(ALGORITHMS[key.kind])
        options = [flags, self._options(algorithm, alone)]
        self._random.shuffle(options)
        rate = []
        if key.kind == "bucket":
            rate = [self._pick([key.limit, "1", "0.3"])]
        if window == "2s" and self._chance(0.1):
            # A name converts the key to a composite key, which is plain again after it has
            # recovered.
            options[0] = [*options[0], "AS", "named"]
        return [algorithm, limit, *rate, window, *options[0], *options[1]]

    def _options(self, algorithm: str, alone: bool) -> Sequence[Word]:
        options = {
            (): 50,
            ("COST", self._pick(["0.5", "2", "3.25", "1e-06"])): 15,
            ("COST", "0"): 5,
            ("COST", self._pick(["-0.5", "-1", "-3"])): 9,
            # Gives back everything, which deletes the key.
            ("COST", "-1000000"): 3,
            ("COST", self._pick(["1", "6", "40"]), "FORCE"): 8,
            ("KEEP", self._pick(["1", "10%", "100%"])): 4,
        }
        if alone:
            options["COST", self._pick(["1", "5", "50"]), "UPTO"] = 8
        if algorithm == "TOKENBUCKET":
            options["MAXWAIT", self._pick(["0", "700ms", "10m"])] = 8
        return self._pick(list(options), list(options.values()))

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _pick(self, choices: Sequence, weights: Sequence[int] | None = None):
        return self._random.choices(choices, weights)[0]


class State(NamedTuple):
    """Value and expiry of a key on a server."""

    type: bytes
    dump: bytes
    # Milliseconds since the epoch, or -1 if it never expires.
    expires_at: int


def state(client: Redis) -> dict[bytes, State]:
    """Returns the state of every key in the client's database, with a frozen clock."""
    names = sorted(client.keys())
    seconds, microseconds = client.time()
    now = seconds * 1000 + microseconds // 1000
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.type(name).dump(name).pttl(name)
    answers = iter(pipeline.execute())
    found = {}
    # A key that has expired, but is still listed, has the type none.
    for name, kind, dump, ttl in zip(names, answers, answers, answers, strict=True):
        if kind != b"none":
            found[name] = State(kind, dump, ttl if ttl == -1 else now + ttl)
    return found


def digests(client: Redis, names: Iterable[bytes]) -> list[bytes]:
    """Returns DEBUG DIGEST-VALUE of each key."""
    return client.execute_command("DEBUG", "DIGEST-VALUE", *names)


def written_commands(server: Server) -> list[tuple[bytes, ...]]:
    """Returns the commands in the server's AOF since the last rewrite, without SELECT, and without
    MULTI and EXEC, in which Redis 6.2 wraps the effects of a module. With `appendfsync always` they
    include all answered calls.
    """
    text = server.aof_files()[-1].read_bytes()
    commands = []
    while text:
        count, text = _line(text, b"*")
        words = []
        for _ in range(count):
            length, text = _line(text, b"$")
            words.append(text[:length])
            text = text[length + 2 :]
        if words[0].upper() not in {b"SELECT", b"MULTI", b"EXEC"}:
            commands.append(tuple(words))
    return commands


def _line(text: bytes, sign: bytes) -> tuple[int, bytes]:
    line, text = text.split(b"\r\n", 1)
    if not line.startswith(sign):
        raise ValueError(f"not {sign!r}: {line!r}")
    return int(line[1:]), text
