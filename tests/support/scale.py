"""Scale of long-running tests: small in every run, large in `make soak`."""

import os
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

LONG = os.environ.get("RATELIMIT_LONG") == "1"


def scaled(short: int, long: int) -> int:
    """Returns the first number in every run of the suite; the second with RATELIMIT_LONG=1 (`make
    soak`).
    """
    return long if LONG else short


def first_on_every_server(cases: Iterable[object]) -> list[ParameterSet]:
    """Marks the cases of an `every_server` test so that only the first runs on every server. It is
    for cases in which the module differs and the server does the same.
    """
    first, *others = cases
    return [
        pytest.param(first),
        *(pytest.param(case, marks=pytest.mark.one_server) for case in others),
    ]
