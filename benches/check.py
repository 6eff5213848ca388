"""Compares the instructions of every call with the budgets in benches/budgets.toml, as ratios to a
reference call.

It fails if a call is above its budget, or if the mean of its counts, which includes rare work such
as growing a hash table, is a twentieth above it. After a change that makes calls cheaper, --update
writes the lower budgets.
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
    lines = [
        f"{'':33}{'instructions':>13}{'ratio':>8}{'mean':>8}{'budget':>8}{'goal':>7}  reference"
    ]
    for verdict in verdicts:
        budget = verdict.budget
        goal = "" if budget.goal is None else f"{budget.goal:.2f}"
        lines.append(
            f"{budget.call:33}{counts[budget.call].least:13,.0f}{verdict.ratio:8.3f}"
            f"{verdict.mean_ratio:8.3f}{budget.at_most:8.3f}{goal:>7}  {budget.reference}"
            + ("" if verdict.is_kept else "  ABOVE ITS BUDGET")
        )
    return "\n".join(lines)


# Servers on which every call is measured at first. How a server's hash tables are filled can only
# add instructions, so a call above its budget is measured on more servers before it fails.
FIRST_SERVERS = 2
# Additional servers for a reference call, because a count that is too high would make the ratios of
# other calls too low.
EXTRA_SERVERS_FOR_REFERENCES = 1
REPEATED_ROUNDS = 3


def verdicts_of(budget_list: list[Budget], counts: dict[str, Count]) -> list[Verdict]:
    lowest = {name: count.least for name, count in counts.items()}
    means = {name: count.mean for name, count in counts.items()}
    return budgets.compare(budget_list, lowest, means)


def measure(binary: Binary, budget_list: list[Budget], servers: int) -> dict[str, Count]:
    """Returns the instructions per call."""
    counts: dict[str, Count] = {}

    def add_counts(names: set[str], servers: int) -> None:
        calls = [call for call in ALL if call.name in names]
        for name, count in valgrind.counts(binary, calls, servers).items():
            counts[name] = count.lower(counts.get(name, count))

    references = {budget.reference for budget in budget_list}
    add_counts({budget.call for budget in budget_list} | references, servers)
    add_counts(references, EXTRA_SERVERS_FOR_REFERENCES)
    for _ in range(REPEATED_ROUNDS):
        above = {
            verdict.budget.call
            for verdict in verdicts_of(budget_list, counts)
            if not verdict.is_kept
        }
        if not above:
            break
        add_counts(above, valgrind.SERVERS)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--update", action="store_true", help="write the measured ratios as budgets"
    )
    update = parser.parse_args().update
    file_budgets, binary = budgets.load(), binaries.chosen()
    if not valgrind.is_installed():
        print("not checked: valgrind is not installed")
        return 1 if os.environ.get("CI") == "true" else 0
    if release(binary) != file_budgets.server:
        print(f"not checked: the budgets are for {file_budgets.server}, this is {binary.name}")
        return 0
    counts = measure(binary, file_budgets.budgets, valgrind.SERVERS if update else FIRST_SERVERS)
    verdicts = verdicts_of(file_budgets.budgets, counts)
    print(table(verdicts, counts))
    if update:
        budgets.FILE.write_text(budgets.updated_text(budgets.FILE.read_text(), verdicts))
        return 0
    return 0 if budgets.are_kept(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
