"""Shared code of the pages of measurements: their texts in benches/text, tables and numbers."""

from collections.abc import Iterable
from pathlib import Path
from string import Template

TEXTS = Path(__file__).parents[1] / "text"


def text(name: str, **values: object) -> str:
    return Template((TEXTS / f"{name}.md").read_text()).substitute(values)


def busy_note(load: float) -> str:
    if load < QUIET:
        return ""
    return (
        f" Other programs were at work too (the load average was {load:.1f} when it began), so "
        "times are longer and vary more than on a quiet machine."
    )


# Highest load average of a quiet machine, on which a shell and a desktop run.
QUIET = 0.5


def table(heads: str, rows: Iterable[list[str]]) -> str:
    """Formats a table with heads like `name| number:`. A colon aligns a column to the right."""
    names = [head.strip() for head in heads.split("|")]
    alignments = ["--:" if name.endswith(":") else ":--" for name in names]
    lines = [[name.removesuffix(":") for name in names], alignments, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(value: float) -> str:
    """Formats a number with three digits, or with all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
