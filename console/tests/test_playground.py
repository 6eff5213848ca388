"""Playground without a server: its decisions equal those of a server."""

import gzip
import json
import signal
import socket
import subprocess
import urllib.error
from collections.abc import Iterator

import pytest
from console_process import BINARY
from playground_process import Playground
from redis import Redis

from support import poll
from support.clock import Clock

# Start of the clock of each scene, in microseconds since the Unix epoch.
START_US = 1_767_225_600_000_000
LIMITS = [
    "FIXED 4 2s",
    "SLIDING 4 2s",
    "SLIDING 4 2s STRICT",
    "SLIDINGLOG 4 2s",
    "TOKENBUCKET 5 4 2s",
    "LEAKYBUCKET 5 4 2s",
    "SKETCH 5 4 2s SIZE 64kb",
]


@pytest.fixture(scope="module")
def playground() -> Iterator[Playground]:
    playground = Playground()
    yield playground
    playground.end()


def test_playground_prints_its_address_and_has_its_views(playground: Playground) -> None:
    assert playground.first_line == f"The playground is at {playground.url} (Ctrl-C ends it)\n"
    session = json.loads(playground.ask("api/session").body)
    assert (session["server"], session["views"]) == (None, ["playground", "replay"])
    assert "<title>" in playground.ask("").body
    for module in ["playground.js", "playground/draw.js", "replay.js"]:
        answer = playground.ask(module)
        assert (answer.status, answer.headers["Content-Type"].split(";")[0]) == (
            200,
            "text/javascript",
        )


def test_decisions_of_a_scene_equal_those_of_a_server(
    playground: Playground, redis: Redis, clock: Clock
) -> None:
    traffic = {"rate": 3000, "random": True, "bursts": [[500, 5]], "every": 3000, "cost": 1}
    calls = []
    with playground.scene(limits=LIMITS, traffic=traffic, speed=2000, seed=5) as events:
        assert next(events)["limits"] == LIMITS
        while len(calls) < 150:
            calls += next(events)["calls"]
    denied = 0
    for at, answers in calls:
        clock.set(START_US + at)
        for place, (limit, answer) in enumerate(zip(LIMITS, answers, strict=True)):
            words = limit.split()
            if words[0] == "SKETCH":
                words.insert(4, "203.0.113.42")
            reply = redis.execute_command("RL.TAKE", f"lane:{place}", *words)
            allowed, wait = reply[0], reply[3]
            assert answer == (wait if allowed else -wait), (at, limit)
            denied += 1 - allowed
    assert denied > 100


def test_small_sketch_denies_as_much_as_on_a_server(playground: Playground, redis: Redis) -> None:
    limits = ["TOKENBUCKET 2 1 1h", "SKETCH 2 1 1h SIZE 64kb"]
    scene = {"limits": limits, "traffic": {"rate": 1}, "others": 10_000, "speed": 1000}
    with playground.scene(**scene) as events:
        next(events)
        for tick in events:
            bucket, sketch = tick["lanes"]
            called = sum(sketch["others"].values())
            assert max(sketch["cells"]) == sketch["left"] <= bucket["left"]
            if called > 20_000:
                break
    # Each caller has called once. 20,000 units do not fit the 2,048 cells of each row.
    assert sketch["others"]["denied"] > 10_000
    assert "others" not in bucket
    # The sketch is as full as that of a server after the same calls.
    calls = redis.pipeline(transaction=False)
    for caller in range(called):
        calls.execute_command("RL.SKETCH", "all", str(caller), 2, 1, "1h", "SIZE", "64kb")
    allowed = sum(reply[0] for reply in calls.execute())
    info = redis.execute_command("RL.INFO", "all")
    info = dict(zip(info[::2], info[1::2], strict=True))
    assert sketch["remembers"]["size"] == int(info["size"])
    for field in ["filled", "unseen_denied"]:
        assert abs(float(sketch["remembers"][field]) - float(info[field])) < 0.05, field
    assert abs(sketch["others"]["passed"] - allowed) < 0.1 * allowed


def test_scene_is_changed_by_its_id_and_ends_with_its_stream(playground: Playground) -> None:
    with playground.scene(limits=["FIXED 3 1h"], speed=0) as events:
        name = next(events)["id"]
        assert next(events)["calls"] == []
        assert playground.ask(f"api/playground/{name}", {"calls": 4}).status == 200
        tick = next(events)
        assert [answers[0] >= 0 for _, answers in tick["calls"]] == [True, True, True, False]
        changed = playground.ask(f"api/playground/{name}", {"limits": ["fixed 5 1h"], "calls": 3})
        assert json.loads(changed.body) == {"limits": ["FIXED 5 1h"]}
        tick = next(events)
        # A changed limit keeps the usage.
        assert [answers[0] >= 0 for _, answers in tick["calls"]] == [True, True, False]
        assert tick["lanes"][0]["left"] == 0
        wrong = playground.ask(f"api/playground/{name}", {"limits": ["FIXED x 1h"]})
        assert (wrong.status, "limit must be" in wrong.body) == (400, True)
    assert playground.ask("api/playground/0", {"calls": 1}).status == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"limits": []},
        {"limits": ["FIXED 1 1s"] * 9},
        {"limits": ["SKETCH 1 1 1s x"]},
        {"limits": ["SKETCH 1 1 1s SIZE 256mb"]},
        {"limits": ["SKETCH 1 1 1s SIZE 1kb"]},
        {"limits": ["SKETCH 1 1 1s SIZE 64kb"] * 2},
        {"limits": ["SKETCH 1 1 1s"], "others": 10_001},
        {"limits": ["SKETCH 1 1 1s"], "others": -1},
        {"limits": ["FIXED 1 1s"], "speed": 100_000},
        {"limits": ["FIXED 1 1s"], "traffic": {"rate": 2_000_000}},
        {"limits": ["FIXED 1 1s"], "traffic": {"bursts": [[0, 100_000]]}},
        {"limits": ["FIXED 1 1s"], "unknown": 1},
        "{",
    ],
)
def test_invalid_or_oversized_scene_is_refused(playground: Playground, wrong: object) -> None:
    answer = playground.ask("api/playground", wrong)
    assert answer.status == 400
    assert json.loads(answer.body)["error"]


def test_scenes_above_the_maximum_are_refused() -> None:
    playground = Playground()
    opened = []
    try:
        scene = {"limits": ["FIXED 1 1s"], "speed": 0}
        opened += [playground.open("api/playground", scene) for _ in range(64)]
        assert playground.ask("api/playground", scene).status == 503
    finally:
        for response in opened:
            response.close()
        assert playground.end(signal.SIGINT) == 0


def test_replay_equals_that_of_the_command_line(playground: Playground) -> None:
    log = "".join(f"{1_767_603_600 + call // 4} user:{call % 3}\n" for call in range(300)) + "?\n"
    answer = playground.ask("api/replay?limit=FIXED%202%202s&goal=5%25", log)
    printed = subprocess.run(
        [BINARY, "replay", "-", "--limit", "FIXED 2 2s", "--goal", "5%", "--json", "--top", "100"],
        input=log,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answer.body) == json.loads(printed.stdout)
    assert json.loads(answer.body)["denied"] > 0
    limit = "limit=FIXED%201%201s"
    wrong = ["limit=FIXED", f"{limit}&goal=2", "", f"{limit}&trusted=x", f"{limit}&ipv6_prefix=1"]
    for query in wrong:
        assert playground.ask(f"api/replay?{query}", log).status == 400


def test_client_is_resolved_by_trusted_proxies(playground: Playground) -> None:
    log = "1767603600 198.51.100.7,203.0.113.1,10.0.0.1\n1767603600 2001:db8:1:2::1\n"
    for more, keys in {
        "": ["10.0.0.1", "2001:db8:1:2::/64"],
        "&trusted=10.0.0.0/8,203.0.113.1&ipv6_prefix=48": ["198.51.100.7", "2001:db8:1::/48"],
    }.items():
        answer = playground.ask(f"api/replay?limit=FIXED%200%202s{more}", log)
        assert sorted(key for key, _ in json.loads(answer.body)["denied_keys"]) == sorted(keys)


def test_running_replay_does_not_delay_the_shutdown() -> None:
    # The request is small, and takes minutes to process.
    log = gzip.compress(b"1767603600 a\n" * 16_000_000, 1)
    playground = Playground()
    try:
        with socket.create_connection(("127.0.0.1", playground.port), timeout=60) as connection:
            connection.sendall(
                b"POST /api/replay?limit=FIXED+99+1h HTTP/1.1\r\nHost: localhost\r\n"
            )
            connection.sendall(b"Content-Length: %d\r\n\r\n" % len(log) + log)
            poll.until(lambda: playground.cpu_seconds() > 0.5, "the replay is running", timeout=60)
    finally:
        status = playground.end()
    assert status == 0


def test_log_above_the_maximum_is_refused(playground: Playground) -> None:
    log = "1767603600 user:1\n" * 1_000_000
    try:
        status = playground.ask("api/replay?limit=FIXED%202%202s", log).status
    except urllib.error.URLError:
        # The connection was closed before all was sent.
        status = 413
    assert status == 413


def test_cross_site_requests_and_unknown_hosts_are_refused(playground: Playground) -> None:
    scene = {"limits": ["FIXED 1 1s"]}
    assert playground.ask("api/playground", scene, Host="evil.example").status == 421
    refused = playground.ask("api/playground", scene, **{"Sec-Fetch-Site": "cross-site"})
    assert refused.status == 403


def test_playground_off_loopback_requires_a_token() -> None:
    done = subprocess.run(
        [BINARY, "playground", "--listen", "192.0.2.1:0"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, "RATELIMIT_CONSOLE_TOKEN" in done.stderr) == (1, True)
