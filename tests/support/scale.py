"""How much of what could go on for ever a test does: little in every run, much in `make soak`."""

import os
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

LONG = os.environ.get("RATELIMIT_LONG") == "1"


def scaled(short: int, long: int) -> int:
    """The first in every run of the suite; the second with RATELIMIT_LONG=1 (`make soak`)."""
    return long if LONG else short


def first_on_every_server(cases: Iterable[object]) -> list[ParameterSet]:
    """Cases of a test that is marked `every_server`, which differ in what is ours and not in what
    is the server's: `make test` runs the first on every server, the others on one server.
    """
    first, *others = cases
    return [
        pytest.param(first),
        *(pytest.param(case, marks=pytest.mark.one_server) for case in others),
    ]
