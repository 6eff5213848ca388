"""Replay of logs: its decisions equal those of a server."""

import gzip
import json
import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from console_process import BINARY
from redis import Redis

from support.clock import START_US, Clock

LIMITS = [
    "TOKENBUCKET 5 3 1s",
    "LEAKYBUCKET 4 7 3s",
    "FIXED 6 2s",
    "FIXED 6 2s ALIGNED",
    "FIXED 40 1w ALIGNED OFFSET +09:00",
    "SLIDING 6 2s",
    "SLIDING 6 2s STRICT",
    "SLIDINGLOG 6 2s",
    "SLIDINGLOG 6 2s COST 2",
    "FIXED 6 2s AS named",
    "TOKENBUCKET 5 5 1s FIXED 30 1m",
    "TOKENBUCKET 3 3 1s COST 1 AS calls TOKENBUCKET 9 4 1s AS units",
    "SLIDING 4 1s SHADOW SLIDINGLOG 8 3s",
    "FIXED 3 1s BAN 3 10s 20s",
    "FIXED 3 1s BAN 3 10s 2s MAX 1m",
]


def replay(*words: str | Path, log: str | None = None, status: int = 0) -> str:
    """Returns the report that the command prints, or its error if it fails."""
    done = subprocess.run(
        [BINARY, "replay", *words],
        input=log,
        stdin=subprocess.DEVNULL if log is None else None,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def calls(seed: int) -> list[tuple[int, str, str]]:
    """Returns random calls in bursts: microseconds since the epoch, key and cost."""
    chance = random.Random(seed)
    now, logged_calls = START_US, []
    for _ in range(600):
        gap = chance.choice([0, 0, 1, 1000, 20_000, 300_000, 1_000_000])
        now += gap + chance.choice([0, 0, chance.randrange(1000)])
        if chance.random() < 0.01:
            now += chance.randrange(20_000_000)
        cost = chance.choice(["1", "1", "1", "2", "0.5", "0", "3.25"])
        logged_calls.append((now, f"user:{chance.randrange(4)}", cost))
    return logged_calls


@pytest.mark.parametrize("limits", LIMITS)
def test_replay_equals_the_decisions_of_a_server(limits: str, redis: Redis, clock: Clock) -> None:
    logged_calls = calls(LIMITS.index(limits))
    redis.execute_command("RL.POLICYSET", "replayed", *limits.split())
    outcomes, denied = Counter(), Counter()
    for now, key, cost in logged_calls:
        clock.set(now)
        allowed = redis.execute_command("RL.LIMIT", key, "replayed", "COST", cost)[0]
        outcomes[allowed] += 1
        denied[key] += 1 - allowed
    # Both outcomes must be frequent for a useful comparison.
    assert min(outcomes[0], outcomes[1]) > 20
    log = "".join(f"{now} {key} {cost}\n" for now, key, cost in logged_calls)
    report = json.loads(replay("-", "--limit", limits, "--json", log=log))
    assert (report["admitted"], report["denied"]) == (outcomes[1], outcomes[0])
    assert dict(report["denied_keys"]) == {key: count for key, count in denied.items() if count}
    assert (report["calls"], report["keys"], report["skipped"]) == (len(logged_calls), 4, 0)


def test_smallest_limit_keeps_to_the_goal_on_a_server(redis: Redis, clock: Clock) -> None:
    logged_calls = calls(7)
    log = "".join(f"{now} {key}\n" for now, key, _ in logged_calls)
    report = json.loads(
        replay("-", "--limit", "TOKENBUCKET 3 2 1s", "--goal", "5%", "--json", log=log)
    )
    redis.execute_command("RL.POLICYSET", "smallest", *report["smallest"].split())
    denied = 0
    for now, key, _ in logged_calls:
        clock.set(now)
        denied += 1 - redis.execute_command("RL.LIMIT", key, "smallest")[0]
    assert denied == report["smallest_denied"] <= len(logged_calls) * 0.05


def test_access_log_is_reported_as_text(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    line = '{} - - [05/Jan/2026:09:00:0{} +0100] "GET / HTTP/1.1" 200 512 "-" "curl"\n'
    clients = ["192.0.2.1"] * 5 + ["192.0.2.2"]
    log.write_text(
        "".join(line.format(client, at) for at in range(4) for client in clients) + "?\n"
    )
    report = replay(log, "--limit", "fixed 2 1s")
    assert report.startswith(
        "24 calls of 2 keys, 2026-01-05T08:00:00Z to 2026-01-05T08:00:03Z (3s)\n"
        "FIXED 2 1s: 12 admitted, 12 denied (50.00 %), of 1 key\n"
        "1 line skipped:\n"
    )
    assert "          12  192.0.2.1\n" in report
    assert report.endswith(
        "The smallest limit that denies at most 1%: FIXED 5 1s (0 denied, 0.00 %)\n"
    )


def test_compressed_log_is_replayed_like_the_original(tmp_path: Path) -> None:
    text = "".join(f"{now} {key} {cost}\n" for now, key, cost in calls(3)).encode()
    plain, zipped = tmp_path / "log", tmp_path / "log.gz"
    plain.write_bytes(text)
    # Two gzip members, as in a log that is appended to after its compression.
    zipped.write_bytes(gzip.compress(text[:3000]) + gzip.compress(text[3000:]))
    words = ["--limit", "FIXED 6 2s", "--json"]
    assert replay(zipped, *words) == replay(plain, *words)
    zipped.write_bytes(zipped.read_bytes()[:-20])
    assert replay(zipped, *words, status=1) != ""


def test_invalid_input_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1767603600 user:1\n")
    for limits, error in {
        "FIXED ten 1m": "--limit: ERR limit must be",
        "CONCURRENCY 3 1m": "--limit: CONCURRENCY cannot be replayed",
    }.items():
        assert error in replay(log, "--limit", limits, status=1)
    assert "must be a share" in replay(log, "--limit", "FIXED 1 1s", "--goal", "2", status=2)
    assert "No such file" in replay(tmp_path / "none", "--limit", "FIXED 1 1s", status=1)
    log.write_text("nothing of a log\n")
    assert "no line was understood of 1" in replay(log, "--limit", "FIXED 1 1s", status=1)


def test_replay_counts_by_the_keys_of_the_gateway() -> None:
    request = '- - [05/Jan/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 512 "-" "curl"'
    log = "".join(
        f"2026-01-05T09:00:01.5Z stdout F {line}\n"
        for line in [
            f'10.0.0.1 {request} "198.51.100.7, 203.0.113.1"',
            f'10.0.0.1 {request} "203.0.113.1"',
            f'10.0.0.1 {request} "::ffff:203.0.113.1"',
            f'2001:db8:1:2::1 {request} "-"',
            f'2001:db8:1:2::2 {request} "-"',
            "starting worker processes",
        ]
    )
    report = json.loads(
        replay("-", "--limit", "FIXED 0 1m", "--trusted", "10.0.0.0/8", "--json", log=log)
    )
    assert report["denied_keys"] == [["203.0.113.1", 3], ["2001:db8:1:2::/64", 2]]
    assert report["skipped_why"]["not_understood"] == 1
    number, line = report["first_not_understood"]
    assert (number, line) == (6, "2026-01-05T09:00:01.5Z stdout F starting worker processes")
    error = replay(
        "-", "--limit", "FIXED 0 1m", log="Sep 10 10:00:00 lb sshd[1]: hello\n", status=1
    )
    assert "the first is line 1: Sep 10 10:00:00 lb sshd[1]: hello" in error
