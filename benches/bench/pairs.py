"""Times compared with those of a reference, which runs before and after each."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass

# Maximum spread of rounds as a multiple of their median. Beyond it, they are measured again,
# because other programs were running.
MAX_SPREAD = 0.3
# Tolerated difference of the medians, even if the rounds are closer.
MIN_SPREAD = 0.05
TRIES = 3

# Runs something, and returns its processor time in nanoseconds.
Run = Callable[[], float]


@dataclass(frozen=True)
class Pair:
    """Time as a multiple of the runs of a reference next to it: median, least and most."""

    ns: float
    reference_ns: float
    ratio: float
    least: float
    most: float

    @classmethod
    def of(cls, own: Sequence[float], around: Sequence[float]) -> "Pair":
        ratios = [time / reference for time, reference in zip(own, around, strict=True)]
        medians = map(statistics.median, (own, around, ratios))
        return cls(*medians, min(ratios), max(ratios))

    @property
    def is_noise(self) -> bool:
        """Returns `True` if the rounds, or the medians and the rounds, contradict each other."""
        spread = self.most - self.least
        difference = abs(self.ns / self.reference_ns - self.ratio)
        return spread > MAX_SPREAD * self.ratio or difference > max(spread, MIN_SPREAD * self.ratio)

    def __str__(self) -> str:
        digits = 2 if self.ratio < 100 else 0
        ratio, least, most = (f"{each:,.{digits}f}" for each in (self.ratio, self.least, self.most))
        return f"{ratio} ({least}-{most})"


def alternate(reference: Run, runs: Mapping[str, Run], rounds: int) -> dict[str, Pair]:
    """Returns the pairs by the name of each run. Noisy ones are measured again."""
    found = _rounds(reference, runs, rounds)
    for _ in range(TRIES):
        noisy = {name: runs[name] for name, pair in found.items() if pair.is_noise}
        if not noisy:
            break
        found |= _rounds(reference, noisy, rounds)
    return found


def _rounds(reference: Run, runs: Mapping[str, Run], rounds: int) -> dict[str, Pair]:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        before = reference()
        for name, run in runs.items():
            own = run()
            after = reference()
            times[name].append((own, (before + after) / 2))
            before = after
    return {name: Pair.of(*zip(*each, strict=True)) for name, each in times.items()}


def noise(value: object, name: str = "") -> Iterator[str]:
    """Returns a line for each pair within a section, however deep, that is noise."""
    if isinstance(value, Pair):
        if value.is_noise:
            yield f"{name}: {value}, medians {value.ns / value.reference_ns:.2f}"
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from noise(each, f"{name} {key}")
    elif is_dataclass(value):
        for field in fields(value):
            yield from noise(getattr(value, field.name), f"{name} {field.name}")
