"""Changes of policies reach replicas, and records in any order create the same policies."""

import pytest
from redis import ReadOnlyError, Redis

from conftest import Pair
from support.clock import START_US, Clock
from support.policies import policies, policy
from support.policy_calls import HOUR, MINUTE, START_MS, Start, answer
from support.server import Server
from support.workload import state, written_commands

pytestmark = pytest.mark.every_server


# Transactions and scripts


def test_policies_change_within_transactions_and_scripts(pair: Pair) -> None:
    primary = pair.primary.client()
    primary.execute_command("RL.POLICYDEL gold")
    with primary.pipeline(transaction=True) as transaction:
        transaction.execute_command("RL.POLICYSET gold FIXED 10 1h")
        transaction.execute_command("RL.LIMIT k gold")
        transaction.execute_command("RL.POLICYSCALE gold 0.5")
        transaction.execute_command("RL.LIMIT k gold")
        replies = transaction.execute()
    assert [replies[1][1], replies[3][1]] == [10, 5]
    script = """
        redis.call('RL.POLICYSET', 'gold', 'FIXED', '3', '1h')
        local before = redis.call('RL.LIMIT', KEYS[1], 'gold')
        redis.call('RL.POLICYDEL', 'gold')
        return {before[2], redis.pcall('RL.LIMIT', KEYS[1], 'gold')['err']}
    """
    # The scaled limit is 1.5, rounded down in the reply.
    limit, error = primary.eval(script, 1, "k")
    assert (limit, error) == (1, b"NOPOLICY no policy 'gold'")
    pair.replica.wait_for_sync()
    assert policies(pair.replica.client()) == policies(primary) == {}
    assert state(pair.replica.client()) == state(primary)


# Replicas


def test_replicas_have_the_policies_of_their_primary(fresh_server: Start, clock: Clock) -> None:
    primary = fresh_server()
    client = primary.client()
    client.execute_command(f"RL.POLICYSET before {MINUTE}")
    replica = primary.replica()
    second_replica = replica.replica()
    clock.advance("1s")
    client.execute_command(f"RL.POLICYSET gold {MINUTE}")
    client.execute_command(f"RL.POLICYSET gold {HOUR}")
    client.execute_command("RL.POLICYSCALE gold 0.5 FOR 1h")
    client.execute_command(f"RL.POLICYSET gone {MINUTE}")
    client.execute_command("RL.POLICYDEL gone")
    # On each server, a temporary scale begins when the server receives it.
    replica.wait_for_sync()
    second_replica.wait_for_sync()
    clock.advance("1s")
    stored = policies(client)
    assert stored.keys() == {b"before", b"gold"}
    version = START_US + 1_000_001
    assert stored[b"gold"] == (version, START_MS + 1000, b"0.5", 3_599_000, HOUR.encode())
    for other in (replica, second_replica):
        with other.client() as follower:
            assert policies(follower) == stored
            assert follower.execute_command("RL.PEEK k POLICY gold")[:2] == [1, 500]
            for call in (
                f"RL.POLICYSET gold {MINUTE}",
                "RL.POLICYSCALE gold 1",
                "RL.POLICYDEL gold",
                "RL.POLICYEFFECT there",
            ):
                with pytest.raises(ReadOnlyError):
                    follower.execute_command(call)
            assert policies(follower) == stored
    # A promoted replica continues from the primary's versions.
    replica.client().replicaof("NO", "ONE")
    second = START_US + 2_000_000
    assert replica.client().execute_command(f"RL.POLICYSET gold {MINUTE}") == second
    assert replica.client().execute_command(f"RL.POLICYSET gone {MINUTE}") == second + 1


def test_a_change_propagates_one_record_and_a_call_without_change_none(fresh_server: Start) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    with server.client() as client:
        for call in (
            f"RL.POLICYSET gold {MINUTE}",
            f"RL.POLICYSET gold NX {HOUR}",
            f"RL.POLICYSET gold VERSION 7 {HOUR}",
            "RL.POLICYSET gold FIXED 5",
            "RL.POLICYSCALE gold 0.5 FOR 1h",
            "RL.POLICYSCALE gold 1001",
            "RL.POLICYSCALE none 1",
            "RL.POLICYGET gold",
            "RL.POLICYLIST",
            "RL.POLICYDEL none gold none",
            "RL.POLICYDEL gold",
        ):
            answer(client, call)
        written = [words for words in written_commands(server) if words[0] != b"SELECT"]
    set_at, node = START_US, written[0][1].split()[4].decode()
    stamp = [f"{set_at + later} {node}" for later in range(3)]
    until = START_US + 3_600_000_000
    text, hour = f"{len(MINUTE)}:{MINUTE}", 3_600_000_000
    set_ms, scale = set_at // 1000, f"{stamp[1]} 500000 {until} {hour} {hour}"
    records = [
        f"rl-policy 1 4:gold {stamp[0]} {stamp[0]} {set_at} {set_ms} {text} 0 0 1000000 0",
        f"rl-policy 2 4:gold {stamp[0]} {stamp[0]} {set_at} {set_ms} {text} {scale}",
        f"rl-policy 2 4:gold {stamp[2]} {stamp[0]} {set_at + 2} {set_ms} 0: {scale}",
    ]
    assert written == [(b"RL.POLICYEFFECT", record.encode()) for record in records]


def test_deletion_of_several_policies_is_propagated(pair: Pair) -> None:
    primary = pair.primary.client()
    for name in "abc":
        primary.execute_command(f"RL.POLICYSET {name} {MINUTE}")
    primary.execute_command("RL.POLICYDEL a b")
    pair.replica.wait_for_sync()
    assert list(policies(pair.replica.client())) == [b"c"]


# RL.POLICYEFFECT


def records_of(server: Server) -> list[bytes]:
    """Returns the propagated records of policies."""
    return [words[1] for words in written_commands(server) if words[0] == b"RL.POLICYEFFECT"]


def test_records_in_any_order_and_repeated_create_the_same_policies(
    fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    with server.client() as client, fresh_server().client() as other:
        for number in range(40):
            name = f"plan:{number % 5}"
            clock.advance("1ms")
            answer(client, f"RL.POLICYSET {name} FIXED {number} 1h")
            if number % 3 == 0:
                answer(client, f"RL.POLICYSCALE {name} {number}")
            if number % 7 == 0:
                answer(client, f"RL.POLICYDEL {name}")
        records = records_of(server)
        assert len(records) > 50
        for record in (*records[::-2], *records, *records[::3]):
            assert other.execute_command("RL.POLICYEFFECT", record) == b"OK"
        assert policies(other) == policies(client) != {}
        # All records in one call.
        with fresh_server().client() as third:
            assert third.execute_command("RL.POLICYEFFECT", *reversed(records)) == b"OK"
            assert policies(third) == policies(client)


RECORD = f"rl-policy 1 4:gold {START_US} 7 {START_US} 7 2 {START_MS} 10:FIXED 5 1h 0 0 1000000 0"


def test_record_creates_a_policy_that_applies(fresh_server: Start) -> None:
    server = fresh_server()
    replica, primary = server.replica(), server.client()
    assert primary.execute_command("RL.POLICYEFFECT", RECORD) == b"OK"
    assert policy(primary, "gold") == (START_US, START_MS, b"1", -1, b"FIXED 5 1h")
    assert primary.execute_command("RL.LIMIT k gold") == [1, 5, 4, 0, 3_600_000]
    replica.wait_for_sync()
    assert policies(replica.client()) == policies(primary)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "gold",
        RECORD + " ",
        RECORD.replace("rl-policy 1", "rl-policy 2"),
        RECORD.replace("4:gold", "5:gold"),
        RECORD.replace("4:gold", "0:"),
        RECORD.replace(" 2 ", " 0 "),
        RECORD.replace("1000000 0", "1000000001 0"),
        RECORD.replace(f" {START_US} 7 {START_US} 7", f" {START_US} 7 {START_US} 8"),
        RECORD.replace(str(START_US), "31536000000000001"),
    ],
)
def test_an_invalid_record_is_refused_with_the_whole_call(record: str, fresh_client: Redis) -> None:
    assert answer(fresh_client, "RL.POLICYEFFECT", record) == "ERR invalid effect"
    assert answer(fresh_client, "RL.POLICYEFFECT", RECORD, record) == "ERR invalid effect"
    assert policies(fresh_client) == {}
    assert fresh_client.execute_command("RL.POLICYEFFECT", RECORD) == b"OK"


def test_a_policy_of_a_later_version_is_kept_and_propagated_and_calls_by_it_are_errors(
    fresh_server: Start,
) -> None:
    server = fresh_server()
    replica = server.replica()
    later = RECORD.replace("10:FIXED 5 1h", "19:QUOTA 60 PER user:*")
    unreadable = "ERR the policy was set by a later version of module ratelimit"
    with server.client() as client:
        client.execute_command("RL.POLICYEFFECT", later)
        replica.wait_for_sync()
        with replica.client() as follower:
            expected = (START_US, START_MS, b"1", -1, b"QUOTA 60 PER user:*")
            assert policy(client, "gold") == policy(follower, "gold") == expected
        for call in ("RL.LIMIT k gold", "RL.DELAY k gold", "RL.TAKE k POLICY gold"):
            assert answer(client, call) == unreadable
        assert answer(client, "RL.LIMIT k none OR gold OR pro") == unreadable
        assert client.dbsize() == 0
        # A server can replace a policy that it cannot read.
        assert client.execute_command(f"RL.POLICYSET gold NX {MINUTE}") == START_US
        replacement = f"RL.POLICYSET gold VERSION {START_US} {MINUTE}"
        assert client.execute_command(replacement) == START_US + 1
        assert client.execute_command("RL.LIMIT k gold")[:2] == [1, 60]


def test_clock_moved_back_keeps_the_order_of_policy_changes(
    fresh_client: Redis, clock: Clock
) -> None:
    fresh_client.execute_command(f"RL.POLICYSET gold {MINUTE}")
    clock.advance("-1h")
    version = START_US + 1
    assert fresh_client.execute_command(f"RL.POLICYSET gold {HOUR}") == version
    assert policy(fresh_client, "gold") == (version, START_MS - 3_600_000, b"1", -1, HOUR.encode())
    assert fresh_client.execute_command("RL.POLICYDEL gold") == 1
    assert policies(fresh_client) == {}
