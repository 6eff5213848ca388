"""Each event of `clients/events.json`, which the package for Node.js has too, brought about."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.server import Server

from kinds import Make
from redis_ratelimit import Fixed
from redis_ratelimit import errors as ours
from test_replies import Refusing

TABLE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "events.json").read_text())
EVENTS: list[dict[str, Any]] = TABLE["events"]
LIMIT = Fixed(1000, "1h")


def brought_by(how: str) -> Any:
    rows = [row for row in EVENTS if how in row["by"]]
    return pytest.mark.parametrize("row", rows, ids=[row["event"] for row in rows])


def error_of(row: dict[str, Any]) -> type[Exception]:
    builtin = {"TypeError": TypeError, "RangeError": ValueError}
    return builtin.get(row["error"]) or getattr(ours, row["error"])


@pytest.fixture
def refusing(server: Server) -> Iterator[Refusing]:
    with Refusing(server.port, 0).running() as proxy:
        yield proxy  # type: ignore[misc]


def test_every_event_has_every_field() -> None:
    assert len({row["event"] for row in EVENTS}) == len(EVENTS)
    for row in EVENTS:
        assert set(row) == set(TABLE["about"]), row
        assert row["class"] in {"outage", "caller", "operator", "decision"}
        assert len(row["by"]) == 1


@brought_by("reply")
def test_a_reply(
    make: Make, refusing: Refusing, row: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="redis_ratelimit")
    limiter = make(f"redis://127.0.0.1:{refusing.port}", on_outage="closed", failures=1, pause=60)
    refusing.error = row["by"]["reply"]
    refusing.spares_unnamed = row["does"] == "server, without an id"
    if row["does"] == "raises":
        with pytest.raises(error_of(row)) as raised:
            limiter.take("key", LIMIT)
        text = str(raised.value)
    else:
        decision = limiter.take("key", LIMIT)
        assert decision.allowed == refusing.spares_unnamed
        assert row["error"] is None or isinstance(decision.error, error_of(row))
        text = str(decision.error)
    lines = [record.getMessage() for record in caplog.records]
    levels = {"outage": logging.WARNING, "error": logging.ERROR}
    assert [record.levelno for record in caplog.records] == (
        [] if row["log"] is None else [levels[row["log"]]]
    )
    for word in row["says"]:
        assert word in " ".join([text, *lines])
    # Nobody else pays for it.
    refusing.error = None
    assert limiter.take("other", LIMIT).source == "server"


@brought_by("call")
def test_a_call(make: Make, row: dict[str, Any]) -> None:
    limiter = make(failures=1, pause=60)
    wanted = {"key": "key", "limits": [LIMIT], **row["by"]["call"]}
    if wanted.get("cost") == "NaN":
        wanted["cost"] = float("nan")
    key, limits = wanted.pop("key"), wanted.pop("limits")
    for _ in range(3):
        for call in (limiter.take, limiter.peek):
            with pytest.raises(error_of(row), match=row["says"][0]):
                call(key, *limits, **wanted)
    assert limiter.take("key", LIMIT).source == "server"
