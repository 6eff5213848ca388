"""Costs of four approaches to a decision with 1 to 256 clients, and the requests they grant."""

from dataclasses import dataclass

from bench import load
from bench.calls import Script
from bench.pairs import Pair, alternate
from bench.scale import Scale
from bench.servers import MeasuredServer, serving
from bench.wire import ReplyError
from support.binaries import Binary

OURS = "RL.TOKENBUCKET"
# Approaches in the order of the page, with their names in benches/load.
APPROACHES = {
    OURS: "native",
    "Lua (EVALSHA)": "script",
    "three plain commands": "plain",
    "WATCH/MULTI/EXEC": "watch",
}
CLIENTS = [1, 16, 64, 256]
SCRIPT = Script.read("token_bucket")


@dataclass(frozen=True)
class Bucket:
    """Token bucket, with its refill per second."""

    capacity: int
    refill: int


# Bucket that is larger than the number of requests, so that all of them are admitted.
PLENTY = Bucket(1_000_000, 1_000_000)

# Bucket that denies most requests.
TIGHT = Bucket(10, 10)
SECONDS = 3
# Long enough to request the unit that is due after 3 seconds, but not the next unit.
TIGHT_SECONDS = SECONDS + 0.05
TIGHT_CLIENTS = 64


@dataclass(frozen=True)
class Decisions:
    """Costs of a decision on one key, by approach and number of clients."""

    # Server processor time compared with RL.TOKENBUCKET, which has no pair of its own.
    pairs: dict[tuple[str, int], Pair]
    # Redis calls per decision.
    calls: dict[tuple[str, int], float]
    # Requests that each approach granted from a tight bucket.
    granted: dict[str, int]


def measure(binary: Binary, scale: Scale) -> Decisions:
    pairs: dict[tuple[str, int], Pair] = {}
    calls: dict[tuple[str, int], float] = {}
    with serving(binary) as server:
        load.pin(server)
        server.admin.execute_command(*SCRIPT.load)
        for clients in CLIENTS:

            def run(approach: str, clients: int = clients) -> float:
                result = _run(server, approach, clients, scale.seconds, PLENTY)
                if result["granted"] < result["decisions"]:
                    raise ReplyError(f"{approach} denied a request below the limit")
                calls[approach, clients] = result["commands"] / result["decisions"]
                return result["server_seconds"] / result["decisions"] * 1e9

            runs = {name: lambda name=name: run(name) for name in APPROACHES if name != OURS}
            result = alternate(lambda: run(OURS), runs, scale.rounds)
            pairs |= {(name, clients): pair for name, pair in result.items()}
        return Decisions(pairs, calls, {name: _granted(server, name) for name in APPROACHES})


def _run(
    server: MeasuredServer, approach: str, clients: int, seconds: float, bucket: Bucket
) -> dict[str, float]:
    server.admin.flushall()
    words = (APPROACHES[approach], bucket.capacity, bucket.refill, SCRIPT.sha)
    return load.run(server, server.port, clients, seconds, *words)


def _granted(server: MeasuredServer, approach: str) -> int:
    result = _run(server, approach, TIGHT_CLIENTS, TIGHT_SECONDS, TIGHT)
    return round(result["granted"])
