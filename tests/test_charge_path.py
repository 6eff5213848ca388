"""The fast paths of a charge give the same replies, stored values, effects and counts as the slow
path.

* A call on one key keeps the key open; a call on several keys closes each key before it opens the
  next. The tests compare RL.TAKE with RL.MTAKE of one key.
* A call whose keys have one token bucket each, or a policy, is decided without effects if the
  server has no replica and no AOF. The tests compare servers with and without an AOF.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from redis import Redis, ResponseError

from support.clock import Clock
from support.listening import all_messages
from support.scale import first_on_every_server
from support.server import Server
from support.workload import IDS, Key, Word, Workload, keys, state, written_commands

pytestmark = pytest.mark.every_server

POLICIES = {
    "one": "TOKENBUCKET 3 3 30s",
    "rates": "TOKENBUCKET 8 8 30s FIXED 10 1h SLIDING 12 2s SLIDING 9 30s STRICT",
    "named": "FIXED 5 30s AS burst SLIDING 8 1h",
    "mixed": "FIXED 10 30s COST 0.5 SLIDINGLOG 4 30s SHADOW SLIDING 8 1h SHADOW",
    "bans": "FIXED 3 2s SLIDING 8 30s BAN 3 30s 5s",
    "forced": "FIXED 3 30s FORCE",
    "some forced": "FIXED 9 30s AS burst FORCE SLIDING 8 1h BAN 2 30s 5s",
}


class CallForms(NamedTuple):
    """A call as a command on one key, and the same call as a command on several keys."""

    one: tuple[Word, ...]
    several: tuple[Word, ...]


class OneKey(Workload):
    """Calls on one key that RL.TAKE and RL.MTAKE can express."""

    def calls(self, count: int) -> list[tuple[int, CallForms]]:
        return [(self._move(), self._forms()) for _ in range(count)]

    def _forms(self) -> CallForms:
        key = self._pick(keys())
        if self._chance(0.3):
            return self._policy_forms(key)
        may_have_id = key.kind == "limits" or key.window == "2s"
        options = self._id_options() if may_have_id and self._chance(0.5) else []
        # A settled call has its cost before the spec. A repetition never costs less.
        words = self._spec(key, alone=False)
        command = "RL.PEEK" if self._chance(0.1) and not options else "RL.TAKE"
        several = command.replace("RL.", "RL.M")
        return CallForms(
            (command, key.name, *options, *words), (several, 1, key.name, *options, *words)
        )

    def _id_options(self) -> Sequence[Word]:
        once = ["ONCE", self._pick(IDS), self._pick(["3s", "10m"])]
        return self._pick([once, ["SETTLE", self._pick(IDS), self._pick(["0", "0.25", "9"])]])

    def _policy_forms(self, key: Key) -> CallForms:
        policy = self._pick(list(POLICIES))
        options = self._pick([[], [], [], ["COST", "2"], ["COST", "0"], self._id_options()])
        # A key of this policy, or a key that has usage of other limits.
        name = self._pick([f"{policy}:{self._pick('ab')}", key.name])
        one = ("RL.LIMIT", name, policy, *options)
        return CallForms(one, ("RL.MTAKE", 1, name, *options, "POLICY", policy))


def reply_or_error(redis: Redis, names: list[str], words: tuple[Word, ...]) -> object:
    """Returns the reply or the error. Accesses all keys first, so that the server removes expired
    keys that the call does not access.
    """
    pipeline = redis.pipeline(transaction=False).exists(*names).execute_command(*words)
    _, reply = pipeline.execute(raise_on_error=False)
    return str(reply) if isinstance(reply, ResponseError) else reply


def decision(redis: Redis, names: list[str], words: tuple[Word, ...]) -> object:
    """Returns the decision or the error."""
    reply = reply_or_error(redis, names, words)
    has_several = isinstance(reply, list) and words[0] in {"RL.MTAKE", "RL.MPEEK"}
    return reply[2][0] if has_several else reply


def counts_of(redis: Redis) -> object:
    """Returns the server's counts: by limiter kind, by key and by policy."""
    kinds = {
        name: count
        for name, count in redis.info("ratelimit_kinds").items()
        if name.startswith("ratelimit_rl-")
    }
    policies = {name: redis.execute_command("RL.POLICYGET", name)[-1] for name in POLICIES}
    return kinds, redis.execute_command("RL.TOP", "COUNT", 100), policies


@pytest.fixture
def servers(fresh_server: Callable[..., Server]) -> list[Server]:
    """Starts a server for each path, with an AOF that records all effects."""
    servers = [fresh_server(appendonly="yes", appendfsync="always") for _ in range(2)]
    for server in servers:
        with server.client() as redis:
            redis.config_set("auto-aof-rewrite-percentage", 0)
            # Background expiry would delete keys in a different order on each server.
            redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
            for name, specs in POLICIES.items():
                redis.execute_command("RL.POLICYSET", name, *specs.split())
    return servers


@pytest.mark.parametrize("seed", first_on_every_server(range(4)))
def test_take_equals_mtake_of_one_key(seed: int, servers: list[Server], clock: Clock) -> None:
    one, several = (server.client() for server in servers)
    before = [len(written_commands(server)) for server in servers]
    names = [key.name for key in keys()] + [
        f"{policy}:{end}" for policy in POLICIES for end in "ab"
    ]
    for number, (move, call) in enumerate(OneKey(seed).calls(1000)):
        clock.advance(move)
        decisions = decision(one, names, call.one), decision(several, names, call.several)
        assert decisions[0] == decisions[1], (number, call)
        if number % 50 == 49:
            assert state(one) == state(several), number
    assert state(one) == state(several)
    assert counts_of(one) == counts_of(several)
    effects = [
        written_commands(server)[first:] for server, first in zip(servers, before, strict=True)
    ]
    assert len(effects[0]) > 300
    assert effects[0] == effects[1]


BUCKETS = ["5 5 1s", "3 1 10s", "1.5 0.4 1s", "100000000000 70000 1m", "7 7 3650d", "2 3 7us"]
BUCKET_POLICIES = {
    **{f"bucket-{index}": f"TOKENBUCKET {limit}" for index, limit in enumerate(BUCKETS)},
    "rates": POLICIES["rates"],
    "queue": "LEAKYBUCKET 4 1 1s FIXED 10 1h",
    "bans": POLICIES["bans"],
    "log": "TOKENBUCKET 9 9 1m SLIDINGLOG 5 10s",
    "forced": "TOKENBUCKET 3 1 1s FORCE",
    "some forced": "TOKENBUCKET 4 2 1s FORCE FIXED 10 1h",
}


class FastPath(Workload):
    """Random calls on token buckets: mostly fast-path calls, and some that change the keys in other
    ways.
    """

    def calls(self, count: int) -> list[tuple[int, tuple[Word, ...]]]:
        return [(self._move(), self._call()) for _ in range(count)]

    def _call(self) -> tuple[Word, ...]:
        key = self._pick(["a", "b", "c", "d", "e"])
        limit = self._pick(BUCKETS)
        policy = self._pick(list(BUCKET_POLICIES))
        bucket = ("RL.TOKENBUCKET", key, *limit.split())
        # A key with the components of this policy only.
        policy_key = f"{self._pick('ab')}:{policy}"
        fast_path = [
            bucket,
            bucket,
            *(
                (command, name, policy)
                for command in ("RL.LIMIT", "RL.DELAY")
                for name in (key, policy_key)
            ),
        ]
        if self._chance(0.85):
            return self._pick(fast_path)
        return self._pick(
            [
                (*bucket, "COST", self._pick([0, 0.5, 2, -1])),
                ("RL.LEAKYBUCKET", *bucket[1:]),
                ("RL.FIXED", key, 5, "10s"),
                ("RL.BAN", key, "2s"),
                # Without FOR: each server's own tick decides when a temporary scale ends.
                ("RL.POLICYSCALE", policy, self._pick([0.5, 1, 3])),
                ("RL.TOKENBUCKET", key, 0, 5, "1s"),
                ("RL.TOKENBUCKET", key, 5, 5, "1w1"),
                ("RL.LIMIT", key, "none"),
                ("SET", key, "other", "PX", 3000),
                ("DEL", key),
            ]
        )


def fast_path_counts(redis: Redis) -> object:
    """Returns the counts of the server that a fast-path call changes."""
    counts = {
        name: count
        for section in ("ratelimit_commands", "ratelimit_kinds")
        for name, count in redis.info(section).items()
    }
    policies = {name: redis.execute_command("RL.POLICYGET", name)[-1] for name in BUCKET_POLICIES}
    return counts, redis.execute_command("RL.TOP", "COUNT", 100), policies


def compare_with_and_without_aof(
    calls: list[tuple[int, tuple[Word, ...]]],
    names: list[str],
    fresh_server: Callable[..., Server],
    clock: Clock,
) -> None:
    """Checks that a server with an AOF and a server without an AOF give the same replies, states,
    counts and events.
    """
    settings = {"module_args": "denial-events yes", "notify_keyspace_events": "KEA"}
    without_aof = fresh_server(**settings)
    with_aof = fresh_server(**settings, appendonly="yes")
    clients = [server.client() for server in (without_aof, with_aof)]
    events = [client.pubsub() for client in clients]
    for redis, listener in zip(clients, events, strict=True):
        redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
        for name, specs in BUCKET_POLICIES.items():
            redis.execute_command("RL.POLICYSET", name, *specs.split())
        listener.psubscribe("__key*__:*")
    for number, (move, words) in enumerate(calls):
        clock.advance(move)
        answers = [reply_or_error(redis, names, words) for redis in clients]
        assert answers[0] == answers[1], (number, words)
        if number % 50 == 49:
            assert state(clients[0]) == state(clients[1]), number
    assert state(clients[0]) == state(clients[1])
    assert fast_path_counts(clients[0]) == fast_path_counts(clients[1])
    messages = [all_messages(listener) for listener in events]
    assert len(messages[0]) > 1000
    assert messages[0] == messages[1]
    assert clients[0].info("ratelimit")["ratelimit_effects_propagated"] == 0
    assert clients[1].info("ratelimit")["ratelimit_effects_propagated"] > 200


@pytest.mark.parametrize("seed", first_on_every_server(range(4)))
def test_a_fast_path_call_is_the_same_with_and_without_an_aof(
    seed: int, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    names = [*"abcde", *(f"{end}:{policy}" for policy in BUCKET_POLICIES for end in "ab")]
    compare_with_and_without_aof(FastPath(seed).calls(2000), names, fresh_server, clock)


class FastPathOfSeveralKeys(FastPath):
    """Random calls of RL.MTAKE with a token bucket for each key, mostly on the fast path."""

    def _call(self) -> tuple[Word, ...]:
        if self._chance(0.3):
            return super()._call()
        names = [name for name in "abcdefghi" if self._chance(0.3)] or ["a"]
        if self._chance(0.05):
            names.append(names[0])
        limits = [self._pick([*BUCKETS, "1000000 1000000 1s"]) for _ in names]
        words = [self._pick(["TOKENBUCKET", "tokenbucket"]) for _ in names]
        specs = [
            word
            for spec, limit in zip(words, limits, strict=True)
            for word in (spec, *limit.split())
        ]
        if self._chance(0.1):
            index = self._pick(range(len(specs)))
            specs[index] = self._pick(["0", "LEAKYBUCKET", "FIXED", "1w1", "COST"])
        return ("RL.MTAKE", len(names), *names, *specs)


@pytest.mark.parametrize("seed", first_on_every_server(range(4)))
def test_a_fast_path_call_on_several_keys_is_the_same_with_and_without_an_aof(
    seed: int, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    compare_with_and_without_aof(
        FastPathOfSeveralKeys(seed).calls(2000), [*"abcdefghi"], fresh_server, clock
    )
