"""Responses while the server is away, and the shutdown of the gateway."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from running import BINARY, OK, OVER, Gateway, descriptor

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.server import Server

Start = Callable[..., Gateway]


@pytest.fixture
def suspendable_server(binary: Binary, clock: Clock) -> Iterator[Server]:
    """Server that this test may stop. It keeps every write."""
    with Server(binary, clock=clock, appendonly="yes", appendfsync="always") as server:
        server.client().execute_command("RL.POLICYSET", "api", "FIXED", 3, "1d")
        server.client().execute_command("RL.POLICYSET", "http", "FIXED", 3, "1d")
        yield server


def test_requests_pass_during_an_outage_and_usage_survives(
    suspendable_server: Server, start: Start
) -> None:
    gateway = start(suspendable_server.port)
    assert gateway.metric("ratelimit_gateway_outage_mode", mode="open") == 1
    assert gateway.metric("ratelimit_gateway_outage_start_time_seconds") == 0
    assert gateway.passes(descriptor(user="1"))
    started_at = time.time()
    suspendable_server.stop("kill")
    answers = [gateway.ask(descriptor(user="1")) for _ in range(10)]
    assert {answer.overall_code for answer in answers} == {OK}
    assert answers[0].statuses[0].current_limit is None
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="outage") == 10
    assert gateway.get("/readyz").status == 200, "a gateway stays ready during an outage"
    assert gateway.health() == "SERVING"
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 1, "the outage is reported")
    assert (
        started_at <= gateway.metric("ratelimit_gateway_outage_start_time_seconds") <= time.time()
    )
    suspendable_server.start()
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 0, "the outage is over")
    assert gateway.metric("ratelimit_gateway_outage_start_time_seconds") == 0
    passed = [gateway.passes(descriptor(user="1")) for _ in range(3)]
    assert passed == [True, True, False]
    gateway.end()
    assert gateway.log.count("the server is away") == 1
    assert gateway.log.count("the server is back") == 1


def test_requests_are_denied_during_an_outage_if_configured(
    suspendable_server: Server, start: Start
) -> None:
    gateway = start(suspendable_server.port, "--on-outage", "closed")
    suspendable_server.stop("kill")
    answer = gateway.ask(descriptor(user="1"))
    assert answer.overall_code == OVER
    headers = {header.key: header.value for header in answer.response_headers_to_add}
    assert headers == {"Retry-After": "1"}
    response = gateway.get("/check")
    assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert "violated-policies" not in response.body


def test_local_fallback_grants_a_share_of_each_limit(
    suspendable_server: Server, start: Start
) -> None:
    suspendable_server.client().execute_command("RL.POLICYSET", "api", "FIXED", 8, "1d")
    gateway = start(suspendable_server.port, "--on-outage", "local=0.25")
    assert gateway.metric("ratelimit_gateway_outage_mode", mode="local=0.25") == 1
    assert gateway.passes(descriptor(user="1"))
    # The windows are known once the gateway has read the current policy.
    poll.until(lambda: policies_are_known(gateway), "the policies are known")
    suspendable_server.stop("kill")
    answers = [gateway.ask(descriptor(user="1")) for _ in range(3)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OVER]
    assert answers[2].statuses[0].current_limit.requests_per_unit == 2
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="outage") == 3
    descriptors = descriptor(user="2"), descriptor(user="1")
    assert not gateway.passes(*descriptors)
    assert gateway.passes(descriptor(user="2"), descriptor(user="3"))
    assert gateway.passes(descriptor(user="2")), "denied requests are not charged"
    assert [gateway.get("/check").status for _ in range(2)] == [200, 429]
    assert gateway.passes(descriptor(user="1"), domain="nobody")
    suspendable_server.start()
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 0, "the outage is over")
    remaining = gateway.ask(descriptor(user="1", hits=0)).statuses[0].limit_remaining
    assert remaining == 7, "local decisions do not change the server's count"


def policies_are_known(gateway: Gateway) -> bool:
    limit = gateway.ask(descriptor(user="1", hits=0)).statuses[0].current_limit
    return (limit.requests_per_unit, limit.unit.name) == (8, "DAY")


@pytest.mark.parametrize("word", ["local", "local=0", "local=1.5", "local=x", "ajar"])
def test_invalid_on_outage_option_is_refused(word: str) -> None:
    words = [BINARY, "serve", "--on-outage", word]
    completed = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert completed.returncode == 2
    assert "must be open, closed, error, or local=0.25" in completed.stderr


@pytest.mark.long
def test_calls_to_a_hanging_server_time_out(suspendable_server: Server, start: Start) -> None:
    suspendable_server.client().execute_command("RL.POLICYSET", "api", "FIXED", 1000, "1d")
    gateway = start(suspendable_server.port, "--timeout", "200ms")
    assert gateway.passes(descriptor(user="1"))
    with suspendable_server.suspended():
        assert gateway.passes(descriptor(user="1"))
        poll.until(
            lambda: gateway.metric("ratelimit_gateway_outage") == 1, "the outage is reported"
        )
        for _ in range(100):
            assert gateway.passes(descriptor(user="1"))
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 0, "the outage is over")
    poll.until(
        lambda: gateway.metric("ratelimit_gateway_late_total") >= 1, "late replies are counted"
    )
    # Calls that were sent to the suspended server are charged when it continues. The 100 calls
    # were not sent.
    assert gateway.ask(descriptor(user="1")).statuses[0].limit_remaining == 997


@pytest.mark.long
def test_charge_with_a_late_reply_is_kept(suspendable_server: Server, start: Start) -> None:
    gateway = start(suspendable_server.port, "--timeout", "200ms", "--on-outage", "closed")
    assert gateway.passes(descriptor(user="1"))
    with suspendable_server.suspended():
        assert not gateway.passes(descriptor(user="1"), descriptor(user="2"))
    poll.until(
        lambda: gateway.metric("ratelimit_gateway_late_total") == 2, "two late replies are counted"
    )
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 0, "the server answers")
    peek = gateway.ask(descriptor(user="1", hits=0), descriptor(user="2", hits=0))
    assert [status.limit_remaining for status in peek.statuses] == [1, 2]


def test_server_error_is_not_a_decision(gateway: Gateway, server: Server) -> None:
    redis = server.client()
    redis.execute_command("RL.POLICYSET", "api", "FIXED", 3, "1d")
    redis.set("rl:api|user=1", "a string")
    assert gateway.passes(descriptor(user="1"))
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="error") == 1
    assert gateway.metric("ratelimit_gateway_outage") == 0


def test_missing_module_is_reported(binary: Binary, clock: Clock, start: Start) -> None:
    with Server(binary, clock=clock, module=None) as server:
        gateway = start(server.port, wait_until_ready=False)
        poll.until(
            lambda: gateway.metric("ratelimit_gateway_outage") == 1, "the outage is reported"
        )
        assert gateway.passes(descriptor(user="1"))
        assert gateway.get("/readyz").status == 503
        gateway.end()
    assert "load the module" in gateway.log


def test_gateway_is_ready_once_the_server_starts(
    binary: Binary, clock: Clock, start: Start
) -> None:
    with Server(binary, clock=clock) as server:
        server.stop()
        gateway = start(server.port, wait_until_ready=False)
        assert [gateway.get(path).status for path in ("/readyz", "/healthcheck")] == [503, 500]
        assert gateway.health() == "NOT_SERVING"
        assert gateway.passes(descriptor(user="1"))
        server.start()
        poll.until(lambda: gateway.get("/readyz").status == 200, "the gateway is ready")
        poll.until(lambda: gateway.health() == "SERVING", "the gateway is healthy")


@pytest.mark.long
def test_killed_server_loses_no_acknowledged_charge(
    suspendable_server: Server, start: Start
) -> None:
    suspendable_server.client().execute_command("RL.POLICYSET", "api", "FIXED", 1_000_000, "1d")
    # A long timeout, because calls that time out are charged as well.
    gateway = start(suspendable_server.port, "--timeout", "5s")
    # Responses by caller: all, and those that the server decided.
    responses, decisions, should_stop = [0] * 4, [0] * 4, threading.Event()

    def load(caller: int) -> None:
        while not should_stop.is_set():
            answer = gateway.ask(descriptor(user="1"))
            assert answer.overall_code == OK
            responses[caller] += 1
            decisions[caller] += answer.statuses[0].current_limit is not None

    threads = [threading.Thread(target=load, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    poll.until(lambda: sum(decisions) > 500, "the server decides")
    suspendable_server.stop("kill")
    before = sum(responses)
    poll.until(lambda: sum(responses) > before + 500, "requests are answered in an outage")
    suspendable_server.start()
    at_start = sum(decisions)
    poll.until(lambda: sum(decisions) > at_start + 500, "the server decides again")
    should_stop.set()
    for thread in threads:
        thread.join()
    peek = gateway.ask(descriptor(user="1", hits=0)).statuses[0]
    usage = 1_000_000 - peek.limit_remaining
    # Charges without a reply are in the append-only file, too: at most one for each caller.
    assert sum(decisions) <= usage <= sum(decisions) + 4


def test_sigterm_exits_with_status_zero(gateway: Gateway) -> None:
    assert gateway.end(signal.SIGTERM) == 0
    assert "panicked" not in gateway.log


@contextlib.contextmanager
def open_stream(gateway: Gateway) -> Iterator[Callable[[], None]]:
    """Opens a stream. Yields a function that ends the stream."""
    should_end = threading.Event()

    def requests() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        should_end.wait(60)

    stub = reflection_pb2_grpc.ServerReflectionStub(gateway.channel)
    answers = stub.ServerReflectionInfo(requests(), timeout=60)
    next(answers)

    def end() -> None:
        should_end.set()
        assert list(answers) == []

    try:
        yield end
    finally:
        should_end.set()
        answers.cancel()


def test_shutdown_waits_for_streams_and_reports_not_serving(gateway: Gateway) -> None:
    health_changes = health_pb2_grpc.HealthStub(gateway.channel).Watch(
        health_pb2.HealthCheckRequest(), timeout=60
    )
    assert next(health_changes).status == health_pb2.HealthCheckResponse.SERVING
    with open_stream(gateway) as end:
        os.kill(gateway.pid, signal.SIGTERM)
        statuses = [answer.status for answer in health_changes]
        assert statuses == [health_pb2.HealthCheckResponse.NOT_SERVING]
        assert gateway.get("/readyz").status == 503
        assert gateway.get("/healthz").status == 200
        end()
        assert gateway.wait_for_end() == 0
    assert "did not end in time" not in gateway.log


@pytest.mark.long
def test_shutdown_does_not_wait_for_endless_streams(gateway: Gateway) -> None:
    with open_stream(gateway):
        assert gateway.end(signal.SIGTERM) == 0
    assert "did not end in time" in gateway.log


def test_health_over_grpc_matches_readiness(server: Server, start: Start) -> None:
    gateway = start(server.port)
    services = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"]
    assert [gateway.health(service) for service in services] == ["SERVING"] * 3


def test_concurrency_without_an_id_is_logged_once_a_minute(server: Server, start: Start) -> None:
    server.client().execute_command("RL.POLICYSET", "api", "CONCURRENCY", 1, "1m")
    gateway = start(server.port)
    assert [gateway.passes(descriptor(user="1")) for _ in range(3)] == [True] * 3
    assert gateway.passes(descriptor(user="1", negative=True)), (
        "releasing a lease that is not held is no error"
    )
    name = "ratelimit_gateway_decisions_total"
    assert gateway.metric(name, outcome="error") >= 3
    gateway.end()
    assert gateway.log.count("the server refused to decide") == 1
    closed = start(server.port, "--on-outage", "closed")
    answer = closed.ask(descriptor(user="1"))
    assert answer.overall_code == OVER
    assert [(header.key, header.value) for header in answer.response_headers_to_add] == [
        ("Retry-After", "1")
    ]
    assert closed.passes(descriptor(user="1", rl_id="a"))


def test_occupied_port_is_refused_at_start(gateway: Gateway) -> None:
    words = ["--grpc", f"127.0.0.1:{gateway.grpc}", "--http", "127.0.0.1:0"]
    completed = subprocess.run(
        [BINARY, "serve", *words], capture_output=True, text=True, check=False, timeout=20
    )
    assert completed.returncode == 1
    assert f"127.0.0.1:{gateway.grpc}" in completed.stderr


def test_draining_gateway_answers_but_is_not_ready(
    server: Server, start: Start, policy: Callable[..., int]
) -> None:
    policy("api", "FIXED 1 1d")
    gateway = start(server.port, "--drain", "1h")
    os.kill(gateway.pid, signal.SIGTERM)
    poll.until(lambda: gateway.get("/readyz").status == 503, "the gateway is not ready")
    poll.until(lambda: gateway.health() == "NOT_SERVING", "the gateway is not serving")
    assert [gateway.passes(descriptor(user="1")) for _ in range(2)] == [True, False]
    assert gateway.get("/check").headers["Connection"] == "close"
    assert gateway.end(signal.SIGTERM) == 0, "a second signal ends at once"
    assert "second signal" in gateway.log


def test_second_signal_ends_open_streams(gateway: Gateway) -> None:
    with open_stream(gateway):
        os.kill(gateway.pid, signal.SIGTERM)
        poll.until(lambda: gateway.get("/readyz").status == 503, "the gateway is shutting down")
        assert gateway.end(signal.SIGTERM) == 0
    assert "second signal" in gateway.log


@pytest.mark.parametrize("word", ["-1s", "", "soon"])
def test_invalid_drain_duration_is_refused(word: str) -> None:
    words = [BINARY, "serve", f"--drain={word}"]
    completed = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert completed.returncode == 2
    assert "must be a duration" in completed.stderr
