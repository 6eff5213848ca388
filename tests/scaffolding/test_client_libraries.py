"""docs/clients.md is right about every client library: its code is run here, and its table shows
the results.

Every run tests three libraries; `make clients` tests all that this machine can have.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import count

import pytest

from support import poll
from support.cluster import SLOTS, Cluster, slot_of
from support.libraries import (
    LIBRARIES,
    MAX_TIMEOUT,
    Library,
    LibraryError,
    Program,
    each_library,
)
from support.library_code import DOCUMENT, FORK, parts, sections, shown_code
from support.proxy import LossyProxy
from support.server import Server
from support.slot_moves import SlotMove

# A library decides where to send a call, whatever the server. Building one takes a minute.
pytestmark = [pytest.mark.once, pytest.mark.timeout(MAX_TIMEOUT)]

# The code


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_the_documents_code_is_the_tested_code(library: Library) -> None:
    assert shown_code(library.name) == parts(library)


def test_three_libraries_are_shown_by_their_differences_from_another() -> None:
    forks = {name for name, text in sections().items() if FORK.search(text)}
    assert forks == {"valkey-py", "iovalkey", "Redis::Fast"}


# The table


def cells() -> dict[str, dict[str, str]]:
    """Returns the table's cells by library and column. The column "client" has the version."""
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in DOCUMENT.split("\n## ")[0].splitlines()
        if line.startswith("|")
    )
    return {re.match(r"\[(.*?)\]", row[0])[1]: dict(zip(head, row, strict=True)) for row in rows}


def documented(library: Library, column: str) -> dict[str, str]:
    """Returns the table's cell as the library's section shows it. The part before an arrow omits
    the lines that the section shows.
    """
    cell = cells()[library.name][column]
    plain, arrow, shown = cell.partition(" → ")
    return {"plain": plain, "shown": shown} if arrow else {"shown": cell}


def test_every_library_of_the_table_is_tested() -> None:
    assert list(cells()) == [library.name for library in LIBRARIES]


@each_library
def test_the_version_in_the_table_is_the_tested_one(library: Library) -> None:
    version = library.version(library.source)
    assert re.search(rf"\) {re.escape(version)}\b", cells()[library.name]["client"])


# One server


@each_library
def test_the_first_call_is_answered(library: Library, server: Server) -> None:
    with library.program("server", server.port) as program:
        assert program.ask("first") == [1, 100, 99, 0, 60_000]


# A cluster: where calls are sent to

ROUNDS = 4
LIMIT = ("FIXED", "100", "1m")
LIMITS = (*LIMIT, "FIXED", "5000", "1d")


@pytest.fixture
def tags(cluster: Cluster) -> list[tuple[str, str]]:
    """Returns two tags of each primary, which put keys into different slots."""
    if not cluster.servers[0].binary.counts_subcommands:
        pytest.skip("the server does not count subcommands, which this test compares")
    return list(cluster.tags().values())


def stats(cluster: Cluster, section: str, name: str, value: str) -> dict[Server, int]:
    return {
        server: cluster.admin(server).info(section).get(name, {}).get(value, 0)
        for server in cluster.servers
    }


def routing(cluster: Cluster, questions: Sequence[Sequence[str]], program: Program) -> str:
    """Returns how a library routes the calls. Each call is sent once before counting, and then
    often enough to detect a library that picks random nodes.
    """

    def ask_all() -> None:
        for question in questions:
            reply = program.ask(*question)
            assert reply[0] == 1, (question, reply)

    try:
        ask_all()
        for server in cluster.servers:
            cluster.admin(server).config_resetstat()
        for _ in range(ROUNDS):
            ask_all()
    except LibraryError as error:
        print(f"{questions[0]}: {error}")
        return "fails"
    redirected = sum(stats(cluster, "errorstats", "errorstat_MOVED", "count").values())
    getkeys_calls = sum(stats(cluster, "commandstats", "cmdstat_command|getkeys", "calls").values())
    calls = len(questions) * ROUNDS
    print(f"{questions[0]}: {calls} calls, {redirected} redirected, {getkeys_calls} questions")
    if redirected:
        return "redirected"
    if getkeys_calls:
        return {1: "asks once", 2: "asks twice"}[getkeys_calls // calls]
    return "direct"


@each_library
def test_call_with_one_key_is_sent_as_documented(
    library: Library, cluster: Cluster, tags: list[tuple[str, str]]
) -> None:
    keys = [f"{{{tag}}}:one" for pair in tags for tag in pair]
    questions = {
        "plain": [("plain", "RL.TAKE", key, *LIMIT) for key in keys],
        "shown": [("one", key) for key in keys],
    }
    rows = documented(library, "one key")
    with library.program("cluster", cluster.servers[0].port) as program:
        assert {variant: routing(cluster, questions[variant], program) for variant in rows} == rows


@each_library
def test_call_with_several_keys_is_sent_as_documented(
    library: Library, cluster: Cluster, tags: list[tuple[str, str]]
) -> None:
    all_tags = [tag for pair in tags for tag in pair]
    questions = {
        "plain": [
            ("plain", "RL.MTAKE", "2", f"{{{tag}}}:minute", f"{{{tag}}}:day", *LIMITS)
            for tag in all_tags
        ],
        "shown": [("several", tag) for tag in all_tags],
    }
    rows = documented(library, "several keys")
    with library.program("cluster", cluster.servers[0].port) as program:
        assert {variant: routing(cluster, questions[variant], program) for variant in rows} == rows


@each_library
def test_pipeline_is_split_as_documented(
    library: Library, cluster: Cluster, tags: list[tuple[str, str]]
) -> None:
    # Tags of the keys of each pipeline, by the widest spread that a library can send directly.
    tags_by_spread = {
        "direct": [[tag for pair in tags for tag in pair]],
        "one node": tags,
        "one slot": [(tag, tag) for pair in tags for tag in pair],
    }

    def widest_direct_spread(verb: str, program: Program) -> str:
        """Returns the widest spread that is sent directly, or the routing of the widest spread."""
        routings = []
        for spread, groups in tags_by_spread.items():
            pipelines = [
                (verb, *(f"{{{tag}}}:{number}" for number, tag in enumerate(group)))
                for group in groups
            ]
            routings.append(routing(cluster, pipelines, program))
            if routings[-1] == "direct":
                return spread
        return routings[0]

    verbs = {"plain": "plain-pipeline", "shown": "pipeline"}
    rows = documented(library, "pipeline")
    if rows == {"shown": "none"}:
        pytest.skip("the library has no pipelines in a cluster")
    with library.program("cluster", cluster.servers[0].port) as program:
        found = {variant: widest_direct_spread(verbs[variant], program) for variant in rows}
    assert found == rows


def wait_until_replicas_are_listed(cluster: Cluster, tags: list[tuple[str, str]]) -> None:
    """Waits until every node lists the replicas for clients. A node lists a replica once it knows
    that the replica has received data.
    """

    def all_are_listed() -> bool:
        layouts = [
            cluster.admin(server).execute_command("CLUSTER SLOTS") for server in cluster.servers
        ]
        # Each range has its first and last slot, its primary and its replicas.
        return all(len(slots) > 3 for layout in layouts for slots in layout)

    for tag, _ in tags:
        key = f"{{{tag}}}:any"
        cluster.admin(cluster.owner(key)).execute_command("RL.TAKE", key, *LIMIT)
    poll.until(all_are_listed, "all nodes list the replicas", timeout=60)


@each_library
def test_peek_is_sent_to_the_documented_node(
    library: Library, cluster: Cluster, tags: list[tuple[str, str]]
) -> None:
    rows = documented(library, "peek")
    if rows == {"shown": "none"}:
        pytest.skip("the library cannot read from replicas")
    questions = [("peek", f"{{{tag}}}:one") for pair in tags for tag in pair]
    wait_until_replicas_are_listed(cluster, tags)
    with library.program("replicas", cluster.servers[0].port) as program:
        target = routing(cluster, questions, program)
        calls = stats(cluster, "commandstats", "cmdstat_rl.peek", "calls")
    primaries = set(cluster.primaries())
    at_replicas = sum(count for server, count in calls.items() if server not in primaries)
    if target == "direct":
        target = {0: "primary", sum(calls.values()): "replica"}.get(at_replicas, "any node")
    assert {"shown": target} == rows


# Lost replies

# Upper bound of the calls until three replies are lost.
MAX_CALLS = 60


def after_lost_replies(
    proxy: LossyProxy, server: Server, prefix: str, take: Callable[[str], object]
) -> str:
    """Calls until three replies are lost. Returns if the library sent the calls again or raised an
    error, and checks the charges on the server.
    """
    keys, errors = [], 0
    while proxy.lost < 3 and len(keys) < MAX_CALLS:
        keys.append(f"{prefix}call-{len(keys)}")
        try:
            take(keys[-1])
        except LibraryError as error:
            errors += 1
            print(error)
    with server.client() as redis:
        charged = [100 - redis.execute_command("RL.PEEK", key, *LIMIT)[2] for key in keys]
        redis.flushall()
    print(f"{len(keys)} calls, {proxy.lost} replies lost, {errors} errors, charged {charged}")
    assert proxy.lost == 3
    if errors == 0:
        assert sum(charged) == len(keys) + proxy.lost
        return "sent again"
    assert max(charged) == 1
    return "error"


@each_library
def test_lost_reply_of_a_server_is_handled_as_documented(library: Library, server: Server) -> None:
    def found(mode: str) -> str:
        with (
            LossyProxy(server.port, every=3).running() as proxy,
            library.program(mode, proxy.port) as program,
        ):
            if mode == "server":
                assert program.ask("first")[0] == 1
            return after_lost_replies(
                proxy, server, "", lambda key: program.ask("call", "RL.TAKE", key, *LIMIT)
            )

    modes = {"plain": "server", "shown": "server-no-resends"}
    rows = documented(library, "lost reply: one server")
    if len(rows) == 1:
        modes["shown"] = "server"
    assert {variant: found(modes[variant]) for variant in rows} == rows


@pytest.fixture
def two_nodes(fresh_server: Callable[..., Server]) -> list[Server]:
    """Starts a separate cluster of two nodes, as a library may avoid a failing node for a while."""
    # Nodes serve some time after their start, so their clock runs.
    settings = {"clock": None, "cluster_enabled": "yes", "cluster_announce_ip": "127.0.0.1"}
    servers = [fresh_server(**settings) for _ in range(2)]
    with servers[0].client() as first, servers[1].client() as second:
        first.execute_command("CLUSTER ADDSLOTS", *range(SLOTS // 2))
        second.execute_command("CLUSTER ADDSLOTS", *range(SLOTS // 2, SLOTS))
        first.execute_command("CLUSTER MEET", "127.0.0.1", servers[1].port)
    return servers


def announce(server: Server, port: int, nodes: Sequence[Server]) -> None:
    """Makes all nodes announce this port for the server's keys, and waits for the cluster."""
    with ExitStack() as connected:
        admins = [connected.enter_context(node.client(decode_responses=True)) for node in nodes]
        admins[nodes.index(server)].config_set("cluster-announce-port", port)

        def is_well() -> bool:
            return all(
                admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok"
                and admin.execute_command("CLUSTER INFO")["cluster_slots_ok"] == str(SLOTS)
                and str(port) in str(admin.execute_command("CLUSTER SLOTS"))
                for admin in admins
            )

        poll.until(is_well, "the cluster is well", timeout=60)


@each_library
def test_lost_reply_of_a_cluster_is_handled_as_documented(
    library: Library, two_nodes: list[Server]
) -> None:
    server = two_nodes[0]
    tag, other_tag = (
        next(tag for tag in map(str, count()) if slot_of(tag) // (SLOTS // 2) == number)
        for number in range(2)
    )

    def found(mode: str) -> str:
        with LossyProxy(server.port, every=3).running() as proxy:
            announce(server, proxy.port, two_nodes)
            with library.program(mode, proxy.port) as program:
                # Connects the library to the other node, if the library supports clusters.
                with suppress(LibraryError):
                    program.ask("one", other_tag)
                proxy.sent = 0
                return after_lost_replies(
                    proxy, server, f"{{{tag}}}", lambda key: program.ask("one", key)
                )

    modes = {"plain": "cluster", "shown": "cluster-no-resends"}
    rows = documented(library, "lost reply: cluster")
    if len(rows) == 1:
        modes["shown"] = "cluster"
    assert {variant: found(modes[variant]) for variant in rows} == rows


@each_library
def test_moved_slot_is_followed_as_documented(
    library: Library, cluster: Cluster, tags: list[tuple[str, str]]
) -> None:
    key = f"{{{tags[0][0]}}}:one"

    def found(mode: str) -> str:
        (target, *_) = set(cluster.primaries()) - {cluster.owner(key)}
        with library.program(mode, cluster.servers[0].port) as program:
            assert program.ask("one", key)[0] == 1
            with SlotMove(cluster, key, target):
                pass
            for result in ("followed", "error once"):
                try:
                    assert program.ask("one", key)[0] == 1
                except LibraryError as error:
                    print(error)
                else:
                    return result
            return "error"

    rows = documented(library, "moved slot")
    if rows == {"shown": "none"}:
        pytest.skip("the library does not support clusters")
    assert found("cluster") == rows.get("plain", rows["shown"])
    # The setting against resends may also stop the library from following a moved slot.
    if "plain" in documented(library, "lost reply: cluster"):
        assert found("cluster-no-resends") == rows["shown"]
