"""Forward auth over HTTP, the JSON endpoint, health and metrics."""

import http.client
import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis
from running import Gateway

from support import poll
from support.server import Server

FILE = """
http:
  rules:
    - {method: [POST], path: "/pay/*", header: {x-plan: "g*"}, limit: FIXED 1 1m, key: "pay:{header.x-user}"}
    - {path: "/tokens", policy: [none, tokens], key: "tokens:{client}", cost: "{header.x-cost}"}
    - {path: "/web/*", policy: web, key: "web:{client}:{method}:{path}"}
"""  # noqa: E501


def test_without_rules_each_client_is_limited(gateway: Gateway, policy: Callable[..., int]) -> None:
    policy("http|client", "FIXED 2 1m")
    answers = [gateway.get("/check", x_forwarded_for="9.9.9.9") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert gateway.get("/check", x_forwarded_for="9.9.9.8").status == 200
    headers = answers[2].headers
    assert headers["Retry-After"] == "60"
    assert headers["RateLimit"] == '"default";r=0;t=60'
    assert headers["X-RateLimit-Limit"] == "2"
    assert headers["X-RateLimit-Remaining"] == "0"
    assert headers["content-type"] == "application/problem+json"
    problem = json.loads(answers[2].body)
    assert (problem["status"], problem["violated-policies"]) == (429, ["default"])


def test_rules_decide_by_method_path_and_headers(
    server: Server, start: Callable[..., Gateway], file: Path, policy: Callable[..., int]
) -> None:
    policy("tokens", "TOKENBUCKET 10 10 1h")
    policy("web", "FIXED 1 1m")
    file.write_text(FILE)
    gateway = start(server.port, "--config", file)

    def check(method: str, uri: str, **headers: str) -> int:
        forwarded = {"x_forwarded_method": method, "x_forwarded_uri": uri}
        return gateway.get("/check", **forwarded, **headers).status

    gold = {"x_plan": "gold", "x_user": "1"}
    assert [check("POST", "/pay/1?x=/web/", **gold) for _ in range(2)] == [200, 429]
    assert check("POST", "/pay/1", x_plan="gold") == 200, (
        "a rule does not match if its header is missing"
    )
    assert [check("GET", "/pay/1", **gold) for _ in range(2)] == [200, 200]
    assert [check("GET", "/tokens", x_cost=cost) for cost in ("6.5", "4", "3.5")] == [200, 429, 200]
    assert check("GET", "/tokens", x_cost="much") == 400
    assert [check("GET", "/web/a"), check("GET", "/web/a"), check("GET", "/web/b")] == [
        200,
        429,
        200,
    ]


def test_spellings_of_a_path_share_a_limit(
    server: Server, start: Callable[..., Gateway], file: Path, redis: Redis
) -> None:
    file.write_text("""
http:
  rules:
    - {path: /login, limit: FIXED 99 1m, key: "login:{method}:{path}"}
    - {path: /admin/*, ignore_case: true, limit: FIXED 99 1m, key: "admin:{path}"}
    - {path: "/*", limit: FIXED 0 1m, key: "others:{path}"}
""")
    gateway = start(server.port, "--config", file)

    def check(uri: str, method: str = "POST") -> int:
        return gateway.get("/check", x_forwarded_method=method, x_forwarded_uri=uri).status

    spellings = ["/login", "/%6cogin", "//login", "/./login", "/x/../login", "/login/"]
    spellings += ["/login;a=b", "http://example.com/login?x", "/login/%2e/?x"]
    assert {check(uri) for uri in spellings} == {200}
    assert check("/login", method="post") == 200
    assert {check(uri) for uri in ("/admin/x", "/ADMIN/x", "/Admin//X/")} == {200}
    assert {check(uri) for uri in ("/LOGIN", "/login%2F", "/login/x")} == {429}
    ambiguous = ["/login%00", "/x/..;/login", "/x//../login", "/x#/../login", "/x\\..\\login"]
    assert {check(uri) for uri in ambiguous} == {400}
    assert sorted(redis.keys("*")) == ["rl:admin:/admin/x", "rl:login:POST:/login"]


def check_raw(gateway: Gateway, headers: list[tuple[bytes, bytes]]) -> int:
    """Returns the status of a request to /check with these headers."""
    words = [b"GET /check HTTP/1.1", b"Host: a", b"Connection: close"]
    words += [name + b": " + value for name, value in headers]
    with socket.create_connection(("127.0.0.1", gateway.http), timeout=30) as raw:
        raw.sendall(b"\r\n".join([*words, b"", b""]))
        return int(raw.makefile("rb").readline().split()[1])


def test_no_header_reaches_the_key_of_another_rule(
    server: Server, start: Callable[..., Gateway], file: Path, redis: Redis
) -> None:
    file.write_text("""
http:
  rules:
    - {path: /vip, limit: FIXED 1 1m, key: "pay:vip:{client}"}
    - {path: /two, limit: FIXED 9 1m, key: "pay:{header.x-user}:{header.x-plan}"}
    - {limit: FIXED 1 1m, key: "pay:{header.x-user}"}
""")
    gateway = start(server.port, "--config", file)

    def check(path: str, **headers: str) -> int:
        return gateway.get("/check", x_forwarded_uri=path, **headers).status

    assert check("/", x_user="vip:9.9.9.9") == 200
    assert check("/vip", x_forwarded_for="9.9.9.9") == 200
    assert check("/two", x_user="a:b", x_plan="c") == 200
    assert check("/two", x_user="a", x_plan="b:c") == 200
    expected = ["rl:pay:a%3Ab:c", "rl:pay:a:b%3Ac", "rl:pay:vip%3A9.9.9.9", "rl:pay:vip:9.9.9.9"]
    assert sorted(redis.keys("*")) == expected


def test_repeated_headers_that_a_rule_reads_are_refused(
    server: Server, start: Callable[..., Gateway], file: Path
) -> None:
    file.write_text(FILE)
    gateway = start(server.port, "--config", file)
    pay = [(b"X-Forwarded-Method", b"POST"), (b"X-Forwarded-Uri", b"/pay/1")]
    user, plan = (b"X-User", b"1"), (b"X-Plan", b"gold")
    assert check_raw(gateway, [*pay, user, plan, (b"X-Other", b"1"), (b"X-Other", b"2")]) == 200
    assert check_raw(gateway, [*pay, user, plan, (b"x-user", b"2")]) == 400, "a header of the key"
    assert check_raw(gateway, [*pay, user, plan, (b"x-plan", b"free")]) == 400, (
        "a header of the rule"
    )
    assert check_raw(gateway, [*pay, user, plan, (b"X-Forwarded-Uri", b"/")]) == 400
    assert check_raw(gateway, [*pay, user, plan, (b"X-Forwarded-Method", b"GET")]) == 400
    tokens = [(b"X-Forwarded-Uri", b"/tokens"), (b"X-Cost", b"1")]
    assert check_raw(gateway, [*tokens, (b"X-Cost", b"0")]) == 400, "a header of the cost"


def test_headers_that_are_not_utf8_are_distinct_values(
    server: Server, start: Callable[..., Gateway], file: Path, redis: Redis
) -> None:
    file.write_text(FILE)
    gateway = start(server.port, "--config", file)

    def check(**headers: bytes) -> int:
        fields = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        return check_raw(gateway, fields)

    def pay(user: bytes) -> int:
        forwarded = {"x_forwarded_method": b"POST", "x_forwarded_uri": b"/pay/\xff?x"}
        return check(x_plan=b"g\xff", x_user=user, **forwarded)

    assert [pay(b"\xff"), pay(b"\xff"), pay(b"\xfe"), pay("é".encode())] == [200, 429, 200, 200]
    assert sorted(redis.keys("*")) == ["rl:pay:%FE", "rl:pay:%FF", "rl:pay:é"]
    assert check(x_forwarded_uri=b"/tokens", x_cost=b"1\xff") == 400


def test_x_forwarded_for_of_an_untrusted_proxy_is_ignored(
    server: Server, start: Callable[..., Gateway], file: Path, policy: Callable[..., int]
) -> None:
    policy("http|client", "FIXED 1 1m")
    file.write_text("http: {trusted: [10.0.0.0/8]}\n")
    gateway = start(server.port, "--config", file)
    statuses = [gateway.get("/check", x_forwarded_for=f"9.9.9.{n}").status for n in range(2)]
    assert statuses == [200, 429]


def test_ipv6_clients_count_by_network(
    server: Server, start: Callable[..., Gateway], file: Path, redis: Redis
) -> None:
    file.write_text("""
http:
  ipv6_prefix: 48
  rules: [{limit: FIXED 9 1m, key: "{client}"}]
""")
    gateway = start(server.port, "--config", file, "--ipv6-prefix", "56")
    assert gateway.get("/check", x_forwarded_for="[2001:db8:1:2::3]:4711").status == 200
    entry = {"entries": [{"key": "remote_address", "value": "2001:db8:1:234::5"}]}
    entry["limit"] = {"requests_per_unit": 9, "unit": "DAY"}
    request = {"domain": "api", "descriptors": [entry]}
    assert gateway.get("/json", method="POST", data=request).status == 200
    expected = ["rl:2001%3Adb8%3A1%3A%3A/48", "rl:api|remote_address=2001:db8:1:200::/56"]
    assert sorted(redis.keys("*")) == expected


def test_metrics_count_decisions_and_health_is_serving(
    gateway: Gateway, policy: Callable[..., int]
) -> None:
    policy("http", "FIXED 1 1m")
    assert [gateway.get("/check").status for _ in range(2)] == [200, 429]
    name = "ratelimit_gateway_decisions_total"
    labels = {"domain": "http", "policy": "http"}
    assert gateway.metric(name, outcome="allowed", **labels) == 1
    assert gateway.metric(name, outcome="denied", **labels) == 1
    assert gateway.metric("ratelimit_gateway_request_seconds_count") == 2
    assert gateway.metric("ratelimit_gateway_server_seconds_bucket", le="+Inf") == 2
    assert gateway.metric("ratelimit_gateway_near_total", policy="http") == 1
    assert gateway.metric("ratelimit_gateway_outage") == 0
    assert gateway.metric("ratelimit_gateway_shadow") == 0
    resident = gateway.metric("process_resident_memory_bytes")
    assert 1 << 20 < resident < gateway.metric("process_virtual_memory_bytes")
    healthy = [gateway.get(path) for path in ("/healthz", "/readyz", "/healthcheck")]
    assert [(answer.status, answer.body.strip()) for answer in healthy[:2]] == [(200, "ok")] * 2
    assert (healthy[2].status, healthy[2].body) == (200, "OK")
    assert [gateway.get(path).status for path in ("/none", "/rlconfig")] == [404, 404]
    for service in ("", "envoy.service.ratelimit.v3.RateLimitService"):
        poll.until(lambda: gateway.health(service) == "SERVING", "the service is healthy")  # noqa: B023


def test_request_data_never_becomes_a_metric_label(gateway: Gateway) -> None:
    for n in range(5):
        gateway.get(f"/check?{n}", x_forwarded_for=f"9.9.9.{n}")
    assert "9.9.9" not in gateway.get("/metrics").body


def test_json_endpoint_charges_and_describes_the_limit(
    gateway: Gateway, policy: Callable[..., int]
) -> None:
    policy("api", "FIXED 3 1h")
    entries = [{"key": "user", "value": "1"}]

    def ask(**fields: object) -> tuple[int, dict]:
        request = {"domain": "api", "descriptors": [{"entries": entries, **fields}]}
        answer = gateway.get("/json", method="POST", data=request)
        return answer.status, json.loads(answer.body)

    def unit() -> str:
        return ask(hits_addend=0)[1]["statuses"][0]["currentLimit"]["unit"]

    poll.until(lambda: unit() == "HOUR", "the windows of the policies are known")
    status, answer = ask(hitsAddend="2")
    assert (status, answer["overallCode"]) == (200, "OK")
    (decision,) = answer["statuses"]
    assert (decision["code"], decision["limitRemaining"]) == ("OK", 1)
    assert decision["currentLimit"] == {"requestsPerUnit": 3, "unit": "HOUR"}
    status, answer = ask(hits_addend=2)
    assert (status, answer["statuses"][0]["code"]) == (429, "OVER_LIMIT")
    assert ask(limit={"requests_per_unit": 9, "unit": "DAY"})[0] == 200


def test_json_accepts_the_number_forms_of_proto3(gateway: Gateway) -> None:
    """Numbers may be strings, units may be numbers, and null means absent."""
    entries = [{"key": "user", "value": "1"}]
    day = {"requestsPerUnit": "9", "unit": 4}
    body = {"entries": entries, "limit": day, "hitsAddend": None, "isNegativeHits": None}
    request = {"domain": "api", "descriptors": [body], "hitsAddend": "2"}
    (decision,) = json.loads(gateway.get("/json", method="POST", data=request).body)["statuses"]
    assert decision["limitRemaining"] == 7


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        [],
        {},
        {"domain": "api"},
        {"domain": "api", "descriptors": [{"nonsense": 1}]},
        {"domain": "api", "descriptors": [{"entries": [], "hits_addend": "many"}]},
        {"domain": "api", "descriptors": [{"limit": {"unit": "EON"}}]},
    ],
)
def test_malformed_json_is_refused(gateway: Gateway, malformed: object) -> None:
    assert gateway.get("/json", method="POST", data=malformed).status == 400
    assert gateway.get("/check").status == 200


@pytest.mark.parametrize(
    ("descriptor", "error"),
    [
        ({"hits_addend": -1}, "a number must be a non-negative integer"),
        ({"hits_addend": "many"}, "hits_addend must be an integer from 0 to 18446744073709551615"),
        (
            {"limit": {"requests_per_unit": 4_294_967_296}},
            "requests_per_unit must be an integer from 0 to 4294967295",
        ),
        ({"limit": {"unit": True}}, "unit must be the name or number of a unit, such as MINUTE"),
        ({"limit": {"unit": "EON"}}, "unit must be the name or number of a unit, such as MINUTE"),
        ("user", "a descriptor must be an object"),
    ],
)
def test_errors_of_json_name_the_expected_value(
    gateway: Gateway, descriptor: object, error: str
) -> None:
    request = {"domain": "api", "descriptors": [descriptor]}
    answer = gateway.get("/json", method="POST", data=request)
    assert answer.status == 400
    assert error in answer.body
    assert "variant" not in answer.body


CROSS_SITE = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
]


@pytest.mark.parametrize("headers", CROSS_SITE)
def test_cross_site_requests_are_refused_and_not_charged(
    gateway: Gateway, policy: Callable[..., int], headers: dict[str, str]
) -> None:
    policy("api", "FIXED 1 1d")
    policy("http", "FIXED 1 1d")
    request = {"domain": "api", "descriptors": [{"entries": [{"key": "a", "value": "b"}]}]}
    assert gateway.get("/json", "POST", request, **headers).status == 403
    assert gateway.get("/json", "POST", request, **headers, x_forwarded_uri="/").status == 403
    assert gateway.get("/check", **headers).status == 403
    assert gateway.get("/json", "POST", request, sec_fetch_site="none").status == 200
    # A proxy copies the headers of its client.
    assert gateway.get("/check", **headers, x_forwarded_uri="/").status == 200
    assert gateway.get("/check", **headers, x_forwarded_uri="/").status == 429


def test_body_above_the_maximum_is_refused(gateway: Gateway) -> None:
    def request_of_size(size: int) -> dict[str, object]:
        return {"domain": "x" * size, "descriptors": [{"entries": [{"key": "a", "value": "b"}]}]}

    assert gateway.get("/json", "POST", request_of_size(1_000_000)).status == 200
    assert gateway.get("/json", "POST", request_of_size(1_100_000)).status == 413
    assert gateway.get("/check", "POST", "x" * 60_000).status == 200
    assert gateway.get("/check", "POST", "x" * 70_000).status == 413


def test_grpc_port_rejects_http_1(gateway: Gateway) -> None:
    with pytest.raises((http.client.HTTPException, OSError)):
        gateway.get("/", "POST", {}, port=gateway.grpc)


def frame(kind: int, flags: int, payload: bytes = b"") -> bytes:
    """Encodes an HTTP/2 frame of stream 0."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + bytes(4) + payload


def test_unexpected_frames_are_not_logged(gateway: Gateway) -> None:
    # Kinds of frames. Flag 1 of a ping is ACK.
    settings, ping = 4, 6
    frames = [frame(settings, 0), *[frame(ping, 1, b"unasked!")] * 100]
    frames.append(frame(ping, 0, b"answered"))
    for port in (gateway.http, gateway.grpc):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
            peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(frames))
            received = b""
            while frame(ping, 1, b"answered") not in received:
                received += (chunk := peer.recv(4096))
                assert chunk, "the connection ended"
    assert gateway.end() == 0
    assert "ping" not in gateway.log.lower()
    assert "serving" in gateway.log
