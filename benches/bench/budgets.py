"""The budgets: what a call may cost, as a multiple of what another one costs."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parents[1] / "budgets.toml"


@dataclass(frozen=True)
class Budget:
    """The instructions of `call` may be so many times those of `to`."""

    call: str
    to: str
    # Just above what was measured: more is a step back.
    at_most: float
    # What is wished for, where something is.
    goal: float | None = None
    # Why runs differ by more than those of other calls, where they do.
    varies: str = ""


@dataclass(frozen=True)
class Budgets:
    """For one version of the server, since the numbers beneath are the server's too."""

    server: str
    budgets: list[Budget]


@dataclass(frozen=True)
class Verdict:
    """A budget, and what was measured."""

    budget: Budget
    ratio: float
    # That of the means, in which there is what comes less than once in a stretch of calls.
    mean_ratio: float

    @property
    def is_kept(self) -> bool:
        return (
            self.ratio <= self.budget.at_most
            and self.mean_ratio <= self.budget.at_most * MEAN_MARGIN
        )

    @property
    def reaches_goal(self) -> bool:
        return self.budget.goal is None or self.ratio <= self.budget.goal


def parse(text: str) -> Budgets:
    found = tomllib.loads(text)
    return Budgets(found["server"], [Budget(**each) for each in found["budget"]])


def load() -> Budgets:
    return parse(FILE.read_text())


def compare(
    budgets: list[Budget],
    instructions: dict[str, float],
    means: dict[str, float] | None = None,
) -> list[Verdict]:
    """Of all that was measured; a call that was not is an error. Without means, the instructions
    stand for them.
    """
    means = means or instructions
    return [
        Verdict(
            budget,
            instructions[budget.call] / instructions[budget.to],
            means[budget.call] / means[budget.to],
        )
        for budget in budgets
    ]


def are_kept(verdicts: list[Verdict]) -> bool:
    return all(verdict.is_kept for verdict in verdicts)


# What the server does each second is in the means, of both calls alike but for chance.
MEAN_MARGIN = 1.05
# The lowest counts of two runs differ by 0.5 % at most.
MARGIN = 1.03
# Those of a call that `varies`, by 3 %.
WIDE_MARGIN = 1.06


def margin(budget: Budget) -> float:
    """What is allowed, as a multiple of what is measured."""
    return WIDE_MARGIN if budget.varies else MARGIN


def updated(text: str, verdicts: list[Verdict]) -> str:
    """The file with every budget set to a margin above what was measured."""
    ratios = iter(verdicts)

    def line(_: re.Match[str]) -> str:
        verdict = next(ratios)
        return f"at_most = {verdict.ratio * margin(verdict.budget):.3f}"

    return re.sub(r"^at_most = .*$", line, text, flags=re.MULTILINE)
