"""How much is measured: all, or little and soon, to see that the harness works."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    name: str
    # Every time is the median of so many rounds, each so long.
    rounds: int
    seconds: float
    # Instructions are the lowest count of so many servers.
    servers: int
    # For memory a key.
    keys: int
    # For growth.
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
