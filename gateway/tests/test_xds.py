"""Limits of a control plane, in the forms in which Envoy Gateway sends them."""

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from control_plane import NODE_ID, TYPE_URL, ControlPlane, entry, limit, resource
from envoy_data_plane.envoy.extensions.common.ratelimit import v3 as common
from envoy_data_plane.envoy.type import v3 as types
from google.protobuf import any_pb2
from origin import Origin
from proxies import Proxy, envoy_kind
from redis import Redis
from running import BINARY, OK, OVER, Gateway

from support import poll
from support.certificates import certificates, make_certificate
from support.server import Server

__all__ = ["certificates"]

Start = Callable[..., Gateway]
needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
AWAY_MESSAGE = "the control plane is away"
ROUTE = "httproute/default/shop/rule/0/match/0/*"


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ExitStack() as owned, ControlPlane(owned) as plane:
        yield plane


@pytest.fixture
def gateway(server: Server, start: Start, plane: ControlPlane) -> Gateway:
    plane.push()
    return start(server.port, "--xds", plane.address)


def descriptor(*entries: tuple[str, str], **fields: object) -> common.RateLimitDescriptor:
    pairs = [common.RateLimitDescriptorEntry(key=key, value=value) for key, value in entries]
    return common.RateLimitDescriptor(entries=pairs, **fields)


def user(value: str) -> common.RateLimitDescriptor:
    return descriptor(("user", value))


def users(requests: int, domain: str = "api", **fields: object) -> any_pb2.Any:
    """Create a resource that limits each user of a domain."""
    return resource(domain, entry("user", limit=limit(requests, **fields)))


def count_passes(
    gateway: Gateway, descriptor: common.RateLimitDescriptor, domain: str = "api"
) -> int:
    """Return how many of 8 requests pass."""
    return sum(gateway.passes(descriptor, domain=domain) for _ in range(8))


def test_push_applies_and_unchanged_limits_keep_their_usage(
    gateway: Gateway, plane: ControlPlane
) -> None:
    plane.apply(users(2), users(3, "other"))
    assert [count_passes(gateway, user("1")), count_passes(gateway, user("1"), "other")] == [2, 3]
    plane.apply(users(5), users(3, "other"))
    assert [count_passes(gateway, user("2")), count_passes(gateway, user("1"), "other")] == [5, 0]


def test_calls_during_pushes_see_one_configuration(gateway: Gateway, plane: ControlPlane) -> None:
    def two_rules(requests: int) -> any_pb2.Any:
        return resource("api", *(entry(key, limit=limit(requests, "YEAR")) for key in "ab"))

    plane.apply(two_rules(0))
    descriptors = descriptor(("a", "1")), descriptor(("b", "1"))
    limits, is_done = set(), threading.Event()

    def call() -> None:
        while not is_done.is_set():
            statuses = gateway.ask(*descriptors).statuses
            limits.add(tuple(status.current_limit.requests_per_unit for status in statuses))

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(call) for _ in range(4)]
        for round_ in range(20):
            plane.apply(two_rules(round_))
        is_done.set()
        for caller in callers:
            caller.result()
    assert limits == {(round_, round_) for round_ in range(20)} & limits
    assert len(limits) > 1


def test_first_request_has_the_node_and_every_push_is_acknowledged(
    server: Server, start: Start, plane: ControlPlane
) -> None:
    versions = [plane.push(users(2))]
    gateway = start(server.port, "--xds", plane.address)
    versions.append(plane.apply(users(2)))
    first, *others = plane.requests
    assert (first.node.id, first.node.user_agent_name) == (NODE_ID, "ratelimit-gateway")
    assert (first.type_url, list(first.resource_names)) == (TYPE_URL, [])
    assert (first.version_info, first.response_nonce) == ("", "")
    assert [(request.version_info, request.response_nonce) for request in others] == [
        (versions[0], "1"),
        (versions[1], "2"),
    ]
    assert not any(request.HasField("error_detail") for request in others)
    assert gateway.metric("ratelimit_gateway_xds_pushes_total", result="applied") == 2


def test_node_and_headers_are_options(server: Server, start: Start, plane: ControlPlane) -> None:
    words = ["--force-start", "--xds-node-id", "mine", "--xds-node-metadata", "a=b,c=d=e"]
    environment = {"RATELIMIT_GATEWAY_XDS_HEADERS": "x-tenant: shop,authorization:Bearer x:y"}
    gateway = start(server.port, "--xds", plane.address, *words, environment=environment)
    poll.until(lambda: plane.requests, "the gateway subscribes")
    node = plane.requests[0].node
    assert (node.id, dict(node.metadata)) == ("mine", {"a": "b", "c": "d=e"})
    assert plane.headers["x-tenant"] == "shop"
    assert plane.headers["authorization"] == "Bearer x:y"
    assert count_passes(gateway, user("1")) == 8, "the control plane sends nothing to this node"


def test_domain_that_is_not_pushed_has_the_policies_of_the_server(
    gateway: Gateway, plane: ControlPlane, policy: Callable[..., int]
) -> None:
    policy("api|user", "FIXED 1 1d")
    policy("other|user", "FIXED 3 1d")
    plane.apply(users(2))
    assert [count_passes(gateway, user("1")), count_passes(gateway, user("1"), "other")] == [2, 3]


def test_removal_of_all_resources_removes_all_limits(
    gateway: Gateway, plane: ControlPlane, redis: Redis
) -> None:
    plane.apply(users(2))
    assert count_passes(gateway, user("1")) == 2
    plane.apply()
    before = redis.keys("*")
    override = common.RateLimitDescriptorRateLimitOverride(
        requests_per_unit=0, unit=types.RateLimitUnit.DAY
    )
    assert count_passes(gateway, user("1")) == 8
    assert count_passes(gateway, descriptor(("user", "1"), limit=override)) == 8
    assert redis.keys("*") == before


def test_override_of_a_pushed_limit_applies(gateway: Gateway, plane: ControlPlane) -> None:
    plane.apply(users(2))
    override = common.RateLimitDescriptorRateLimitOverride(
        requests_per_unit=4, unit=types.RateLimitUnit.DAY
    )
    assert count_passes(gateway, descriptor(("user", "1"), limit=override)) == 4


def test_rules_of_envoy_gateway_are_served(gateway: Gateway, plane: ControlPlane) -> None:
    cidr, inverted = "192.168.0.0/16", "invert:192.168.0.0/24"
    plane.apply(
        resource(
            "default/eg/http",
            entry(
                ROUTE,
                ROUTE,
                entry("rule-0-match-0", limit=limit(1)),
                entry("rule-1-match-0", "rule-1-match-0", limit=limit(2)),
                entry(
                    "rule-2-match-0",
                    "rule-2-match-0",
                    entry("rule-2-method", "rule-2-method", entry("rule-2-path", limit=limit(3))),
                ),
                entry("masked_remote_address", cidr, entry("remote_address", limit=limit(4))),
                entry("masked_remote_address", "10.0.0.0/8", limit=limit(5)),
                entry("masked_remote_address", inverted, limit=limit(6)),
                entry("rule-6-match--1", "rule-6-match--1", limit=limit(7)),
                entry("rule-7-match-0", "rule-7-match-0", limit=limit(1), shadow_mode=True),
                entry(
                    "rule-8-match-0", "rule-8-match-0", limit=limit(0, "UNKNOWN", unlimited=True)
                ),
            ),
        ),
        resource(
            "default/policy",
            entry(
                "default/policy/rule/0",
                "default/policy/rule/0",
                entry("rule-0-match-0", limit=limit(2, "YEAR")),
            ),
        ),
    )

    def count(*entries: tuple[str, str]) -> int:
        return count_passes(gateway, descriptor((ROUTE, ROUTE), *entries), "default/eg/http")

    def entries_named(*names: str) -> list[tuple[str, str]]:
        return [(name, name) for name in names]

    assert [count(("rule-0-match-0", value)) for value in ("a", "b")] == [1, 1], "distinct"
    assert count(*entries_named("rule-1-match-0")) == 2, "exact"
    assert count(*entries_named("rule-2-match-0", "rule-2-method"), ("rule-2-path", "/")) == 3, (
        "nested"
    )
    assert count(*entries_named("rule-2-match-0", "rule-2-method")) == 8, "no limit at this depth"
    masked = "masked_remote_address"
    for address in ("192.168.0.1", "192.168.0.2"):
        assert count((masked, cidr), ("remote_address", address)) == 4, "distinct addresses"
    assert count((masked, "10.0.0.0/8")) == 5, "one limit for a network"
    assert count((masked, inverted)) == 6, "one limit for all others"
    assert count(*entries_named("rule-6-match--1")) == 7, "every request"
    assert count(*entries_named("rule-7-match-0")) == 8, "shadow"
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="shadow") == 7
    assert count(*entries_named("rule-8-match-0")) == 8, "unlimited"
    shared = (*entries_named("default/policy/rule/0"), ("rule-0-match-0", "a"))
    assert count_passes(gateway, descriptor(*shared), "default/policy") == 2, "shared by routes"


def test_limits_of_a_control_plane_apply_behind_envoy(
    gateway: Gateway, plane: ControlPlane, origin: Origin, tmp_path: Path
) -> None:
    masked = "masked_remote_address"
    rules = [
        entry("rule-0-match-0", limit=limit(1)),
        entry("rule-1-match-0", "rule-1-match-0", limit=limit(2)),
        entry(masked, "192.0.2.0/24", limit=limit(3)),
        entry(masked, "2001:db8::/32", entry("remote_address", limit=limit(4))),
    ]
    plane.apply(resource("default/eg/http", entry("route/*", "route/*", *rules)))
    kind = envoy_kind("envoy-control-plane.yaml", folder=Path(__file__).parent)
    with Proxy("envoy", gateway, origin, tmp_path, kind=kind) as envoy:

        def count(client: str = "203.0.113.1", **headers: str) -> int:
            return envoy.statuses(6, x_forwarded_for=client, **headers).count(200)

        assert [count(x_user=name) for name in ("a", "b")] == [1, 1]
        assert [count(x_plan=name) for name in ("gold", "free")] == [2, 6]
        assert [count(f"192.0.2.{number}") for number in (1, 2)] == [3, 0]
        assert [count(f"2001:db8:{number}::1") for number in (1, 2)] == [4, 4]
        plane.apply()
        assert count(x_user="a") == 6


@pytest.mark.parametrize("order", [1, -1])
def test_rules_on_one_network_are_merged(gateway: Gateway, plane: ControlPlane, order: int) -> None:
    masked, cidr, query = "masked_remote_address", "192.168.0.0/16", "rule-2-match-0"
    rules = [
        entry(masked, cidr, entry("remote_address", limit=limit(2))),
        entry(masked, cidr, limit=limit(5)),
        entry(masked, cidr, entry(query, query, limit=limit(3))),
    ]
    plane.apply(resource("api", entry(ROUTE, ROUTE, *rules[::order])))
    network = (ROUTE, ROUTE), (masked, cidr)
    addresses = [("remote_address", f"192.168.0.{number}") for number in (1, 2)]
    assert [count_passes(gateway, descriptor(*network, address)) for address in addresses] == [2, 2]
    assert count_passes(gateway, descriptor(*network)) == 5
    assert count_passes(gateway, descriptor(*network, (query, query))) == 3


def test_each_ipv6_network_has_its_own_limit(gateway: Gateway, plane: ControlPlane) -> None:
    masked = "masked_remote_address"
    sizes = {"2001:db8::1:0:0:0/80": 1, "2001:db8::2:0:0:0/80": 2, "2001:db8::3/128": 3}
    networks = [entry(masked, network, limit=limit(size)) for network, size in sizes.items()]
    plane.apply(resource("api", *networks))
    for network, size in sizes.items():
        assert count_passes(gateway, descriptor((masked, network))) == size


def test_request_may_have_as_many_rules_as_a_route(gateway: Gateway, plane: ControlPlane) -> None:
    names = [f"rule-{number}-match-0" for number in range(256)]
    rules = [entry(name, name, limit=limit(1)) for name in names]
    plane.apply(resource("api", entry(ROUTE, ROUTE, *rules)))
    descriptors = [descriptor((ROUTE, ROUTE), (name, name)) for name in names]
    answers = [gateway.ask(*descriptors) for _ in range(2)]
    assert [answer.overall_code for answer in answers] == [OK, OVER]
    assert [{status.code for status in answer.statuses} for answer in answers] == [{OK}, {OVER}]


@pytest.mark.parametrize("unit", ["SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"])
def test_response_has_the_unit_of_the_limit(
    gateway: Gateway, plane: ControlPlane, unit: str
) -> None:
    plane.apply(users(9, unit=unit))
    answer = gateway.ask(user("1")).statuses[0].current_limit
    assert (answer.requests_per_unit, answer.unit.name) == (9, unit)


def test_limit_replaces_another(gateway: Gateway, plane: ControlPlane) -> None:
    plane.apply(
        resource(
            "api",
            entry("user", limit=limit(1, name="usual")),
            entry("plan", "gold", limit=limit(3, replaces=[{"name": "usual"}])),
        )
    )
    descriptors = user("1"), descriptor(("plan", "gold"))
    assert sum(gateway.passes(*descriptors) for _ in range(5)) == 3
    assert count_passes(gateway, user("1")) == 1, "the replaced limit was not charged"


def test_rules_have_metrics_and_metadata(server: Server, start: Start, plane: ControlPlane) -> None:
    plane.push(
        resource(
            "api",
            entry(
                "user",
                limit=limit(2),
                detailed_metric=True,
                metadata={"team": "first", "size": 3, "nested": {"list": [True, None]}},
            ),
        )
    )
    gateway = start(server.port, "--xds", plane.address, "--response-metadata")
    metadata = gateway.ask(user("1")).dynamic_metadata.to_dict()["metadata"]
    assert metadata == {"team": "first", "size": 3, "nested": {"list": [True, None]}}
    labels = {"domain": "api", "policy": "user", "values": "user_1", "outcome": "allowed"}
    assert gateway.metric("ratelimit_gateway_decisions_total", **labels) == 1


def test_quota_denies_only_with_all_others(gateway: Gateway, plane: ControlPlane) -> None:
    quota = [entry(key, limit=limit(size), quota_mode=True) for key, size in (("a", 1), ("b", 2))]
    plane.apply(resource("api", *quota))
    descriptors = descriptor(("a", "1")), descriptor(("b", "1"))
    assert sum(gateway.passes(*descriptors) for _ in range(5)) == 2


def test_denied_requests_are_charged(
    server: Server, start: Start, gateway: Gateway, plane: ControlPlane
) -> None:
    plane.apply(users(10))

    def codes(gateway: Gateway, value: str) -> list[object]:
        descriptors = [descriptor(("user", value), hits_addend=hits) for hits in (12, 0)]
        return [gateway.ask(each).overall_code for each in descriptors]

    assert codes(gateway, "1") == [OVER, OVER]
    other = start(server.port, "--xds", plane.address, "--charge", "all-or-none")
    assert codes(other, "2") == [OVER, OK]


MALFORMED = {
    "eon": entry("a", limit={"unit": 9, "requests_per_unit": 1}),
    "unknown": entry("a", limit={"unit": 0, "requests_per_unit": 1}),
    "twice": entry("a", "", entry("b", limit=limit(1)), entry("b", limit=limit(1))),
    "no key": entry("a", "", entry("")),
    "replaces itself": entry("a", limit=limit(1, name="x", replaces=[{"name": "x"}])),
    "replaces nothing": entry("a", limit=limit(1, replaces=[{}])),
    "unlimited": entry("a", limit=limit(1, unlimited=True)),
}


def as_yaml(descriptor: dict) -> str:
    """Return a descriptor in the format of files."""
    fields = [f"key: '{descriptor['key']}'"]
    if (rate_limit := descriptor.get("rate_limit")) is not None:
        units = {0: "unknown", 4: "day", 9: "'9'"}
        words = [f"unit: {units[rate_limit['unit']]}"]
        words.append(f"requests_per_unit: {rate_limit['requests_per_unit']}")
        words += ["unlimited: true"] if rate_limit.get("unlimited") else []
        words += [f"name: {rate_limit['name']}"] if "name" in rate_limit else []
        if "replaces" in rate_limit:
            replaces = rate_limit["replaces"]
            names = [f"{{name: {each['name']}}}" if each else "{}" for each in replaces]
            words.append(f"replaces: [{', '.join(names)}]")
        fields.append(f"rate_limit: {{{', '.join(words)}}}")
    children = ", ".join(as_yaml(child) for child in descriptor["descriptors"])
    return f"{{{', '.join(fields)}, descriptors: [{children}]}}"


def test_malformed_rule_is_refused_with_the_error_of_check(
    gateway: Gateway, plane: ControlPlane, file: Path
) -> None:
    version = plane.apply(users(2))
    for descriptor in MALFORMED.values():
        file.write_text(f"{{domain: malformed, descriptors: [{as_yaml(descriptor)}]}}")
        completed = subprocess.run(
            [BINARY, "check", file], capture_output=True, text=True, check=False
        )
        error = completed.stderr.strip().removeprefix(f"{file}: line 1: ")
        assert error != completed.stderr.strip()
        refusal = plane.refusal(users(5), resource("malformed", descriptor))
        assert refusal == f"malformed: {error}"
        assert plane.accepted() == version
    assert count_passes(gateway, user("1")) == 2, (
        "a valid resource in a refused response is not applied"
    )
    assert gateway.metric("ratelimit_gateway_xds_pushes_total", result="refused") >= len(MALFORMED)
    assert gateway.metric("ratelimit_gateway_configuration_refused") == 1
    plane.apply(users(5))
    assert count_passes(gateway, user("2")) == 5
    assert gateway.metric("ratelimit_gateway_configuration_refused") == 0
    gateway.end()
    refusals = [line for line in gateway.log.splitlines() if "is refused" in line]
    assert len(refusals) == len(MALFORMED), "a response that is sent again is logged once"


def test_domain_of_two_resources_needs_merge_domains(
    server: Server, start: Start, gateway: Gateway, plane: ControlPlane
) -> None:
    resources = users(2), resource("api", entry("plan", limit=limit(3)), name="second")
    conflict = "second: the domain is there twice: api is in api (--merge-domains allows it)"
    assert plane.refusal(*resources) == conflict
    assert plane.refusal(resource("", name="x")) == "x: the domain must have a name"
    gateway.end()
    plane.push(*resources)
    merging = start(server.port, "--xds", plane.address, "--merge-domains")
    assert [count_passes(merging, user("1")), count_passes(merging, descriptor(("plan", "a")))] == [
        2,
        3,
    ]


def test_resource_that_cannot_be_decoded_is_refused(gateway: Gateway, plane: ControlPlane) -> None:
    plane.apply(users(2))
    truncated = any_pb2.Any(type_url=TYPE_URL, value=users(5).value[:-1])
    assert plane.refusal(users(5), truncated).startswith("resource 1: failed to decode")
    other = any_pb2.Any(type_url="type.googleapis.com/other", value=b"")
    words = f"the type must be {TYPE_URL}, not 'type.googleapis.com/other'"
    assert plane.refusal(other) == f"resource 0: {words}"
    deep = entry("a", limit=limit(1))
    for _ in range(100):
        deep = entry("a", "", deep)
    assert "recursion" in plane.refusal(resource("deep", deep))
    plane.type_url = "type.googleapis.com/other"
    assert plane.refusal(users(5)) == words
    assert count_passes(gateway, user("1")) == 2


def test_limits_stay_in_an_outage_and_the_gateway_reconnects(
    gateway: Gateway, plane: ControlPlane
) -> None:
    plane.apply(users(2))
    assert gateway.metric("ratelimit_gateway_xds_connected") == 1
    plane.stop()
    poll.until(
        lambda: gateway.metric("ratelimit_gateway_xds_connected") == 0, "the outage is noticed"
    )
    assert count_passes(gateway, user("1")) == 2
    assert gateway.get("/readyz").status == 200
    before = len(plane.requests)
    plane.start()
    plane.apply(users(3))
    assert count_passes(gateway, user("2")) == 3
    first = plane.requests[before]
    assert (first.version_info, first.response_nonce) == ("", ""), "versions may begin anew"
    assert gateway.metric("ratelimit_gateway_xds_connected") == 1
    gateway.end()
    for words in ("connected to the control plane", AWAY_MESSAGE):
        assert words in gateway.log


def test_restart_with_the_same_version_brings_other_limits(
    server: Server, start: Start, plane: ControlPlane
) -> None:
    version = plane.push(users(2))
    gateway = start(server.port, "--xds", plane.address)
    plane.stop()
    plane.restart_versions()
    assert plane.push(users(4)) == version
    plane.start()
    pushes = "ratelimit_gateway_xds_pushes_total"
    poll.until(lambda: gateway.metric(pushes) == 2, "the configuration is sent again")
    assert count_passes(gateway, user("1")) == 4


def test_gateway_that_starts_first_becomes_ready_with_the_first_push(
    server: Server, start: Start, plane: ControlPlane
) -> None:
    plane.stop()
    gateway = start(server.port, "--xds", plane.address, wait_until_ready=False)
    poll.until(lambda: gateway.get("/check").status == 200, "the server answers")
    assert gateway.get("/readyz").status == 503
    plane.start()
    poll.until(lambda: plane.requests, "the gateway subscribes")
    assert (gateway.get("/readyz").status, gateway.health()) == (503, "NOT_SERVING")
    plane.refusal(resource("malformed", MALFORMED["eon"]))
    assert (gateway.get("/readyz").status, gateway.health()) == (503, "NOT_SERVING")
    plane.push(users(2))
    poll.until(lambda: gateway.get("/readyz").status == 200, "the gateway is ready")
    assert gateway.health() == "SERVING"
    assert count_passes(gateway, user("1")) == 2


def test_empty_first_push_makes_ready(server: Server, start: Start, plane: ControlPlane) -> None:
    plane.push()
    assert start(server.port, "--xds", plane.address).health() == "SERVING"


def test_force_start_is_ready_without_a_push(
    server: Server, start: Start, plane: ControlPlane, policy: Callable[..., int]
) -> None:
    policy("api|user", "FIXED 1 1d")
    gateway = start(server.port, "--xds", plane.address, "--force-start")
    assert (gateway.health(), count_passes(gateway, user("1"))) == ("SERVING", 1)
    plane.apply(users(2))
    assert count_passes(gateway, user("2")) == 2


def test_version_of_the_last_push_is_a_metric(gateway: Gateway, plane: ControlPlane) -> None:
    name = "ratelimit_gateway_xds_version_info"
    for _ in range(2):
        version = plane.apply(users(2))
        lines = gateway.get("/metrics").body.splitlines()
        assert [line for line in lines if line.startswith(f"{name}{{")] == [
            f'{name}{{version="{version}"}} 1'
        ]


def test_gateway_without_a_control_plane_has_no_metrics_of_it(server: Server, start: Start) -> None:
    assert "_xds_" not in start(server.port).get("/metrics").body


@needs_openssl
@pytest.mark.parametrize("name", [[], ["--xds-server-name", "localhost"]], ids=["host", "name"])
def test_tls_with_a_client_certificate(
    server: Server, start: Start, certificates: Path, name: list[str]
) -> None:
    with ExitStack() as owned, ControlPlane(owned, credentials(certificates)) as plane:
        plane.push(users(2))
        address = f"127.0.0.1:{plane.port}" if name else plane.address
        gateway = start(server.port, "--xds", address, *tls(certificates), *name)
        assert count_passes(gateway, user("1")) == 2


@needs_openssl
def test_control_plane_is_not_trusted_with_another_name_or_without_its_authority(
    server: Server, start: Start, certificates: Path
) -> None:
    with ExitStack() as owned, ControlPlane(owned, credentials(certificates)) as plane:
        plane.push(users(2))
        words = [
            [*tls(certificates), "--xds-server-name", "envoy-gateway"],
            ["--xds-tls"],
            ["--xds-ca", certificates / "ca.crt"],
        ]
        for options in words:
            gateway = start(server.port, "--xds", plane.address, *options, wait_until_ready=False)
            poll.until(
                lambda gateway=gateway: AWAY_MESSAGE in gateway.log_so_far(),
                "the certificate is refused",
            )
            assert gateway.get("/readyz").status == 503
        assert plane.requests == []


@needs_openssl
def test_renewed_certificates_are_used_for_the_next_connection(
    server: Server, start: Start, certificates: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(certificates, tmp_path / "tls"))
    with ExitStack() as owned, ControlPlane(owned, credentials(certificates)) as plane:
        plane.push(users(2))
        gateway = start(server.port, "--xds", plane.address, *tls(folder))
        plane.stop()
        make_certificate(folder)
        (folder / "own.key").write_bytes((certificates / "own.key").read_bytes())
        plane.start()
        poll.until(
            lambda: gateway.metric("ratelimit_gateway_xds_connected") == 0,
            "the gateway is disconnected",
        )
        make_certificate(folder)
        plane.apply(users(3))
        assert count_passes(gateway, user("1")) == 3


@pytest.mark.parametrize("address", ["localhost", "localhost:x", ":1", "http://a:1", "a:1/b", ""])
def test_malformed_address_ends_the_start(address: str) -> None:
    completed = run_serve("--xds", address)
    assert completed.returncode == 1
    assert "--xds must be such as localhost:18000" in completed.stderr


def test_malformed_header_ends_the_start_and_stays_secret() -> None:
    completed = run_serve("--xds", "localhost:1", "--xds-headers", "x:y,authorization s3cret")
    assert completed.returncode == 1
    assert "--xds-headers must be such as name:value" in completed.stderr
    assert "s3cret" not in completed.stderr


def test_files_and_a_control_plane_exclude_each_other(file: Path) -> None:
    completed = run_serve("--xds", "localhost:1", "--config", file)
    assert completed.returncode == 2
    assert "cannot be used with" in completed.stderr


@needs_openssl
@pytest.mark.parametrize("empty", ["ca", "cert", "key"])
def test_error_names_an_empty_tls_file(empty: str, certificates: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    words = tls(certificates)
    words[words.index(f"--xds-{empty}") + 1] = tmp_path / "empty"
    completed = run_serve("--xds", "localhost:1", *words)
    assert completed.returncode == 1
    assert f"{tmp_path / 'empty'}: " in completed.stderr


def run_serve(*words: str | Path) -> subprocess.CompletedProcess[str]:
    listeners = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    return subprocess.run(
        [BINARY, "serve", *listeners, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def tls(folder: Path) -> list[str | Path]:
    files = {"ca": "ca.crt", "cert": "own.crt", "key": "own.key"}
    return [word for name, file in files.items() for word in (f"--xds-{name}", folder / file)]


def credentials(folder: Path) -> grpc.ServerCredentials:
    """Return the credentials of a control plane that requires a client certificate."""
    key, chain = ((folder / name).read_bytes() for name in ("own.key", "own.crt"))
    authority = (folder / "ca.crt").read_bytes()
    return grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=True)
