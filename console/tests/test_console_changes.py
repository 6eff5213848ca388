"""List of changes of the console's API: who changed what and why, and the undo of each change."""

from collections.abc import Callable

import pytest
from api_client import READS, Console
from console_fixtures import Start
from console_process import ConsoleProcess
from redis import Redis

from support import poll
from support.clock import Clock
from support.server import Server

ANNA, BERT = "anna-0123456789abc", "bert-0123456789abc"
TOKENS = {
    "RATELIMIT_CONSOLE_TOKEN": READS,
    "RATELIMIT_CONSOLE_WRITE_TOKEN": f"anna:{ANNA},bert:{BERT}",
}
LIST = "ratelimit:console:changes"


@pytest.fixture
def process(server: Server, start: Start) -> ConsoleProcess:
    return start(server.port, environment=TOKENS)


@pytest.fixture
def anna(process: ConsoleProcess) -> Console:
    return Console(process, ANNA)


@pytest.fixture
def bert(server: Server, start: Start) -> Console:
    """Client of another console of the same server."""
    return Console(start(server.port, environment=TOKENS), BERT)


def changes(console: Console) -> list[dict]:
    return console("/api/changes").json["changes"]


def undo(console: Console, change: dict, **body: str):
    return console(f"/api/changes/{change['id']}/undo", "POST", body)


def test_changes_have_users_and_notes_after_a_restart(
    anna: Console, bert: Console, clock: Clock
) -> None:
    first = anna.put("login", "FIXED 5 1m").json
    clock.advance("1h")
    body = {"specs": "FIXED 1 1m", "version": first["version"], "why": " a flood "}
    assert anna("/api/policies/login", "PUT", body).status == 200
    anna.process.end()
    anna.process.start()
    for console in (anna, bert, Console(bert.process, READS)):
        last, created = changes(console)
        assert (last["what"], last["policy"], last["user"]) == ("policy set", "login", "anna")
        assert (last["who"], last["why"]) == ("127.0.0.1", "a flood")
        assert last["before"] == {"specs": "FIXED 5 1m", "version": first["version"]}
        assert last["after"]["specs"] == "FIXED 1 1m"
        assert last["at"] - created["at"] == 3_600_000
        assert (created["before"], created.get("why")) == (None, None)


def test_user_undoes_the_edit_of_another_user(anna: Console, bert: Console, redis: Redis) -> None:
    version = anna.put("login", "FIXED 5 1m").json["version"]
    anna.put("login", "FIXED 1 1d", version)
    (wrong, _) = changes(bert)
    assert wrong["obstacle"] is None
    assert undo(Console(bert.process, READS), wrong).status == 403
    assert undo(bert, wrong, why="typed a day").status == 200
    assert redis.execute_command("RL.POLICYLIST")[0][2] == "FIXED 5 1m"
    undone, wrong, _ = changes(anna)
    assert (undone["user"], undone["why"], undone["undoes"]) == ("bert", "typed a day", wrong["id"])
    assert wrong["obstacle"] == "the policy has changed since"
    # An undo can be undone as well.
    assert undo(anna, undone).status == 200
    assert redis.execute_command("RL.POLICYLIST")[0][2] == "FIXED 1 1d"


def test_undo_of_a_policy_that_has_changed_since_is_refused(
    anna: Console, bert: Console, policy: Callable[..., int]
) -> None:
    version = anna.put("login", "FIXED 5 1m").json["version"]
    anna.put("login", "FIXED 6 1m", version)
    (edit, creation) = changes(anna)
    version = policy("login", "FIXED 7 1m")
    for change in (edit, creation):
        refused = undo(bert, change)
        assert refused.status == 409
        assert refused.json["stands"]["specs"] == "FIXED 7 1m"
    # A change without a console has no entry, but marks the entries before and after it.
    assert [change["elsewhere"] for change in changes(anna)] == ["after", None]
    anna.put("login", "FIXED 8 1m", version)
    assert [change["elsewhere"] for change in changes(anna)] == ["before", None, None]
    assert len(changes(anna)) == 3


def test_undo_of_a_deletion_restores_limits_and_scale(
    anna: Console, redis: Redis, clock: Clock
) -> None:
    anna.put("plan", "FIXED 5 1m AS calls BAN 10 1m 1h")
    anna("/api/policies/plan/scale", "POST", {"factor": 0.5, "for": "10m"})
    clock.advance("1m")
    assert anna("/api/policies/plan?why=unused", "DELETE").status == 200
    (deletion, *_) = changes(anna)
    assert (deletion["why"], deletion["before"]["scale"]) == ("unused", 0.5)
    clock.advance("2m")
    assert undo(anna, deletion).status == 200
    ((_, _, specs, scale, left),) = redis.execute_command("RL.POLICYLIST")
    assert (specs, scale, left) == ("FIXED 5 1m AS calls BAN 10 1m 1h", "0.5", 420_000)
    assert undo(anna, deletion).status == 409
    # The undo of the undo deletes the policy.
    assert undo(anna, changes(anna)[0]).status == 200
    assert redis.execute_command("RL.POLICYLIST") == []
    assert changes(anna)[0]["what"] == "policy deleted"


def test_scale_is_undone_unless_it_is_over(anna: Console, redis: Redis, clock: Clock) -> None:
    anna.put("plan", "FIXED 5 1m")
    scale = "/api/policies/plan/scale"
    anna(scale, "POST", {"factor": 2, "for": "1h"})
    clock.advance("10m")
    anna(scale, "POST", {"factor": 3, "for": "10m"})
    (second, first, _) = changes(anna)
    assert first["obstacle"] == "the scale is over or has changed since"
    assert undo(anna, first).status == 409
    clock.advance("5m")
    assert undo(anna, second).status == 200
    assert redis.execute_command("RL.POLICYLIST")[0][3:] == ["2", 45 * 60_000]
    anna(scale, "POST", {"factor": 3, "for": "10m"})
    clock.advance("11m")
    assert undo(anna, changes(anna)[0]).status == 409


def test_ban_and_lift_are_undone(anna: Console, redis: Redis, clock: Clock) -> None:
    def remaining_us() -> int:
        return anna("/api/key?key=user:1").json["info"]["banned_until"] * 1000 - clock.now

    redis.execute_command("RL.TAKE", "user:1", "FIXED", 5, "1h", "AS", "calls")
    anna("/api/key/ban", "POST", {"key": "user:1", "for": "1h", "why": "a scraper"})
    anna("/api/key/ban", "POST", {"key": "user:1", "for": "2h"})
    (longer, ban) = changes(anna)
    assert ban["obstacle"] == "the ban is over or has changed since"
    assert undo(anna, ban).status == 409
    clock.advance("10m")
    # The earlier, shorter ban comes back for its remaining time.
    assert undo(anna, longer).status == 200
    assert remaining_us() == 50 * 60_000_000
    anna("/api/key/lift", "POST", {"key": "user:1"})
    clock.advance("10m")
    assert undo(anna, changes(anna)[0]).status == 200
    assert remaining_us() == 40 * 60_000_000
    assert undo(anna, changes(anna)[0]).status == 200
    assert "banned_until" not in anna("/api/key?key=user:1").json["info"]
    (lift, *_) = changes(anna)
    clock.advance("1h")
    assert undo(anna, lift).status == 400
    assert changes(anna)[0]["obstacle"] == "the ban would be over by now"


def test_reset_and_returned_units_are_not_undone(
    anna: Console, redis: Redis, policy: Callable[..., int]
) -> None:
    policy("login", "FIXED 5 1h")
    redis.execute_command("RL.LIMIT", "user:1", "login", "COST", 4)
    back = {"key": "user:1", "policy": "login", "amount": 2}
    assert anna("/api/key/give-back", "POST", back).status == 200
    assert anna("/api/key/reset", "POST", {"key": "user:1"}).status == 200
    reset, returned = changes(anna)
    assert reset["before"] == {"usage": [{"kind": "rl-window", "used": "2"}]}
    assert (returned["before"], returned["after"]) == (
        {"remaining": [1]},
        {"remaining": [3], "amount": 2},
    )
    for change in (reset, returned):
        assert change["obstacle"]
        assert undo(anna, change).status == 400
    assert undo(anna, {"id": "1-1"}).status == 404


def test_list_and_notes_are_bounded(anna: Console, redis: Redis) -> None:
    for _ in range(1005):
        redis.xadd(LIST, {"change": "of another program"})
    first = anna.put("a", "FIXED 5 1m").json
    assert redis.xlen(LIST) == 1000
    assert len(changes(anna)) == 1
    body = {"specs": "FIXED 6 1m", "version": first["version"], "why": "x" * 501}
    assert anna("/api/policies/a", "PUT", body).status == 422
    assert anna("/api/policies/a").json["version"] == first["version"]
    key = "k" * 5000
    assert anna("/api/key/ban", "POST", {"key": key, "for": "1h"}).status == 200
    (banned, _) = changes(anna)
    assert "key" not in banned
    assert banned["obstacle"] == "the name of the key is too long"


def test_change_is_made_without_the_permission_to_list_it(
    server: Server, start: Start, redis: Redis
) -> None:
    rules = ["+rl.policyset", "+rl.policyget", "+rl.policylist", "+info", "+ping", "+rl.top"]
    redis.execute_command("ACL", "SETUSER", "limited", "on", ">secret", "~*", *rules)
    environment = TOKENS | {"RATELIMIT_CONSOLE_SERVER_PASSWORD": "secret"}
    process = start(server.port, "--server-user", "limited", environment=environment)
    console = Console(process, ANNA)
    assert console.put("a", "FIXED 5 1m").status == 201
    refused = console("/api/changes")
    assert refused.status == 403
    assert "xrevrange" in refused.json["error"]
    assert console("/api/bans").json["bans"] == []
    process.end()
    assert "the list of changes lacks this change" in process.log
    redis.execute_command("ACL", "DELUSER", "limited")


def test_bans_and_scaled_policies_are_listed_with_their_remaining_time(
    anna: Console, redis: Redis, clock: Clock, policy: Callable[..., int]
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    policy("login", "FIXED 1 1m BAN 2 1m 1h")
    policy("plan", "FIXED 1 1m")
    anna("/api/policies/plan/scale", "POST", {"factor": 2, "for": "10m"})
    anna("/api/key/ban", "POST", {"key": "user:1", "for": "2h", "why": "a scraper"})
    for _ in range(4):
        redis.execute_command("RL.LIMIT", "user:2", "login")
    redis.execute_command("RL.BAN", "user:3", "30m")
    clock.advance("5m")
    (scaled,) = anna("/api/policies?scaled=true").json
    assert (scaled["name"], scaled["scale"], scaled["scale_ms"]) == ("plan", 2, 300_000)
    answer = anna("/api/bans").json
    left = {ban["key"]: ban["banned_until"] - answer["at"] for ban in answer["bans"]}
    assert left == {"user:1": 115 * 60_000, "user:2": 55 * 60_000}
    by = [(ban["user"], ban["why"], ban["in_console"]) for ban in answer["bans"]]
    assert by == [("anna", "a scraper", True), (None, None, False)]
    # A ban of a key that was not denied is found among all keys.
    found = anna("/api/keys?banned=true").json["keys"]
    assert sorted(ban["key"] for ban in found) == ["user:1", "user:2", "user:3"]
    clock.advance("1h")

    def banned() -> list[str]:
        return [ban["key"] for ban in anna("/api/bans").json["bans"]]

    poll.until(lambda: banned() == ["user:1"], "the list that viewers share is read again")
