"""Limits on several keys in one RL.MTAKE are all charged, or none is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from support.clock import UNITS_US, Clock
from support.multi_calls import (
    SPECS,
    mpeek,
    mtake,
    multi,
    pipelined,
    replication_offset,
    state_of,
    take,
)
from support.server import Server
from support.strategies import sequences


def test_a_reply_has_the_overall_decision_and_a_decision_for_each_key(
    redis: Redis, resp3: Redis
) -> None:
    specs = {"a": "FIXED 5 60s", "b": "TOKENBUCKET 200 100 60s COST 2", "c": "SLIDING 10 1s"}
    decisions = [[1, 5, 5, 0, 0], [1, 200, 200, 0, 0], [1, 10, 10, 0, 0]]
    assert mpeek(redis, **specs) == mpeek(resp3, **specs) == [1, 0, decisions]
    taken = [1, 0, [[1, 5, 4, 0, 60_000], [1, 200, 198, 0, 1200], [1, 10, 9, 0, 2000]]]
    assert mtake(redis, **specs) == taken
    redis.flushall()
    assert mtake(resp3, **specs) == taken


def test_mtake_accepts_a_single_key(redis: Redis) -> None:
    assert mtake(redis, a="FIXED 1 60s") == [1, 0, [[1, 1, 0, 0, 60_000]]]
    assert mtake(redis, a="FIXED 1 60s") == [0, 60_000, [[0, 1, 0, 60_000, 60_000]]]


def test_keys_are_charged_in_order_however_many(redis: Redis) -> None:
    specs = {f"k{n}": f"FIXED {n + 1} 60s COST {n}" for n in range(300)}
    allowed, wait_ms, decisions = mtake(redis, **specs)
    assert (allowed, wait_ms) == (1, 0)
    assert decisions == [[1, n + 1, 1, 0, 60_000 * (n > 0)] for n in range(300)]
    assert redis.dbsize() == 299


@pytest.mark.parametrize("denied", SPECS)
def test_a_denied_call_changes_no_key(
    pair: tuple[Server, Server], clock: Clock, denied: str
) -> None:
    with pair[0].client() as redis:
        specs = {name.replace(" ", "-"): spec for name, spec in SPECS.items()}
        for key, spec in specs.items():
            take(redis, key, f"{spec} COST 4")
        clock.advance("1s")
        denied_key = denied.replace(" ", "-")
        calls = {"new": "FIXED 10 10s", **specs}
        # The lease of a new holder, or a cost, that does not fit.
        calls[denied_key] = calls[denied_key].format(key="another-holder") + " COST 10"
        before = state_of(redis, *calls), replication_offset(redis)
        peeked = multi(redis, "RL.MPEEK", calls)
        allowed, wait_ms, decisions = multi(redis, "RL.MTAKE", calls)
        assert [allowed, wait_ms, decisions] == peeked
        assert allowed == 0
        assert [decision[0] for decision in decisions] == [int(key != denied_key) for key in calls]
        assert wait_ms == decisions[list(calls).index(denied_key)][3]
        assert (state_of(redis, *calls), replication_offset(redis)) == before


def test_each_decision_is_that_of_the_limit_alone(redis: Redis, clock: Clock) -> None:
    specs = {name.replace(" ", "-"): f"{spec} COST 3" for name, spec in SPECS.items()}
    twins = {f"{key}-twin": spec for key, spec in specs.items()}
    for _ in range(3):
        clock.advance("500ms")
        allowed, _, decisions = multi(redis, "RL.MTAKE", specs)
        assert allowed == 1
        assert decisions == [take(redis, key, spec) for key, spec in twins.items()]
    for key, twin in zip(specs, twins, strict=True):
        # The holder of a lease has the name of the key, so the values of the two keys differ.
        if key != "concurrency":
            assert state_of(redis, key) == state_of(redis, twin)


@pytest.mark.parametrize(
    ("specs", "wait_ms"),
    [
        # Denied: the longest wait among the limits that denied.
        (["FIXED 10 60s COST 1", "FIXED 10 20s COST 9", "FIXED 10 30s COST 8"], 30_000),
        (["FIXED 10 60s COST 1", "FIXED 10 20s COST 9"], 20_000),
        (["LEAKYBUCKET 10 1 60s COST 1", "FIXED 10 20s COST 9"], 20_000),
        (["TOKENBUCKET 10 1 60s COST 7 MAXWAIT 1h", "FIXED 10 20s COST 9"], 20_000),
        (["TOKENBUCKET 10 1 60s COST 7 MAXWAIT 59s", "FIXED 10 20s COST 9"], 20_000),
        (["TOKENBUCKET 10 1 60s COST 7 MAXWAIT 10s", "FIXED 10 20s COST 9"], 50_000),
        (["FIXED 10 60s COST 7 FORCE", "FIXED 10 20s COST 9"], 20_000),
        # -1 if a limit can never grant the cost.
        (["FIXED 10 60s COST 9", "FIXED 10 20s COST 11"], -1),
        (["FIXED 10 60s COST 11", "FIXED 10 20s COST 9"], -1),
        (["FIXED 10 60s COST 11 FORCE", "FIXED 10 20s COST 9"], 20_000),
        # Allowed: the longest hold.
        (["FIXED 10 60s", "FIXED 10 20s"], 0),
        (["LEAKYBUCKET 10 1 1s", "LEAKYBUCKET 10 1 2s"], 8_000),
        (["TOKENBUCKET 10 1 1s COST 8 MAXWAIT 1m", "LEAKYBUCKET 10 2 1s"], 2_000),
        (["TOKENBUCKET 10 1 1s COST 8 MAXWAIT 1m", "LEAKYBUCKET 10 1 2s"], 8_000),
        (["TOKENBUCKET 10 1 1s COST 8 MAXWAIT 1m", "LEAKYBUCKET 10 1 2s COST -1"], 2_000),
        # A forced cost that does not fit has no hold; a forced cost that fits has a hold.
        (["LEAKYBUCKET 10 1 1s", "FIXED 10 60s COST 9 FORCE"], 4_000),
        (["LEAKYBUCKET 10 1 1s", "LEAKYBUCKET 10 1 9s COST 9 FORCE"], 4_000),
        (["LEAKYBUCKET 10 1 1s", "LEAKYBUCKET 10 1 2s COST 3 FORCE"], 8_000),
    ],
)
def test_wait_is_the_longest_of_the_enforced_limits(
    redis: Redis, specs: list[str], wait_ms: int
) -> None:
    keys = [f"k{n}" for n in range(len(specs))]
    for key, spec in zip(keys, specs, strict=True):
        # Uses four units of each limit.
        take(redis, key, f"{' '.join(spec.split()[: 4 if 'BUCKET' in spec else 3])} COST 4")
    specs_by_key = dict(zip(keys, specs, strict=True))
    assert multi(redis, "RL.MPEEK", specs_by_key)[1] == wait_ms
    assert multi(redis, "RL.MTAKE", specs_by_key)[1] == wait_ms


def test_requests_and_tokens_per_minute_are_limited_together(redis: Redis, clock: Clock) -> None:
    def call(tokens: int) -> list:
        return mtake(
            redis,
            requests="SLIDING 3 60s STRICT",
            tokens=f"TOKENBUCKET 10000 10000 60s COST {tokens}",
        )

    assert call(4000)[2] == [[1, 3, 2, 0, 61_000], [1, 10_000, 6000, 0, 24_000]]
    assert call(4000)[0] == 1
    # The tokens deny and no request is counted. After the wait they allow.
    assert call(4000) == [0, 12_000, [[1, 3, 1, 0, 61_000], [0, 10_000, 2000, 12_000, 48_000]]]
    assert call(20_000)[1] == -1
    clock.advance("11.999s")
    assert call(4000)[1] == 1
    clock.advance("1ms")
    assert call(4000)[0] == 1
    # The requests deny, and no token is counted.
    assert call(0)[2][1] == [1, 10_000, 0, 0, 60_000]
    assert call(0)[0] == 0


def test_a_forced_limit_never_denies_and_is_charged_only_if_the_others_pass(redis: Redis) -> None:
    take(redis, "a", "FIXED 10 60s COST 8")
    assert mtake(redis, a="FIXED 10 60s COST 5 FORCE", b="FIXED 1 30s") == [
        1,
        0,
        [[0, 10, 0, 60_000, 60_000], [1, 1, 0, 0, 30_000]],
    ]
    before = state_of(redis, "a", "b")
    # Denied: the reply has the forced limit's decision, and its usage uncharged.
    assert mtake(redis, a="FIXED 10 60s COST 5 FORCE", b="FIXED 1 30s") == [
        0,
        30_000,
        [[0, 10, 0, 60_000, 60_000], [0, 1, 0, 30_000, 30_000]],
    ]
    assert state_of(redis, "a", "b") == before
    assert mtake(redis, a="FIXED 10 60s FORCE", b="FIXED 9 30s FORCE")[0] == 1


def test_a_give_back_never_denies_and_is_made_only_if_the_others_pass(redis: Redis) -> None:
    take(redis, "a", "FIXED 10 60s COST 8")
    take(redis, "b", "FIXED 1 30s")
    before = state_of(redis, "a", "b")
    give_back = "FIXED 10 60s COST -8"
    assert mtake(redis, a=give_back, b="FIXED 1 30s", c=give_back) == [
        0,
        30_000,
        [[1, 10, 2, 0, 60_000], [0, 1, 0, 30_000, 30_000], [1, 10, 10, 0, 0]],
    ]
    assert state_of(redis, "a", "b") == before
    assert mtake(redis, a=give_back, b="FIXED 2 30s", c=give_back) == [
        1,
        0,
        [[1, 10, 10, 0, 0], [1, 2, 0, 0, 30_000], [1, 10, 10, 0, 0]],
    ]
    assert redis.keys() == [b"b"]


@pytest.mark.parametrize("name", ["", " AS name"], ids=["plain", "composite"])
@pytest.mark.parametrize("limit", [5, 0.5], ids=["with a hold", "over its limit"])
def test_a_give_back_is_never_denied_or_delayed(redis: Redis, name: str, limit: float) -> None:
    assert take(redis, "a", f"FIXED 10 60s COST 4{name}")[0] == 1
    assert take(redis, "b", f"LEAKYBUCKET 5 1 10s{name}")[0] == 1
    # A limit with a COST of its own keeps it.
    words = f"COST -1 FIXED 10 60s{name} LEAKYBUCKET {limit} 1 10s COST 1{name}".split()
    unchanged = [1, int(limit), 4 if limit == 5 else 0, 0, 10_000]
    for command, remaining in (("RL.MPEEK", 6), ("RL.MTAKE", 7)):
        reply = redis.execute_command(command, 2, "a", "b", *words)
        assert reply == [1, 0, [[1, 10, remaining, 0, 60_000], unchanged]]


# Specs of a policy, and options of a call after which a plain key stays plain.
LEAVES_A_KEY_PLAIN = {
    "a ban without a strike": ("FIXED 10 1h BAN 3 1m 1m", ""),
    "a cost of 0": ("FIXED 10 1h SLIDING 10 1h", "COST 0"),
    "units given back": ("FIXED 10 1h SLIDING 10 1h", "COST -1"),
    "a second limit in shadow mode": ("FIXED 10 1h SLIDING 10 1h COST 0 SHADOW", ""),
    "a second limit with a cost of 0": ("FIXED 10 1h SLIDING 10 1h AS name COST 0", "FORCE"),
    "a settlement that releases a lease": ("CONCURRENCY 5 1h", "SETTLE gone 1"),
}


@pytest.mark.parametrize("case", LEAVES_A_KEY_PLAIN.values(), ids=LEAVES_A_KEY_PLAIN)
@pytest.mark.parametrize("step_back", ["0s", "10s"], ids=["", "clock moved back"])
def test_a_plain_key_gets_several_limits_only_if_necessary(
    pair: tuple[Server, Server], clock: Clock, case: tuple[str, str], step_back: str
) -> None:
    specs, options = case
    primary, replica = pair
    with primary.client() as redis, replica.client() as reader:
        redis.execute_command("RL.POLICYSET", "p", *specs.split())
        for key in ("one", "two"):
            if specs.startswith("CONCURRENCY"):
                for holder in ("gone", "another"):
                    redis.execute_command("RL.ACQUIRE", key, 5, "1h", holder)
            else:
                redis.execute_command("RL.FIXED", key, 10, "1h", "COST", 4)
        kind = redis.type("one")
        clock.advance(f"-{step_back}")
        reply = redis.execute_command("RL.LIMIT", "one", "p", *options.split())
        mtake = ("RL.MTAKE", 2, "two", "other", *options.split(), "POLICY", "p", "FIXED", 9, "1m")
        assert redis.execute_command(*mtake)[2][0] == reply
        for key in ("one", "two"):
            assert redis.type(key) == kind, key
        assert redis.dump("one") == redis.dump("two")
        assert redis.pttl("one") == redis.pttl("two")
        replica.wait_for_sync()
        assert reader.dump("two") == redis.dump("two")


def test_a_call_over_several_keys_is_given_back_in_one_call(redis: Redis, clock: Clock) -> None:
    specs = {name.replace(" ", "-"): spec for name, spec in SPECS.items() if name != "concurrency"}
    assert multi(redis, "RL.MTAKE", {key: f"{spec} COST 3" for key, spec in specs.items()})[0] == 1
    clock.advance("100ms")
    give_back = {key: f"{spec} COST -3" for key, spec in specs.items()}
    assert multi(redis, "RL.MTAKE", give_back)[0] == 1
    assert redis.dbsize() == 0


class Gateway:
    """Gateway with limits for all requests, an endpoint, a user and an IP address."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    def request(self, user: str, ip: str, cost: int = 1, command: str = "RL.MTAKE") -> list:
        specs = {
            "global": "TOKENBUCKET 1000000 1000000 1s",
            "endpoint:/search": "TOKENBUCKET 10000 10000 1s",
            f"user:{user}": "TOKENBUCKET 200 100 60s",
            f"ip:{ip}": "SLIDING 50 60s STRICT",
        }
        return multi(
            self.redis, command, {key: f"{spec} COST {cost}" for key, spec in specs.items()}
        )

    def remaining(self, user: str, ip: str) -> list[int]:
        return [decision[2] for decision in self.request(user, ip, 0, "RL.MPEEK")[2]]


def test_a_hierarchy_of_limits_denies_if_one_is_full_and_charges_none(
    redis: Redis, clock: Clock
) -> None:
    gateway = Gateway(redis)
    for _ in range(50):
        assert gateway.request("alice", "ip1")[0] == 1
    assert gateway.remaining("alice", "ip1") == [999_950, 9950, 150, 0]
    allowed, wait_ms, decisions = gateway.request("alice", "ip1")
    assert [decision[0] for decision in decisions] == [1, 1, 1, 0]
    assert (allowed, wait_ms) == (0, 61_000)
    for ip in ("ip2", "ip3", "ip4"):
        for _ in range(50):
            assert gateway.request("alice", ip)[0] == 1
    # Four addresses have used the burst of 200 units, of which 100 a minute are refilled.
    allowed, wait_ms, decisions = gateway.request("alice", "ip5")
    assert [decision[0] for decision in decisions] == [1, 1, 0, 1]
    assert (allowed, wait_ms) == (0, 600)
    assert gateway.remaining("alice", "ip5") == [999_800, 9800, 0, 50]
    # Both limits deny: the reply has the longer wait.
    assert gateway.request("alice", "ip1")[:2] == [0, 61_000]
    clock.advance("599ms")
    assert gateway.request("alice", "ip5")[:2] == [0, 1]
    clock.advance("1ms")
    assert gateway.request("alice", "ip5")[0] == 1
    assert gateway.request("alice", "ip5")[0] == 0
    # The larger limits have recovered, and allow other callers.
    assert gateway.remaining("bob", "ip6") == [999_999, 9999, 200, 50]


def test_a_hierarchy_of_limits_denies_an_endpoint_that_all_users_have_filled(
    redis: Redis, clock: Clock
) -> None:
    gateway = Gateway(redis)
    for n in range(200):
        assert gateway.request(f"user{n}", f"ip{n}", 50)[0] == 1
    allowed, wait_ms, decisions = gateway.request("one-more", "ip-one-more")
    assert [decision[0] for decision in decisions] == [1, 0, 1, 1]
    assert (allowed, wait_ms) == (0, 1)
    assert redis.exists("user:one-more", "ip:ip-one-more") == 0
    clock.advance(99)
    assert gateway.request("one-more", "ip-one-more")[0] == 0
    clock.advance(1)
    assert gateway.request("one-more", "ip-one-more")[0] == 1


def spec_of(name: str, numbers: tuple[int, int, int], option: str) -> str:
    limit, seconds, cost = numbers
    spec = {
        "token bucket": f"TOKENBUCKET {limit} {limit} {seconds}s",
        "leaky bucket": f"LEAKYBUCKET {limit} {limit} {seconds}s",
        "fixed": f"FIXED {limit} {seconds}s",
        "fixed aligned": f"FIXED {limit} {seconds}s ALIGNED",
        "sliding": f"SLIDING {limit} {seconds}s",
        "sliding strict": f"SLIDING {limit} {seconds}s STRICT",
        "sliding log": f"SLIDINGLOG {limit} {seconds}s",
        "concurrency": f"CONCURRENCY {limit} {seconds}s holder{cost}",
    }[name]
    if name == "concurrency":
        return f"{spec} COST {cost / 2:f}"
    if option == "GIVE BACK":
        return f"{spec} COST -{cost}"
    if option == "MAXWAIT":
        option = "MAXWAIT 2s" if name == "token bucket" else ""
    return f"{spec} COST {cost * 0.75:f} {option}"


calls = st.dictionaries(
    st.sampled_from(list(SPECS)),
    st.builds(
        lambda numbers, option: (numbers, option),
        st.tuples(st.sampled_from([3, 10]), st.sampled_from([1, 10]), st.integers(1, 5)),
        st.sampled_from(["", "", "", "FORCE", "GIVE BACK", "MAXWAIT"]),
    ),
    min_size=1,
    max_size=4,
)
pauses = st.sampled_from([0, 0, 0, 1, 1000, UNITS_US["s"] - 1, UNITS_US["s"], 4 * UNITS_US["s"]])


# The module decides this alone, so one server is enough.
@pytest.mark.once
@given(steps=sequences(st.tuples(pauses, calls), 20))
@settings(max_examples=80)
def test_a_call_is_admitted_if_each_limit_alone_grants_it(
    redis: Redis, clock: Clock, steps: list
) -> None:
    redis.flushall()
    clock.reset()
    for pause, call in steps:
        clock.advance(pause)
        specs = {name: spec_of(name, *numbers).split() for name, numbers in call.items()}
        words = [len(specs), *specs, *(word for spec in specs.values() for word in spec)]
        before = state_of(redis, *specs)
        *peeks, peeked, (allowed, wait_ms, decisions) = pipelined(
            redis,
            [
                *(("RL.PEEK", name, *spec) for name, spec in specs.items()),
                ("RL.MPEEK", *words),
                ("RL.MTAKE", *words),
            ],
        )
        forced = [call[name][1] == "FORCE" and name != "concurrency" for name in specs]
        denials = [
            peek[3] for peek, force in zip(peeks, forced, strict=True) if not (peek[0] or force)
        ]
        assert peeked == [allowed, wait_ms, peeks]
        assert allowed == (not denials)
        if denials:
            assert wait_ms == (-1 if -1 in denials else max(denials))
            assert decisions == peeks
            assert state_of(redis, *specs) == before
        else:
            twins = {f"{name} twin": spec for name, spec in specs.items()}
            separate_decisions = pipelined(
                redis, [("RL.TAKE", twin, *spec) for twin, spec in twins.items()]
            )
            assert wait_ms == max(
                [decision[3] for decision in separate_decisions if decision[0]], default=0
            )
            assert decisions == separate_decisions
            assert state_of(redis, *specs) == state_of(redis, *twins)
