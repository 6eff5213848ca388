"""Budgets: upper bounds of a call's cost, as multiples of the cost of another call."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parents[1] / "budgets.toml"


@dataclass(frozen=True)
class Budget:
    """Upper bound of the instructions of `call`, as a multiple of those of `reference`."""

    call: str
    reference: str
    # Largest ratio, just above the measured ratio: a larger ratio is a regression.
    at_most: float
    # Ratio to be reached; `None` without a goal.
    goal: float | None = None
    # Reason for which the counts of this call differ more between runs than those of other calls.
    varies: str = ""


@dataclass(frozen=True)
class Budgets:
    """Budgets for one version of the server, since a call includes instructions of the server."""

    server: str
    budgets: list[Budget]


@dataclass(frozen=True)
class Verdict:
    """Budget and the measured ratios."""

    budget: Budget
    ratio: float
    # Ratio of the means, which include work that is done less than once in a stretch of calls.
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
    document = tomllib.loads(text)
    return Budgets(document["server"], [Budget(**budget) for budget in document["budget"]])


def load() -> Budgets:
    return parse(FILE.read_text())


def compare(
    budgets: list[Budget],
    instructions: dict[str, float],
    means: dict[str, float] | None = None,
) -> list[Verdict]:
    """Returns the verdict on each budget. A call that was not measured is an error. Without means,
    the instructions are used in their place.
    """
    means = means or instructions
    return [
        Verdict(
            budget,
            instructions[budget.call] / instructions[budget.reference],
            means[budget.call] / means[budget.reference],
        )
        for budget in budgets
    ]


def are_kept(verdicts: list[Verdict]) -> bool:
    return all(verdict.is_kept for verdict in verdicts)


# The means include what the server does each second, which differs between calls by chance.
MEAN_MARGIN = 1.05
# The lowest counts of two runs differ by 0.5 % at most.
MARGIN = 1.03
# The lowest counts of a call whose budget has `varies` differ by 3 % at most.
WIDE_MARGIN = 1.06


def margin(budget: Budget) -> float:
    """Returns the allowed ratio as a multiple of the measured ratio."""
    return WIDE_MARGIN if budget.varies else MARGIN


def updated_text(text: str, verdicts: list[Verdict]) -> str:
    """Returns the file with every budget set to a margin above the measured ratio."""
    ratios = iter(verdicts)

    def budget_line(_: re.Match[str]) -> str:
        verdict = next(ratios)
        return f"at_most = {verdict.ratio * margin(verdict.budget):.3f}"

    return re.sub(r"^at_most = .*$", budget_line, text, flags=re.MULTILINE)
