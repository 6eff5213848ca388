"""Policies, keys and counts in the API of the console."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, quote_from_bytes

from api_client import READS, TOKENS, Console
from console_fixtures import Start, console, process
from console_process import ConsoleProcess
from redis import Redis

from support import poll
from support.binaries import Binary
from support.server import Server

__all__ = ["console", "process"]


def test_policy_is_set_changed_scaled_and_deleted(console: Console, redis: Redis) -> None:
    first = console.put("plan:free", "FIXED 5 1m")
    assert first.status == 201
    version = first.json["version"]
    changed = console.put("plan:free", "FIXED 7 1m AS calls SHADOW", version)
    assert changed.status == 200
    assert changed.json["version"] > version
    (listed,) = console("/api/policies").json
    assert listed["name"] == "plan:free"
    assert listed["specs"] == "FIXED 7 1m AS calls SHADOW"
    assert (listed["scale"], listed["scale_ms"]) == (1, -1)
    scaled = console("/api/policies/plan%3Afree/scale", "POST", {"factor": 1.5, "for": "10m"})
    assert (scaled.json["scale"], scaled.json["scale_ms"]) == (1.5, 600_000)
    assert redis.execute_command("RL.POLICYLIST")[0][3:] == ["1.5", 600_000]
    path = "/api/policies/plan%3Afree"
    assert console(f"{path}?version={version}", "DELETE").status == 409
    assert console(f"{path}?version={changed.json['version']}", "DELETE").json == {"deleted": 1}
    assert console(path, "DELETE").status == 404
    assert console(path).status == 404
    assert redis.execute_command("RL.POLICYLIST") == []


def test_write_with_an_outdated_version_is_refused(console: Console) -> None:
    first = console.put("a", "FIXED 5 1m").json["version"]
    second = console.put("a", "FIXED 6 1m", first).json
    refused = console.put("a", "FIXED 7 1m", first)
    assert refused.status == 409
    stands = refused.json["stands"]
    assert (stands["specs"], stands["version"]) == ("FIXED 6 1m", second["version"])
    again = console.put("a", "FIXED 7 1m")
    assert again.status == 409, "without a version, only a new policy is created"
    assert console.put("a", "FIXED 7 1m", stands["version"]).status == 200
    gone = console.put("b", "FIXED 7 1m", 12)
    assert gone.status == 409
    assert gone.json["stands"] is None


def test_only_one_of_concurrent_change_and_deletion_succeeds(console: Console) -> None:
    outcomes = set()
    with ThreadPoolExecutor(2) as threads:
        for _ in range(30):
            version = console.put("a", "FIXED 5 1m").json["version"]
            change = threads.submit(console.put, "a", "FIXED 6 1m", version)
            deletion = threads.submit(console, f"/api/policies/a?version={version}", "DELETE")
            outcome = change.result().status, deletion.result().status
            # The second request finds another version, or none.
            assert outcome in {(200, 409), (409, 200)}
            outcomes.add(outcome)
            if outcome[0] == 200:
                assert console("/api/policies/a").json["specs"] == "FIXED 6 1m"
                assert console("/api/policies/a", "DELETE").json == {"deleted": 1}
            assert console("/api/policies").json == []


def test_each_change_is_one_audit_line(process: ConsoleProcess, redis: Redis) -> None:
    console = Console(process)
    # A name that would forge an audit line of another client.
    forged = "k\n who=10.0.0.9"
    version = console.put("a", "FIXED 5 1h").json["version"]
    console.put("a", "FIXED 6 1h", version)
    console("/api/policies/a/scale", "POST", {"factor": 1.5, "for": "10m"})
    redis.execute_command("RL.LIMIT", forged, "a", "COST", 4)
    console("/api/key/give-back", "POST", {"key": forged, "policy": "a", "amount": 3})
    console("/api/key/ban", "POST", {"key": forged, "for": "1h"})
    console("/api/key/lift", "POST", {"key": forged})
    console("/api/key/reset", "POST", {"key": forged})
    console("/api/policies/a", "DELETE")
    # Reads and refused requests are not changes.
    console("/api/policies")
    assert console.put("a", "FIXED 5", None).status == 400
    assert Console(process, READS).put("a", "FIXED 5 1h").status == 403
    process.end()
    lines = [line for line in process.log.splitlines() if "audit" in line]
    changes = [
        ("policy set", "before=null", 'after={"specs":"FIXED 5 1h","version":'),
        ("policy set", 'before={"specs":"FIXED 5 1h"', 'after={"specs":"FIXED 6 1h"'),
        ("policy scaled", '"scale":1.0,"scale_ms":-1}', '"scale":1.5,"scale_ms":600000}'),
        ("usage given back", 'before={"remaining":[5]}', 'after={"remaining":[8],"amount":3.0}'),
        ("key banned", "before=null", 'after={"banned_until":'),
        ("ban lifted", 'before={"banned_until":', "after=null"),
        ("key reset", 'before={"usage":[{"kind":"rl-', "after=null"),
        ("policy deleted", 'before={"specs":"FIXED 6 1h"', "after=null"),
    ]
    assert len(lines) == len(changes)
    for line, (change, *texts) in zip(lines, changes, strict=True):
        assert any(name in line for name in (' name="a" ', r' key="k\n who=10.0.0.9" ')), line
        assert f'who=127.0.0.1 role="change" change="{change}"' in line
        assert all(text in line for text in texts), line


def test_items_of_a_sketch_are_listed_separately(
    console: Console, redis: Redis, policy: Callable[..., int]
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    policy("per-address", "SKETCH 2 2 1h")
    for item, calls in {"203.0.113.9": 6, "203.0.113.7": 4}.items():
        for _ in range(calls):
            redis.execute_command("RL.LIMIT", "addresses", "per-address", "ITEM", item)
    rows = console("/api/top").json
    listed = [(row["key"], row["item"], row["denied"], row["policy"]) for row in rows]
    assert listed == [
        ("addresses", "203.0.113.9", 4, "per-address"),
        ("addresses", "203.0.113.7", 2, "per-address"),
    ]
    assert [row[4] for row in redis.execute_command("RL.TOP")] == [row[1] for row in listed]
    shown_key = console("/api/key?key=addresses&item=203.0.113.9").json
    assert (shown_key["policy"], shown_key["ruled"]["limits"][0]["remaining"]) == ("per-address", 0)
    shown_key = console("/api/key?key=addresses&item=203.0.113.8").json
    assert shown_key["ruled"]["limits"][0]["remaining"] == 2
    assert "ITEM" in console("/api/key?key=addresses").json["refused"]


def test_sketch_without_a_policy_is_peeked_with_its_last_limit(
    console: Console, redis: Redis
) -> None:
    for item in ["203.0.113.9", "203.0.113.9", "a b\xff"]:
        redis.execute_command("RL.SKETCH", "inline", item, 2, 2, "1h")
    for item, remaining in {"203.0.113.9": 0, "a b\xff": 1, "never": 2}.items():
        shown_key = console(f"/api/key?key=inline&item={quote(item)}").json
        assert (shown_key["policy"], shown_key["spec"]) == (None, "SKETCH 2 2 1h")
        peeked = redis.execute_command("RL.PEEK", "inline", "SKETCH", 2, 2, "1h", item)
        assert shown_key["ruled"]["limits"][0]["remaining"] == peeked[2] == remaining
    assert "ruled" not in console("/api/key?key=inline").json
    redis.execute_command("RL.FIXED", "window", 2, "1h")
    shown_key = console("/api/key?key=window&item=a").json
    assert (shown_key["spec"], "ruled" in shown_key) == (None, False)


def test_invalid_specs_are_refused_with_the_servers_error(console: Console) -> None:
    for specs in ("FIXED 5", "FIXED 5 1min", "", "NX FIXED 1 1m"):
        assert console.put("a", specs).status == 400
    checked = console("/api/check", "POST", {"specs": "fixed 5 60s"})
    assert checked.json == {"specs": "FIXED 5 1m"}
    refused = console("/api/check", "POST", {"specs": "FIXED 5 1min"})
    assert refused.status == 400
    assert "1min" in refused.json["error"]
    assert console("/api/policies").json == []


HOSTILE = [
    b"<script>alert(1)</script>",
    b"a/b?c#d&e%2f%",
    b"..",
    b".",
    b'quote"\\back',
    b"\\x41 not A",
    b"\x00\x01\n\r\x1b[31m\x7f",
    b"\xff\xfe\x80 no text",
    "\N{RIGHT-TO-LEFT OVERRIDE}gro.elpmaxe".encode(),
    "caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{PILE OF POO}".encode(),
    b"x" * 256,
]


def test_any_bytes_are_valid_names(process: ConsoleProcess, server: Server) -> None:
    for name in HOSTILE:
        check_name(name, Console(process), server.client())
    process.end(signal.SIGTERM)
    lines = [line for line in process.log.splitlines() if "key banned" in line]
    assert len(lines) == len(HOSTILE), "one line per change"
    assert "\x1b[31m" not in process.log


def check_name(name: bytes, console: Console, client: Redis) -> None:
    client.execute_command("RL.TOP", "RESET")
    client.execute_command("RL.POLICYSET", name, "FIXED", 2, "1h")
    (listed,) = console("/api/policies").json
    shown = listed["name"]
    # The page sends names percent-encoded. A path would resolve a name of dots.
    path = quote(shown.replace(".", "\\x2e") if set(shown) == {"."} else shown, safe="")
    assert console(f"/api/policies/{path}").json["name"] == shown
    if b"\\x" not in name and set(name) != {ord(".")}:
        assert console(f"/api/policies/{quote_from_bytes(name, safe='')}").json["name"] == shown
    setting = {"specs": "FIXED 1 1h", "version": listed["version"]}
    assert console(f"/api/policies/{path}", "PUT", setting).status == 200
    assert client.execute_command("RL.POLICYLIST")[0][0] == name
    for _ in range(3):
        client.execute_command("RL.LIMIT", name, name)
    (denied,) = console("/api/top").json
    assert (denied["key"], denied["denied"], denied["policy"]) == (shown, 2, shown)
    shown_key = console(f"/api/key?key={quote(shown, safe='')}").json
    assert shown_key["policy"] == shown
    assert shown_key["ruled"]["limits"][0]["remaining"] == 0
    assert console("/api/key/ban", "POST", {"key": shown, "for": "2h"}).status == 200
    assert client.execute_command("RL.LIMIT", name, name)[3] == 7_200_000
    assert console(f"/api/policies/{path}", "DELETE").json == {"deleted": 1}


def test_key_is_shown_and_changed(
    console: Console, redis: Redis, policy: Callable[..., int]
) -> None:
    policy("login", "FIXED 5 1h TOKENBUCKET 100 1 1h AS burst")
    for _ in range(7):
        redis.execute_command("RL.LIMIT", "user:1", "login")
    shown_key = console("/api/key?key=user%3A1").json
    assert shown_key["policy"] == "login", "the policy of the last denial"
    limits = shown_key["ruled"]["limits"]
    assert [(limit["limit"], limit["remaining"]) for limit in limits] == [(5, 0), (100, 95)]
    assert limits[0]["wait_ms"] == limits[0]["reset_ms"] == 3_600_000
    assert shown_key["info"]["kind"] == "rl-limits"
    assert shown_key["info"]["parts"][0]["used"] == "5"
    back = console("/api/key/give-back", "POST", {"key": "user:1", "policy": "login", "amount": 2})
    assert [limit["remaining"] for limit in back.json["limits"]] == [2, 97]
    banned = console("/api/key/ban", "POST", {"key": "user:1", "for": "1h"})
    assert banned.json == {"banned_ms": 3_600_000}
    shown_key = console("/api/key?key=user%3A1").json
    assert shown_key["ruled"]["allowed"] is False
    # Times are of the server's clock, which stands still here.
    assert shown_key["info"]["banned_until"] - shown_key["at"] == 3_600_000
    assert console("/api/key/lift", "POST", {"key": "user:1"}).status == 200
    assert redis.execute_command("RL.LIMIT", "user:1", "login")[:3] == [1, 5, 1]
    assert console("/api/key/reset", "POST", {"key": "user:1"}).json == {"deleted": 1}
    assert console("/api/key?key=user%3A1").json["info"] is None
    redis.set("text", "is no limiter")
    assert console("/api/key/reset", "POST", {"key": "text"}).status == 400
    assert redis.get("text") == "is no limiter"
    assert console("/api/key/ban", "POST", {"key": "user:1", "for": "soon"}).status == 400
    console.process.end()
    changes = [line for line in console.process.log.splitlines() if "audit" in line]
    assert len(changes) == 4
    assert all("127.0.0.1" in line for line in changes)


def test_policy_is_found_by_the_key_of_a_gateway(
    console: Console, policy: Callable[..., int]
) -> None:
    policy("api|plan|user", "FIXED 5 1h")
    shown_key = console("/api/key?key=rl%3Aapi%7Cplan%3Dgold%7Cuser%3D42").json
    assert shown_key["policy"] == "api|plan|user"
    assert shown_key["ruled"]["limits"][0]["remaining"] == 5


def test_counts_equal_those_of_the_server(
    console: Console, redis: Redis, policy: Callable[..., int]
) -> None:
    policy("web", "FIXED 3 1h FIXED 1 1h AS tight SHADOW")
    first = console("/api/now").json
    assert first["ticks"] == [] or first["ticks"][-1]["all"][0] >= 0
    for _ in range(5):
        redis.execute_command("RL.LIMIT", "user:1", "web")
    counts = {"calls": 5, "admitted": 3, "denied": 2, "near": 1, "shadow_denied": 4}
    counts |= {"banned": 0, "repeated": 0}
    assert console("/api/policies").json[0]["counts"] == counts

    def sampled() -> bool:
        return console("/api/now").json["policies"].get("web") == counts

    poll.until(sampled, "a sample has the counts", timeout=30)

    def ticked() -> bool:
        ticks = [tick["policies"].get("web", [0, 0]) for tick in console("/api/now").json["ticks"]]
        return any(tick[0] > 0 for tick in ticks) and any(tick[1] > 0 for tick in ticks)

    poll.until(ticked, "seconds with admitted and denied calls", timeout=30)
    (node,) = console("/api/now").json["nodes"]
    assert node["agrees"] is True
    assert node["reply_ms"] > 0
    assert node["policies"] == 1


def test_api_equals_the_replies_of_the_server(
    console: Console, redis: Redis, server: Server, policy: Callable[..., int]
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    policy("web", "FIXED 3 1h SLIDING 2 1h SHADOW")
    policy("jobs", "CONCURRENCY 1 1h")
    redis.execute_command("RL.POLICYSCALE", "web", "1.5", "FOR", "10m")
    for user, calls in {"user:1": 9, "user:2": 6, "user:3": 5}.items():
        for _ in range(calls):
            redis.execute_command("RL.LIMIT", user, "web")
    redis.execute_command("RL.ACQUIRE", "lock", "1", "1h", "first")
    with server.client() as waiting:
        call = waiting.connection_pool.get_connection()
        call.send_command("RL.ACQUIRE", "lock", "1", "1h", "second", "BLOCK", "1h")
        poll.until(
            lambda: redis.info("ratelimit")["ratelimit_blocked_clients"] == 1, "a call waits"
        )

        def shown() -> bool:
            return console("/api/now").json["waiting"]["calls"] == 1

        poll.until(shown, "the waiting call is shown", timeout=30)
        now, info = console("/api/now").json, redis.info("ratelimit")
        call.disconnect()
        waiting.connection_pool.release(call)
    redis.execute_command("RL.RELEASE", "lock", "first")
    assert now["count"] == info["ratelimit_policies"] == 2
    assert now["digest"] == str(info["ratelimit_policies_digest"])
    assert now["waiting"]["keys"] == info["ratelimit_blocked_keys"] == 1
    (longest,) = now["waiting"]["longest"]
    assert (longest["key"], longest["waiting"]) == ("lock", 1)
    (node,) = now["nodes"]
    assert node["name"].endswith(f":{server.port}")
    assert node["policies"] == info["ratelimit_policies"]
    assert node["errors"] == info["ratelimit_errors"]
    listed = console("/api/policies").json
    rows = redis.execute_command("RL.POLICYLIST")
    fields = ("name", "version", "specs", "scale", "scale_ms")
    assert [[row[field] for field in fields] for row in listed] == [
        [*row[:3], float(row[3]), row[4]] for row in rows
    ]
    for row in listed:
        reply = redis.execute_command("RL.POLICYGET", row["name"])
        counts = dict(zip(reply[::2], reply[1::2], strict=True))["counts"]
        assert row["counts"] == dict(zip(counts[::2], counts[1::2], strict=True))
    assert now["policies"]["web"] == listed[1]["counts"]
    top = [
        [row[field] for field in ("key", "denied", "error", "policy", "item")]
        for row in console("/api/top").json
    ]
    assert top == redis.execute_command("RL.TOP")
    assert [row[1] for row in top] == [5, 2, 1]


def test_unavailable_server_is_reported_and_reconnected(binary: Binary, start: Start) -> None:
    with Server(binary) as server:
        console = Console(start(server.port), None)
        assert console("/api/state").json["reachable"] is True
        server.stop("kill")
        poll.until(
            lambda: console("/api/policies").status == 503,
            "the server is reported unavailable",
            timeout=30,
        )
        poll.until(
            lambda: console("/api/state").json["reachable"] is False, "the state is unreachable", 30
        )
        assert console("/").status == 200
        server.start()
        poll.until(
            lambda: console("/api/policies").status == 200, "policies are listed again", timeout=30
        )
        poll.until(
            lambda: console("/api/state").json["reachable"] is True, "the state is reachable", 30
        )


def test_missing_module_is_reported_by_the_console(binary: Binary, start: Start) -> None:
    with Server(binary, module=None) as server:
        console = Console(start(server.port, environment=TOKENS))
        for answer in (console("/api/policies"), console.put("a", "FIXED 1 1m")):
            assert answer.status == 502
            assert "load the module" in answer.json["error"]
