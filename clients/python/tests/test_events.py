"""Each event of `clients/events.json`, the table that all packages share, is triggered."""

import asyncio
import ctypes
import inspect
import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from support import poll
from support.server import Server

from faults import Faults
from limiters import Make
from redis_ratelimit import Concurrency, Fixed, Limiter, Policy, aio
from redis_ratelimit import errors as ours
from test_replies import RejectingProxy

TABLE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "events.json").read_text())
EVENTS: list[dict[str, Any]] = TABLE["events"]
LIMIT = Fixed(1000, "1h")
# A call with this limit has an idempotency key.
SMALL = Fixed(50, "1h")


def rows_caused_by(cause: str) -> Any:
    rows = [row for row in EVENTS if cause in row["by"]]
    return pytest.mark.parametrize("row", rows, ids=[row["event"] for row in rows])


def error_of(row: dict[str, Any]) -> type[Exception]:
    builtin = {"TypeError": TypeError, "RangeError": ValueError}
    return builtin.get(row["error"]) or getattr(ours, row["error"])


@pytest.fixture
def proxy(server: Server) -> Iterator[RejectingProxy]:
    with RejectingProxy(server.port, 0).running() as proxy:
        yield proxy  # type: ignore[misc]


def test_every_event_has_every_field() -> None:
    assert len({row["event"] for row in EVENTS}) == len(EVENTS)
    for row in EVENTS:
        assert set(row) == set(TABLE["about"]), row
        assert row["class"] in {"outage", "caller", "operator", "decision"}
        assert len(row["by"]) == 1


@pytest.mark.parametrize("limiter", [Limiter, aio.Limiter])
def test_defaults_match_the_table(limiter: Any) -> None:
    parameters = inspect.signature(limiter).parameters
    assert {name: parameters[name].default for name in TABLE["defaults"]} == TABLE["defaults"]


@rows_caused_by("reply")
def test_error_reply_leads_to_its_outcome(
    make: Make, proxy: RejectingProxy, row: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="redis_ratelimit")
    limiter = make(f"redis://127.0.0.1:{proxy.port}", on_outage="closed", failures=1, pause=60)
    proxy.error = row["by"]["reply"]
    proxy.spares_calls_without_id = row["does"] == "server, without an id"
    if row["does"] == "raises":
        with pytest.raises(error_of(row)) as raised:
            limiter.take("key", LIMIT)
        text = str(raised.value)
    else:
        decision = limiter.take("key", SMALL)
        assert decision.allowed == proxy.spares_calls_without_id
        assert row["error"] is None or isinstance(decision.error, error_of(row))
        text = str(decision.error)
    lines = [record.getMessage() for record in caplog.records]
    levels = {"outage": logging.WARNING, "error": logging.ERROR}
    assert [record.levelno for record in caplog.records] == (
        [] if row["log"] is None else [levels[row["log"]]]
    )
    for word in row["says"]:
        assert word in " ".join([text, *lines])
    # The error does not affect other calls.
    proxy.error = None
    assert limiter.take("other", LIMIT).source == "server"


@rows_caused_by("call")
def test_call_leads_to_its_outcome(make: Make, row: dict[str, Any]) -> None:
    limiter = make(failures=1, pause=60)
    arguments = {"key": "key", "limits": [LIMIT], **row["by"]["call"]}
    if arguments.get("cost") == "NaN":
        arguments["cost"] = float("nan")
    key, limits = arguments.pop("key"), arguments.pop("limits")
    for _ in range(3):
        for call in (limiter.take, limiter.peek):
            with pytest.raises(error_of(row), match=row["says"][0]):
                call(key, *limits, **arguments)
    assert limiter.take("key", LIMIT).source == "server"


ROWS = {row["event"]: row for row in EVENTS}


@pytest.fixture
def faults(server: Server) -> Iterator[Faults]:
    with Faults(server.port).running() as proxy:
        yield proxy


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("event", ["refused", "no-reply", "lost-replies"])
def test_outage_leads_to_its_outcome(
    kind: str,
    make: Make,
    faults: Faults,
    server: Server,
    event: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="redis_ratelimit")
    port = server.port if event == "refused" else faults.port
    limiter = make(f"redis://127.0.0.1:{port}", on_outage="closed", timeout=0.1, pause=0.2)
    assert limiter.take("key", LIMIT).source == "server"
    if event == "refused":
        server.stop("kill")
    faults.is_silent, faults.is_losing = event == "no-reply", event == "lost-replies"
    decisions = [limiter.take("key", LIMIT) for _ in range(100)]
    assert {one.source for one in decisions} == {"none"}
    assert {type(one.error) for one in decisions} == {error_of(ROWS[event])}
    (line,) = lines_of(caplog)
    assert line.startswith(f"Redis is away: 127.0.0.1:{port}: ")
    faults.is_silent = faults.is_losing = False
    if event == "refused":
        server.start()
    until = time.monotonic() + 10
    while len(lines_of(caplog)) < 2 and time.monotonic() < until:
        limiter.take("key", LIMIT)
        time.sleep(0.01)
    assert lines_of(caplog)[1:] == ["Redis is back"]
    assert limiter.take("key", LIMIT).source == "server", kind


def test_lost_reply_is_resent_and_charged_once(
    make: Make, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = make(f"redis://127.0.0.1:{faults.port}", failures=1)
    assert limiter.take("key", SMALL).remaining == 49
    faults.loses_next = True
    decision = limiter.take("key", SMALL)
    # Charged once.
    assert (decision.source, decision.remaining, faults.loses_next) == ("server", 48, False)
    assert lines_of(caplog) == []


def test_slow_connect_continues_after_the_call_timed_out(make: Make, server: Server) -> None:
    with Faults(server.port, delay=0.03).running() as far:
        url = f"redis://127.0.0.1:{far.port}"
        limiter = make(url, timeout=1.0, connect_timeout=60.0, pause=0.1)
        far.is_open.clear()
        # Connecting takes longer than the timeout of a call, and continues after it.
        assert limiter.give_back("key", LIMIT).source == "none"
        far.is_open.set()
        poll.until(lambda: limiter.take("key", LIMIT).source == "server", "connected", timeout=20)
        assert far.connections == 1
        assert [limiter.take("key", LIMIT).source for _ in range(10)] == ["server"] * 10


def allowed_and_sources(decisions: list[Any]) -> tuple[int, set[str]]:
    return sum(one.allowed for one in decisions), {one.source for one in decisions}


def test_killed_connection_of_asyncio_grants_exactly_the_limit(
    url: str, admin: redis.Redis
) -> None:
    async def flood() -> list[Any]:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            await limiter.take("warm", LIMIT)
            tasks = []
            for number in range(2000):
                if number == 1000:
                    admin.client_kill_filter(_type="normal", skipme=True)
                tasks.append(asyncio.create_task(limiter.take("key", Fixed(5, "1h"))))
                if number % 50 == 0:
                    await asyncio.sleep(0)
            return await asyncio.gather(*tasks)

    assert allowed_and_sources(asyncio.run(flood())) == (5, {"server"})


def test_killed_connections_of_threads_grant_exactly_the_limit(
    url: str, admin: redis.Redis
) -> None:
    with Limiter.from_url(url, timeout=10) as limiter, ThreadPoolExecutor(50) as pool:
        tasks = []
        for number in range(2000):
            if number == 1000:
                admin.client_kill_filter(_type="normal", skipme=True)
            tasks.append(pool.submit(limiter.take, "key", Fixed(5, "1h")))
        decisions = [task.result() for task in tasks]
    assert allowed_and_sources(decisions) == (5, {"server"})


class BlockedLoop(asyncio.SelectorEventLoop):
    """Event loop whose time passes only while the test blocks it, so that the speed of the server
    does not matter.
    """

    now = 0.0

    def time(self) -> float:
        return self.now


@pytest.mark.parametrize("connected", [True, False])
def test_blocked_event_loop_times_out_no_call(url: str, connected: bool) -> None:
    loop = BlockedLoop()

    async def flood() -> list[Any]:
        # No resends, which would hide a timed-out call.
        async with aio.Limiter.from_url(url, timeout=2, connect_timeout=3600, resends=0) as limiter:
            if connected:
                await limiter.take("warm", LIMIT)
            tasks = [asyncio.create_task(limiter.take("key", Fixed(5, "1h"))) for _ in range(1000)]
            for _ in range(3):
                await asyncio.sleep(0)
                # Longer than the timeout of a call.
                loop.now += 60
            return await asyncio.gather(*tasks)

    try:
        assert allowed_and_sources(loop.run_until_complete(flood())) == (5, {"server"})
    finally:
        loop.close()


def test_busy_thread_times_out_no_call_of_others(url: str) -> None:
    done = threading.Event()

    def busy() -> None:
        while not done.is_set():
            sum(range(100_000))

    worker = threading.Thread(target=busy)
    worker.start()
    try:
        with Limiter.from_url(url, timeout=2) as limiter, ThreadPoolExecutor(20) as pool:
            decisions = list(pool.map(lambda _: limiter.take("key", Fixed(5, "1h")), range(200)))
    finally:
        done.set()
        worker.join()
    assert allowed_and_sources(decisions) == (5, {"server"})


# Functions of a PyDLL hold the interpreter lock, unlike other functions in C.
hold_interpreter = ctypes.PyDLL(None).usleep


def test_late_wake_up_times_out_no_call(url: str) -> None:
    """The thread that connects was not scheduled, so its delay does not count as a wait."""
    done = threading.Event()

    def busy() -> None:
        while not done.is_set():
            hold_interpreter(300_000)
            time.sleep(0.001)

    def take(_: int) -> Any:
        together.wait()
        return limiter.take("key", Fixed(5, "1h"))

    together = threading.Barrier(21)
    with Limiter.from_url(url, failures=1) as limiter, ThreadPoolExecutor(20) as pool:
        worker = threading.Thread(target=busy)
        tasks = [pool.submit(take, number) for number in range(20)]
        together.wait()
        worker.start()
        try:
            decisions = [task.result() for task in tasks]
        finally:
            done.set()
            worker.join()
    assert allowed_and_sources(decisions) == (5, {"server"})


@pytest.mark.parametrize("on_outage", ["open", "closed"])
def test_setup_errors_are_outages_if_chosen(
    make: Make, proxy: RejectingProxy, on_outage: str, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = make(
        f"redis://127.0.0.1:{proxy.port}", on_outage=on_outage, setup_errors="outage", failures=1
    )
    for row in EVENTS:
        if row["class"] == "operator":
            proxy.error = row["by"]["reply"]
            decision = limiter.take("key", LIMIT)
            assert (decision.allowed, decision.source) == (on_outage == "open", "none")
            assert isinstance(decision.error, error_of(row))
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


@pytest.mark.parametrize("case", TABLE["ids"], ids=json.dumps)
def test_call_has_an_id_where_the_table_says(make: Make, case: dict[str, Any]) -> None:
    limiter = make(**({"once": case["limiter_once"]} if "limiter_once" in case else {}))
    limiter.policies.set("plan", Fixed(10, "1h"))
    limit = Fixed(case["limit"], "1h") if "limit" in case else Policy("plan")
    options = {name: case[name] for name in ("cost", "once", "ttl") if name in case}
    decision = limiter.take("key", limit, **options)
    assert (decision.id is not None) == case["id"]


def test_call_by_a_policy_with_a_concurrency_limit_has_an_id(
    make: Make, admin: redis.Redis
) -> None:
    """The server rejects the first call without an id, which the limiter then sends with one."""
    # After a denial by a policy, a limiter that remembers denials sends an extra call.
    limiter = make(remember_denials=False)
    limiter.policies.set("leased", Fixed(1000, "1h"), Concurrency(2, "1h"))
    assert [bool(limiter.take("key", Policy("leased")).id) for _ in range(2)] == [True, True]
    sent = admin.info("commandstats")["cmdstat_rl.limit"]["calls"]
    assert not limiter.take("key", Policy("leased"))
    assert admin.info("commandstats")["cmdstat_rl.limit"]["calls"] == sent + 1


def test_outage_is_raised_if_chosen(make: Make, server: Server) -> None:
    limiter = make(on_outage="raise")
    server.stop("kill")
    for call in (limiter.take, limiter.peek):
        with pytest.raises(ours.UnavailableError, match=f"127.0.0.1:{server.port}"):
            call("key", LIMIT)
