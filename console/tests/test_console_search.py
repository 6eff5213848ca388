"""Searches of the console: denials by minute, and keys by their prefix."""

from api_client import Console
from console_fixtures import console, process
from redis import Redis

from support.clock import Clock

__all__ = ["console", "process"]


def test_denials_are_counted_by_minute(console: Console, redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.TOP", "RESET")
    for denied in (5, 0, 2):
        for _ in range(denied + 1):
            redis.execute_command("RL.FIXED", f"user:{denied}", 1, "1h")
        for _ in range(denied):
            redis.execute_command("RL.FIXED", "user", 0, "1h")
        clock.advance("1m")
    rows = {row["key"]: row for row in console("/api/top?since=5m&minutes=5").json}
    assert rows["user"]["minutes"] == [0, 5, 0, 2, 0]
    assert rows["user:5"]["minutes"] == [0, 5, 0, 0, 0]
    assert "minutes" not in console("/api/top?since=5m").json[0]
    assert console("/api/top?minutes=0").status == 200
    assert len(console("/api/top?minutes=9999").json[0]["minutes"]) == 60


def search(console: Console, prefix: str) -> tuple[list[str], int]:
    """Returns the keys with a prefix and the number of requests for them."""
    keys, cursor, requests = [], None, 0
    while requests == 0 or cursor is not None:
        path = f"/api/keys?prefix={prefix}"
        answer = console(path if cursor is None else f"{path}&cursor={cursor}").json
        keys += [row["key"] for row in answer["keys"]]
        cursor, requests = answer["cursor"], requests + 1
    return sorted(set(keys)), requests


def test_keys_are_found_in_bounded_portions(console: Console, redis: Redis) -> None:
    calls = redis.pipeline(transaction=False)
    for number in range(30_000):
        calls.execute_command("RL.FIXED", f"other:{number}", 1, "1h")
    for number in range(3):
        calls.execute_command("RL.FIXED", f"login:{number}", 1, "1h")
    calls.set("login:text", "of another type")
    calls.execute()
    keys, requests = search(console, "login:")
    assert keys == ["login:0", "login:1", "login:2"]
    assert requests == 2, "a request looks at 20,000 keys"
    first = console("/api/keys?prefix=other:").json
    assert 100 <= len(first["keys"]) < 3000, "a request ends when it has found enough"
    assert search(console, "nobody") == ([], 2)


def test_prefix_is_no_pattern(console: Console, redis: Redis) -> None:
    for key in ("a*b", "axb", "a[bc]d", "abd", "a?", "a\\d", b"a\xff\x00"):
        redis.execute_command("RL.FIXED", key, 1, "1h")
    assert search(console, "a*")[0] == ["a*b"]
    assert search(console, "a%5Bbc%5D")[0] == ["a[bc]d"]
    assert search(console, "a%3F")[0] == ["a?"]
    assert search(console, "a%5Cd")[0] == ["a\\d"]
    assert search(console, "a%5Cxff")[0] == ["a\\xff\x00"]
    assert len(search(console, "a")[0]) == 7


def test_malformed_cursor_is_refused(console: Console) -> None:
    for cursor in ("", "1", "x@127.0.0.1:1"):
        assert console(f"/api/keys?prefix=a&cursor={cursor}").status == 400
    # A node that no longer exists is skipped.
    assert console("/api/keys?prefix=a&cursor=0@~").json == {"keys": [], "cursor": None}
