"""Writes clients/units.json: decisions on batches of units, which are the same in all packages.

python scripts/make_unit_traces.py
"""

import json
import random
from pathlib import Path

from redis_ratelimit.batching import Batching, Reply

TABLE = Path(__file__).parents[2] / "units.json"
ABOUT = {
    "options": "keep, batch and peers",
    "steps": "each is a time in seconds, a call of the batching, its arguments, and its result",
    "take": "the cost of a take: spent or asked, with the units in hand, or denied, with the wait",
    "spend": "the cost of a take that waited: the units in hand",
    "due": "true if the next batch is requested although there are units in hand",
    "wanted": "the cost of the waiting take: the units to request",
    "received": "a reply, requested units, time of the request, random number: the units in hand",
    "failed": "a request without a reply",
    "expired": "the settled grants: id and spent units",
}
# Name, options, limit, units recovered per second, takes per second, and seconds of a round trip.
CASES = [
    ("half of the limit", {"peers": 4}, 1000, 1000, 500, 0.0005),
    ("twice the limit", {"peers": 4}, 400, 400, 800, 0.0005),
    ("small limit", {}, 10, 1, 4, 0.01),
    ("far server", {"peers": 2}, 2000, 2000, 300, 0.05),
    ("small batch", {"batch": 7}, 10_000, 10_000, 200, 0.002),
    ("short keep", {"keep": 0.2, "peers": 1}, 500, 50, 100, 0.005),
    ("long keep", {"keep": 600, "peers": 1}, 20, 0.01, 50, 0.001),
    ("exhausted limit", {"peers": 1}, 60, 0.001, 100, 0.001),
]
STEPS = 160


def simulate_steps(
    options: dict[str, float], numbers: tuple[float, ...], seed: int
) -> list[list[object]]:
    limit, recovery, rate, round_trip = numbers
    rng = random.Random(seed)
    keep, batch, peers = (options.get(name) for name in ("keep", "batch", "peers"))
    batching = Batching(
        1.0 if keep is None else keep,
        None if batch is None else int(batch),
        None if peers is None else int(peers),
    )
    now, used, used_at = 100.0, 0.0, 100.0
    steps: list[list[object]] = []

    def step(name: str, *arguments: object) -> None:
        steps.append([now, name, *arguments])

    while len(steps) < STEPS:
        pause = rng.random() < 0.02
        now = round(now + (1.3 if pause else rng.expovariate(rate)), 6)
        cost = rng.choice([1, 1, 1, 1, 1, 1, 2, 3])
        batching.record_demand(cost, now)
        waiting = 0
        if batching.spend(cost, now):
            step("take", cost, "spent", batching.in_hand(now))
        elif batching.denies(cost, now):
            wait = batching.wait(cost, now)
            step("take", cost, "denied", None if wait is None else round(wait, 6))
        else:
            waiting = cost
            step("take", cost, "asked", batching.in_hand(now))
        if batching.has_expired:
            step("expired", [[str(grant.id), grant.spent] for grant in batching.take_expired()])
        is_due = batching.is_due(now)
        step("due", is_due)
        if not waiting and not is_due:
            continue
        requested = batching.plan_request(waiting, now)
        step("wanted", waiting, requested)
        sent_at, now = now, round(now + round_trip * rng.uniform(0.8, 1.5), 6)
        if rng.random() < 0.05:
            batching.record_failure(now)
            step("failed")
            continue
        used, used_at = max(used - (now - used_at) * recovery, 0.0), now
        granted = min(int(limit - used), requested)
        used += granted
        wait = 0.0 if granted else round((1 - (limit - used)) / recovery, 3)
        reply = Reply(
            f"id{len(steps)}",
            granted,
            int(limit),
            int(limit - used),
            wait,
            round(used / recovery, 3),
        )
        jitter = round(rng.random(), 3)
        batching.record_reply(reply, requested, sent_at, now, jitter)
        arguments = (reply.id, granted, reply.limit, reply.remaining, wait, reply.reset)
        step("received", *arguments, requested, sent_at, jitter, batching.in_hand(now))
        if waiting and batching.spend(waiting, now):
            step("spend", waiting, batching.in_hand(now))
    return steps


def table_text() -> str:
    """Returns the table, with one step per line."""
    cases = []
    for seed, (name, options, *numbers) in enumerate(CASES):
        steps = ",\n   ".join(
            json.dumps(step, separators=(",", ":"))
            for step in simulate_steps(options, tuple(numbers), seed)
        )
        cases.append(
            f'  {{"name": {json.dumps(name)}, "options": {json.dumps(options)}, "steps": [\n'
            f"   {steps}\n  ]}}"
        )
    cases_text = ",\n".join(cases)
    return f'{{\n "about": {json.dumps(ABOUT)},\n "cases": [\n{cases_text}\n ]\n}}\n'


if __name__ == "__main__":
    TABLE.write_text(table_text())
