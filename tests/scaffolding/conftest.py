"""A simulated machine on which `make` runs in these tests."""

import shutil
from pathlib import Path

import pytest

from support.machine import Machine

# No server answers here but those that `make` starts, of PyPI or made up; $SERVER is not asked.
pytestmark = pytest.mark.once


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    return Machine(tmp_path)
