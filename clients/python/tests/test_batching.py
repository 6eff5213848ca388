"""Choices of batches of units, by the table that all packages share."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from redis_ratelimit.batching import Batching, Reply

PACKAGE = Path(__file__).parents[1]
TABLE = json.loads((PACKAGE.parent / "units.json").read_text())


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["name"])
def test_choices_are_those_of_the_table(case: Any) -> None:
    options = {"keep": 1.0, **case["options"]}
    batching = Batching(**options)
    for number, (now, name, *terms) in enumerate(case["steps"]):
        step_label = f"step {number} at {now}"
        *arguments, expected = [None, *terms] if name == "failed" else terms
        if name == "take":
            cost, outcome = arguments
            batching.record_demand(cost, now)
            if batching.spend(cost, now):
                assert (outcome, batching.in_hand(now)) == ("spent", expected), step_label
            elif batching.denies(cost, now):
                assert outcome == "denied", step_label
                assert batching.wait(cost, now) == pytest.approx(expected, abs=2e-6), step_label
            else:
                assert (outcome, batching.in_hand(now)) == ("asked", expected), step_label
        elif name == "spend":
            assert batching.spend(arguments[0], now), step_label
            assert batching.in_hand(now) == expected, step_label
        elif name == "due":
            assert batching.is_due(now) is expected, step_label
        elif name == "wanted":
            assert batching.plan_request(arguments[0], now) == expected, step_label
        elif name == "received":
            *reply, wanted, sent_at, random = arguments
            batching.record_reply(Reply(*reply), wanted, sent_at, now, random)
            assert batching.in_hand(now) == expected, step_label
        elif name == "failed":
            batching.record_failure(now)
        else:
            assert name == "expired"
            assert [[one.id, one.spent] for one in batching.take_expired()] == expected, step_label


def test_table_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location(
        "make_unit_traces", PACKAGE / "scripts/make_unit_traces.py"
    )
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert json.loads(script.table_text()) == TABLE
