"""Runs pytest and reads the outcome of each test, for scripts that print a table of outcomes.

The outcomes are read from the JUnit XML report, because the text output has no skips by test.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

REPOSITORY = Path(__file__).parents[1]

# Outcomes in the order of the columns.
OUTCOMES = ("passed", "failed", "skipped")


@dataclass
class Case:
    """Outcome of one test."""

    # Name with the parameters.
    name: str
    # One of OUTCOMES.
    outcome: str
    # Reason for which the test was skipped, or an empty string.
    reason: str

    @classmethod
    def read(cls, case: ET.Element) -> "Case":
        failed = case.find("failure") is not None or case.find("error") is not None
        skip = case.find("skipped")
        return cls(
            case.get("name", ""),
            "failed" if failed else "passed" if skip is None else "skipped",
            "" if skip is None else skip.get("message", ""),
        )


def run_pytest(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, list[Case]]:
    """Runs pytest with additional environment variables. Returns its exit status and its tests."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        completed = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "--numprocesses=auto"),
                *(f"--junitxml={report.name}", *arguments),
            ],
            cwd=REPOSITORY,
            env=os.environ | environment,
            check=False,
        )
        cases = [Case.read(case) for case in ET.parse(report.name).iter("testcase")]
    return completed.returncode, cases
