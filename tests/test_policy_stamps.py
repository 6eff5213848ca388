"""A node with a wrong clock writes no policy that lasts for ever, and no scale that outlasts its
time.

- Nodes whose clock was ahead and is set back may not notice for minutes that another node has died
  (Valkey 8.1.1, also without the module).

core/src/policy/tests/stamps.rs and duration.rs specify the rules for stamps and durations.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from support.clock import START_US, Clock
from support.policies import Policy, policies, policy, record, set_policy, shared_state
from support.saving import wait_until_saved
from support.server import Server
from support.workload import written_commands

Start = Callable[..., Server]

pytestmark = pytest.mark.every_server

AOF = {"appendonly": "yes", "appendfsync": "always"}
DAY_US = 86_400_000_000
# The latest stamp, in microseconds, that a record may have.
LAST_US = 31_536_000_000_000_000

AHEAD = "the version of the policy is more than a day ahead of this server's clock"


def refused_stamps(client: Redis) -> int:
    return client.info("ratelimit")["ratelimit_policy_stamps_refused"]


def existing_policy(client: Redis, name: str) -> Policy:
    found = policy(client, name)
    assert found is not None
    return found


# Stamps


@pytest.mark.parametrize("stamp", [START_US + DAY_US + 1, LAST_US])
def test_a_forged_record_makes_no_policy_unchangeable(stamp: int, fresh_server: Start) -> None:
    server = fresh_server(**AOF)
    client, replica = server.client(), server.replica()
    set_policy(client, "gold", "FIXED", 10, "1h")
    for name in (b"gold", b"other"):
        forged = record(name, stamp, "FIXED 0 1h", created_at=stamp)
        with pytest.raises(ResponseError, match=AHEAD):
            client.execute_command("RL.POLICYEFFECT", forged)
        # A valid record in the same call is not applied either.
        with pytest.raises(ResponseError, match=AHEAD):
            client.execute_command("RL.POLICYEFFECT", record(b"good", START_US), forged)
    # The same holds for a scale alone.
    text = f"rl-policy 1 4:gold 5 0 0 0 1 1 10:FIXED 5 1h {stamp} 9 0 0"
    with pytest.raises(ResponseError, match=AHEAD):
        client.execute_command("RL.POLICYEFFECT", text)
    assert refused_stamps(client) == 5
    assert policies(client).keys() == {b"gold"}
    assert len(written_commands(server)) == 1
    assert set_policy(client, "gold", "FIXED", 20, "1h") == START_US + 1
    client.execute_command("RL.POLICYSCALE", "gold", "0.5")
    assert client.execute_command("RL.LIMIT", "k", "gold")[1] == 10
    client.execute_command("RL.POLICYDEL", "gold")
    assert set_policy(client, "gold", "FIXED", 30, "1h") == START_US + 4
    replica.wait_for_sync()
    assert shared_state(replica.client()) == shared_state(client)
    server.restart("kill")
    assert existing_policy(client, "gold").specs == b"FIXED 30 1h"


def test_sets_after_a_forged_record_within_a_day_are_later(fresh_server: Start) -> None:
    client = fresh_server().client()
    stamp = START_US + DAY_US
    forged = record(b"gold", stamp, "FIXED 0 1h", created_at=stamp)
    client.execute_command("RL.POLICYEFFECT", forged)
    assert existing_policy(client, "gold").version == stamp
    assert set_policy(client, "gold", "FIXED", 10, "1h") == stamp + 1
    assert refused_stamps(client) == 0


@pytest.mark.parametrize("restart", [False, True])
def test_a_server_whose_clock_was_ahead_recovers(
    restart: bool, fresh_server: Start, clock: Clock, tmp_path: Path
) -> None:
    wrong_clock = Clock(clock.library, tmp_path / "clock")
    wrong_clock.advance("3650d")
    primary = fresh_server(clock=wrong_clock, **AOF)
    client, replica = primary.client(), primary.replica()
    for name in ("gold", "silver"):
        set_policy(client, name, "FIXED", 10, "1h")
        client.execute_command("RL.POLICYSCALE", name, "0.5")
    client.execute_command("RL.POLICYDEL", "silver")
    wrong_clock.set(START_US)
    if restart:
        primary.restart("kill")
        replica.wait_for_sync()
    assert client.execute_command("RL.LIMIT", "k", "gold")[1] == 5, "earlier changes apply"
    assert set_policy(client, "gold", "FIXED", 20, "1h") == START_US
    assert existing_policy(client, "gold").scale == b"0.5"
    client.execute_command("RL.POLICYSCALE", "gold", "2")
    assert client.execute_command("RL.LIMIT", "k", "gold")[1] == 40
    assert set_policy(client, "silver", "FIXED", 10, "1h") == START_US + 2
    assert existing_policy(client, "silver").scale == b"1"
    replica.wait_for_sync()
    assert policies(replica.client()) == policies(client)
    primary.restart("kill")
    assert client.execute_command("RL.LIMIT", "k", "gold")[1] == 40
    assert refused_stamps(client) == 0


def test_a_replica_accepts_its_primarys_records_with_any_clocks(
    fresh_server: Start, clock: Clock, tmp_path: Path
) -> None:
    replica_clock = Clock(clock.library, tmp_path / "clock")
    primary = fresh_server()
    replica = primary.replica(clock=replica_clock, **AOF)
    last = replica.replica()
    # A child of Redis 6.2 that rewrites an AOF keeps the port when its parent is killed.
    wait_until_saved(replica.client())
    client = primary.client()
    # The primary's clock moves back and forth, so that stamps do not grow with it.
    for number, step in enumerate(("3650d", "-3650d", "-3650d", "7300d", "-3650d"), 1):
        clock.advance(step)
        set_policy(client, "gold", "FIXED", number, "1h")
        client.execute_command("RL.POLICYSCALE", "gold", number + 1)
        set_policy(client, f"other:{number}")
        for server in (replica, last):
            server.wait_for_sync()
            assert shared_state(server.client()) == shared_state(client), step
            assert existing_policy(server.client(), "gold").scale == b"%d" % (number + 1)
    before = shared_state(client)
    # The replica loads the same policies from its disk, even by a wrong clock.
    for step in ("-3650d", "7300d"):
        replica_clock.advance(step)
        replica.stop("kill")
        replica.start()
        replica.wait_for_sync()
        wait_until_saved(replica.client())
        assert shared_state(replica.client()) == before
    replica.follow(None)
    assert set_policy(replica.client(), "gold", "FIXED", 99, "1h") > 0
    assert replica.client().execute_command("RL.LIMIT", "k", "gold")[1] == 99 * 6


# Temporary scales


def denies(client: Redis) -> bool:
    return client.execute_command("RL.PEEK", "k", "POLICY", "gold")[0] == 0


def test_a_clock_set_back_does_not_prolong_a_scale(fresh_server: Start, clock: Clock) -> None:
    client = fresh_server().client()
    set_policy(client, "gold", "FIXED", 10, "1h")
    client.execute_command("RL.POLICYSCALE", "gold", "0", "FOR", "10s")
    clock.advance("4s")
    assert denies(client)
    clock.advance("-1d")
    assert denies(client)
    assert existing_policy(client, "gold").scale_ms == 6000
    clock.advance("5999ms")
    assert denies(client)
    clock.advance("1ms")
    assert not denies(client)
    assert existing_policy(client, "gold")[2:4] == (b"1", -1)
    # An earlier clock does not bring the scale back.
    clock.advance("-1d")
    assert not denies(client)


def test_a_temporary_scale_lasts_as_long_on_a_replica_with_another_clock(
    fresh_server: Start, clock: Clock, tmp_path: Path
) -> None:
    primary = fresh_server()
    client = primary.client()
    clocks = [Clock(clock.library, tmp_path / f"clock {number}") for number in range(2)]
    for replica_clock, skew in zip(clocks, ("-10d", "10d"), strict=True):
        replica_clock.advance(skew)
    set_policy(client, "gold", "FIXED", 10, "1h")
    client.execute_command("RL.POLICYSCALE", "gold", "0", "FOR", "10s")
    clock.advance("4s")
    # The replicas get the first scale from a snapshot, and the second by an effect.
    replicas = [primary.replica(clock=replica_clock) for replica_clock in clocks]
    for remaining in (6, 60):
        if remaining == 60:
            client.execute_command("RL.POLICYSCALE", "gold", "0", "FOR", "60s")
        for replica_clock, replica in zip(clocks, replicas, strict=True):
            replica.wait_for_sync()
            follower = replica.client()
            assert existing_policy(follower, "gold").scale_ms == remaining * 1000
            replica_clock.advance(f"{remaining * 1000 - 1}ms")
            assert denies(follower)
            replica_clock.advance("1ms")
            assert not denies(follower)
            assert shared_state(follower) == shared_state(client)


@pytest.mark.parametrize("way", ["RDB", "AOF"])
def test_a_loaded_scale_lasts_for_at_most_its_remaining_time(
    way: str, fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server(**(AOF if way == "AOF" else {}))
    client = server.client()
    set_policy(client, "gold", "FIXED", 10, "1h")
    client.execute_command("RL.POLICYSCALE", "gold", "0", "FOR", "1h")
    clock.advance("20m")
    server.restart("kill" if way == "AOF" else "save")
    assert existing_policy(client, "gold").scale_ms == 40 * 60_000
    # The clock is set back while the server is down. A snapshot has the remaining duration of the
    # scale, and the AOF the full duration.
    server.stop("kill" if way == "AOF" else "save")
    clock.advance("-30d")
    server.start()
    remaining = 60 if way == "AOF" else 40
    assert existing_policy(client, "gold").scale_ms == remaining * 60_000
    clock.advance(f"{remaining - 1}m")
    assert denies(client)
    clock.advance("1m")
    assert not denies(client)
