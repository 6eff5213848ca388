"""Effect of each error reply of a server: `clients/replies.json`, the table that all packages
share.
"""

import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import redis
from support.binaries import Binary
from support.proxy import LossyProxy, is_of_the_module, read_value
from support.server import Server

from limiters import Make
from redis_ratelimit import (
    CallError,
    Concurrency,
    DeniedError,
    Fixed,
    FullError,
    Limiter,
    Local,
    NoPolicyError,
    Policy,
    RateLimitError,
    SetupError,
    Sliding,
    SlidingLog,
    UnavailableError,
)

CLIENTS = Path(__file__).parents[2]
ROWS: list[dict[str, Any]] = json.loads((CLIENTS / "replies.json").read_text())
ERRORS = {
    "outage": UnavailableError,
    "caller": CallError,
    "operator": SetupError,
    "full": FullError,
}
LIMIT = Fixed(1000, "1h")
# A call with this limit has an idempotency key.
SMALL = Fixed(50, "1h")


class RejectingProxy(LossyProxy):
    """Proxy that answers the module's commands with `error`, if it is set."""

    error: str | None = None
    # `True` if `error` answers only commands with an idempotency key.
    spares_calls_without_id = False

    def _pass_on(self, client: BinaryIO, answers: BinaryIO) -> None:
        with (
            socket.create_connection(("127.0.0.1", self._target)) as upstream,
            upstream.makefile("rb") as replies,
        ):
            while command := read_value(client):
                is_rejected = b"ONCE" in command or not self.spares_calls_without_id
                if self.error is not None and is_of_the_module(command):
                    self.sent += 1
                    if is_rejected:
                        answers.write(f"-{self.error}\r\n".encode())
                        continue
                upstream.sendall(command)
                answers.write(read_value(replies))


@pytest.fixture
def proxy(server: Server) -> Iterator[RejectingProxy]:
    with RejectingProxy(server.port, 0).running() as proxy:
        yield proxy  # type: ignore[misc]


def records(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_table_has_every_error_of_the_module() -> None:
    documented = (CLIENTS.parent / "docs/commands.md").read_text().split("\n## Errors\n")[1]
    lines = [line for line in documented.splitlines() if line.startswith("| `")]
    table = {row["reply"] for row in ROWS}
    # The documentation lists syntax errors only by example.
    wording = re.compile(r"ERR (syntax error|wrong number|(a )?\w+ (must be|is missing))")
    listed = {line.split("`")[1] for line in lines}
    of_the_module = {reply for reply in listed if not wording.match(reply)}
    assert len(of_the_module) >= 15
    assert of_the_module <= table


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_each_reply_has_the_outcome_of_the_table(
    make: Make, proxy: RejectingProxy, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    # A single counted failure would open the breaker.
    limiters = {
        outage: make(f"{scheme}://127.0.0.1:{proxy.port}", on_outage=outage, failures=1, pause=3600)
        for outage in ("open", "closed", Local())
    }
    for row in ROWS:
        reply, kind = row["reply"], row["kind"]
        for outage, limiter in limiters.items():
            caplog.clear()
            limiter._sending._complaint._logged_at.clear()
            proxy.error = reply
            with pytest.raises(ERRORS[kind]) as raised:
                limiter.policies.get("plan")
            error = raised.value
            assert row.get("remedy", "") in str(error), reply
            assert isinstance(error, NoPolicyError) == reply.startswith("NOPOLICY"), reply
            if kind in {"caller", "operator"}:
                for call in (limiter.take, limiter.peek):
                    with pytest.raises(ERRORS[kind]):
                        call("key", LIMIT)
                with pytest.raises(ERRORS[kind]):
                    limiter.take_all({"{a}1": LIMIT, "{a}2": LIMIT})
            else:
                passes = kind == "outage" and outage != "closed"
                for decision in (
                    limiter.take("key", LIMIT),
                    limiter.peek("key", LIMIT),
                    limiter.take_all({"{a}1": LIMIT, "{a}2": LIMIT}),
                ):
                    local = kind == "outage" and isinstance(outage, Local)
                    assert decision.allowed == passes, reply
                    assert decision.source == ("local" if local else "none"), reply
                    assert isinstance(decision.error, ERRORS[kind]), reply
            # Errors that need an operator are logged once, not for each call.
            is_logged = kind in {"operator", "full"}
            assert len(records(caplog, logging.ERROR)) == is_logged, reply
            proxy.error = None
            # The error does not affect other calls.
            assert limiter.take("other", LIMIT).source == "server", reply


def test_key_full_of_ids_is_charged_without_a_generated_id(
    make: Make, proxy: RejectingProxy
) -> None:
    limiter = make(f"redis://127.0.0.1:{proxy.port}", on_outage="open")
    proxy.spares_calls_without_id = True
    for row in ROWS:
        if row["kind"] != "full":
            continue
        proxy.error = row["reply"]
        decision = limiter.take("key", SMALL)
        assert (decision.allowed, decision.source) == (
            (True, "server") if row["passesWithoutId"] else (False, "none")
        )
        # A call without a record cannot be settled.
        assert not row["passesWithoutId"] or decision.id is None
        decision = limiter.take_all({"{a}1": SMALL, "{a}2": SMALL})
        assert decision.allowed == row["passesWithoutId"]
        # An id that the caller chose cannot be left out.
        assert not limiter.take("key", SMALL, once="req-1")
        assert not limiter.take("key", SMALL, cost=3, upto=True)
        with limiter.units("key", SMALL) as units:
            assert not units.take()


def test_policy_that_needs_an_id_is_denied_without_it(make: Make, proxy: RejectingProxy) -> None:
    limiter = make(f"redis://127.0.0.1:{proxy.port}")
    limiter.policies.set("jobs", Concurrency(5, "1h"), LIMIT)
    proxy.error = "ERR the key has 3 entries, as many as ratelimit.max-ids allows"
    proxy.spares_calls_without_id = True
    decision = limiter.take("key", Policy("jobs"))
    assert (decision.allowed, decision.source) == (False, "none")
    assert "max-ids" in str(decision.error)


@pytest.fixture
def server_with_small_keys(binary: Binary) -> Iterator[Server]:
    """Server whose keys hold few entries."""
    with Server(binary, module_args="max-ids 3 max-log-entries 3 max-leases 3") as server:
        yield server


@pytest.mark.parametrize("outage", ["open", "closed", Local()])
def test_full_key_is_not_an_outage(make: Make, server_with_small_keys: Server, outage: Any) -> None:
    limiter = make(f"redis://127.0.0.1:{server_with_small_keys.port}", on_outage=outage, failures=1)
    # Every unit is charged although the key remembers three ids only.
    decisions = [limiter.take("ids", Fixed(10, "1h")) for _ in range(15)]
    assert [one.allowed for one in decisions] == [True] * 10 + [False] * 5
    assert [one.id is not None for one in decisions] == [True] * 3 + [False] * 7 + [True] * 5
    log = [limiter.take("log", SlidingLog(100, "1h"), once=False) for _ in range(5)]
    assert [one.allowed for one in log] == [True] * 3 + [False] * 2
    assert isinstance(log[-1].error, FullError)
    for holder in "abc":
        assert limiter.take("pool", Concurrency(9, "1h"), holder=holder)
    assert not limiter.take("pool", Concurrency(9, "1h"), holder="d")
    with pytest.raises(DeniedError, match="max-leases"):
        limiter.lease("pool", Concurrency(9, "1h"), "d", wait=0).__enter__()
    assert limiter.take("other", LIMIT).source == "server"


def test_full_memory_denies_new_keys_and_serves_existing_ones(
    make: Make, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = make(on_outage="open", failures=1)
    limiter.take("there", LIMIT, once=False)
    admin.config_set("maxmemory", 1)
    try:
        for _ in range(3):
            assert limiter.take("there", LIMIT).source == "server"
            decision = limiter.take("new", LIMIT)
            assert (decision.allowed, decision.source, decision.wait) == (False, "none", 1.0)
            assert isinstance(decision.error, FullError)
    finally:
        admin.config_set("maxmemory", 0)
    assert limiter.take("new", LIMIT)
    (line,) = records(caplog, logging.ERROR)
    assert "OOM" in line
    assert "maxmemory" in line


@pytest.mark.parametrize("outage", ["open", "closed", Local()])
def test_key_of_another_algorithm_is_a_setup_error(
    make: Make, outage: Any, caplog: pytest.LogCaptureFixture, admin: redis.Redis
) -> None:
    limiter = make(on_outage=outage, failures=1)
    for number in range(3):
        key = f"key{number}"
        limiter.take(key, Fixed(5, "1h"), once=False)
        with pytest.raises(SetupError, match="another key"):
            limiter.take(key, Sliding(5, "1h"), once=False)
    admin.set("text", "some")
    with pytest.raises(SetupError, match="holding string"):
        limiter.take("text", LIMIT)
    assert limiter.take("other", LIMIT).source == "server"
    (line,) = records(caplog, logging.ERROR)
    assert "WRONGTYPE" in line
    assert "'key0'" in line


def test_wrong_permissions_and_passwords_are_setup_errors(
    make: Make, server: Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    admin.execute_command("ACL", "SETUSER", "app", "on", ">right", "~app:*", "+rl.peek", "+select")
    try:
        at = f"127.0.0.1:{server.port}"
        limiter = make(f"redis://app:right@{at}", failures=1)
        for key, limit in (("app:key", LIMIT), ("key", LIMIT)):
            with pytest.raises(SetupError, match="ACL SETUSER"):
                limiter.take(key, limit)
        assert limiter.peek("app:key", LIMIT).source == "server"
        admin.config_set("requirepass", "secret")
        for wrong in ("app:wrong@", ":wrong@", ""):
            limiter = make(f"redis://{wrong}{at}", failures=1)
            for _ in range(3):
                with pytest.raises(SetupError, match="password"):
                    limiter.take("app:key", LIMIT)
            with pytest.raises(SetupError):
                limiter.check()
    finally:
        admin.config_set("requirepass", "")
        admin.execute_command("ACL", "DELUSER", "app")
    lines = records(caplog, logging.ERROR)
    assert [line for line in lines if "NOPERM" in line]
    assert [line for line in lines if "password" in line]


def test_cluster_and_single_server_mismatch_is_a_setup_error(
    make: Make, cluster: Any, server: Server
) -> None:
    limiter = make(f"redis://127.0.0.1:{cluster.primaries()[0].port}", failures=1)

    def moved(key: str) -> bool:
        try:
            return limiter.take(key, LIMIT).source != "server"
        except SetupError as error:
            return "a client for clusters" in str(error)

    assert {moved(f"key{number}") for number in range(20)} == {True, False}
    limiter = make(f"redis://127.0.0.1:{server.port}", cluster=True, failures=1)
    for _ in range(3):
        with pytest.raises(SetupError, match="a client for one server"):
            limiter.take("key", LIMIT)


@pytest.mark.parametrize("key", [None, 42, ["a"], object()])
def test_invalid_key_is_rejected_before_sending(make: Make, key: Any, admin: redis.Redis) -> None:
    limiter = make(failures=1)
    admin.config_resetstat()
    for call in (
        lambda: limiter.take(key, LIMIT),
        lambda: limiter.peek(key, LIMIT),
        lambda: limiter.take_all({key: LIMIT, "b": LIMIT} if key != ["a"] else {42: LIMIT}),
        lambda: limiter.settle(key, LIMIT, id="a", cost=1),
        lambda: limiter.give_back(key, LIMIT),
        lambda: limiter.release(key, "me"),
        lambda: limiter.ban(key, 60),
        lambda: limiter.lease(key, Concurrency(1, 30), wait=0).__enter__(),
    ):
        with pytest.raises(TypeError):
            call()
    assert limiter.take("key", LIMIT).source == "server"
    assert set(admin.info("commandstats")) & {"cmdstat_rl.take"} == {"cmdstat_rl.take"}
    assert admin.info("commandstats")["cmdstat_rl.take"]["calls"] == 1


def test_unencodable_word_is_a_call_error(make: Make) -> None:
    limiter = make(failures=1)
    for _ in range(3):
        with pytest.raises(TypeError, match="text or bytes, not None"):
            limiter.release("pool", None)
    assert limiter.take("key", LIMIT).source == "server"


def test_all_exceptions_have_one_base_class() -> None:
    for kind in (*ERRORS.values(), NoPolicyError, DeniedError):
        assert issubclass(kind, RateLimitError)
    assert issubclass(NoPolicyError, SetupError)


def test_lease_survives_a_rejected_renewal(server: Server) -> None:
    with RejectingProxy(server.port, 0).running() as proxy:
        url = f"redis://127.0.0.1:{proxy.port}"
        with (
            Limiter.from_url(url, timeout=10) as limiter,
            limiter.lease("pool", Concurrency(1, 3), wait=0) as lease,
        ):
            proxy.error = "NOPERM User shop has no permissions to run the 'rl.acquire' command"
            while proxy.sent == 0:
                lease._done.wait(0.01)
            proxy.error = None
            expiry = lease._held_until
            while lease._held_until == expiry:
                lease.check()
                lease._done.wait(0.01)
            assert not lease.lost


@pytest.fixture(autouse=True)
def _record_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="redis_ratelimit")
