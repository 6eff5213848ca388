"""Simulates processes that take units of one limit in batches, and writes docs/units.md.

bench/fleet.py describes the simulation, and the law and the bound of every such algorithm. No
server is started, and no time is measured.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from math import expm1
from pathlib import Path
from random import Random
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / "clients/python/src"), str(REPOSITORY / "tests")]

from redis_ratelimit import batching  # noqa: E402

from bench import fleet_chart, pages  # noqa: E402
from bench.fleet import SKEW, WARM_UP, Figures, Fleet, run  # noqa: E402

# Ratios of demand to limit in the chart.
RATIOS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
CHARTED = (Fleet(100, 10_000, 0, seconds=8), Fleet(1000, 1000, 0, seconds=16))


class Target(NamedTuple):
    description: str
    is_met: Callable[[Figures], bool]


class Case(NamedTuple):
    name: str
    fleet: Fleet
    target: Target | None = None


def admits(least: float) -> Target:
    return Target(f"admits {least}", lambda figures: least <= figures.admitted <= 1)


BELOW = Target(
    "10 calls, 99.5% without waiting",
    lambda figures: figures.calls_per_thousand <= 10 and figures.without_waiting >= 0.995,
)
ABOVE = Target(
    "45 calls, p99 5 ms, admits 0.98",
    lambda figures: (
        figures.calls_per_thousand_granted <= 45
        and figures.p99_ms < 5
        and 0.98 <= figures.admitted <= 1
    ),
)
CASES = [
    Case("half of the limit", Fleet(100, 100_000, 50_000, seconds=6), BELOW),
    Case(
        "half, 50 ms away",
        Fleet(100, 100_000, 50_000, round_trip=0.05, seconds=6),
        Target("p99 0 ms", lambda figures: figures.p99_ms == 0),
    ),
    Case("0.9 of the limit", Fleet(100, 10_000, 9000)),
    Case("2 times the limit", Fleet(100, 10_000, 20_000), ABOVE),
    Case("10 times the limit", Fleet(100, 10_000, 100_000, seconds=8), ABOVE),
    Case("2 times, `peers=100`", Fleet(100, 10_000, 20_000, tells_peers=True)),
    Case("2 times, 50 ms away", Fleet(100, 10_000, 20_000, round_trip=0.05)),
    Case("0.9, skewed", Fleet(100, 10_000, 9000, skewed=True), admits(0.95)),
    Case("2 times, skewed", Fleet(100, 10_000, 20_000, skewed=True), admits(0.95)),
    Case("0.9, bursty", Fleet(100, 10_000, 9000, bursty=True), admits(0.95)),
    Case("2 times, bursty", Fleet(100, 10_000, 20_000, bursty=True), admits(0.95)),
    Case("half of a small limit", Fleet(1000, 1000, 500, seconds=20), admits(0.98)),
    Case("0.9 of a small limit", Fleet(1000, 1000, 900, seconds=20), admits(0.98)),
    Case("2 times a small limit", Fleet(1000, 1000, 2000, seconds=20)),
]
HEADS = (
    "demand | processes: | limit a second: | calls a thousand: | a thousand granted: "
    "| without waiting: | p99 (ms): | admitted: | target"
)
# Alternatives to the seconds that a batch lasts at the limit in the packages.
ALTERNATIVES = (0.05, 0.1, 0.2)

# A very large site: decisions per second, processes, keys, and the exponent of their Zipf law.
DECISIONS, PROCESSES, KEYS, EXPONENT = 5_000_000, 1000, 1_000_000, 1.0
# Processes of the site that are simulated.
SIMULATED = 50
SHARDS = 16


def main() -> None:
    results = {}
    for case in CASES:
        results[case.name] = figures = run(case.fleet)
        print(f"{case.name}: {' | '.join(cells(case, figures)[3:])}", flush=True)
    alternatives = [[f"{lasts * 1000:g} ms", calls_with(lasts)] for lasts in ALTERNATIVES]
    print(alternatives, flush=True)
    lines = {fleet: [run(fleet_at(fleet, ratio), seed=2) for ratio in RATIOS] for fleet in CHARTED}
    fleet_chart.draw(REPOSITORY / "docs/charts/units.svg", RATIOS, lines)
    page = pages.text(
        "units",
        table=pages.table(HEADS, [cells(case, results[case.name]) for case in CASES]),
        warm=f"{WARM_UP:g}",
        skew=f"{SKEW:g}",
        late=sum(figures.overdrawn for figures in results.values()),
        others=", ".join(
            f"{calls} a thousand granted with {lasts}" for lasts, calls in alternatives
        ),
        least=f"{Fleet(100, 10_000, 0, tells_peers=True).least_calls:.0f}",
        lasts=f"{batching.LASTS_AT_LIMIT * 1000:g} ms",
        constants=constants(),
        **site(),
    )
    (REPOSITORY / "docs/units.md").write_text(page)
    missed = [case.name for case in CASES if not is_met(case, results[case.name])]
    print(f"written: docs/units.md, docs/charts/units.svg; targets missed: {missed or 'none'}")


def is_met(case: Case, figures: Figures) -> bool:
    return case.target is None or case.target.is_met(figures)


def cells(case: Case, figures: Figures) -> list[str]:
    fleet, target = case.fleet, case.target
    target_cell = (
        ""
        if target is None
        else f"{target.description}: {'met' if is_met(case, figures) else 'missed'}"
    )
    return [
        case.name,
        f"{fleet.processes:,}",
        f"{fleet.limit:,}",
        pages.number(figures.calls_per_thousand),
        pages.number(figures.calls_per_thousand_granted),
        f"{figures.without_waiting:.1%}",
        f"{figures.p99_ms:.1f}",
        f"{figures.admitted:.3f}",
        target_cell,
    ]


def fleet_at(fleet: Fleet, ratio: float) -> Fleet:
    return replace(fleet, demand=ratio * fleet.limit)


def calls_with(seconds: float) -> str:
    """Returns the calls per thousand granted units at twice the limit, by the length of a batch."""
    original, batching.LASTS_AT_LIMIT = batching.LASTS_AT_LIMIT, seconds
    try:
        figures = run(Fleet(100, 10_000, 20_000))
    finally:
        batching.LASTS_AT_LIMIT = original
    return pages.number(figures.calls_per_thousand_granted)


def constants() -> str:
    """Returns the table of the constants, as they are in the package for Python."""
    return pages.table(
        "constant | value:",
        [
            ["time constant of the rate", f"{batching.RATE_TIME:g} s"],
            ["a batch lasts, while half of the limit remains", f"{batching.LASTS:g} s"],
            ["a batch lasts, at the limit", f"{batching.LASTS_AT_LIMIT:g} s"],
            ["largest batch", f"{batching.SHARE:g} of the limit"],
            ["largest batch with `peers`", f"{batching.SHARE_OF_PEERS:g} of the limit / `peers`"],
            ["growth from one batch to the next", f"{batching.GROWTH}"],
            ["left of a batch when the next is requested", f"{batching.REST:.2g}"],
            ["or, if that is more, units for", f"{batching.ROUND_TRIPS} round trips"],
            ["weight of the latest round trip", f"{batching.SMOOTHING:g}"],
            ["pause, of `keep` or of the recovery", f"{batching.PAUSE:g}"],
            ["doublings of the pause", f"{batching.DOUBLINGS}"],
            ["random part of the pause", f"up to {batching.JITTER:g} of it"],
            ["longest pause, without its random part", f"{batching.LONGEST_PAUSE:g} s"],
        ],
    )


def site() -> dict[str, str]:
    """Computes the figures of the page's recipe for a very large site."""
    rate = DECISIONS / PROCESSES
    # Below the limit, a process behaves as if it was alone.
    figures = run(Fleet(SIMULATED, 2 * DECISIONS, rate * SIMULATED, seconds=4))
    above = run(
        Fleet(
            SIMULATED,
            int(rate * SIMULATED) // 2,
            rate * SIMULATED,
            seconds=12,
        )
    )
    weights = [rank**-EXPONENT for rank in range(1, KEYS + 1)]
    total = sum(weights)
    rates = [weight / total * DECISIONS for weight in weights]
    calls = DECISIONS * figures.calls_per_thousand / 1000
    return {
        "decisions": f"{DECISIONS:,}",
        "processes": f"{PROCESSES:,}",
        "simulated": f"{SIMULATED}",
        "keys": f"{KEYS:,}",
        "calls": f"{round(calls, -2):,.0f}",
        "p99": f"{figures.p99_ms:.1f}",
        "above": f"{round(DECISIONS * above.calls_per_thousand / 1000, -2):,.0f}",
        "above_p99": f"{above.p99_ms:.1f}",
        "above_admitted": f"{above.admitted:.3f}",
        "local": f"{1 - figures.calls_per_thousand / 1000:.2%}",
        "anywhere": f"{local_share(rates, PROCESSES):.0%}",
        "affine": f"{local_share(rates, 1):.0%}",
        "shards": f"{SHARDS}",
        "shard_calls": f"{round(calls / SHARDS, -1):,.0f}",
        "hashed": f"{admitted_by_shards(hashed=True):.3f}",
        "numbered": f"{admitted_by_shards(hashed=False):.3f}",
        "skewed_shards": f"{admitted_by_shards(hashed=False, skewed=True):.3f}",
    }


def local_share(rates: list[float], processes: int) -> float:
    """Returns the largest share of decisions without a call, if each key is decided by
    `processes` processes. A process needs a call for its first decision on a key in each second.
    """
    calls = sum(-expm1(-rate / processes) * processes for rate in rates)
    return 1 - calls / sum(rates)


def admitted_by_shards(*, hashed: bool, skewed: bool = False) -> float:
    """Returns the admitted share of a demand of 0.9 of a limit, which is divided among shards. A
    process uses one shard: by a hash of its name if `hashed`, otherwise by its number.
    """
    rng = Random(1)
    demands = [0.0] * SHARDS
    shares = [rank**-SKEW if skewed else 1.0 for rank in range(1, PROCESSES + 1)]
    for number, share in enumerate(shares):
        demands[rng.randrange(SHARDS) if hashed else number % SHARDS] += share
    limit = sum(shares) / 0.9 / SHARDS
    return sum(min(demand, limit) for demand in demands) / sum(shares)


if __name__ == "__main__":
    main()
