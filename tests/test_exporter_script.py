"""The exporter's script returns every count of INFO and of each policy."""

import re

from redis import Redis

from support.clock import START_US
from support.monitoring import COUNTS, EXERCISED, NAMES, blocked_calls, exercise, script_values
from support.server import Server


def info(client: Redis) -> str:
    # The client parses a reply to INFO into a dictionary.
    return client.eval("return redis.call('INFO', 'ratelimit')", 0)


def test_the_script_returns_the_counts_of_info(used_server: Server) -> None:
    with used_server.client(decode_responses=True) as client, blocked_calls(used_server, *NAMES):
        exercise(client, "user")
        client.execute_command("RL.POLICYSCALE", "login", "0.5", "FOR", "10m")
        counts = script_values(client)
        info_text = info(client)
        assert counts["policy:login:scale"] == 0.5
        assert counts["policy:login:scale_ms"] == 600_000
        assert counts["rl.tokenbucket:admitted"] == 1
        assert counts["ratelimit:blocked_clients"] == len(NAMES)
        for name in NAMES.values():
            assert counts[f"blocked:0:{name}:waiting"] == 1
        assert counts["rl-bucket:keys_made"] == 1
        expected = {}
        for name, value in re.findall(r"^ratelimit_([^:]+):(.*?)\r?$", info_text, re.MULTILINE):
            fields = dict(field.split("=") for field in value.split(",") if "=" in field)
            prefix = f"policy:{fields.pop('name')}" if "name" in fields else name
            if "key" in fields:
                prefix = f"blocked:{fields.pop('db')}:{fields.pop('key')}"
            if fields:
                expected |= {f"{prefix}:{field}": float(count) for field, count in fields.items()}
            elif name not in ("policies_digest", "version"):
                expected[f"ratelimit:{name}"] = int(value)
    # INFO and the script's call are not counted as calls of the module.
    assert counts == expected


def test_the_script_returns_the_counts_of_each_policy(used_server: Server) -> None:
    with used_server.client(decode_responses=True) as client:
        exercise(client, "user")
        counts = script_values(client)
        for shown in NAMES.values():
            policy_counts = {count: counts[f"policy:{shown}:{count}"] for count in COUNTS}
            assert policy_counts == EXERCISED, shown
            assert counts[f"policy:{shown}:version"] >= START_US
            assert counts[f"policy:{shown}:scale"] == 1
            assert counts[f"policy:{shown}:scale_ms"] == -1
        policy_keys = [key for key in counts if key.startswith("policy:")]
        assert len(policy_keys) == len(NAMES) * (len(COUNTS) + 3)


def test_the_script_leaves_out_outcomes_without_calls(used_server: Server) -> None:
    with used_server.client(decode_responses=True) as client:
        client.execute_command("RL.LIMIT", "user", "login", "COST", 0)
        policy_keys = [key for key in script_values(client) if key.startswith("policy:")]
    expected = {
        f"policy:{shown}:{field}"
        for shown in NAMES.values()
        for field in ("version", "scale", "scale_ms", "calls")
    }
    assert set(policy_keys) == expected | {f"policy:login:{count}" for count in COUNTS}


def test_digest_of_digits_is_not_parsed_as_a_number(used_server: Server) -> None:
    with used_server.client(decode_responses=True) as client:
        client.execute_command("RL.POLICYDEL", *NAMES)
        # The digest of no policies consists of zeros.
        assert "ratelimit_policies_digest:0000000000000000" in info(client)
        assert [key for key in script_values(client) if "polic" in key and "rl." not in key] == [
            "ratelimit:policies",
            "ratelimit:policy_peers_differ",
            "ratelimit:policy_stamps_refused",
            "ratelimit:policies_shown",
        ]
