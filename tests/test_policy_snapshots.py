"""A snapshot has policies only if there are any. A snapshot with policies that no version could
have written is refused.
"""

import random
import re
import shutil
from collections.abc import Sequence

import pytest
from redis import Redis, ResponseError

from support import binaries
from support.binaries import Binary
from support.clock import Clock
from support.payloads import (
    Field,
    batches,
    changed_bytes,
    changed_fields,
    changed_words,
    encoded,
    fields_from,
    sealed,
)
from support.policies import (
    NAMES,
    change_policies,
    knows_deletion,
    policies,
    policy,
    set_policy,
)
from support.policy_files import WITHOUT_PREAMBLE, Start
from support.saving import rewrite_aof
from support.scale import scaled
from support.server import Server, ServerError

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(240, 3600))]


# Contents of a snapshot, and servers that can read it


def restart_with_snapshot_of(server: Server, other: Server) -> None:
    """Restarts the other server with a snapshot of the first. Raises if it refuses the snapshot."""
    with server.client() as client:
        client.save()
    other.stop()
    shutil.copy(server.directory / "dump.rdb", other.directory)
    other.start()


def test_snapshots_of_a_server_that_never_had_policies_need_no_module(
    fresh_server: Start,
) -> None:
    server, without_module = fresh_server(policies=False), fresh_server(module=None)
    server.client().set("k", "v")
    restart_with_snapshot_of(server, without_module)
    assert without_module.client().get("k") == b"v"


def test_snapshots_need_no_module_a_day_after_the_last_policy_is_deleted(
    binary: Binary, fresh_server: Start, clock: Clock
) -> None:
    if binary.saves_empty_aux:
        pytest.skip("a server of this age that has policies needs the module for every snapshot")
    server, without_module = fresh_server(), fresh_server(module=None)
    client = server.client()
    client.set("k", "v")
    set_policy(client, "gold")
    client.execute_command("RL.POLICYDEL", "gold")
    clock.advance("23h")
    with pytest.raises(ServerError, match="rl-policy"):
        restart_with_snapshot_of(server, without_module)
    clock.advance("61m")
    restart_with_snapshot_of(server, without_module)
    assert without_module.client().get("k") == b"v"


def test_a_snapshot_with_policies_needs_the_module(fresh_server: Start) -> None:
    server, without_module = fresh_server(), fresh_server(module=None)
    set_policy(server.client(), "gold")
    with pytest.raises(ServerError, match="rl-policy"):
        restart_with_snapshot_of(server, without_module)


def test_every_server_accepts_the_setting_that_enables_policies(fresh_server: Start) -> None:
    server = fresh_server(policies=False, module_args="policies yes")
    client = server.client()
    assert set_policy(client, "gold") > 0
    before = policies(client)
    server.restart("save")
    assert policies(client) == before


def test_error_of_an_older_server_without_the_setting_names_the_setting(
    binary: Binary, fresh_server: Start
) -> None:
    server = fresh_server(policies=False)
    client = server.client()
    if not binary.saves_empty_aux:
        assert set_policy(client, "gold") > 0
        return
    with pytest.raises(ResponseError, match="loaded with 'policies yes'"):
        set_policy(client, "gold")
    assert policies(client) == {}
    assert "no snapshot of this server" not in server.log()


def test_a_server_that_does_not_save_its_policies_warns(
    binary: Binary, fresh_server: Start
) -> None:
    server, other = fresh_server(), fresh_server(policies=False)
    set_policy(server.client(), "gold")
    restart_with_snapshot_of(server, other)
    assert policies(other.client()) == policies(server.client())
    lines = [line for line in other.log().splitlines() if "no snapshot of this server" in line]
    assert len(lines) == binary.saves_empty_aux
    assert all("'policies yes'" in line for line in lines)


BINARIES = [Binary.at(path) for path in binaries.available()]
# Versions of snapshots that Redis introduced after Valkey had forked, and that Valkey refuses.
REDIS_ONLY = range(12, 80)


def rdb_format(server: Server) -> tuple[bytes, int]:
    """Returns the magic word and the version at the start of the server's snapshots."""
    head = (server.directory / "dump.rdb").read_bytes()[:9]
    return head.rstrip(b"0123456789"), int(head[-3:])


@pytest.mark.parametrize("other", BINARIES, ids=lambda binary: binary.name)
@pytest.mark.parametrize("way", ["RDB", "AOF"])
def test_policies_move_to_a_server_of_another_kind_and_back(
    way: str, other: Binary, fresh_server: Start, clock: Clock
) -> None:
    settings = WITHOUT_PREAMBLE if way == "AOF" else {}
    first = fresh_server(**settings)
    with Server(other, clock=clock, **settings) as second:
        change_policies(clock, 5, 60, first.client())
        expected = policies(first.client())
        move = {"RDB": move_by_rdb, "AOF": move_by_aof}[way]
        for source, target in ((first, second), (second, first)):
            if not move(source, target):
                # An older server cannot read the snapshots of a newer one.
                break
            assert policies(target.client()) == expected
            # Deletions are moved too.
            deleted = [name for name in NAMES if name not in expected]
            assert any(knows_deletion(target.client(), name) for name in deleted)
            target.client().execute_command("RL.POLICYDEL", *deleted)
            expected = policies(target.client())


def move_by_rdb(source: Server, target: Server) -> bool:
    """Returns `False` if the target cannot read a snapshot of the source."""
    for server in (source, target):
        with server.client() as client:
            client.save()
    (magic, version), (target_magic, newest) = rdb_format(source), rdb_format(target)
    # Neither Redis nor Valkey reads the versions that the other introduced after the fork.
    is_foreign = magic != target_magic and (target_magic == b"REDIS" or version in REDIS_ONLY)
    if is_foreign or version > newest:
        return False
    restart_with_snapshot_of(source, target)
    return True


def move_by_aof(source: Server, target: Server) -> bool:
    """Moves the AOF as one file, which any server accepts. Returns `True`."""
    with source.client() as client:
        rewrite_aof(client)
    source.stop("kill")
    text = b"".join(path.read_bytes() for path in source.aof_files())
    source.start()
    target.stop()
    shutil.rmtree(target.directory / "appendonlydir", ignore_errors=True)
    (target.directory / "appendonly.aof").write_bytes(text)
    target.start()
    return True


# Databases and keys


def test_flushall_and_swapdb_keep_policies(redis: Redis, clock: Clock) -> None:
    change_policies(clock, 11, 30, redis)
    before = policies(redis)
    redis.execute_command("RL.FIXED", "k", 10, "1h")
    for command in ("FLUSHDB", "FLUSHALL", "FLUSHALL ASYNC", "SWAPDB 0 1", "FLUSHDB ASYNC"):
        redis.execute_command(*command.split())
        assert policies(redis) == before
    redis.execute_command("RL.POLICYDEL", *before)
    assert policies(redis) == {}


def module_id(version: int) -> int:
    """Encodes the type's name as a server does: six bits a letter, and ten for the version."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    number = 0
    for letter in "rl-policy":
        number = number << 6 | letters.index(letter)
    return number << 10 | version


def test_no_key_is_restored_as_policies(redis: Redis) -> None:
    redis.execute_command("RL.FIXED", "k", 10, "1h")
    dump = redis.dump("k")
    for version in (0, 1, 2):
        for fields in ([], [0], [1, b"rl-policy 1"], [b"x" * 100]):
            body = bytes([dump[0], 0x81]) + module_id(version).to_bytes(8, "big")
            payload = sealed(body + b"".join(map(encoded, fields)) + b"\x00", dump)
            with pytest.raises(ResponseError, match="Bad data format"):
                redis.restore("policy", 0, payload)
    assert redis.keys() == [b"k"]
    assert policies(redis) == {}


# A snapshot whose last eight bytes are zeros has no checksum, so it can be changed freely.
NO_CHECKSUM = {"rdbchecksum": "no"}


class Snapshot:
    """Snapshot of a server, whose policies can be replaced."""

    def __init__(self, server: Server, client: Redis) -> None:
        client.save()
        self._path = server.directory / "dump.rdb"
        content = self._path.read_bytes()
        mark = bytes([0x81]) + module_id(1).to_bytes(8, "big")
        assert content.count(mark) == 1
        begin = content.index(mark)
        self._before = content[:begin]
        # After the type, a number says if the fields stand before or after the keys. The first byte
        # announces the number.
        self._when = content[begin + len(mark) : begin + len(mark) + 2]
        self.fields, self._after = fields_from(content, begin + len(mark) + 2)

    def write(self, fields: Sequence[Field], version: int = 1) -> None:
        """Writes the snapshot with other fields. Do not truncate them: the servers' checker
        confuses the end of the file with the end of fields, and runs forever.
        """
        mark = bytes([0x81]) + module_id(version).to_bytes(8, "big")
        body = self._when + b"".join(map(encoded, fields)) + b"\x00"
        self._path.write_bytes(self._before + mark + body + self._after)


def start_error(server: Server) -> str | None:
    """Starts the server. Returns the error if it exits, or None."""
    try:
        server.start()
    except ServerError as error:
        return str(error)
    return None


def is_orderly(error: str) -> bool:
    """Returns `True` if the server exited by itself, without a panic of the module."""
    return bool(re.search("ended with status [01]\\b", error)) and "panicked" not in error


def test_a_snapshot_with_policies_that_no_version_writes_is_refused(
    fresh_server: Start,
) -> None:
    server = fresh_server(**NO_CHECKSUM)
    client = server.client()
    for name in ("gold", "silver"):
        set_policy(client, name)
    before = policies(client)
    snapshot = Snapshot(server, client)
    count, *records = snapshot.fields
    assert count == len(records) == 2
    assert isinstance(records[0], bytes)
    server.stop()

    def is_refused() -> bool:
        error = start_error(server)
        assert error is None or is_orderly(error), error
        return error is not None

    for version in (0, 2, 1023):
        snapshot.write(snapshot.fields, version)
        assert is_refused()
    later = records[0].replace(b"rl-policy 1", b"rl-policy 2")
    for fields in (
        [2, later, records[1]],
        [2, records[0] + b" 0", records[1]],
        [2, records[0][:-1], records[1]],
        [2, b"", records[1]],
        [2, b"x" * 100_000, records[1]],
        # A count of records that is too high, and too low.
        [3, *records],
        [1, *records],
        [2**64 - 1, *records],
        [b"2", *records],
        records,
        [],
    ):
        snapshot.write(fields)
        assert is_refused(), fields
    snapshot.write(snapshot.fields)
    assert not is_refused()
    assert policies(client) == before


def test_a_policy_of_a_later_version_is_kept_unchanged(
    fresh_server: Start,
) -> None:
    server = fresh_server(**NO_CHECKSUM)
    client = server.client()
    set_policy(client, "gold", "FIXED", 10, "1h")
    set_policy(client, "silver", "FIXED", 10, "1h")
    snapshot = Snapshot(server, client)
    server.stop()
    later = [
        field.replace(b"11:FIXED 10 1h", b"12:LATER 10 100") if b"gold" in field else field
        for field in snapshot.fields[1:]
        if isinstance(field, bytes)
    ]
    snapshot.write([2, *later])
    server.start()
    for _ in range(2):
        assert policy(client, "gold").specs == b"LATER 10 100"
        with pytest.raises(ResponseError, match="later version"):
            client.execute_command("RL.LIMIT", "k", "gold")
        assert client.execute_command("RL.LIMIT", "k", "silver")[1] == 10
        server.restart("save")
    set_policy(client, "gold", "FIXED", 5, "1h")
    assert client.execute_command("RL.LIMIT", "another", "gold")[1] == 5


def test_a_snapshot_with_randomly_changed_policies_is_refused_or_loaded(
    fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server(**NO_CHECKSUM)
    client = server.client()
    change_policies(clock, 2, 10, client)
    snapshot = Snapshot(server, client)
    server.stop()
    refused = 0
    rng = next(batches("policies in a snapshot", 1))
    for _ in range(scaled(30, 500)):
        snapshot.write(changed(rng, snapshot.fields))
        error = start_error(server)
        if error is None:
            # Checks that all commands can show the loaded policies.
            policies(client)
            server.stop()
        else:
            assert is_orderly(error), error
            refused += 1
    assert refused > 5


def changed(rng: random.Random, fields: Sequence[Field]) -> list[Field]:
    """Changes a record, or the number or selection of records."""
    if rng.randrange(2):
        return changed_fields(rng, fields, fields)
    mutated = list(fields)
    index = rng.randrange(1, len(fields))
    record = mutated[index]
    assert isinstance(record, bytes)
    if rng.randrange(2):
        mutated[index] = changed_bytes(rng, record)
    else:
        text = changed_words(rng, record.decode("latin-1"), ("0", "1", "FIXED"))
        mutated[index] = text.encode("latin-1")
    return mutated
