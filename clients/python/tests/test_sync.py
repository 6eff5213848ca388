"""The code for threads is generated from the code for asyncio."""

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "scripts/make_sync.py"))


@pytest.mark.parametrize("name", SCRIPT["TARGETS"])
def test_generated_code_is_up_to_date(name: str) -> None:
    written = (SCRIPT["SOURCE"] / SCRIPT["TARGETS"][name]).read_text()
    assert written == SCRIPT["sync_code"](name), "run `make sync`"
