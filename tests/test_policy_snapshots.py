"""A snapshot has policies only if there are any. If no version wrote them, it is refused."""

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
    fields_from,
    sealed,
    written,
)
from support.policies import (
    NAMES,
    change,
    knows_deletion,
    policies,
    policy,
    set_policy,
)
from support.policy_files import WITHOUT_PREAMBLE, Start
from support.saving import (
    rewrite_aof,
)
from support.scale import scaled
from support.server import Server, ServerError

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(240, 3600))]


# Contents of a snapshot, and who can read it


def snapshot_goes_to(server: Server, other: Server) -> None:
    """Moves the snapshot to another server and starts it. Raises if the server refuses the
    snapshot.
    """
    with server.client() as client:
        client.save()
    other.stop()
    shutil.copy(server.directory / "dump.rdb", other.directory)
    other.start()


def test_a_server_that_never_had_policies_leaves_snapshots_that_need_no_module(
    fresh_server: Start,
) -> None:
    server, without = fresh_server(policies=False), fresh_server(module=None)
    server.client().set("k", "v")
    snapshot_goes_to(server, without)
    assert without.client().get("k") == b"v"


def test_a_day_after_the_last_policy_is_gone_snapshots_need_no_module(
    binary: Binary, fresh_server: Start, clock: Clock
) -> None:
    if binary.saves_empty_aux:
        pytest.skip("a server of this age that has policies needs the module for every snapshot")
    server, without = fresh_server(), fresh_server(module=None)
    client = server.client()
    client.set("k", "v")
    set_policy(client, "gold")
    client.execute_command("RL.POLICYDEL", "gold")
    clock.advance("23h")
    with pytest.raises(ServerError, match="rl-policy"):
        snapshot_goes_to(server, without)
    clock.advance("61m")
    snapshot_goes_to(server, without)
    assert without.client().get("k") == b"v"


def test_a_snapshot_with_policies_needs_the_module(fresh_server: Start) -> None:
    server, without = fresh_server(), fresh_server(module=None)
    set_policy(server.client(), "gold")
    with pytest.raises(ServerError, match="rl-policy"):
        snapshot_goes_to(server, without)


def test_every_server_takes_the_setting_that_turns_policies_on(fresh_server: Start) -> None:
    server = fresh_server(policies=False, module_args="policies yes")
    client = server.client()
    assert set_policy(client, "gold") > 0
    before = policies(client)
    server.restart("save")
    assert policies(client) == before


def test_an_older_server_without_the_setting_explains_the_remedy(
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
    snapshot_goes_to(server, other)
    assert policies(other.client()) == policies(server.client())
    lines = [line for line in other.log().splitlines() if "no snapshot of this server" in line]
    assert len(lines) == binary.saves_empty_aux
    assert all("'policies yes'" in line for line in lines)


OTHERS = [Binary.at(path) for path in binaries.available()]
# Snapshot versions that Redis has introduced since Valkey forked. Valkey refuses them.
REDIS_ALONE = range(12, 80)


def rdb_format(server: Server) -> tuple[bytes, int]:
    """Returns the magic word and the version at the start of the server's snapshots."""
    head = (server.directory / "dump.rdb").read_bytes()[:9]
    return head.rstrip(b"0123456789"), int(head[-3:])


@pytest.mark.parametrize("other", OTHERS, ids=lambda one: one.name)
@pytest.mark.parametrize("way", ["RDB", "AOF"])
def test_policies_move_to_a_server_of_another_kind_and_back(
    way: str, other: Binary, fresh_server: Start, clock: Clock
) -> None:
    settings = WITHOUT_PREAMBLE if way == "AOF" else {}
    first = fresh_server(**settings)
    with Server(other, clock=clock, **settings) as second:
        change(clock, 5, 60, first.client())
        expected = policies(first.client())
        move = {"RDB": rdb_goes_to, "AOF": aof_goes_to}[way]
        for server, to in ((first, second), (second, first)):
            if not move(server, to):
                # An older server does not read a newer one's snapshots.
                break
            assert policies(to.client()) == expected
            # A deleted policy is not the same as one that never existed.
            deleted = [name for name in NAMES if name not in expected]
            assert any(knows_deletion(to.client(), name) for name in deleted)
            to.client().execute_command("RL.POLICYDEL", *deleted)
            expected = policies(to.client())


def rdb_goes_to(server: Server, to: Server) -> bool:
    for one in (server, to):
        with one.client() as client:
            client.save()
    (name, number), (own, newest) = rdb_format(server), rdb_format(to)
    # Versions introduced after the fork are not readable for the other server.
    is_foreign = name != own and (own == b"REDIS" or number in REDIS_ALONE)
    if is_foreign or number > newest:
        return False
    snapshot_goes_to(server, to)
    return True


def aof_goes_to(server: Server, to: Server) -> bool:
    """Moves the AOF as one file, which any server accepts."""
    with server.client() as client:
        rewrite_aof(client)
    server.stop("kill")
    text = b"".join(path.read_bytes() for path in server.aof_files())
    server.start()
    to.stop()
    shutil.rmtree(to.directory / "appendonlydir", ignore_errors=True)
    (to.directory / "appendonly.aof").write_bytes(text)
    to.start()
    return True


# Things that are no policies


def test_flushall_and_swapdb_keep_policies(redis: Redis, clock: Clock) -> None:
    change(clock, 11, 30, redis)
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
            payload = sealed(body + b"".join(map(written, fields)) + b"\x00", dump)
            with pytest.raises(ResponseError, match="Bad data format"):
                redis.restore("policy", 0, payload)
    assert redis.keys() == [b"k"]
    assert policies(redis) == {}


# A snapshot whose last eight bytes are zeros has no checksum, so it can be changed freely.
NO_CHECKSUM = {"rdbchecksum": "no"}


class Snapshot:
    """A server's snapshot with policies, split into its parts."""

    def __init__(self, server: Server, client: Redis) -> None:
        client.save()
        self._path = server.directory / "dump.rdb"
        content = self._path.read_bytes()
        mark = bytes([0x81]) + module_id(1).to_bytes(8, "big")
        assert content.count(mark) == 1
        begin = content.index(mark)
        self._before = content[:begin]
        # The type is followed by the time of saving: a number after a byte that announces it.
        self._when = content[begin + len(mark) : begin + len(mark) + 2]
        self.fields, self._after = fields_from(content, begin + len(mark) + 2)

    def write(self, fields: Sequence[Field], version: int = 1) -> None:
        """Writes the snapshot with other fields. Do not truncate them: the servers' checker
        confuses the end of the file with the end of fields, and runs forever.
        """
        mark = bytes([0x81]) + module_id(version).to_bytes(8, "big")
        own = self._when + b"".join(map(written, fields)) + b"\x00"
        self._path.write_bytes(self._before + mark + own + self._after)


def refusal(server: Server) -> str | None:
    """Returns why the server exits at start; None if it starts."""
    try:
        server.start()
    except ServerError as error:
        return str(error)
    return None


def is_orderly(refusal: str) -> bool:
    """Tells whether the server exited by itself, without a panic of the module."""
    return bool(re.search("ended with status [01]\\b", refusal)) and "panicked" not in refusal


def test_a_snapshot_whose_policies_are_not_as_any_version_writes_them_is_refused(
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
        reason = refusal(server)
        assert reason is None or is_orderly(reason), reason
        return reason is not None

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
        # Its count of records is too high, and too low.
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


def test_a_snapshot_whose_policies_were_changed_at_random_is_refused_or_read(
    fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server(**NO_CHECKSUM)
    client = server.client()
    change(clock, 2, 10, client)
    snapshot = Snapshot(server, client)
    server.stop()
    ended = 0
    chosen = next(batches("policies in a snapshot", 1))
    for _ in range(scaled(30, 500)):
        snapshot.write(changed(chosen, snapshot.fields))
        reason = refusal(server)
        if reason is None:
            # The records that it reads could have been written by a server.
            policies(client)
            server.stop()
        else:
            assert is_orderly(reason), reason
            ended += 1
    assert ended > 5


def changed(chosen: random.Random, fields: Sequence[Field]) -> list[Field]:
    """Changes a record, or the number or selection of records."""
    if chosen.randrange(2):
        return changed_fields(chosen, fields, fields)
    mutated = list(fields)
    place = chosen.randrange(1, len(fields))
    record = mutated[place]
    assert isinstance(record, bytes)
    if chosen.randrange(2):
        mutated[place] = changed_bytes(chosen, record)
    else:
        text = changed_words(chosen, record.decode("latin-1"), ("0", "1", "FIXED"))
        mutated[place] = text.encode("latin-1")
    return mutated
