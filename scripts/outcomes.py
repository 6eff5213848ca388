"""Runs pytest for the scripts that print a table of outcomes, and reads what became of each test.

For one run whose outcomes are counted by server or by library; where only its success counts, plain
pytest will do. It reads pytest's own report, JUnit's XML: text for people has no skips by test.
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

# In the order of the tables' columns.
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


def of_pytest(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, list[Case]]:
    """Runs pytest and returns its exit code and its tests. The environment is added to ours."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "--numprocesses=auto"),
                *(f"--junitxml={report.name}", *arguments),
            ],
            cwd=REPOSITORY,
            env=os.environ | environment,
            check=False,
        )
        cases = [Case.read(case) for case in ET.parse(report.name).iter("testcase")]
    return ended.returncode, cases
