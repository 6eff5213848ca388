"""How long a reply takes when requests come at a steady rate, whether replies are there or not."""

import statistics
from dataclasses import dataclass

from bench import load
from bench.calls import ADMITTED, LUA_BUCKET, SET_EX, prepare
from bench.scale import Scale
from bench.servers import serving
from support.binaries import Binary

CALLS = [SET_EX, ADMITTED, LUA_BUCKET]
RATES = (5_000, 10_000, 20_000, 40_000)
PARTS = ("p50_ms", "p99_ms", "p999_ms")


@dataclass(frozen=True)
class OpenLoop:
    """In milliseconds, by the call's name, the rate, and what part of all requests is faster."""

    latencies: dict[tuple[str, int, str], float]


def measure(binary: Binary, scale: Scale) -> OpenLoop:
    rounds: dict[tuple[str, int, str], list[float]] = {}
    with serving(binary) as server:
        load.pin(server)
        for call in CALLS:
            prepare(server, call)
        for _ in range(scale.rounds):
            for rate in RATES:
                for call in CALLS:
                    words = ("open", server.port, load.CONNECTIONS, rate, scale.open_seconds)
                    found = load.run(server, *words, call.lines, request=call.encoded)
                    for part in PARTS:
                        rounds.setdefault((call.name, rate, part), []).append(found[part])
    return OpenLoop({which: statistics.median(found) for which, found in rounds.items()})
