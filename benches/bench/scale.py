"""Scales of the measurements: full, or quick for a test of the harness."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    name: str
    # Number of rounds, and their length. Every time in the results is the median of the rounds.
    rounds: int
    seconds: float
    # Number of servers. Every number of instructions in the results is the lowest of the servers.
    servers: int
    # Number of keys for the measurement of memory per key.
    keys: int
    # Sizes for the measurement of growth.
    table_sizes: tuple[int, ...]
    key_counts: tuple[int, ...]


FULL = Scale(
    name="full",
    rounds=5,
    seconds=0.3,
    servers=5,
    keys=1_000_000,
    table_sizes=(1, 1_000, 100_000),
    key_counts=(1, 1_000_000, 10_000_000),
)
QUICK = Scale(
    name="quick",
    rounds=1,
    seconds=0.05,
    servers=1,
    keys=10_000,
    table_sizes=(1, 100),
    key_counts=(1, 10_000),
)
