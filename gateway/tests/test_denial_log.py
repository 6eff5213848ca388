"""Log of denied requests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from running import Gateway, descriptor

from support import poll
from support.server import Server

Policy = Callable[..., int]
Start = Callable[..., Gateway]
LOG_ALL = ("--log-denials", "10000", "--log-format", "json")


def denials(gateway: Gateway) -> list[dict[str, object]]:
    """Return the fields of the lines about denials so far, without the message."""
    lines = [json.loads(line)["fields"] for line in gateway.log_so_far().splitlines()]
    return [fields for fields in lines if fields.pop("message") == "denied"]


def test_line_names_domain_key_policy_and_limit(
    server: Server, start: Start, policy: Policy
) -> None:
    policy("api|user", "FIXED 1 1d FIXED 5 1h AS hourly")
    gateway = start(server.port, *LOG_ALL)
    passed = [gateway.passes(descriptor(user="1"), descriptor(path="/")) for _ in range(2)]
    assert passed == [True, False]
    (line,) = denials(gateway)
    assert 0 < line.pop("wait_ms") <= 86_400_000
    assert line == {
        "domain": "api",
        "key": "rl:api|user=1",
        "policy": "api|user",
        "limit": "fixed-1-1d",
        "suppressed": 0,
    }


def test_remembered_denials_are_logged(server: Server, start: Start, policy: Policy) -> None:
    policy("api|user", "FIXED 1 1d")
    gateway = start(server.port, *LOG_ALL)
    count = 0

    def is_remembered() -> bool:
        nonlocal count
        count += not gateway.passes(descriptor(user="1"))
        return gateway.metric("ratelimit_gateway_decisions_total", outcome="denied_local") > 0

    poll.until(is_remembered, "a denial is remembered")
    assert [line["key"] for line in denials(gateway)] == ["rl:api|user=1"] * count


def test_rules_of_files_and_forward_auth_are_logged(
    server: Server, start: Start, file: Path
) -> None:
    file.write_text(
        "domain: shop\n"
        "descriptors:\n"
        "  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}\n"
        "---\n"
        "http:\n"
        "  rules:\n"
        '    - {path: "/*", limit: FIXED 1 1d AS daily, key: "web:{client}"}\n'
    )
    gateway = start(server.port, "--config", file, *LOG_ALL)
    for _ in range(2):
        gateway.passes(descriptor(user="1"), domain="shop")
        gateway.get("/check")
    first, second = denials(gateway)
    assert (first["domain"], first["key"], first["policy"]) == ("shop", "rl:shop|user=1", "user")
    assert (second["domain"], second["key"]) == ("http", "rl:web:127.0.0.1")
    assert second["limit"] == "daily"


def test_values_of_callers_are_escaped_and_cut(
    server: Server, start: Start, policy: Policy
) -> None:
    name = "a\nINFO forged\x1b[31m\u202e" + "x" * 1000
    policy("api", "FIXED 1 1d")
    gateway = start(server.port, "--log-denials", "10000")
    for _ in range(2):
        limit = {"requests_per_unit": 1, "unit": "DAY"}
        entries = [{"key": "k\n", "value": name}]
        body = {"domain": name, "descriptors": [{"entries": entries, "limit": limit}]}
        gateway.get("/json", method="POST", data=body)
    (line,) = [line for line in gateway.log_so_far().splitlines() if "forged" in line]
    assert r'domain="a\nINFO forged\u{1b}[31m\u{202e}xxx' in line
    assert line.isprintable()
    assert len(line) < 1000


def test_lines_are_bounded_and_counted(server: Server, start: Start, policy: Policy) -> None:
    """Each denial has a line, or is counted by a later line or by the last line."""
    policy("api|user", "FIXED 1 1d")
    gateway = start(server.port, "--log-format", "json")
    assert gateway.passes(descriptor(user="1"))
    for _ in range(300):
        assert not gateway.passes(descriptor(user="1"))
    gateway.end()
    lines = [json.loads(line)["fields"] for line in gateway.log.splitlines()]
    denial_lines = [line for line in lines if line["message"] == "denied"]
    assert len(denial_lines) + sum(line.get("suppressed", 0) for line in lines) == 300
    assert len(denial_lines) < 100


@pytest.mark.parametrize(
    "words", [("--log-denials", "0"), ("--shadow", *LOG_ALL)], ids=["off", "shadow"]
)
def test_no_line_is_written_with_the_log_off_or_in_shadow_mode(
    words: tuple[str, ...], server: Server, start: Start, policy: Policy
) -> None:
    policy("api|user", "FIXED 1 1d")
    gateway = start(server.port, *words)
    for _ in range(3):
        gateway.passes(descriptor(user="1"))
    gateway.end()
    assert "denied" not in gateway.log
