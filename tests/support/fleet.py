"""Simulated fleet of a hundred workers that share one upstream. The upstream rejects requests
beyond its capacity, which is halved for a while. Each worker asks the policy before it calls the
upstream, and reports the result to the policy.

The clock advances by 5 ms from worker to worker: 75 simulated seconds take a few real ones, and the
results are deterministic.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redis import Redis

WORKERS = 100
# Each worker sends a request every half second.
PAUSE_US = 500_000
# Time in which the upstream responds. About fifty requests are in flight.
LATENCY_US = 500_000
# Seconds at which the simulation ends, and the capacity is halved and restored.
END, HALF_FROM, HALF_UNTIL = 75, 15, 40
# Capacity of the upstream in requests a second, and its burst.
CAPACITY, BURST = 100, 10
POLICY, KEY = "upstream", "{upstream}:all"
SPECS = f"TOKENBUCKET 5 {CAPACITY} 1s"
SECOND = 1_000_000

# Reports of a worker after a rejected and an accepted request. At the least scale of 0.2, the
# bucket of 5 units still holds the unit that a call takes.
BRAKE = "MUL 0.8 MIN 0.2 EVERY 1s FOR 30s"
PUSH = "ADD 0.02 EVERY 1s FOR 30s"
# Reports by the title of the run.
RUNS = {
    "nobody brakes": ("", ""),
    "each refusal brakes": ("MUL 0.8 MIN 0.2 FOR 30s", PUSH),
    "one brake a second (EVERY 1s)": (BRAKE, PUSH),
}


def capacity(at_us: int) -> int:
    """Returns the upstream's capacity in requests a second."""
    is_half = HALF_FROM * SECOND <= at_us < HALF_UNTIL * SECOND
    return CAPACITY // 2 if is_half else CAPACITY


class Upstream:
    """Upstream that rejects requests for which its bucket has no room."""

    def __init__(self) -> None:
        # In millionths of a request.
        self._room, self._at_us = BURST * SECOND, 0

    def answers(self, at_us: int) -> bool:
        refilled = (at_us - self._at_us) * capacity(at_us)
        self._room, self._at_us = min(BURST * SECOND, self._room + refilled), at_us
        if self._room < SECOND:
            return False
        self._room -= SECOND
        return True


@dataclass
class Tally:
    """Results of a second, and the scale at its end."""

    at: int
    answered: int = 0
    refused: int = 0
    scale: float = 1.0


def simulate(
    caller: Redis, nodes: Sequence[Redis], move_to: Callable[[int], None], *, title: str
) -> list[Tally]:
    """Returns the results of each second. Each worker reports to its own node; `move_to` sets the
    clock to a number of microseconds after the start.
    """
    brake, push = (
        ["RL.POLICYSCALE", POLICY, *words.split()] if words else None for words in RUNS[title]
    )
    nodes[0].execute_command("RL.POLICYSET", POLICY, *SPECS.split())
    upstream, tallies = Upstream(), [Tally(second) for second in range(END)]
    # Reports in flight, each with its time, the command, and the node.
    reports: deque[tuple[int, list[str], Redis]] = deque()
    scale = 1.0
    for number in range(END * SECOND // PAUSE_US * WORKERS):
        at_us = number * PAUSE_US // WORKERS
        move_to(at_us)
        tally, node = tallies[at_us // SECOND], nodes[number % WORKERS % len(nodes)]
        while reports and reports[0][0] <= at_us:
            _, call, reporting_node = reports.popleft()
            scale = float(reporting_node.execute_command(*call)[1])
        tally.scale = scale
        if caller.execute_command("RL.DELAY", KEY, POLICY) == 0:
            is_answered = upstream.answers(at_us)
            tally.answered += is_answered
            tally.refused += not is_answered
            step = push if is_answered else brake
            if step is not None:
                reports.append((at_us + LATENCY_US, step, node))
    return tallies
