"""The instructions of every call, as multiples, against the budgets in benches/budgets.toml.

It fails if one is above its budget, or if what it does now and then comes to a twentieth more. A
change that makes calls cheaper brings its new budgets along: --update writes them.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench import budgets, valgrind
from bench.budgets import Budget, Verdict
from bench.calls import ALL
from bench.servers import release
from bench.valgrind import Count
from support import binaries
from support.binaries import Binary


def table(verdicts: list[Verdict], counts: dict[str, Count]) -> str:
    lines = [f"{'':33}{'instructions':>13}{'ratio':>8}{'mean':>8}{'budget':>8}{'goal':>7}  to"]
    for verdict in verdicts:
        budget = verdict.budget
        goal = "" if budget.goal is None else f"{budget.goal:.2f}"
        lines.append(
            f"{budget.call:33}{counts[budget.call].least:13,.0f}{verdict.ratio:8.3f}"
            f"{verdict.mean_ratio:8.3f}{budget.at_most:8.3f}{goal:>7}  {budget.to}"
            + ("" if verdict.is_kept else "  ABOVE ITS BUDGET")
        )
    return "\n".join(lines)


# Servers for a call, as long as it keeps its budget. What a server's hash tables add is noise, and
# only ever more: a call that is above is measured on more of them before it is said to be.
FEW = 2
# And how many more for a call that others are compared with: were its count too high, their ratios
# would be too low.
MORE_IF_COMPARED_WITH = 1
ROUNDS_OF_MORE = 3


def verdicts_of(wanted: list[Budget], counts: dict[str, Count]) -> list[Verdict]:
    leasts = {name: count.least for name, count in counts.items()}
    means = {name: count.mean for name, count in counts.items()}
    return budgets.compare(wanted, leasts, means)


def measure(binary: Binary, wanted: list[Budget], servers: int) -> dict[str, Count]:
    """Instructions a call."""
    counts: dict[str, Count] = {}

    def measure_also(names: set[str], servers: int) -> None:
        calls = [call for call in ALL if call.name in names]
        for name, count in valgrind.counts(binary, calls, servers).items():
            counts[name] = count.lower(counts.get(name, count))

    compared_with = {budget.to for budget in wanted}
    measure_also({budget.call for budget in wanted} | compared_with, servers)
    measure_also(compared_with, MORE_IF_COMPARED_WITH)
    for _ in range(ROUNDS_OF_MORE):
        again = {each.budget.call for each in verdicts_of(wanted, counts) if not each.is_kept}
        if not again:
            break
        measure_also(again, valgrind.SERVERS)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="write what is measured as budgets")
    update = parser.parse_args().update
    wanted, binary = budgets.load(), binaries.chosen()
    if not valgrind.is_there():
        print("not checked: valgrind is not installed")
        return 1 if os.environ.get("CI") == "true" else 0
    if release(binary) != wanted.server:
        print(f"not checked: the budgets are for {wanted.server}, this is {binary.name}")
        return 0
    counts = measure(binary, wanted.budgets, valgrind.SERVERS if update else FEW)
    verdicts = verdicts_of(wanted.budgets, counts)
    print(table(verdicts, counts))
    if update:
        budgets.FILE.write_text(budgets.updated(budgets.FILE.read_text(), verdicts))
        return 0
    return 0 if budgets.are_kept(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
