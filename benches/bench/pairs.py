"""Times compared with those of a reference, which runs before and after each measured run."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass

# Maximum spread of rounds as a multiple of their median. Rounds that differ more are measured
# again, because other programs were running.
MAX_SPREAD = 0.3
# Difference of the medians that is tolerated even if the rounds differ less.
MIN_SPREAD = 0.05
TRIES = 3

# Function that runs what is measured, and returns its processor time in nanoseconds.
Run = Callable[[], float]


@dataclass(frozen=True)
class Pair:
    """Time as a multiple of that of adjacent runs of a reference: median, least and most."""

    ns: float
    reference_ns: float
    ratio: float
    least: float
    most: float

    @classmethod
    def of(cls, times: Sequence[float], references: Sequence[float]) -> "Pair":
        ratios = [time / reference for time, reference in zip(times, references, strict=True)]
        medians = map(statistics.median, (times, references, ratios))
        return cls(*medians, min(ratios), max(ratios))

    @property
    def is_noisy(self) -> bool:
        """Returns `True` if the rounds, or the medians and the rounds, contradict each other."""
        spread = self.most - self.least
        difference = abs(self.ns / self.reference_ns - self.ratio)
        return spread > MAX_SPREAD * self.ratio or difference > max(spread, MIN_SPREAD * self.ratio)

    def __str__(self) -> str:
        digits = 2 if self.ratio < 100 else 0
        values = (self.ratio, self.least, self.most)
        ratio, least, most = (f"{value:,.{digits}f}" for value in values)
        return f"{ratio} ({least}-{most})"


def alternate(reference: Run, runs: Mapping[str, Run], rounds: int) -> dict[str, Pair]:
    """Returns the pair of each run by its name. Runs with noisy pairs are measured again."""
    pairs = _rounds(reference, runs, rounds)
    for _ in range(TRIES):
        noisy = {name: runs[name] for name, pair in pairs.items() if pair.is_noisy}
        if not noisy:
            break
        pairs |= _rounds(reference, noisy, rounds)
    return pairs


def _rounds(reference: Run, runs: Mapping[str, Run], rounds: int) -> dict[str, Pair]:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        before = reference()
        for name, run in runs.items():
            time = run()
            after = reference()
            times[name].append((time, (before + after) / 2))
            before = after
    return {name: Pair.of(*zip(*pairs, strict=True)) for name, pairs in times.items()}


def noise(value: object, name: str = "") -> Iterator[str]:
    """Yields a line for each noisy pair in the results of a section, at any depth."""
    if isinstance(value, Pair):
        if value.is_noisy:
            yield f"{name}: {value}, medians {value.ns / value.reference_ns:.2f}"
    elif isinstance(value, dict):
        for key, nested in value.items():
            yield from noise(nested, f"{name} {key}")
    elif is_dataclass(value):
        for field in fields(value):
            yield from noise(getattr(value, field.name), f"{name} {field.name}")
