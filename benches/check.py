"""Compares the instructions of every call, as multiples, with the budgets in benches/budgets.toml.

It fails if a call is above its budget, or if its mean with rare work is a twentieth above. A change
that makes calls cheaper also lowers their budgets: --update writes them.
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


# Servers for a call that keeps its budget. A server's hash tables can only add instructions, so a
# call above its budget is measured on more servers before it fails.
FEW = 2
# Additional servers for a reference call, because a count that is too high would make the ratios of
# others too low.
MORE_FOR_REFERENCES = 1
ROUNDS_OF_MORE = 3


def verdicts_of(wanted: list[Budget], counts: dict[str, Count]) -> list[Verdict]:
    leasts = {name: count.least for name, count in counts.items()}
    means = {name: count.mean for name, count in counts.items()}
    return budgets.compare(wanted, leasts, means)


def measure(binary: Binary, wanted: list[Budget], servers: int) -> dict[str, Count]:
    """Returns the instructions per call."""
    counts: dict[str, Count] = {}

    def measure_also(names: set[str], servers: int) -> None:
        calls = [call for call in ALL if call.name in names]
        for name, count in valgrind.counts(binary, calls, servers).items():
            counts[name] = count.lower(counts.get(name, count))

    references = {budget.to for budget in wanted}
    measure_also({budget.call for budget in wanted} | references, servers)
    measure_also(references, MORE_FOR_REFERENCES)
    for _ in range(ROUNDS_OF_MORE):
        above = {
            verdict.budget.call for verdict in verdicts_of(wanted, counts) if not verdict.is_kept
        }
        if not above:
            break
        measure_also(above, valgrind.SERVERS)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--update", action="store_true", help="write the measured ratios as budgets"
    )
    update = parser.parse_args().update
    wanted, binary = budgets.load(), binaries.chosen()
    if not valgrind.is_installed():
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
