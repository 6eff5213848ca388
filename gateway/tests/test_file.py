"""Limits of a file in envoyproxy/ratelimit's format, which is reloaded when it changes."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis
from running import BINARY, OK, OVER, REPOSITORY, Gateway, descriptor

from support import markdown, poll
from support.clock import Clock
from support.ports import reserve_port
from support.server import Server

FILE = """
domain: api
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: free
    rate_limit: {unlimited: true}
  - key: shared
    value: a*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: live
    rate_limit: {policy: ['live:{live}', live]}
  - key: closed
    rate_limit: {unit: day, requests_per_unit: 0}
"""


@pytest.fixture
def gateway(server: Server, start: Callable[..., Gateway], file: Path) -> Gateway:
    file.write_text(FILE)
    return start(server.port, "--config", file)


def test_listener_for_operators_shows_the_limits(
    server: Server, start: Callable[..., Gateway], file: Path
) -> None:
    file.write_text(FILE)
    with ExitStack() as owned:
        ports = [reserve_port(owned) for _ in range(2)]
        debug = ",".join(f"127.0.0.1:{port}" for port in ports)
        words = ["--debug", debug, "--metrics-path", "/numbers"]
        gateway = start(server.port, "--config", file, *words)
        lines = gateway.get("/rlconfig", port=ports[0]).body.splitlines()
        assert lines[0] == (
            "api.closed: unit=DAY requests_per_unit=0, shadow_mode: false, quota_mode: false"
        )
        assert len(lines) == 6
        file.write_text(FILE.replace("domain: api", "domain: other"))
        poll.until(
            lambda: gateway.get("/rlconfig", port=ports[1]).body.startswith("other."),
            "the changed file is shown",
        )
        assert "/rlconfig" in gateway.get("/", port=ports[0]).body
        paths = ["/numbers", "/healthz", "/readyz", "/healthcheck"]
        assert [gateway.get(path, port=ports[0]).status for path in paths] == [200] * 4
        assert [gateway.get(path, port=ports[0]).status for path in ("/check", "/json")] == [
            404
        ] * 2


METRICS = """
domain: rl
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5}
    descriptors:
      - key: path
        rate_limit: {unit: minute, requests_per_unit: 5}
        descriptors:
          - {key: method, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: tried, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: named, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 1}}
"""


def test_metrics_have_the_names_of_envoyproxy_ratelimit(
    server: Server, start: Callable[..., Gateway], file: Path
) -> None:
    file.write_text(METRICS)
    words = ["--metrics-format", "envoyproxy", "--near-limit-ratio", "0.6"]
    gateway = start(server.port, "--config", file, *words)

    def counts(**labels: str) -> list[float]:
        """Return the hits in total, within, near and over the limit, and in shadow mode."""
        names = ("total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode")
        metric = "ratelimit_service_rate_limit_{}"
        return [gateway.metric(metric.format(name), domain="rl", **labels) for name in names]

    for _ in range(7):
        gateway.ask(descriptor(user="1"), domain="rl")
    assert counts(key1="user") == [7, 5, 2, 2, 0]
    for hits in (4, 4):
        gateway.ask(descriptor(user="2", path="/"), domain="rl", hits=hits)
    assert counts(key1="user", key2="path") == [8, 4, 1, 4, 0]
    gateway.ask(descriptor(user="3", path="/", method="GET"), domain="rl")
    assert counts(key1="user", key2="path")[0] == 9, "there are labels for two keys"
    for _ in range(3):
        gateway.ask(descriptor(tried="1"), domain="rl")
    assert counts(key1="tried") == [3, 1, 1, 2, 2]
    gateway.ask(descriptor(named="10.0.0.1"), domain="rl")
    assert counts(key1="named_10_0_0_1") == [1, 1, 1, 0, 0]
    gateway.ask(descriptor(user="1"), domain="unknown")
    assert "unknown" not in gateway.get("/metrics").body
    method = {"grpc_method": "ShouldRateLimit"}
    requests = gateway.metric("ratelimit_service_total_requests", **method)
    assert requests == gateway.metric("ratelimit_service_response_time_seconds_count", **method)
    assert requests == 15
    file.write_text("domain: [")
    failures = "ratelimit_service_config_load_error"
    poll.until(lambda: gateway.metric(failures) == 1, "the malformed file is counted")
    assert gateway.metric("ratelimit_service_config_load_success") == 1


def test_response_headers_are_renamed_or_off(
    server: Server, start: Callable[..., Gateway], file: Path
) -> None:
    file.write_text(METRICS)

    def headers(*words: str) -> dict[str, str]:
        gateway = start(server.port, "--config", file, *words)
        answer = gateway.ask(descriptor(user="1"), domain="rl")
        return {header.key: header.value for header in answer.response_headers_to_add}

    assert headers().keys() == {"RateLimit", "RateLimit-Policy"}
    assert headers("--response-headers", "off") == {}
    separate = ["--response-headers", "separate", "--limit-header", "X-Limit"]
    renamed = headers(*separate)
    assert renamed.keys() == {"X-Limit", "RateLimit-Remaining", "RateLimit-Reset"}
    assert (renamed["X-Limit"], renamed["RateLimit-Remaining"]) == ("5", "2")


def test_rule_limits_each_value(gateway: Gateway) -> None:
    answers = [gateway.ask(descriptor(user="1")) for _ in range(3)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OVER]
    limit = answers[0].statuses[0].current_limit
    assert (limit.requests_per_unit, limit.unit.name) == (2, "MINUTE")
    assert gateway.passes(descriptor(user="2"))
    assert not gateway.passes(descriptor(closed="x"))
    assert gateway.metric("ratelimit_gateway_decisions_total", domain="api", policy="user") == 4


def test_shadow_and_unlimited_rules_deny_nothing(gateway: Gateway, redis: Redis) -> None:
    answers = [gateway.ask(descriptor(tried="1")) for _ in range(2)]
    assert [answer.overall_code for answer in answers] == [OK, OK]
    assert [answer.statuses[0].code for answer in answers] == [OK, OK]
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="shadow") == 1
    keys = redis.keys("*")
    unlimited = gateway.ask(descriptor(free="1")).statuses[0]
    assert (unlimited.code, unlimited.limit_remaining) == (OK, 2**32 - 1)
    assert gateway.passes(descriptor(nothing="1"))
    assert redis.keys("*") == keys, "unlimited and unmatched requests create no keys"


def test_values_of_a_shared_wildcard_share_a_limit(gateway: Gateway) -> None:
    assert [gateway.passes(descriptor(shared=value)) for value in ("a1", "a2")] == [True, False]


def test_rule_applies_a_policy_by_name(gateway: Gateway, policy: Callable[..., int]) -> None:
    policy("live", "FIXED 1 1m")
    policy("live:gold", "FIXED 2 1m")
    passed = [
        gateway.passes(descriptor(live=value)) for value in ("a", "a", "gold", "gold", "gold")
    ]
    assert passed == [True, False, True, True, False]


def test_domains_without_a_file_use_policies(gateway: Gateway, policy: Callable[..., int]) -> None:
    policy("other", "FIXED 1 1m")
    passed = [gateway.passes(descriptor(user="1"), domain="other") for _ in range(2)]
    assert passed == [True, False]


def test_rule_with_a_unit_is_charged_past_its_limit(gateway: Gateway) -> None:
    def codes(user: str, *hits: int) -> list[object]:
        return [gateway.ask(descriptor(user=user, hits=count)).overall_code for count in hits]

    assert codes("1", 0, 3, 0) == [OK, OVER, OVER]
    assert codes("2", 1, 2, 1) == [OK, OVER, OVER]


def test_charge_of_a_rule_overrides_the_command_line(
    server: Server, start: Callable[..., Gateway], file: Path
) -> None:
    file.write_text(
        """
domain: api
descriptors:
  - {key: always, rate_limit: {limit: FIXED 10 1d, charge: always}}
  - {key: fits, rate_limit: {unit: day, requests_per_unit: 10, charge: all-or-none}}
  - {key: other, rate_limit: {unit: day, requests_per_unit: 10}}
"""
    )
    gateway = start(server.port, "--config", file, "--charge", "independent")

    def codes(key: str) -> list[object]:
        return [gateway.ask(descriptor(hits=hits, **{key: "1"})).overall_code for hits in (12, 0)]

    assert [codes("always"), codes("fits"), codes("other")] == [
        [OVER, OVER],
        [OVER, OK],
        [OVER, OK],
    ]
    denied = descriptor(always="1")
    assert not gateway.passes(descriptor(fits="2", hits=6), denied)
    assert not gateway.passes(descriptor(other="2", hits=6), denied)
    remaining = [
        gateway.ask(descriptor(hits=0, **{key: "2"})).statuses[0].limit_remaining
        for key in ("fits", "other")
    ]
    assert remaining == [10, 4], "the modes are all-or-none and independent"


def test_unit_multiplier_makes_the_window_longer(
    server: Server, start: Callable[..., Gateway], file: Path, clock: Clock
) -> None:
    rule = "{unit: minute, unit_multiplier: 5, requests_per_unit: 2}"
    file.write_text(f"{{domain: api, descriptors: [{{key: user, rate_limit: {rule}}}]}}")
    # Remembered denials end by the real time.
    gateway = start(server.port, "--config", file, "--remember-denials", "0")
    clock.set(1_700_000_100_000_000)
    request = descriptor(user="1")
    assert [gateway.passes(request) for _ in range(3)] == [True, True, False]
    clock.advance("4m")
    assert not gateway.passes(request)
    clock.advance("1m")
    assert gateway.passes(request)


def test_files_of_one_domain_are_merged(
    server: Server, start: Callable[..., Gateway], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        limit = "rate_limit: {unit: day, requests_per_unit: 1}"
        text = f"{{domain: api, descriptors: [{{key: {name}, {limit}}}]}}"
        (tmp_path / f"{name}.yaml").write_text(text)
    words = [BINARY, "check", tmp_path]
    completed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert "--merge-domains" in completed.stderr
    assert subprocess.run([*words, "--merge-domains"], check=False).returncode == 0
    gateway = start(server.port, "--config", tmp_path, "--merge-domains")
    for name in ("one", "two"):
        assert [gateway.passes(descriptor(**{name: "1"})) for _ in range(2)] == [True, False]
    imported = subprocess.run(
        [BINARY, "import", tmp_path, "--merge-domains"], capture_output=True, text=True, check=True
    )
    assert len(imported.stdout.splitlines()) == 2


def test_response_has_the_metadata_of_limits_that_are_not_exceeded(
    server: Server, start: Callable[..., Gateway], file: Path
) -> None:
    file.write_text(
        """
domain: api
descriptors:
  - key: a
    metadata: {team: {name: first, size: 3}}
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: b
    metadata: {team: {name: second, list: [1.5, true, null]}}
    rate_limit: {unit: day, requests_per_unit: 2}
"""
    )
    gateway = start(server.port, "--config", file, "--response-metadata")
    descriptors = descriptor(a="1"), descriptor(b="1", hits=1)
    metadata = gateway.ask(*descriptors).dynamic_metadata.to_dict()
    entries = [{"entries": ["a=1"]}, {"entries": ["b=1"], "hitsAddend": 1}]
    assert metadata["descriptors"] == entries
    assert metadata["domain"] == "api"
    team = {"name": "first", "size": 3, "list": [1.5, True, None]}
    assert metadata["metadata"] == {"team": team}
    assert (
        gateway.ask(*descriptors).dynamic_metadata.to_dict()["metadata"]["team"]["name"] == "second"
    )
    request = {"domain": "api", "descriptors": [{"entries": [{"key": "b", "value": "2"}]}]}
    metadata = json.loads(gateway.get("/json", "POST", request).body)["dynamicMetadata"]
    assert metadata["metadata"] == {"team": {"name": "second", "list": [1.5, True, None]}}
    assert metadata["domain"] == "api"


def reloads(gateway: Gateway, result: str) -> float:
    return gateway.metric("ratelimit_gateway_reloads_total", result=result)


def test_changed_file_is_applied_and_invalid_file_is_refused(gateway: Gateway, file: Path) -> None:
    assert [gateway.passes(descriptor(user="1")) for _ in range(3)] == [True, True, False]
    file.write_text(FILE.replace("requests_per_unit: 2", "requests_per_unit: 4"))
    poll.until(lambda: reloads(gateway, "applied") == 1, "the file is read again")
    assert [gateway.passes(descriptor(user="1")) for _ in range(2)] == [True, False]
    file.write_text("domain: api\nnonsense: 1\n")
    poll.until(lambda: reloads(gateway, "refused") == 1, "the file is refused")
    assert not gateway.passes(descriptor(user="1"))
    assert gateway.get("/readyz").status == 200
    is_refused = lambda: gateway.metric("ratelimit_gateway_configuration_refused")  # noqa: E731
    assert is_refused() == 1
    file.write_text(FILE)
    poll.until(lambda: is_refused() == 0, "the corrected file is applied")
    gateway.end()
    assert "nonsense" in gateway.log


def test_swapped_symlink_and_sighup_reload_the_file(
    server: Server, start: Callable[..., Gateway], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(f"domain: {name}\ndescriptors: [{{key: a}}]\n")
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "one")
    gateway = start(server.port, "--config", link)
    swapped = tmp_path / "swapped"
    swapped.symlink_to(tmp_path / "two")
    swapped.rename(link)
    poll.until(lambda: reloads(gateway, "applied") == 1, "the swapped link is noticed")
    os.kill(gateway.pid, signal.SIGHUP)
    poll.until(lambda: reloads(gateway, "applied") == 2, "the signal is handled")


def test_slow_file_read_does_not_delay_requests(
    server: Server, start: Callable[..., Gateway], file: Path, tmp_path: Path
) -> None:
    file.write_text(FILE)
    # One thread for all requests, so that a blocked thread delays all of them.
    gateway = start(server.port, "--config", file, environment={"TOKIO_WORKER_THREADS": "1"})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pipe.rename(file)
    # Opening the pipe for writing succeeds once the gateway has opened it for reading.
    with file.open("w") as text:
        assert [gateway.passes(descriptor(user="1")) for _ in range(3)] == [True, True, False]
        assert reloads(gateway, "applied") == 0
        text.write(FILE.replace("requests_per_unit: 2", "requests_per_unit: 4"))
    poll.until(lambda: reloads(gateway, "applied") == 1, "the file is read")
    assert [gateway.passes(descriptor(user="1")) for _ in range(2)] == [True, False]
    file.unlink()


def test_invalid_file_is_refused_at_start(tmp_path: Path) -> None:
    malformed = tmp_path / "malformed.yaml"
    malformed.write_text("domain: api\ndescriptors:\n  - key: a\n    rate_limit: {unit: eon}\n")
    completed = subprocess.run(
        [BINARY, "serve", "--config", malformed],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert completed.returncode == 1
    assert f"{malformed}: line 3: api.a: unit must be" in completed.stderr


def test_directory_without_files_is_refused_and_rules_stay(
    server: Server, start: Callable[..., Gateway], file: Path
) -> None:
    folder = file.parent / "folder"
    folder.mkdir()
    (folder / "notes.txt").write_text("no configuration")
    completed = subprocess.run(
        [BINARY, "check", folder], capture_output=True, text=True, check=False, timeout=60
    )
    assert completed.returncode == 1
    assert f"{folder}: the directory has no file that ends in .yaml or .yml" in completed.stderr
    (folder / "api.yaml").write_text(FILE)
    gateway = start(server.port, "--config", folder)
    (folder / "api.yaml").unlink()
    poll.until(lambda: reloads(gateway, "refused") == 1, "the files are gone", timeout=60)
    assert not gateway.passes(descriptor(closed="x"))


def test_check_reports_the_line_of_an_error(tmp_path: Path) -> None:
    valid, malformed = tmp_path / "valid.yaml", tmp_path / "malformed.yaml"
    valid.write_text(FILE)
    malformed.write_text("domain: api\ndescriptor: []\n")

    def check(*files: Path) -> tuple[int, str]:
        completed = subprocess.run(
            [BINARY, "check", *files], capture_output=True, text=True, check=False, timeout=20
        )
        return completed.returncode, completed.stderr

    assert check(valid) == (0, "")
    status, output = check(valid, malformed)
    assert status == 1
    assert all(part in output for part in (str(malformed), "descriptor", "line 2"))


def test_check_and_serve_refuse_two_files_of_one_domain(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("domain: api\n")
    two.write_text("domain: api\n")

    errors = []
    for words in (["check", one, two], ["check", tmp_path], ["serve", "--config", tmp_path]):
        completed = subprocess.run(
            [BINARY, *words], capture_output=True, text=True, check=False, timeout=20
        )
        assert completed.returncode == 1
        errors.append(completed.stderr)
    conflict = f"{two}: line 1: the domain is there twice: api is in {one}"
    expected = f"{conflict} (--merge-domains allows it)\n"
    assert errors == [expected] * 3
    for file in (one, two):
        subprocess.run([BINARY, "check", file], check=True, timeout=20)


def test_example_is_valid_and_has_every_word() -> None:
    example = REPOSITORY / "gateway/gateway.example.yaml"
    subprocess.run([BINARY, "check", example], check=True, timeout=20)
    source = (REPOSITORY / "gateway/src/configuration/format.rs").read_text()
    words = set(re.findall(r"^    pub ([a-z]\w*):", source, re.MULTILINE))
    text = example.read_text()
    assert len(words) > 20
    assert [word for word in words if f"{word}:" not in text] == []


def test_imported_policies_replace_the_file(
    server: Server, start: Callable[..., Gateway], file: Path, redis: Redis
) -> None:
    file.write_text(FILE)
    imported = subprocess.run(
        [BINARY, "import", file], capture_output=True, text=True, check=True, timeout=20
    )
    commands = imported.stdout.splitlines()
    assert commands == [
        "RL.POLICYSET api|user FIXED 2 1m ALIGNED FORCE",
        "RL.POLICYSET api|tried FIXED 1 1m ALIGNED SHADOW",
        "RL.POLICYSET api|closed FIXED 0 1d ALIGNED FORCE",
    ]
    unsupported = imported.stderr.splitlines()
    assert [re.search(r"line \d+: (.*)", line)[1] for line in unsupported] == [
        "api.free: unlimited",
        "api.shared_a*: a wildcard, and what stands below it",
        "api.live: policies of other names",
    ]
    for command in commands:
        redis.execute_command(*shlex.split(command))
    gateway = start(server.port)
    assert [gateway.passes(descriptor(user="1")) for _ in range(3)] == [True, True, False]
    assert [gateway.passes(descriptor(tried="1")) for _ in range(2)] == [True, True]
    assert not gateway.passes(descriptor(closed="x"))
    passed = [gateway.passes(descriptor(user="2", hits=hits)) for hits in (0, 3, 0)]
    assert passed == [True, False, False], "charged beyond the limit, as with the file"


def test_documented_files_are_valid(tmp_path: Path) -> None:
    document = REPOSITORY / "docs/gateway.md"
    files = [block for block in markdown.blocks(document.read_text()) if block.language == "yaml"]
    assert len(files) == 2
    for number, block in enumerate(files):
        (tmp_path / f"{number}.yaml").write_text(block.text)
    subprocess.run([BINARY, "check", tmp_path], check=True, timeout=20)


@pytest.mark.long
def test_ten_thousand_rules_are_applied(
    server: Server, start: Callable[..., Gateway], file: Path
) -> None:
    rules = (
        f"  - {{key: user, value: u{n}, rate_limit: {{unit: day, requests_per_unit: {n}}}}}\n"
        for n in range(10_000)
    )
    file.write_text("domain: api\ndescriptors:\n" + "".join(rules))
    gateway = start(server.port, "--config", file)
    limit = gateway.ask(descriptor(user="u9876")).statuses[0].current_limit
    assert (limit.requests_per_unit, limit.unit.name) == (9876, "DAY")
