"""Responses while the server is away, and the shutdown of the gateway."""

import contextlib
import os
import signal
import subprocess
import threading
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
def mortal(binary: Binary, clock: Clock) -> Iterator[Server]:
    """A server that this test may stop. It keeps every write."""
    with Server(binary, clock=clock, appendonly="yes", appendfsync="always") as server:
        server.client().execute_command("RL.POLICYSET", "api", "FIXED", 3, "1d")
        server.client().execute_command("RL.POLICYSET", "http", "FIXED", 3, "1d")
        yield server


def test_requests_pass_and_usage_is_still_there_afterwards(mortal: Server, start: Start) -> None:
    gateway = start(mortal.port)
    assert gateway.passes(descriptor(user="1"))
    mortal.stop("kill")
    answers = [gateway.ask(descriptor(user="1")) for _ in range(10)]
    assert {answer.overall_code for answer in answers} == {OK}
    assert answers[0].statuses[0].current_limit is None
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="outage") == 10
    assert gateway.get("/readyz").status == 200, "an outage takes nobody out of service"
    assert gateway.health() == "SERVING"
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 1, "the outage is told")
    mortal.start()
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 0, "the outage is over")
    told = [gateway.passes(descriptor(user="1")) for _ in range(3)]
    assert told == [True, True, False]
    gateway.end()
    assert gateway.log.count("the server is away") == 1
    assert gateway.log.count("the server is back") == 1


def test_requests_are_denied_where_that_is_wanted(mortal: Server, start: Start) -> None:
    gateway = start(mortal.port, "--on-outage", "closed")
    mortal.stop("kill")
    answer = gateway.ask(descriptor(user="1"))
    assert answer.overall_code == OVER
    headers = {one.key: one.value for one in answer.response_headers_to_add}
    assert headers == {"Retry-After": "1"}
    checked = gateway.get("/check")
    assert (checked.status, checked.headers["Retry-After"]) == (503, "1")
    assert "violated-policies" not in checked.body


def test_a_share_of_each_limit_is_counted_here_where_that_is_wanted(
    mortal: Server, start: Start
) -> None:
    mortal.client().execute_command("RL.POLICYSET", "api", "FIXED", 8, "1d")
    gateway = start(mortal.port, "--on-outage", "local=0.25")
    assert gateway.passes(descriptor(user="1"))
    # Once it knows the windows, it has read the policy as it now is.
    poll.until(lambda: policies_are_known(gateway), "the policies are known")
    mortal.stop("kill")
    answers = [gateway.ask(descriptor(user="1")) for _ in range(3)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OVER]
    assert answers[2].statuses[0].current_limit.requests_per_unit == 2
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="outage") == 3
    both = descriptor(user="2"), descriptor(user="1")
    assert not gateway.passes(*both)
    assert gateway.passes(descriptor(user="2"), descriptor(user="3"))
    assert gateway.passes(descriptor(user="2")), "what was denied has used nothing"
    assert [gateway.get("/check").status for _ in range(2)] == [200, 429]
    assert gateway.passes(descriptor(user="1"), domain="nobody")
    mortal.start()
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 0, "the outage is over")
    left = gateway.ask(descriptor(user="1", hits=0)).statuses[0].limit_remaining
    assert left == 7, "what the server counts is the server's"


def policies_are_known(gateway: Gateway) -> bool:
    limit = gateway.ask(descriptor(user="1", hits=0)).statuses[0].current_limit
    return (limit.requests_per_unit, limit.unit.name) == (8, "DAY")


@pytest.mark.parametrize("word", ["local", "local=0", "local=1.5", "local=x", "ajar"])
def test_what_is_no_answer_to_an_outage_is_refused(word: str) -> None:
    words = [BINARY, "serve", "--on-outage", word]
    started = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert started.returncode == 2
    assert "must be open, closed, or local=0.25" in started.stderr


@pytest.mark.long
def test_a_server_that_hangs_is_not_waited_for(mortal: Server, start: Start) -> None:
    mortal.client().execute_command("RL.POLICYSET", "api", "FIXED", 1000, "1d")
    gateway = start(mortal.port, "--timeout", "200ms")
    assert gateway.passes(descriptor(user="1"))
    with mortal.stopped():
        assert gateway.passes(descriptor(user="1"))
        poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 1, "nobody waits")
        for _ in range(100):
            assert gateway.passes(descriptor(user="1"))
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 0, "the outage is over")
    poll.until(lambda: gateway.metric("ratelimit_gateway_late_total") >= 1, "late replies count")
    # A call that waits is sent, and charged once the server runs again: none of the hundred was.
    assert gateway.ask(descriptor(user="1")).statuses[0].limit_remaining == 997


@pytest.mark.long
def test_a_charge_whose_reply_is_late_stands(mortal: Server, start: Start) -> None:
    gateway = start(mortal.port, "--timeout", "200ms", "--on-outage", "closed")
    assert gateway.passes(descriptor(user="1"))
    with mortal.stopped():
        assert not gateway.passes(descriptor(user="1"), descriptor(user="2"))
    poll.until(lambda: gateway.metric("ratelimit_gateway_late_total") == 2, "both are counted")
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 0, "the server answers")
    looked = gateway.ask(descriptor(user="1", hits=0), descriptor(user="2", hits=0))
    assert [status.limit_remaining for status in looked.statuses] == [1, 2]


def test_a_refusal_of_the_server_is_no_decision(gateway: Gateway, server: Server) -> None:
    redis = server.client()
    redis.execute_command("RL.POLICYSET", "api", "FIXED", 3, "1d")
    redis.set("rl:api|user=1", "a string")
    assert gateway.passes(descriptor(user="1"))
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="error") == 1
    assert gateway.metric("ratelimit_gateway_outage") == 0


def test_missing_module_is_named(binary: Binary, clock: Clock, start: Start) -> None:
    with Server(binary, clock=clock, module=None) as server:
        gateway = start(server.port, wait=False)
        poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 1, "it is told")
        assert gateway.passes(descriptor(user="1"))
        assert gateway.get("/readyz").status == 503
        gateway.end()
    assert "load the module" in gateway.log


def test_a_server_that_is_away_at_the_start(binary: Binary, clock: Clock, start: Start) -> None:
    with Server(binary, clock=clock) as server:
        server.stop()
        gateway = start(server.port, wait=False)
        assert gateway.get("/readyz").status == 503
        assert gateway.health() == "NOT_SERVING"
        assert gateway.passes(descriptor(user="1"))
        server.start()
        poll.until(lambda: gateway.get("/readyz").status == 200, "the gateway is ready")
        poll.until(lambda: gateway.health() == "SERVING", "the gateway is healthy")


@pytest.mark.long
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    mortal: Server, start: Start
) -> None:
    mortal.client().execute_command("RL.POLICYSET", "api", "FIXED", 1_000_000, "1d")
    # A call that is waited for no longer is charged all the same: this is not about those.
    gateway = start(mortal.port, "--timeout", "5s")
    counted, answered, ended = [0] * 4, [0] * 4, threading.Event()

    def load(mine: int) -> None:
        while not ended.is_set():
            answer = gateway.ask(descriptor(user="1"))
            assert answer.overall_code == OK
            answered[mine] += 1
            counted[mine] += answer.statuses[0].current_limit is not None

    threads = [threading.Thread(target=load, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    poll.until(lambda: sum(counted) > 500, "calls are counted")
    mortal.stop("kill")
    before = sum(answered)
    poll.until(lambda: sum(answered) > before + 500, "requests are answered in an outage")
    mortal.start()
    at_start = sum(counted)
    poll.until(lambda: sum(counted) > at_start + 500, "calls are counted again")
    ended.set()
    for thread in threads:
        thread.join()
    looked = gateway.ask(descriptor(user="1", hits=0)).statuses[0]
    used = 1_000_000 - looked.limit_remaining
    # What was charged without a reply is in the file as well: up to one a caller.
    assert sum(counted) <= used <= sum(counted) + 4


def test_the_end_is_graceful(gateway: Gateway) -> None:
    assert gateway.end(signal.SIGTERM) == 0
    assert "panicked" not in gateway.log


@contextlib.contextmanager
def under_way(gateway: Gateway) -> Iterator[Callable[[], None]]:
    """A call that goes on until the function is called that this gives."""
    ended = threading.Event()

    def asked() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        ended.wait(60)

    stub = reflection_pb2_grpc.ServerReflectionStub(gateway.channel)
    answers = stub.ServerReflectionInfo(asked(), timeout=60)
    next(answers)

    def end() -> None:
        ended.set()
        assert list(answers) == []

    try:
        yield end
    finally:
        ended.set()
        answers.cancel()


def test_what_is_under_way_ends_and_nobody_is_sent_here_meanwhile(gateway: Gateway) -> None:
    watched = health_pb2_grpc.HealthStub(gateway.channel).Watch(
        health_pb2.HealthCheckRequest(), timeout=60
    )
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    with under_way(gateway) as end:
        os.kill(gateway.pid, signal.SIGTERM)
        told = [answer.status for answer in watched]
        assert told == [health_pb2.HealthCheckResponse.NOT_SERVING]
        assert gateway.get("/readyz").status == 503
        assert gateway.get("/healthz").status == 200
        end()
        assert gateway.ended() == 0
    assert "did not end in time" not in gateway.log


@pytest.mark.long
def test_what_does_not_end_is_not_waited_for(gateway: Gateway) -> None:
    with under_way(gateway):
        assert gateway.end(signal.SIGTERM) == 0
    assert "did not end in time" in gateway.log


def test_who_is_ready_over_http_is_over_grpc(server: Server, start: Start) -> None:
    gateway = start(server.port)
    services = ["", "envoy.service.ratelimit.v3.RateLimitService"]
    assert [gateway.health(service) for service in services] == ["SERVING"] * 2


def test_concurrency_without_an_id_is_an_error_and_told_once_a_minute(
    server: Server, start: Start
) -> None:
    server.client().execute_command("RL.POLICYSET", "api", "CONCURRENCY", 1, "1m")
    gateway = start(server.port)
    assert [gateway.passes(descriptor(user="1")) for _ in range(3)] == [True] * 3
    assert gateway.passes(descriptor(user="1", negative=True)), "it gives back what nobody holds"
    name = "ratelimit_gateway_decisions_total"
    assert gateway.metric(name, outcome="error") >= 3
    gateway.end()
    assert gateway.log.count("the server refused to decide") == 1
    closed = start(server.port, "--on-outage", "closed")
    answer = closed.ask(descriptor(user="1"))
    assert answer.overall_code == OVER
    assert [(one.key, one.value) for one in answer.response_headers_to_add] == [
        ("Retry-After", "1")
    ]
    assert closed.passes(descriptor(user="1", rl_id="a"))


def test_a_taken_port_ends_the_start(gateway: Gateway) -> None:
    words = ["--grpc", f"127.0.0.1:{gateway.grpc}", "--http", "127.0.0.1:0"]
    started = subprocess.run(
        [BINARY, "serve", *words], capture_output=True, text=True, check=False, timeout=20
    )
    assert started.returncode == 1
    assert f"127.0.0.1:{gateway.grpc}" in started.stderr


def test_a_drain_answers_while_others_are_sent_elsewhere(
    server: Server, start: Start, policy: Callable[..., int]
) -> None:
    policy("api", "FIXED 1 1d")
    gateway = start(server.port, "--drain", "1h")
    os.kill(gateway.pid, signal.SIGTERM)
    poll.until(lambda: gateway.get("/readyz").status == 503, "it is not ready")
    poll.until(lambda: gateway.health() == "NOT_SERVING", "it is not ready over gRPC either")
    assert [gateway.passes(descriptor(user="1")) for _ in range(2)] == [True, False]
    assert gateway.get("/check").headers["Connection"] == "close"
    assert gateway.end(signal.SIGTERM) == 0, "a second signal ends at once"
    assert "second signal" in gateway.log


def test_a_second_signal_ends_what_is_under_way(gateway: Gateway) -> None:
    with under_way(gateway):
        os.kill(gateway.pid, signal.SIGTERM)
        poll.until(lambda: gateway.get("/readyz").status == 503, "it is ending")
        assert gateway.end(signal.SIGTERM) == 0
    assert "second signal" in gateway.log


@pytest.mark.parametrize("word", ["-1s", "", "soon"])
def test_a_drain_that_is_no_duration_is_refused(word: str) -> None:
    words = [BINARY, "serve", f"--drain={word}"]
    started = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert started.returncode == 2
    assert "must be a duration" in started.stderr
