"""The offset of a time zone is the same all year, by `clients/zones.json`, the table that all
packages share.
"""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from redis_ratelimit import zone_offset

CASES = json.loads((Path(__file__).parents[2] / "zones.json").read_text())


@pytest.mark.parametrize("case", CASES["zones"], ids=lambda case: f"{case['zone']}-{case['year']}")
def test_offset_is_the_smallest_in_the_year(case: dict[str, object]) -> None:
    first = datetime(case["year"], 1, 1, tzinfo=timezone.utc)
    for day in range(0, 365, 5):
        assert zone_offset(case["zone"], first + timedelta(days=day)) == case["offset"]


@pytest.mark.parametrize("name", CASES["refused"])
def test_unknown_zone_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="Europe/Berlin"):
        zone_offset(name)
