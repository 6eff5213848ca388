"""Traces of random calls, with fixed seeds."""

from collections.abc import Generator
from random import Random
from typing import Any

from support.clock import UNITS_US

# Generator of a trace: yields the movement of the clock and the next call, and receives the reply.
Calls = Generator[tuple[int, str], Any]

STEPS = 32

SECOND, MINUTE, DAY = UNITS_US["s"], UNITS_US["m"], UNITS_US["d"]

# For each algorithm: its approximate time of recovery in microseconds, and specs of one component.
KINDS = {
    "token bucket": (
        4 * SECOND,
        ["TOKENBUCKET 10 3 1s", "TOKENBUCKET 6 3 1s", "TOKENBUCKET 10 7 1.5s"],
    ),
    "token bucket of fractions": (
        20 * SECOND,
        ["TOKENBUCKET 2.5 0.333333 7s", "TOKENBUCKET 3 0.1 333us", "TOKENBUCKET 0.75 7e-6 11us"],
    ),
    "large token bucket": (
        1000 * DAY,
        ["TOKENBUCKET 1e12 999999999999.999999 3650d", "TOKENBUCKET 999999999999 7 1us"],
    ),
    "leaky bucket": (
        3 * SECOND,
        ["LEAKYBUCKET 5 2 1s", "LEAKYBUCKET 4 3 1s", "LEAKYBUCKET 5 0.7 3s"],
    ),
    "fixed window": (
        10 * SECOND,
        ["FIXED 10 10s", "FIXED 8.5 10s", "FIXED 10 25s"],
    ),
    "aligned window": (
        40 * SECOND,
        ["FIXED 10 1m ALIGNED", "FIXED 10 7s ALIGNED", "FIXED 9 1m ALIGNED OFFSET +09:30"],
    ),
    "day": (
        DAY,
        ["FIXED 10 1d ALIGNED OFFSET -03:30", "FIXED 10 1d ALIGNED", "FIXED 9 1w ALIGNED"],
    ),
    "month": (
        45 * DAY,
        ["FIXED 10 1mo ALIGNED ANCHOR 31", "FIXED 10 3mo ALIGNED OFFSET +14:00 ANCHOR 15"],
    ),
    "year": (
        200 * DAY,
        ["FIXED 10 1y ALIGNED", "FIXED 10 3mo ALIGNED", "FIXED 10 1y ALIGNED OFFSET -14:00"],
    ),
    "sliding window": (
        12 * SECOND,
        ["SLIDING 10 10s", "SLIDING 12.5 10s", "SLIDING 10 7s"],
    ),
    "large sliding window": (
        2000 * DAY,
        ["SLIDING 1e12 3650d", "SLIDING 999999999999.5 3649d"],
    ),
    "strict window": (
        MINUTE,
        ["SLIDING 10 1m STRICT", "SLIDING 10.25 1m STRICT", "SLIDING 10 50s STRICT"],
    ),
    "short strict window": (
        60,
        ["SLIDING 10 7us STRICT", "SLIDING 10 100us STRICT"],
    ),
    "sliding log": (
        10 * SECOND,
        ["SLIDINGLOG 10 10s", "SLIDINGLOG 7.5 10s", "SLIDINGLOG 10 4s"],
    ),
}

SMALL = ["1", "1", "1", "2", "3", "0.5", "2.000001", "1.0000001", "4", "7", "11"]
LARGE = ["1", "999999999999", "500000000000", "333333333333.333333"]


def random_traces() -> Generator[tuple[str, Calls]]:
    for name, (time, specs) in KINDS.items():
        yield name, _options(Random(name), specs, time)
        yield f"{name}, settled", _settled(Random(f"{name}, settled"), specs, time)
    for seed in range(5):
        yield f"several limits {seed}", _several_limits(Random(f"limits {seed}"))
    for seed in range(4):
        yield f"several keys {seed}", _several_keys(Random(f"keys {seed}"))
    yield "leases", _leases(Random("leases"))
    yield "leases beside limits", _leases_beside(Random("beside"))
    yield "clock set back", _set_back(Random("back"))


def _random_line(random: Random, templates: str, **values: object) -> str:
    """Fills in a random line of the templates. The number before a line is its weight."""
    lines: list[str] = []
    for line in templates.strip().splitlines():
        weight, _, text = line.partition("|")
        lines += [text] * int(weight)
    return " ".join(random.choice(lines).format(**values).split())


def _pause(random: Random, time: int, reply: Any) -> int:
    """Returns a random pause in microseconds: none, a part of the recovery time, or the wait or
    reset of the last reply.
    """
    pauses = [0, 0, 0, 1, 999, time // 20, time // 7, time // 3, time, time * 2 + 1]
    if isinstance(reply, list) and len(reply) >= 5 and all(isinstance(item, int) for item in reply):
        wait, reset = reply[3] * 1000, reply[4] * 1000
        pauses += [us for us in (wait, wait - 1000, reset, reset - 1000) if 0 < us < 10**16]
    return random.choice(pauses)


def _cost(random: Random, spec: str) -> str:
    is_large = "e12" in spec or "999999999999" in spec
    return random.choice(LARGE if is_large else SMALL)


def _id(random: Random, step: int) -> str:
    """Returns the id of a recent call, or a new id."""
    return f"i{random.randrange(max(0, step // 3 - 2), step // 3 + 1)}"


def _options(random: Random, specs: list[str], time: int) -> Calls:
    """Calls with every option, on a key of one limit. The numbers of the limit sometimes change."""
    reply: Any = None
    spec = specs[0]
    for _ in range(STEPS * 2):
        if random.random() < 0.12:
            spec = random.choice(specs)
        cost = _cost(random, spec)
        options = """
            3 |
            3 | COST {cost}
            1 | COST 0
            1 | COST -{cost}
            1 | COST {whole} UPTO
            1 | COST {cost} FORCE
            1 | COST {cost} KEEP {keep}
            1 | COST 0 KEEP {keep}
            1 | COST 5 UPTO KEEP {keep}
        """
        if spec.startswith("TOKENBUCKET"):
            options = options.strip() + "\n 3 | COST {cost} MAXWAIT {maxwait}"
        chosen = _random_line(
            random,
            options,
            cost=cost,
            whole=int(float(cost)) or 1,
            keep=random.choice(["1", "2.5", "20%", "33.3333%", "100%", "50"]),
            maxwait=random.choice(["0", "500ms", "2s", "1d"]),
        )
        command = random.choice(["RL.TAKE"] * 4 + ["RL.PEEK"])
        call = " ".join(f"{command} k {chosen} {spec}".split())
        if random.random() < 0.02:
            call = "DEL k"
        reply = yield _pause(random, time, reply), call


def _settled(random: Random, specs: list[str], time: int) -> Calls:
    """Calls with ids that are repeated and settled, among calls without ids."""
    reply: Any = None
    spec = specs[0]
    for step in range(STEPS):
        if random.random() < 0.08:
            spec = random.choice(specs)
        cost = _cost(random, spec)
        options = _random_line(
            random,
            """
            3 | COST {cost} ONCE {id} {ttl}
            1 | COST {cost} FORCE ONCE {id} {ttl}
            1 | COST {whole} UPTO ONCE {id} {ttl}
            1 | SETTLE {id} 0
            1 | SETTLE {id} 0.5
            1 | SETTLE {id} {cost}
            1 | SETTLE {id} 12
            1 | SETTLE {id} 1 EACH
            2 | COST {cost}
            1 | COST -{cost}
            """,
            cost=cost,
            whole=int(float(cost)) or 1,
            id=_id(random, step),
            ttl=random.choice(["5m", "1000d", f"{time}us"]),
        )
        reply = yield _pause(random, time, reply), f"RL.TAKE k {options} {spec}"


SETS_OF_LIMITS = [
    "TOKENBUCKET 10 10 1s FIXED 30 10s",
    "TOKENBUCKET 20 60 1m COST 1 AS requests TOKENBUCKET 40 40 1m AS tokens",
    "FIXED 5 3s AS burst FIXED 20 1m ALIGNED SLIDING 15 20s",
    "SLIDINGLOG 8 5s SLIDING 20 30s STRICT LEAKYBUCKET 9 4 2s AS queue",
    "SLIDING 10 5s AS sliding FIXED 30 1h COST 2 FORCE FIXED 12 9s",
    "SLIDING 10 5s AS sliding KEEP 2 FIXED 12 9s",
    "FIXED 30 10s",
    "TOKENBUCKET 10 10 1s AS requests",
]


def _several_limits(random: Random) -> Calls:
    """Calls on one key, each with one of several sets of limits."""
    reply: Any = None
    for step in range(STEPS):
        call = _random_line(
            random,
            """
            1 | RL.TAKE k
            2 | RL.TAKE k COST {cost}
            1 | RL.TAKE k COST {cost} EACH
            1 | RL.TAKE k COST 0 EACH
            1 | RL.TAKE k COST -{cost} EACH
            1 | RL.TAKE k COST 4 UPTO ONCE {id} 1m EACH
            1 | RL.TAKE k COST 9 UPTO
            1 | RL.TAKE k COST {cost} ONCE {id} 30s
            1 | RL.TAKE k COST {cost} MAXWAIT 2s EACH
            1 | RL.TAKE k COST {cost} KEEP 25%
            1 | RL.TAKE k COST 3 KEEP 2 EACH
            1 | RL.TAKE k COST {cost} FORCE ONCE {id} 1m EACH
            1 | RL.TAKE k SETTLE {id} {cost} EACH
            1 | RL.TAKE k SETTLE {id} 0
            1 | RL.PEEK k COST {cost} EACH
            1 | RL.PEEK k COST {cost} FORCE EACH
            1 | RL.PEEK k COST 9 UPTO ONCE {id} 1m
            """,
            cost=random.choice(["1", "2", "3", "0.25", "6"]),
            id=_id(random, step),
        )
        reply = yield _pause(random, 4 * SECOND, reply), f"{call} {random.choice(SETS_OF_LIMITS)}"


SPECS_OF_KEYS = {
    "a": ["FIXED 5 10s", "FIXED 5 10s COST 2", "FIXED 6 20s"],
    "b": ["TOKENBUCKET 10 2 1s", "TOKENBUCKET 10 2 1s AS named", "TOKENBUCKET 8 3 1s COST 1"],
    "c": ["SLIDING 12 15s", "SLIDING 12 15s KEEP 1", "SLIDING 12 15s FORCE"],
    "d": ["LEAKYBUCKET 5 1 1s", "LEAKYBUCKET 5 1 1s COST 0.5"],
    "e": ["CONCURRENCY 2 20s h1", "CONCURRENCY 2 20s h2", "CONCURRENCY 2 20s h3 NX"],
}


def _several_keys(random: Random) -> Calls:
    """Calls with a limit on each of several keys."""
    reply: Any = None
    for step in range(STEPS):
        keys = random.sample(sorted(SPECS_OF_KEYS), random.randrange(1, 4))
        specs = [random.choice(SPECS_OF_KEYS[key]) for key in keys]
        call = _random_line(
            random,
            """
            2 | RL.MTAKE {keys} {specs}
            2 | RL.MTAKE {keys} COST {cost} {specs}
            1 | RL.MTAKE {keys} COST {cost} FORCE {specs}
            1 | RL.MTAKE {keys} COST {cost} MAXWAIT 1s {specs}
            1 | RL.MTAKE {keys} COST 0 {specs}
            1 | RL.MTAKE {keys} COST -{cost} {specs}
            3 | RL.MTAKE {keys} COST {cost} ONCE {id} 1m {specs}
            2 | RL.MTAKE {keys} SETTLE {id} {cost} {specs}
            1 | RL.MTAKE {keys} COST {cost} KEEP 30% {specs}
            1 | RL.MPEEK {keys} COST {cost} ONCE {id} 1m {specs}
            1 | RL.MPEEK {keys} COST {cost} FORCE {specs}
            2 | RL.TAKE {key} {spec}
            """,
            keys=f"{len(keys)} {' '.join(keys)}",
            specs=" ".join(specs),
            key=keys[0],
            spec=specs[0],
            cost=random.choice(["1", "2", "0.5", "4"]),
            id=_id(random, step),
        )
        reply = yield _pause(random, 5 * SECOND, reply), call


def _leases(random: Random) -> Calls:
    """Acquires, renewals and releases of leases, with tokens."""
    reply: Any = None
    for _ in range(STEPS * 2):
        call = _random_line(
            random,
            """
            4 | RL.ACQUIRE k {limit} {holder} {options}
            2 | RL.ACQUIRE k {limit} {holder} {options} FENCE
            1 | RL.TAKE k CONCURRENCY {limit} {holder} {options}
            1 | RL.PEEK k CONCURRENCY {limit} {holder} {options}
            1 | RL.RELEASE k {holder}
            1 | RL.RELEASE k {holder} h1 h2
            1 | DEL k
            """,
            limit=random.choice(["3 10s", "3 10s", "2.5 25s"]),
            holder=f"h{random.randrange(6)}",
            options=_random_line(
                random,
                """
                3 |
                1 | COST 2
                1 | COST 0.5
                1 | NX
                1 | KEEP 1
                1 | COST 4
                1 | COST 1 KEEP 50%
                """,
            ),
        )
        reply = yield _pause(random, 4 * SECOND, reply), call


def _leases_beside(random: Random) -> Calls:
    """Leases in a key with other limits."""
    reply: Any = None
    for _ in range(STEPS):
        holder = f"h{random.randrange(4)}"
        call = _random_line(
            random,
            """
            1 | RL.TAKE k {lease} {bucket}
            1 | RL.TAKE k EACH COST 2 {lease} {bucket}
            1 | RL.TAKE k COST 0 EACH {lease} FIXED 9 5s
            1 | RL.TAKE k COST -1 EACH {lease} {bucket}
            1 | RL.TAKE k COST 3 UPTO EACH {lease} {bucket}
            1 | RL.TAKE k ONCE i{holder} 20s {lease} {bucket}
            1 | RL.TAKE k SETTLE i{holder} 0.5 {lease} {bucket}
            1 | RL.TAKE k {bucket}
            1 | RL.PEEK k EACH {lease} FIXED 9 5s
            1 | RL.ACQUIRE k 2 10s {holder} FENCE
            1 | RL.RELEASE k {holder}
            """,
            lease=f"CONCURRENCY 2 10s {holder} {random.choice(['', '', 'NX', 'COST 2'])}",
            bucket="TOKENBUCKET 6 2 1s",
            holder=holder,
        )
        reply = yield _pause(random, 3 * SECOND, reply), call


def _set_back(random: Random) -> Calls:
    """Calls with a clock that is sometimes set back."""
    specs = [specs[0] for _, specs in KINDS.values()]
    several = " ".join(
        KINDS[name][1][0]
        for name in (
            "token bucket",
            "fixed window",
            "sliding window",
            "strict window",
            "sliding log",
        )
    )
    for step in range(STEPS * 4):
        pause = random.choice([0, SECOND, 3 * SECOND, 20 * SECOND])
        if random.random() < 0.15:
            pause = -random.choice([1, SECOND, 8 * SECOND, MINUTE, DAY])
        index = random.randrange(len(specs))
        yield (
            pause,
            _random_line(
                random,
                """
                2 | RL.TAKE k{index} COST 3 {spec}
                1 | RL.PEEK k{index} COST 3 {spec}
                1 | RL.TAKE s COST 2 EACH {several}
                1 | RL.TAKE s COST 2 ONCE {id} 5m EACH {several}
                1 | RL.TAKE s SETTLE {id} 1 EACH {several}
                1 | RL.TAKE s COST -1 EACH {several}
                1 | RL.ACQUIRE l 3 30s h{holder}
                """,
                index=index,
                spec=specs[index],
                several=several,
                id=f"i{step // 12}",
                holder=random.randrange(5),
            ),
        )
