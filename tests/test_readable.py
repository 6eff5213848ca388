"""Every state that calls create can be read from effects, the AOF and snapshots, and later calls
work on it.

A debug build reads back every change, and answers an internal error if that fails.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from support.clock import START_US, UNITS_US, Clock
from support.payloads import fields, rewritten
from support.saving import (
    restart_from_aof,
    restart_from_rdb,
    restart_from_rewritten_aof,
    rewrite_aof,
)
from support.scale import scaled
from support.server import DEBUG_MODULE, Server
from support.workload import state

AOF = {"appendonly": "yes", "appendfsync": "always", "aof_use_rdb_preamble": "no"}

# Call with UPTO on two limits, of which the second has FORCE.
MIXED = "RL.TAKE k UPTO ONCE a 10m FIXED 10 1h FIXED 5 1d COST 1 FORCE"


def words(text: str) -> list[str]:
    return text.split()


def allowed_and_granted(client: Redis) -> tuple[int, int]:
    """Calls MIXED. Returns whether the call is allowed, and the units that UPTO granted."""
    allowed, *_, granted = client.execute_command(*MIXED.split())
    return allowed, granted


@pytest.mark.parametrize(
    ("restart", "settings"),
    [
        (restart_from_rdb, {}),
        (restart_from_aof, AOF),
        (restart_from_rewritten_aof, AOF),
    ],
    ids=["RDB", "AOF", "rewritten AOF"],
)
@pytest.mark.parametrize("existing", [False, True], ids=["new key", "existing key"])
def test_force_combined_with_upto_is_persisted_and_replicated(
    existing: bool,
    restart: Callable[[Server], None],
    settings: dict[str, str],
    fresh_server: Callable[..., Server],
) -> None:
    primary = fresh_server(**settings)
    replica = primary.replica()
    with primary.client() as client:
        if existing:
            client.execute_command(*words("RL.TAKE k FIXED 10 1h FIXED 5 1d"))
        assert allowed_and_granted(client) == (1, 1)
        stored = state(client)
    replica.wait_for_sync()
    with replica.client() as client:
        assert state(client) == stored
    restart(primary)
    with primary.client() as client:
        assert state(client) == stored
        assert allowed_and_granted(client) == (1, 1), "the repeated call is not charged"
        assert state(client) == stored


def test_upto_returns_its_grant_if_a_force_does_not_fit(redis: Redis) -> None:
    call = words("RL.TAKE k COST 3 UPTO ONCE a 10m EACH FIXED 10 1h FIXED 5 1d COST 9 FORCE")
    day_ms = UNITS_US["d"] // 1000
    expected = [0, day_ms, [[1, 10, 7, 0, 3_600_000, 3], [0, 5, 0, day_ms, day_ms]]]
    assert redis.execute_command(*call) == expected
    assert redis.execute_command(*call) == expected, "the repeated call"
    call.remove("EACH")
    assert redis.execute_command(*call) == [0, 5, 0, day_ms, day_ms, 3]


@pytest.mark.parametrize(
    "spec", ["SLIDINGLOG 10 1h", "CONCURRENCY 10 1h h", "SLIDING 10 1h STRICT", "FIXED 10 1h"]
)
def test_payload_with_a_component_later_than_its_key_is_rejected(spec: str, redis: Redis) -> None:
    redis.execute_command("RL.TAKE", "k", *spec.split(), "AS", "a")
    dump = redis.dump("k")
    found = fields(dump)
    # The first instant is that of the key, and the second that of the component.
    assert found[0] == START_US
    redis.restore("copy", 60_000, rewritten(dump, found))
    (index,) = [index for index, field in enumerate(found) if field == START_US][1:]
    for later in (1, UNITS_US["h"], UNITS_US["d"]):
        found[index] = START_US + later
        with pytest.raises(ResponseError, match="Bad data format"):
            redis.restore("later", 60_000, rewritten(dump, found))
    assert redis.execute_command("RL.BAN", "copy", "1s") == 1000


def test_an_effect_with_a_component_later_than_its_key_is_rejected(
    redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*words("RL.TAKE k SLIDINGLOG 10 1h AS a"))
    later = START_US + UNITS_US["h"]

    def effect(instant: int) -> str:
        # Adds an entry to the log that is the component.
        expires_at = START_US // 1000 + 3_600_000
        return (
            f"rl-limits 1 {expires_at} 2 {START_US} 0 1 0 1 {4 * 8} {START_US + UNITS_US['h']}"
            f" 1 0 0 0 1 {instant} 1000000 0"
        )

    before = redis.dump("k")
    with pytest.raises(ResponseError, match="invalid effect"):
        redis.execute_command("RL.EFFECT", "k", effect(later))
    assert redis.dump("k") == before
    assert redis.execute_command("RL.EFFECT", "k", effect(START_US)) == b"OK"
    clock.advance("-1h")
    assert redis.execute_command(*words("RL.TAKE k SLIDINGLOG 10 1h AS a"))[:3] == [1, 10, 7]


SPECS_BY_NAME = {
    "FIXED": "FIXED 10 1h",
    "TOKENBUCKET": "TOKENBUCKET 10 10 1h",
    "SLIDING": "SLIDING 10 1h",
    "SLIDING STRICT": "SLIDING 10 1h STRICT",
    "SLIDINGLOG": "SLIDINGLOG 10 1h",
}


@pytest.mark.parametrize("spec", SPECS_BY_NAME.values(), ids=SPECS_BY_NAME)
@pytest.mark.parametrize(
    "call",
    [
        # These calls convert the key, and charge none of its earlier limits.
        "RL.BAN k 1s",
        "RL.TAKE k COST 10 {spec} BAN 3 1m 1m",
        "RL.TAKE k CONCURRENCY 1 1s h FIXED 9 1m AS other",
        # These only move the key back with the clock.
        "RL.TAKE k COST 10 {spec}",
        "RL.TAKE k COST 10 {short}",
    ],
)
def test_keys_from_a_server_whose_clock_is_ahead_forgive_nothing(
    call: str, spec: str, fresh_server: Callable[..., Server], clock: Clock, tmp_path: Path
) -> None:
    slow_clock = Clock(clock.library, tmp_path / "clock")
    # Behind by more than the recovery of any of the limits.
    slow_clock.set(clock.now - 3 * UNITS_US["h"])
    source, target = fresh_server(), fresh_server(clock=slow_clock)
    with source.client() as source_client, target.client() as target_client:
        source_client.execute_command("RL.TAKE", "k", *spec.split(), "COST", 10)
        # As MIGRATE does.
        target_client.restore("k", source_client.pttl("k"), source_client.dump("k"))
        short = spec.replace("1h", "1s").replace(" 10 10 ", " 10 1000 ")
        target_client.execute_command(*call.format(spec=spec, short=short).split())
        for seconds in (2, 3590):
            slow_clock.set(clock.now - 3 * UNITS_US["h"] + seconds * UNITS_US["s"])
            peeked = target_client.execute_command("RL.PEEK", "k", *spec.split(), "COST", 10)
            assert peeked[0] == 0, f"after {seconds} s: {peeked}"


OPTIONS = [
    *("", "", "COST 0", "COST 0.5", "COST 3", "COST 1e12", "COST -1", "COST -1e12"),
    *("UPTO", "COST 3 UPTO", "FORCE", "COST 7 FORCE", "COST 1e12 FORCE", "MAXWAIT 1s"),
]
KEEPS = ["", "", "", "", "EACH", "KEEP 1", "KEEP 50%"]
IDS = [
    *("", "", "", "ONCE r1 1s", "ONCE r1 1h", "ONCE r2 10m", "ONCE r3 3650d", "ONCE r4 1us"),
    *("SETTLE r1 0", "SETTLE r1 2", "SETTLE r2 0.5", "SETTLE r3 1e12", "SETTLE r3 1"),
]
SPECS = [
    *("TOKENBUCKET 3 2 1s", "TOKENBUCKET 5 5 1m", "LEAKYBUCKET 3 2 1m", "LEAKYBUCKET 5 1 1h"),
    *("FIXED 3 1s", "FIXED 10 1h", "FIXED 3 1m ALIGNED", "FIXED 3 1mo ALIGNED ANCHOR 31"),
    *("SLIDING 3 1s", "SLIDING 9 1m", "SLIDING 3 1s STRICT", "SLIDING 9 1m STRICT"),
    *("SLIDINGLOG 3 1s", "SLIDINGLOG 9 1m", "CONCURRENCY 3 1s h1", "CONCURRENCY 3 1m h2"),
]
NAMES = ["", "", "AS a", "AS b"]
OWN = ["", "", "", "", "COST 1", "COST 2 FORCE", "FORCE", "COST 1 MAXWAIT 1s", "KEEP 1", "NX"]
BANS = ["", "", "", "BAN 1 1m 1s", "BAN 2 3s 1m"]
MOVES_US = [0, 0, 0, 1, 999, 1_000_000, 60_000_000, 3_600_000_000]


def calls(rng: random.Random, keys: Sequence[str]) -> Iterator[list[str]]:
    """Generates random calls by the grammar, of which about half are refused."""
    while True:
        key = rng.choice(keys)
        match rng.randrange(12):
            case 0:
                text = f"RL.RELEASE {key} {rng.choice(['h1', 'h2', 'r1'])}"
            case 1:
                text = f"RL.BAN {key} {rng.choice(['0', '1s', '3650d'])}"
            case 2 | 3 | 4:
                text = f"RL.TAKE {key} {rng.choice(SPECS)} {rng.choice(OPTIONS)}"
            case _:
                options = rng.choice(IDS)
                if not options.startswith("SETTLE"):
                    options = f"{rng.choice(OPTIONS)} {rng.choice(KEEPS)} {options}"
                specs = " ".join(
                    f"{spec} {rng.choice(NAMES)} {rng.choice(OWN)}"
                    for spec in rng.sample(SPECS, rng.randint(1, 4))
                )
                text = f"RL.TAKE {key} {options} {specs} {rng.choice(BANS)}"
        yield text.split()


def test_replicas_and_snapshots_have_a_key_after_any_calls(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server(module=DEBUG_MODULE, **AOF)
    replica = primary.replica(module=DEBUG_MODULE)
    rng = random.Random(5)
    keys = [f"k{number}" for number in range(8)]
    random_calls, changed = calls(rng, keys), 0
    with primary.client() as client, replica.client() as follower:
        for _ in range(scaled(60, 3000)):
            clock.advance(rng.choice((1, 1, 1, -1)) * rng.choice(MOVES_US))
            pipeline = client.pipeline(transaction=False).exists(*keys)
            batch = [next(random_calls) for _ in range(20)]
            for call in batch:
                pipeline.execute_command(*call)
            for call, reply in zip(batch, pipeline.execute(raise_on_error=False)[1:], strict=True):
                assert "internal error" not in str(reply), f"{call}: {primary.log()[-2000:]}"
                changed += not isinstance(reply, ResponseError)
        assert changed > 400
        replica.wait_for_sync()
        stored = state(client)
        assert b"rl-limits" in {key.type for key in stored.values()}
        assert state(follower) == stored
        rewrite_aof(client)
    primary.restart("kill")
    with primary.client() as client:
        assert state(client) == stored
        client.execute_command("DEBUG", "RELOAD")
        assert state(client) == stored
