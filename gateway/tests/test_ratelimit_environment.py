"""Program under the name `ratelimit`: the environment of envoyproxy/ratelimit sets its options."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from control_plane import ControlPlane, entry, limit, resource
from grpc_health.v1 import health_pb2, health_pb2_grpc
from running import BINARY, Ratelimit, descriptor

from support import poll
from support.binaries import Binary
from support.certificates import certificates
from support.clock import Clock
from support.cluster import Cluster
from support.cluster_fixtures import cluster, running_clock
from support.ports import reserve_port
from support.sentinel import NAME, Sentinels
from support.server import Server

__all__ = ["certificates", "cluster", "running_clock"]

LIMITS = """
domain: rl
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: path
    rate_limit: {unit: day, requests_per_unit: 100}
"""


@pytest.fixture
def start_ratelimit(server: Server, tmp_path: Path) -> Iterator[Callable[..., Ratelimit]]:
    """Start a program that ends with the test. Variables are added to its environment."""
    with ExitStack() as programs:

        def start_ratelimit(**environment: str) -> Ratelimit:
            limits = {"limits.yaml": LIMITS}
            return programs.enter_context(Ratelimit(server.port, tmp_path, limits, **environment))

        yield start_ratelimit


def start_error(tmp_path: Path, *arguments: str, **environment: str) -> str:
    """Return the message with which the start fails."""
    program = tmp_path / "ratelimit"
    program.symlink_to(BINARY)
    variables = {"PATH": os.environ["PATH"], "HOST": "127.0.0.1", "PORT": "1"} | environment
    completed = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=variables,
    )
    assert completed.returncode != 0
    return completed.stderr


def test_probes_and_the_debug_port_answer(start_ratelimit: Callable[..., Ratelimit]) -> None:
    ratelimit = start_ratelimit()
    assert ratelimit.get("/healthcheck").body == "OK"
    assert ratelimit.health("ratelimit") == "SERVING"
    lines = ratelimit.get("/rlconfig", port=ratelimit.debug).body.splitlines()
    assert "rl.user: unit=DAY requests_per_unit=2, shadow_mode: false, quota_mode: false" in lines
    assert ratelimit.get("/metrics", port=ratelimit.debug).status == 200
    answer = ratelimit.ask(descriptor(user="1"), domain="rl")
    assert not answer.response_headers_to_add, "headers are off, as in envoyproxy/ratelimit"
    body = {"domain": "rl", "descriptors": [{"entries": [{"key": "user", "value": "1"}]}]}
    statuses = [ratelimit.get("/json", method="POST", data=body).status for _ in range(2)]
    assert statuses == [200, 429]


def test_settings_without_effect_are_logged(start_ratelimit: Callable[..., Ratelimit]) -> None:
    ratelimit = start_ratelimit(
        LOCAL_CACHE_SIZE_IN_BYTES="1000", REDIS_POOL_SIZE="20", LOG_FORMAT="json"
    )
    ratelimit.end(signal.SIGKILL)
    lines = [line for line in ratelimit.log.splitlines() if "has no effect" in line]
    for variable in ("USE_STATSD", "LOCAL_CACHE_SIZE_IN_BYTES", "REDIS_POOL_SIZE"):
        assert len([line for line in lines if f'"{variable}"' in line]) == 1
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"BACKEND_TYPE": "memcache"}, "BACKEND_TYPE=memcache: "),
        ({"REDIS_PERSECOND": "true"}, "REDIS_PERSECOND: "),
        ({"REDIS_URL": "localhost:6379"}, "set REDIS_SOCKET_TYPE=tcp"),
        ({"NEAR_LIMIT_RATIO": "2"}, "near-limit-ratio"),
        ({"RUNTIME_ROOT": "/nowhere"}, "/nowhere/config: "),
    ],
    ids=["memcache", "per-second", "socket", "ratio", "folder"],
)
def test_impossible_setting_ends_the_start(
    variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    assert message in start_error(tmp_path, **variables)


def test_outage_is_an_error_for_the_proxy(binary: Binary, clock: Clock, tmp_path: Path) -> None:
    with (
        Server(binary, clock=clock) as server,
        Ratelimit(server.port, tmp_path, {"limits.yaml": LIMITS}) as ratelimit,
    ):
        assert ratelimit.passes(descriptor(path="/"), domain="rl")
        server.stop("kill")
        with pytest.raises(grpc.RpcError) as raised:
            ratelimit.ask(descriptor(path="/"), domain="rl")
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        body = {"domain": "rl", "descriptors": [{"entries": [{"key": "path", "value": "/"}]}]}
        assert ratelimit.get("/json", method="POST", data=body).status == 503
        assert ratelimit.get("/check").status == 503
        errors = "ratelimit_service_should_rate_limit_error"
        poll.until(
            lambda: ratelimit.metric(errors, err_type="redis_error") >= 2, "the errors are counted"
        )


def test_headers_have_the_names_of_the_environment(
    start_ratelimit: Callable[..., Ratelimit],
) -> None:
    ratelimit = start_ratelimit(LIMIT_RESPONSE_HEADERS_ENABLED="true", LIMIT_RESET_HEADER="X-Reset")
    answer = ratelimit.ask(descriptor(user="1"), domain="rl")
    headers = {header.key: header.value for header in answer.response_headers_to_add}
    assert headers.keys() == {"RateLimit-Limit", "RateLimit-Remaining", "X-Reset"}
    assert (headers["RateLimit-Limit"], headers["RateLimit-Remaining"]) == ("2", "1")


@pytest.mark.parametrize("stops", [False, True], ids=["always", "stop"])
def test_denied_request_is_charged_as_configured(
    stops: bool, start_ratelimit: Callable[..., Ratelimit]
) -> None:
    ratelimit = start_ratelimit(STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=str(stops).lower())
    descriptors = descriptor(user="1"), descriptor(path="/")
    passed = [ratelimit.passes(*descriptors, domain="rl") for _ in range(5)]
    assert passed == [True, True, False, False, False]
    peek = ratelimit.ask(descriptor(path="/", hits=0), domain="rl")
    assert peek.statuses[0].limit_remaining == (98 if stops else 95)


def test_swapped_symlink_of_the_root_is_followed(
    start_ratelimit: Callable[..., Ratelimit], tmp_path: Path
) -> None:
    for number in (1, 2):
        folder = tmp_path / f"version{number}/ratelimit/config"
        folder.mkdir(parents=True)
        text = LIMITS.replace("domain: rl", f"domain: rl{number}")
        (folder / "limits.yaml").write_text(text)
    root = tmp_path / "current"
    root.symlink_to(tmp_path / "version1")
    ratelimit = start_ratelimit(RUNTIME_ROOT=str(root), RUNTIME_WATCH_ROOT="true")

    def limits() -> str:
        return ratelimit.get("/rlconfig", port=ratelimit.debug).body

    assert limits().startswith("rl1.")
    new = tmp_path / "new"
    new.symlink_to(tmp_path / "version2")
    new.replace(root)
    poll.until(lambda: limits().startswith("rl2."), "the new files are read")


def test_prometheus_has_an_address_and_a_path(start_ratelimit: Callable[..., Ratelimit]) -> None:
    with ExitStack() as owned:
        port = reserve_port(owned)
        ratelimit = start_ratelimit(
            USE_STATSD="false",
            USE_PROMETHEUS="true",
            PROMETHEUS_ADDR=f"127.0.0.1:{port}",
            PROMETHEUS_PATH="/numbers",
        )
        ratelimit.ask(descriptor(user="1"), domain="rl")
        name = 'ratelimit_service_rate_limit_total_hits{domain="rl",key1="user"} 1'
        poll.until(
            lambda: name in ratelimit.get("/numbers", port=port).body, "the request is counted"
        )


def test_server_is_reached_by_its_socket_with_a_user(
    binary: Binary, clock: Clock, tmp_path: Path
) -> None:
    with Server(binary, clock=clock) as server:
        socket = str(server.socket)
        server.client().execute_command("ACL", "SETUSER", "me", "on", ">a:b", "~*", "+@all")
        variables = {"REDIS_SOCKET_TYPE": "unix", "REDIS_URL": socket, "REDIS_AUTH": "me:a:b"}
        limits = {"limits.yaml": LIMITS}
        with Ratelimit(server.port, tmp_path, limits, **variables) as ratelimit:
            passed = [ratelimit.passes(descriptor(user="1"), domain="rl") for _ in range(3)]
            assert passed == [True, True, False]
            assert "me" in {client["user"] for client in server.client().client_list()}


def test_nodes_of_a_cluster_are_reached(cluster: Cluster, tmp_path: Path) -> None:
    nodes = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
    variables = {"REDIS_TYPE": "CLUSTER", "REDIS_URL": nodes}
    limits = {"limits.yaml": LIMITS}
    with Ratelimit(cluster.servers[0].port, tmp_path, limits, **variables) as ratelimit:
        users = [descriptor(user=str(number)) for number in range(10)]
        passed = [[ratelimit.passes(user, domain="rl") for _ in range(3)] for user in users]
        assert passed == [[True, True, False]] * 10


@pytest.mark.long
def test_primary_is_found_by_sentinels(
    binary: Binary, running_clock: Clock, tmp_path: Path
) -> None:
    with Server(binary, clock=running_clock) as primary:
        primary.replica()
        with Sentinels(primary) as sentinels:
            hosts = ",".join(f"127.0.0.1:{port}" for port in sentinels._ports)
            variables = {"REDIS_TYPE": "SENTINEL", "REDIS_URL": f"{NAME},{hosts}"}
            limits = {"limits.yaml": LIMITS}
            with Ratelimit(primary.port, tmp_path, limits, **variables) as ratelimit:
                passed = [ratelimit.passes(descriptor(user="1"), domain="rl") for _ in range(3)]
                assert passed == [True, True, False]


def test_deployment_of_ai_gateway_serves_its_quotas(server: Server, tmp_path: Path) -> None:
    """The arguments and variables are those of the deployment in AI Gateway's tests."""
    with ExitStack() as owned:
        plane = owned.enter_context(ControlPlane(owned))
        plane.node_id = "envoy-ai-gateway-ratelimit"
        plane.push(resource("quota", entry("model", limit=limit(2))))
        ratelimit = owned.enter_context(
            Ratelimit(
                server.port,
                tmp_path,
                {},
                "--quotaRateLimitServiceAddr=envoy-ai-gateway-ratelimit.envoy-gateway-system",
                USE_STATSD="false",
                CONFIG_TYPE="GRPC_XDS_SOTW",
                CONFIG_GRPC_XDS_NODE_ID=plane.node_id,
                CONFIG_GRPC_XDS_SERVER_URL=plane.address,
            )
        )
        passed = [ratelimit.passes(descriptor(model="m"), domain="quota") for _ in range(3)]
        assert passed == [True, True, False]
        ratelimit.end(signal.SIGKILL)
        (line,) = [line for line in ratelimit.log.splitlines() if "arguments" in line]
        assert '["--quotaRateLimitServiceAddr"]' in line


def test_option_without_a_command_ends_the_start(tmp_path: Path) -> None:
    assert "'--config'" in start_error(tmp_path, "--config=limits.yaml")


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_environment_of_envoy_gateway_serves_its_limits(
    binary: Binary, certificates: Path, tmp_path: Path
) -> None:
    """The environment and the probe are those of the deployment that Envoy Gateway creates."""
    files = {"cert": "own.crt", "key": "own.key", "ca": "ca.crt"}
    tls = {name: str(certificates / file) for name, file in files.items()}
    pair = [((certificates / "own.key").read_bytes(), (certificates / "own.crt").read_bytes())]
    roots = (certificates / "ca.crt").read_bytes()
    credentials = grpc.ssl_server_credentials(pair, roots, require_client_auth=True)
    with ExitStack() as owned:
        server = owned.enter_context(Server(binary))
        plane = owned.enter_context(ControlPlane(owned, credentials))
        prometheus = reserve_port(owned)
        ratelimit = owned.enter_context(
            Ratelimit(
                server.port,
                tmp_path,
                {},
                RUNTIME_IGNOREDOTFILES="true",
                LOG_LEVEL="info",
                USE_STATSD="false",
                CONFIG_TYPE="GRPC_XDS_SOTW",
                CONFIG_GRPC_XDS_SERVER_URL=plane.address,
                CONFIG_GRPC_XDS_NODE_ID="envoy-ratelimit",
                GRPC_SERVER_USE_TLS="true",
                GRPC_SERVER_TLS_CERT=tls["cert"],
                GRPC_SERVER_TLS_KEY=tls["key"],
                GRPC_SERVER_TLS_CA_CERT=tls["ca"],
                CONFIG_GRPC_XDS_SERVER_USE_TLS="true",
                CONFIG_GRPC_XDS_CLIENT_TLS_CERT=tls["cert"],
                CONFIG_GRPC_XDS_CLIENT_TLS_KEY=tls["key"],
                CONFIG_GRPC_XDS_SERVER_TLS_CACERT=tls["ca"],
                FORCE_START_WITHOUT_INITIAL_CONFIG="true",
                USE_PROMETHEUS="true",
                PROMETHEUS_ADDR=f"127.0.0.1:{prometheus}",
                PROMETHEUS_MAPPER_YAML="/etc/statsd-exporter/conf.yaml",
            )
        )
        assert ratelimit.get("/healthcheck").status == 200, "there is no configuration yet"
        plane.apply(resource("shop", entry("user", limit=limit(2))))
        body = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "1"}]}]}
        statuses = [ratelimit.get("/json", method="POST", data=body).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        channel = grpc.secure_channel(
            f"localhost:{ratelimit.grpc}", grpc.ssl_channel_credentials(roots)
        )
        with channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            request = health_pb2.HealthCheckRequest(service="ratelimit")
            assert check(request, timeout=30).status == health_pb2.HealthCheckResponse.SERVING
        over = 'ratelimit_service_rate_limit_over_limit{domain="shop",key1="user"} 1'
        poll.until(
            lambda: over in ratelimit.get("/metrics", port=prometheus).body,
            "Prometheus reads the denial",
        )
