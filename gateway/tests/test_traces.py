"""Traces by OTLP: a span for each request, and a span for each of its calls to the server."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from collector import Collector
from running import BINARY, OVER, Gateway, Ratelimit, descriptor, rls

from support import poll
from support.binaries import Binary
from support.certificates import certificates
from support.clock import Clock
from support.server import Server

__all__ = ["certificates"]

Policy = Callable[..., int]
Start = Callable[..., Gateway]
METHOD = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
EXPORT_SOON = {"OTEL_BSP_SCHEDULE_DELAY": "20"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def grpc_environment(collector: Collector, **variables: str) -> dict[str, str]:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.grpc}"}
    return EXPORT_SOON | endpoint | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"} | variables


def ask_with_headers(gateway: Gateway, user: str, **headers: str) -> int:
    """Send a request for a user with headers, and return its code."""
    request = rls.RateLimitRequest(domain="api", descriptors=[descriptor(user=user)])
    metadata = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return gateway._should_rate_limit(request, timeout=30, metadata=metadata).overall_code


def traceparent(flags: str = "01") -> str:
    return f"00-{TRACE}-{SPAN}-{flags}"


def test_request_of_envoy_has_a_span_with_its_parent(
    server: Server, start: Start, policy: Policy, collector: Collector
) -> None:
    policy("api|user", "FIXED 1 1d")
    variables = {"OTEL_SERVICE_NAME": "limits", "OTEL_RESOURCE_ATTRIBUTES": "team=a%20b"}
    variables["OTEL_EXPORTER_OTLP_HEADERS"] = "x-token=secret"
    gateway = start(server.port, environment=grpc_environment(collector, **variables))
    ask_with_headers(gateway, "1", traceparent=traceparent(), tracestate="a=b")
    assert ask_with_headers(gateway, "1", traceparent=traceparent()) == OVER
    poll.until(lambda: len(collector.spans) == 4, "two requests and their calls have spans")
    first, second = sorted(
        collector.spans_named(METHOD), key=lambda span: span.attributes["ratelimit.decision"]
    )
    assert (first.kind, first.trace, first.parent) == ("SPAN_KIND_SERVER", TRACE, SPAN)
    assert first.state == "a=b"
    expected = {
        "rpc.system.name": "grpc",
        "rpc.method": METHOD,
        "rpc.response.status_code": "OK",
        "network.peer.address": "127.0.0.1",
        "ratelimit.domain": "api",
        "ratelimit.descriptors": 1,
        "ratelimit.decision": "allowed",
        "ratelimit.outcome": "allowed",
    }
    assert expected.items() <= first.attributes.items()
    denial = {
        "ratelimit.decision": "denied",
        "ratelimit.outcome": "denied",
        "ratelimit.policy": "api|user",
        "ratelimit.limit": "fixed-1-1d",
        "ratelimit.remembered": False,
    }
    assert denial.items() <= second.attributes.items()
    call = next(span for span in collector.spans_named("RL.LIMIT") if span.parent == first.id)
    assert (call.kind, call.trace) == ("SPAN_KIND_CLIENT", TRACE)
    assert call.attributes == {
        "db.system.name": "redis",
        "db.operation.name": "RL.LIMIT",
        "server.address": "127.0.0.1",
        "server.port": server.port,
    }
    resource = {"service.name": "limits", "team": "a b", "telemetry.sdk.name": "opentelemetry"}
    assert resource.items() <= collector.resources[0].items()
    assert collector.headers[0]["x-token"] == "secret"


def test_requests_over_http_have_spans(
    server: Server, start: Start, policy: Policy, collector: Collector
) -> None:
    """An endpoint alone enables the export, over HTTP."""
    policy("http|client", "FIXED 1 1d")
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.http}/base"}
    gateway = start(server.port, environment=EXPORT_SOON | endpoint)
    statuses = [gateway.get("/check", traceparent=traceparent()).status for _ in range(2)]
    assert statuses == [200, 429]
    body = {"domain": "api", "descriptors": [{"entries": [{"key": "user", "value": "1"}]}]}
    assert gateway.get("/json", method="POST", data=body).status == 200
    poll.until(lambda: len(collector.spans) == 6, "three requests and their calls have spans")
    assert collector.headers[0][":path"] == "/base/v1/traces"
    spans = {
        span.attributes["http.response.status_code"]: span
        for span in collector.spans_named("GET /check")
    }
    assert spans.keys() == {200, 429}
    assert all((span.trace, span.parent) == (TRACE, SPAN) for span in spans.values())
    assert spans[429].attributes["ratelimit.decision"] == "denied"
    assert spans[429].attributes["http.route"] == "/check"
    assert spans[429].status.code == 0, "a denial is no error of the service"
    (json,) = collector.spans_named("POST /json")
    assert json.trace != TRACE
    assert json.attributes["http.request.method"] == "POST"
    resource = collector.resources[0]
    assert resource["service.name"] == "ratelimit-gateway"
    assert len(resource["service.instance.id"]) == 36


def test_request_that_its_caller_does_not_sample_has_no_span(
    server: Server, start: Start, policy: Policy, collector: Collector
) -> None:
    policy("api|user", "FIXED 10 1d")
    gateway = start(server.port, environment=grpc_environment(collector))
    ask_with_headers(gateway, "1", traceparent=traceparent("00"))
    ask_with_headers(gateway, "2", traceparent=traceparent())
    poll.until(lambda: len(collector.spans) == 2, "the second request has spans")
    gateway.end()
    assert len(collector.spans) == 2


def test_nothing_is_exported_unless_it_is_configured(
    server: Server, start: Start, policy: Policy, collector: Collector
) -> None:
    policy("api|user", "FIXED 10 1d")
    for off in ({"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}):
        gateway = start(server.port, environment=grpc_environment(collector, **off))
        ask_with_headers(gateway, "1", traceparent=traceparent())
        gateway.end()
        assert "traces" not in gateway.log
    assert collector.spans == []


def test_spans_are_exported_before_the_end(
    server: Server, start: Start, policy: Policy, collector: Collector
) -> None:
    policy("api|user", "FIXED 10 1d")
    gateway = start(
        server.port, environment=grpc_environment(collector, OTEL_BSP_SCHEDULE_DELAY="3600000")
    )
    for number in range(5):
        ask_with_headers(gateway, str(number))
    assert collector.spans == []
    assert gateway.end() == 0
    assert len(collector.spans) == 10


def test_outage_is_the_outcome_of_a_span(
    binary: Binary, clock: Clock, start: Start, collector: Collector
) -> None:
    with Server(binary, clock=clock) as server:
        gateway = start(
            server.port, "--on-outage", "error", environment=grpc_environment(collector)
        )
        server.stop("kill")
        with pytest.raises(grpc.RpcError):
            ask_with_headers(gateway, "1", traceparent=traceparent())
        poll.until(lambda: len(collector.spans) == 2, "the request and its call have spans")
        (request,), (call,) = collector.spans_named(METHOD), collector.spans_named("RL.LIMIT")
        assert request.attributes["ratelimit.outcome"] == "outage"
        assert request.attributes["rpc.response.status_code"] == "UNAVAILABLE"
        assert (request.status.code, call.status.code) == (2, 2)
        assert call.attributes["error.type"] == "no_reply"


@pytest.mark.parametrize("is_slow", [False, True], ids=["away", "slow"])
def test_collector_without_answers_delays_no_decision(
    is_slow: bool,
    server: Server,
    start: Start,
    policy: Policy,
    collector: Collector,
) -> None:
    """More requests than the queue holds are decided while no export ends."""
    policy("api|user", "FIXED 1000 1d")
    sizes = {"OTEL_BSP_MAX_QUEUE_SIZE": "16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
    environment = grpc_environment(collector, OTEL_EXPORTER_OTLP_TIMEOUT="3600000", **sizes)
    if is_slow:
        collector.is_answering.clear()
        # A decision that waits for the export would exceed the timeout of the request.
        environment["OTEL_BSP_EXPORT_TIMEOUT"] = "3600000"
    else:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
    gateway = start(server.port, environment=environment)
    for number in range(200):
        assert ask_with_headers(gateway, str(number)) != OVER
    assert collector.spans == []
    collector.is_answering.set()
    assert gateway.end() == 0
    # At most the queue and two batches: a batch in flight, and the next batch.
    assert len(collector.spans) <= 16 + 2 * 4
    assert bool(collector.spans) == is_slow
    lines = [line for line in gateway.log.splitlines() if "could not be exported" in line]
    assert len(lines) == (0 if is_slow else 1)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_collector_is_reached_by_tls_with_a_client_certificate(
    protocol: str, server: Server, start: Start, policy: Policy, certificates: Path
) -> None:
    policy("api|user", "FIXED 10 1d")
    files = {"CERTIFICATE": "ca.crt", "CLIENT_CERTIFICATE": "own.crt", "CLIENT_KEY": "own.key"}
    tls = {f"OTEL_EXPORTER_OTLP_{name}": str(certificates / file) for name, file in files.items()}
    with Collector(certificates) as collector:
        port = collector.grpc if protocol == "grpc" else collector.http
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://localhost:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        }
        gateway = start(server.port, environment=EXPORT_SOON | tls | variables)
        ask_with_headers(gateway, "1")
        poll.until(lambda: len(collector.spans) == 2, "the spans arrive")


def test_environment_of_envoyproxy_ratelimit_exports_traces(
    server: Server, collector: Collector, tmp_path: Path
) -> None:
    limits = {"limits.yaml": "domain: api\ndescriptors:\n  - key: user\n"}
    variables = {
        "TRACING_ENABLED": "true",
        "TRACING_EXPORTER_PROTOCOL": "grpc",
        "TRACING_SERVICE_NAMESPACE": "edge",
        "TRACING_SERVICE_INSTANCE_ID": "pod-1",
        "TRACING_SAMPLING_RATE": "0",
        "RATELIMIT_GATEWAY_DRAIN": "0s",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.grpc}",
    }
    with Ratelimit(server.port, tmp_path, limits, **EXPORT_SOON, **variables) as ratelimit:
        ask_with_headers(ratelimit, "1")
        ask_with_headers(ratelimit, "1", b3=f"{TRACE}-{SPAN}-1")
        poll.until(lambda: collector.spans_named(METHOD) != [], "the second request has a span")
        assert ratelimit.end() == 0
    (span,) = collector.spans
    assert (span.trace, span.parent) == (TRACE, SPAN)
    resource = {
        "service.name": "RateLimit",
        "service.namespace": "edge",
        "service.instance.id": "pod-1",
    }
    assert resource.items() <= collector.resources[0].items()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_TRACES_SAMPLER", "xray"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere"),
    ],
)
def test_unsupported_setting_ends_the_start(variable: str, value: str) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://localhost:1", variable: value}
    words = ["serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    completed = subprocess.run(
        [BINARY, *words], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert completed.returncode == 1
    assert (value if value.startswith("/") else variable) in completed.stderr
