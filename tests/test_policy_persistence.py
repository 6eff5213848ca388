"""Snapshots and the AOF, with and without preamble, keep policies; with `appendfsync always`,
through a `kill -9` too.

- An AOF without preamble may have no policies if it is rewritten while writes are paused, and the
  server dies before the pause ends.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import ResponseError

from support import poll
from support.clock import START_US, Clock
from support.policies import (
    NAMES,
    SPECS,
    ChangingPolicies,
    change_policies,
    counts,
    knows_deletion,
    policies,
    policy,
    set_policy,
)
from support.policy_files import AOF, WITHOUT_PREAMBLE, Start
from support.saving import (
    load_aof,
    reload,
    restart_from_aof,
    restart_from_rdb,
    restart_from_rewritten_aof,
    rewrite_aof,
    wait_until_saved,
)
from support.scale import first_on_every_server, scaled
from support.server import Server
from support.workload import written_commands

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(240, 3600))]
WITH_PREAMBLE = AOF | {"aof_use_rdb_preamble": "yes"}
OLD_SNAPSHOTS = sorted(Path(__file__).parent.glob("fixtures/format-*/dump.rdb"))


def restart_from_background_save(server: Server) -> None:
    with server.client() as client:
        client.bgsave()
        wait_until_saved(client)
    server.restart("kill")


INTERRUPTIONS = {
    "restart from RDB": (restart_from_rdb, {}),
    "restart from RDB of BGSAVE": (restart_from_background_save, {}),
    "restart from AOF": (restart_from_aof, AOF),
    "restart from rewritten AOF": (restart_from_rewritten_aof, WITHOUT_PREAMBLE),
    "restart from rewritten AOF with RDB preamble": (restart_from_rewritten_aof, WITH_PREAMBLE),
    "DEBUG LOADAOF": (load_aof, WITHOUT_PREAMBLE),
    "DEBUG LOADAOF with RDB preamble": (load_aof, WITH_PREAMBLE),
    "DEBUG RELOAD": (reload, {}),
}


@pytest.mark.parametrize(
    ("interrupt", "settings"), INTERRUPTIONS.values(), ids=INTERRUPTIONS.keys()
)
def test_an_interruption_changes_neither_policies_nor_their_later_changes(
    interrupt: Callable[[Server], None], settings: dict[str, str], fresh_server: Start, clock: Clock
) -> None:
    interrupted, other = fresh_server(**settings), fresh_server()
    clients = interrupted.client(), other.client()
    for seed in range(3):
        change_policies(clock, seed, 40, *clients)
        before = policies(clients[0])
        assert len(before) > 5
        assert len(before) < len(NAMES)
        interrupt(interrupted)
        assert policies(clients[0]) == before == policies(clients[1])


def test_policy_applies_after_a_restart(fresh_server: Start) -> None:
    server = fresh_server()
    client = server.client()
    set_policy(client, "gold", "FIXED", 10, "1h")
    assert client.execute_command("RL.LIMIT", "k", "gold")[:3] == [1, 10, 9]
    server.restart("save")
    assert client.execute_command("RL.LIMIT", "k", "gold")[:3] == [1, 10, 8]
    client.execute_command("RL.POLICYDEL", "gold")
    server.restart("save")
    with pytest.raises(ResponseError, match="NOPOLICY"):
        client.execute_command("RL.LIMIT", "k", "gold")
    assert policies(client) == {}


def test_counts_survive_a_reload_but_not_a_restart(fresh_server: Start) -> None:
    server = fresh_server()
    client = server.client()
    set_policy(client, "gold", "FIXED", 1, "1h")
    for _ in range(3):
        client.execute_command("RL.LIMIT", "k", "gold")
    before = counts(client, "gold")
    assert (before[b"calls"], before[b"denied"]) == (3, 2)
    reload(server)
    assert counts(client, "gold") == before
    server.restart("save")
    assert set(counts(client, "gold").values()) == {0}


@pytest.mark.parametrize(
    ("restart", "settings"),
    [
        pytest.param(restart_from_rdb, {}, id="RDB"),
        pytest.param(restart_from_aof, AOF, id="AOF"),
        pytest.param(restart_from_rewritten_aof, WITHOUT_PREAMBLE, id="rewritten AOF"),
    ],
)
def test_a_temporary_scale_ends_on_time_despite_interruptions(
    restart: Callable[[Server], None], settings: dict[str, str], fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server(**settings)
    client = server.client()
    version = set_policy(client, "gold", "FIXED", 10, "1h")
    assert client.execute_command("RL.POLICYSCALE", "gold", "0.5", "FOR", "10m") == [
        version,
        b"0.5",
        600_000,
    ]
    clock.advance("4m")
    restart(server)
    assert policy(client, "gold")[2:4] == (b"0.5", 360_000)
    assert client.execute_command("RL.PEEK", "k", "POLICY", "gold")[1] == 5
    clock.advance("359999ms")
    assert client.execute_command("RL.PEEK", "k", "POLICY", "gold")[1] == 5
    restart(server)
    clock.advance("1ms")
    assert client.execute_command("RL.PEEK", "k", "POLICY", "gold")[1] == 10
    assert policy(client, "gold")[2:4] == (b"1", -1)
    client.execute_command("RL.POLICYSCALE", "gold", "2", "FOR", "10m")
    server.stop("kill" if settings else "save")
    clock.advance("11m")
    server.start()
    assert client.execute_command("RL.PEEK", "k", "POLICY", "gold")[1] == 10


@pytest.mark.parametrize("snapshot", OLD_SNAPSHOTS, ids=lambda path: path.parent.name)
def test_an_old_snapshot_without_policies_is_loaded(snapshot: Path, fresh_server: Start) -> None:
    server = fresh_server()
    client = server.client()
    server.stop()
    shutil.copy(snapshot, server.directory)
    server.start()
    assert policies(client) == {}
    set_policy(client, "gold")
    before = policies(client)
    server.restart("save")
    assert policies(client) == before


def test_loading_a_snapshot_without_policies_deletes_all_policies(
    fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server()
    client = server.client()
    change_policies(clock, 1, 30, client)
    assert policies(client)
    shutil.copy(OLD_SNAPSHOTS[-1], server.directory)
    client.execute_command("DEBUG", "RELOAD", "NOSAVE")
    assert policies(client) == {}
    assert set_policy(client, "gold") > 0


# The AOF


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_a_server_that_is_killed_has_every_policy_that_was_answered(
    preamble: str, fresh_server: Start
) -> None:
    server = fresh_server(**AOF, aof_use_rdb_preamble=preamble)
    client = server.client()
    for number, call in enumerate(
        (
            ("RL.POLICYSET", "a", *SPECS[0]),
            ("RL.POLICYSET", "b", *SPECS[1]),
            ("RL.POLICYSCALE", "a", "0.5"),
            ("RL.POLICYSET", "a", "VERSION", START_US, *SPECS[2]),
            ("RL.POLICYDEL", "a", "b"),
            ("RL.POLICYSET", "b", "NX", *SPECS[3]),
        )
    ):
        client.execute_command(*call)
        stored = policies(client)
        server.stop("kill")
        assert len(written_commands(server)) >= number
        server.start()
        assert policies(client) == stored


def test_the_aof_has_policy_changes_and_no_refused_calls(
    fresh_server: Start,
) -> None:
    server = fresh_server(**AOF, auto_aof_rewrite_percentage=0)
    client = server.client()
    for number, call in enumerate(
        (
            ("RL.POLICYSET", "a", *SPECS[0]),
            ("RL.POLICYSCALE", "a", "0.5", "FOR", "1h"),
            ("RL.POLICYDEL", "a"),
        ),
        1,
    ):
        client.execute_command(*call)
        commands = written_commands(server)
        assert [words[0] for words in commands] == [b"RL.POLICYEFFECT"] * number
    set_policy(client, "b")
    before = written_commands(server)
    assert policy(client, "b").specs == b"TOKENBUCKET 60 60 1m"
    assert client.execute_command("RL.POLICYDEL", "nobody") == 0
    for refused in (
        ("RL.POLICYSET", "b", "VERSION", 7, *SPECS[1]),
        ("RL.POLICYSET", "c", "FIXED", -1, "1m"),
        ("RL.POLICYSCALE", "nobody", 2),
        ("RL.POLICYSCALE", "b", 1001),
    ):
        with pytest.raises(ResponseError):
            client.execute_command(*refused)
    client.execute_command("RL.POLICYGET", "b")
    client.execute_command("RL.PEEK", "k", "POLICY", "b")
    assert written_commands(server) == before


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("keys", ["no keys", "other keys", "keys of the module"])
@pytest.mark.parametrize("enabled", ["at start", "later"])
def test_an_aof_that_was_rewritten_has_every_policy(
    preamble: str, keys: str, enabled: str, fresh_server: Start, clock: Clock
) -> None:
    settings = {"aof_use_rdb_preamble": preamble, "appendfsync": "always"}
    server = fresh_server(appendonly="yes" if enabled == "at start" else "no", **settings)
    client = server.client()
    change_policies(clock, 7, 60, client)
    if keys == "other keys":
        client.set("k", "v")
    elif keys == "keys of the module":
        for name in ("a", "b"):
            client.execute_command("RL.FIXED", name, 10, "1h")
    if enabled == "later":
        client.config_set("appendonly", "yes")
        client.config_rewrite()
        wait_until_saved(client)
    else:
        rewrite_aof(client)
    poll.until(lambda: b"RL.POLICYEFFECT" in aof_tail(server), "the AOF has the policies")
    # The AOF must not contain the command that triggered the rewrite, as each start would repeat
    # it.
    assert not re.search(b"bgrewriteaof|config", aof_tail(server), re.IGNORECASE)
    before = policies(client)
    server.restart("kill")
    assert policies(client) == before
    assert client.dbsize() == {"no keys": 0, "other keys": 1, "keys of the module": 2}[keys]
    # The AOF has deletions too.
    assert any(knows_deletion(client, name) for name in NAMES if name not in before)


def aof_tail(server: Server) -> bytes:
    """Returns the AOF after its rewritten part, or the whole AOF in Redis 6.2 (one file)."""
    return server.aof_files()[-1].read_bytes()


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_policies_that_change_while_the_aof_is_rewritten_are_kept(
    preamble: str, fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server(**AOF, aof_use_rdb_preamble=preamble)
    client = server.client()
    for number in range(scaled(3, 20)):
        with ChangingPolicies(server, clock, tag=number) as load:
            for _ in range(4):
                load.wait_for(steps=60)
                rewrite_aof(client)
            load.wait_for(steps=60)
            server.stop("kill")
            load.join()
        server.start()
        load.assert_kept(client)


def has_ended(load: ChangingPolicies, clock: Clock) -> bool:
    clock.advance("1s")
    return load.is_over


@pytest.mark.parametrize("preamble", first_on_every_server(["yes", "no"]))
def test_a_server_that_is_killed_while_it_rewrites_its_aof_loses_no_policy(
    preamble: str, fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server(**AOF, aof_use_rdb_preamble=preamble)
    client = server.client()
    for number in range(scaled(4, 40)):
        with ChangingPolicies(server, clock, tag=number) as load:
            load.wait_for(steps=100)
            client.bgrewriteaof()
            load.wait_for(steps=number)
            server.stop("kill")
            # A child of Redis 6.2 that rewrites an AOF keeps the clients' connections open, and
            # waits for its parent for seconds of this clock.
            poll.until(lambda load=load: has_ended(load, clock), "all clients are disconnected", 30)
            load.join()
        server.start()
        load.assert_kept(client)


@pytest.mark.parametrize("pause", ["before", "in one transaction"])
def test_an_aof_that_is_rewritten_while_writes_are_paused_gets_the_policies_afterwards(
    pause: str, fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server(**WITHOUT_PREAMBLE, auto_aof_rewrite_percentage=0)
    client = server.client()
    change_policies(clock, 3, 40, client)
    before = policies(client)
    if pause == "before":
        client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
        client.bgrewriteaof()
    else:
        transaction = client.pipeline()
        transaction.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
        transaction.execute_command("BGREWRITEAOF").execute()
    wait_until_saved(client)
    assert written_commands(server) == []
    assert policies(client) == before
    client.execute_command("CLIENT", "UNPAUSE")
    poll.until(lambda: written_commands(server), "the AOF has the policies")
    assert {words[0] for words in written_commands(server)} == {b"RL.POLICYEFFECT"}
    server.restart("kill")
    assert policies(client) == before
