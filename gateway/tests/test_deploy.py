"""Helm chart, manifests and configurations of proxies in deploy/."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
from control_plane import ControlPlane, entry, limit, resource
from origin import Origin
from proxies import Proxy, envoy_kind
from running import REPOSITORY, Gateway, descriptor

from support.binaries import Binary
from support.ports import reserve_port
from support.server import Server

yaml = pytest.importorskip("yaml", reason="needs the group `deploy` of pyproject.toml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

DEPLOY = REPOSITORY / "deploy"
SCRIPT = REPOSITORY / "scripts/manifests.py"
# Documents of manifests, by their kind and name.
Objects = dict[tuple[str, str], dict]

needs_helm = pytest.mark.skipif(find_spec("helm_python") is None, reason="needs helm-python-sdk")


def parse_objects(text: str) -> Objects:
    documents = [document for document in yaml.safe_load_all(text) if document]
    objects = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(objects) == len(documents)
    return objects


def read_objects(name: str) -> Objects:
    return parse_objects((DEPLOY / name).read_text())


def run_script(*words: str | Path) -> str:
    command = [sys.executable, SCRIPT, *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def render_release(name: str, *values: Path) -> Objects:
    """Return the objects of a release of the chart."""
    return parse_objects(run_script("--name", name, *(f"--values={file}" for file in values)))


@pytest.fixture
def all_values(tmp_path: Path) -> Path:
    """File of values for everything that the chart's defaults leave out."""
    file = tmp_path / "values.yaml"
    file.write_text(
        """
        gateway:
          drainSeconds: 3
          env: {RATELIMIT_GATEWAY_ON_OUTAGE: local=0.5}
          limits:
            api.yaml: |
              domain: api
              descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]
        monitoring: {enabled: true, labels: {release: prometheus}}
        """
    )
    return file


@needs_helm
def test_manifests_are_those_of_the_chart(tmp_path: Path) -> None:
    run_script("--folder", tmp_path)
    for file in sorted(tmp_path.iterdir()):
        written = (DEPLOY / file.name).read_text()
        assert written == file.read_text(), f"run {SCRIPT.name}: {file.name} differs"
    assert {file.name for file in tmp_path.iterdir()} == {"ratelimit.yaml", "monitoring.yaml"}


# Oldest version that the chart supports, and the newest version that the package has.
@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_manifests_have_kubernetes_schema(version: str) -> None:
    check_schema(read_objects("ratelimit.yaml"), version)


@needs_helm
@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_releases_have_kubernetes_schema(version: str, all_values: Path) -> None:
    releases = [
        render_release("ratelimit"),
        render_release("other", all_values),
        render_release("ratelimit", DEPLOY / "values-envoy-gateway.yaml"),
        render_release("envoy-ai-gateway-ratelimit", DEPLOY / "values-ai-gateway.yaml"),
    ]
    assert ("ConfigMap", "other-limits") in releases[1]
    assert ("PrometheusRule", "other") in releases[1]
    assert ("Deployment", "ratelimit") not in releases[2]
    for release in releases:
        check_schema(release, version)


def check_schema(release: Objects, version: str) -> None:
    checked = [each for each in release.values() if "coreos.com" not in each["apiVersion"]]
    assert len(checked) >= 3
    for each in checked:
        kubernetes_validate.validate(each, version, strict=True)


def test_schema_refuses_a_misspelled_field() -> None:
    service = read_objects("ratelimit.yaml")["Service", "ratelimit"]
    service["spec"]["selectors"] = service["spec"].pop("selector")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, "1.37", strict=True)


def test_version_of_the_chart_is_that_of_the_gateway() -> None:
    chart = yaml.safe_load((DEPLOY / "chart/Chart.yaml").read_text())
    values = yaml.safe_load((DEPLOY / "chart/values.yaml").read_text())
    cargo = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())
    version = cargo["workspace"]["package"]["version"]
    assert {chart["version"], chart["appVersion"]} == {version}
    for image in (values["gateway"]["image"], values["valkey"]["image"]):
        assert image.partition(":")[2] == version


@needs_helm
def test_release_without_valkey_uses_another_server(tmp_path: Path) -> None:
    server = "redis-sentinel://sentinel:26379/limits"
    file = tmp_path / "values.yaml"
    values = {
        "gateway": {"env": {"RATELIMIT_GATEWAY_SERVER": server}},
        "valkey": {"enabled": False, "existingSecret": "limits"},
    }
    file.write_text(yaml.safe_dump(values))
    release = render_release("ratelimit", file)
    assert {kind for kind, _ in release} == {"Service", "Deployment", "PodDisruptionBudget"}
    pod = release["Deployment", "ratelimit"]["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "password", "secret": {"secretName": "limits"}}]
    variables = [(each["name"], each["value"]) for each in pod["containers"][0]["env"]]
    assert ("RATELIMIT_GATEWAY_SERVER", server) in variables
    assert len(dict(variables)) == len(variables)


def select_objects(release: Objects, selector: dict[str, str], kind: str) -> list[dict]:
    """Return the objects of a kind with these labels, on their pods if they have pods."""
    return [
        each
        for (each_kind, _), each in release.items()
        if each_kind == kind
        and selector.items() <= each["spec"].get("template", each)["metadata"]["labels"].items()
    ]


@needs_helm
def test_objects_refer_to_each_other(all_values: Path) -> None:
    for release in (render_release("ratelimit"), render_release("other", all_values)):
        for (kind, name), each in release.items():
            spec = each.get("spec", {})
            if kind == "Service":
                pods = select_objects(release, spec["selector"], "Deployment") + select_objects(
                    release, spec["selector"], "StatefulSet"
                )
                (container,) = pods[0]["spec"]["template"]["spec"]["containers"]
                assert len(pods) == 1
                ports = {port["name"]: port["containerPort"] for port in container["ports"]}
                service_ports = {port["targetPort"]: port["port"] for port in spec["ports"]}
                assert service_ports == ports, name
            elif kind in ("Deployment", "StatefulSet"):
                pod = spec["template"]["spec"]
                (container,) = pod["containers"]
                mounted = {mount["name"] for mount in container["volumeMounts"]}
                claims = {
                    claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])
                }
                assert mounted == {volume["name"] for volume in pod.get("volumes", [])} | claims
                for secret in re.findall(r"'secretName': '(.*?)'", str(pod)):
                    assert "password" in release["Secret", secret]["data"]
                for secret, key in re.findall(
                    r"'secretKeyRef': {'name': '(.*?)', 'key': '(.*?)'}", str(pod)
                ):
                    assert key in release["Secret", secret]["data"]
            elif kind == "ServiceMonitor":
                (service,) = select_objects(release, spec["selector"]["matchLabels"], "Service")
                (endpoint,) = spec["endpoints"]
                assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
            elif kind == "PodDisruptionBudget":
                assert select_objects(release, spec["selector"]["matchLabels"], "Deployment")
    assert release["ServiceMonitor", "other"]["metadata"]["labels"]["release"] == "prometheus"


@needs_helm
def test_pod_of_the_gateway_serves_and_has_time_to_drain(
    binary: Binary, all_values: Path, tmp_path: Path
) -> None:
    """The variables are those of the pod, with the ports, files and server of this machine."""
    deployment = render_release("other", all_values)["Deployment", "other"]
    limits = render_release("other", all_values)["ConfigMap", "other-limits"]["data"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}

    # As in a mount of Kubernetes, files are links into a folder that is swapped.
    for file, text in [("password", "secret"), *limits.items()]:
        folder = tmp_path / ("valkey" if file == "password" else "limits")
        (folder / "..data").mkdir(parents=True)
        (folder / "..data" / file).write_text(text)
        (folder / file).symlink_to(f"..data/{file}")
    for variable, local_value in {
        "RATELIMIT_GATEWAY_SERVER_PASSWORD_FILE": tmp_path / "valkey/password",
        "RATELIMIT_GATEWAY_CONFIG": tmp_path / "limits",
        "RATELIMIT_GATEWAY_SERVER": None,
    }.items():
        pod_value = variables.pop(variable)
        if local_value:
            mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert any(pod_value.startswith(mount) for mount in mounts)
            variables[variable] = str(local_value)
        else:
            assert pod_value == "redis://other-valkey:6379"
    drain = variables.pop("RATELIMIT_GATEWAY_DRAIN")
    # After --drain, requests in flight have 10 seconds.
    assert pod["terminationGracePeriodSeconds"] >= int(drain.removesuffix("s")) + 10

    with ExitStack() as owned:
        server = owned.enter_context(Server(binary))
        owned.enter_context(server.client()).config_set("requirepass", "secret")
        gateway = owned.enter_context(Gateway(server.port, environment=variables))
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] == "http"
            assert gateway.get(container[probe]["httpGet"]["path"]).status == 200
        user = descriptor(user="1")
        assert [gateway.passes(user) for _ in range(2)] == [True, False]
        assert gateway.end() == 0
    assert '"level"' in gateway.log, "the log is JSON"


def test_image_of_the_gateway_listens_on_the_ports_of_the_pod() -> None:
    deployment = read_objects("ratelimit.yaml")["Deployment", "ratelimit"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"].upper(): port["containerPort"] for port in container["ports"]}
    image = (REPOSITORY / "gateway/Dockerfile").read_text()
    for name, port in ports.items():
        assert f"RATELIMIT_GATEWAY_{name}=0.0.0.0:{port}" in image
    assert not {"command", "args"} & container.keys(), "the image has the command"


def test_valkey_starts_with_the_options_of_its_pod(binary: Binary) -> None:
    stateful = read_objects("ratelimit.yaml")["StatefulSet", "ratelimit-valkey"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    (variable,) = (each["name"] for each in container["env"])
    words = [word.replace(f"$({variable})", "secret") for word in container["args"]]
    options = {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(words[::2], words[1::2], strict=True)
    }
    assert options.pop("requirepass") == "secret"
    assert options
    with Server(binary, **options) as server, server.client() as client:
        client.config_set("requirepass", "secret")
    image = (REPOSITORY / "Dockerfile").read_text()
    assert f"USER {stateful['spec']['template']['spec']['securityContext']['fsGroup']}:" in image
    assert "dir /data" in (REPOSITORY / "docker/valkey.conf").read_text()
    assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]


def test_alerts_name_metrics_of_the_gateway(server: Server, start: Callable[..., Gateway]) -> None:
    with ExitStack() as owned:
        plane = f"127.0.0.1:{reserve_port(owned)}"
        gateway = start(server.port, "--xds", plane, "--force-start")
        gateway.passes(descriptor(user="1"))
        page = gateway.get("/metrics").body
    metrics = set(re.findall(r"^(\w+)", page, re.MULTILINE))
    alerts = yaml.safe_load((REPOSITORY / "monitoring/gateway_alerts.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    expressions = " ".join(rule["expr"] for rule in rules)
    expressions = expressions.replace("(reloads|xds_pushes)_total", "reloads_total")
    expressions += " ratelimit_gateway_xds_pushes_total"
    names = set(re.findall(r"\bratelimit_gateway_\w+", expressions))
    assert len(names) >= 6
    assert names <= metrics
    for label, value in re.findall(r'(outcome|result)=~?"([^"]+)"', expressions):
        for each in value.split("|"):
            assert f'{label}="{each}"' in page


# Fields of the resources of other projects: Envoy Gateway 1.9, kgateway 2, Contour 1.33, Istio's
# v1alpha3 and the Prometheus operator 0.93.
FIELDS = {
    "ServiceMonitor": "selector.matchLabels endpoints.port endpoints.path endpoints.interval",
    "EnvoyFilter": """
        workloadSelector.labels configPatches.applyTo configPatches.match.context
        configPatches.match.listener.filterChain.filter.name
        configPatches.match.listener.filterChain.filter.subFilter.name
        configPatches.patch.operation configPatches.patch.value
    """,
    "GatewayExtension": """
        rateLimit.domain rateLimit.timeout rateLimit.failOpen
        rateLimit.grpcService.backendRef.name rateLimit.grpcService.backendRef.port
    """,
    "TrafficPolicy": """
        targetRefs.group targetRefs.kind targetRefs.name rateLimit.global.extensionRef.name
        rateLimit.global.descriptors.entries.type rateLimit.global.descriptors.entries.header
    """,
    "ExtensionService": "protocol services.name services.port timeoutPolicy.response",
    "HTTPProxy": """
        virtualhost.fqdn routes.services.name routes.services.port
        virtualhost.rateLimitPolicy.global.descriptors.entries.requestHeader.headerName
        virtualhost.rateLimitPolicy.global.descriptors.entries.requestHeader.descriptorKey
    """,
    "contour.yaml": """
        rateLimitService.extensionService rateLimitService.domain rateLimitService.failOpen
    """,
    "EnvoyGateway": """
        rateLimit.backend.type rateLimit.backend.redis.url rateLimit.timeout rateLimit.failClosed
        provider.type provider.kubernetes.rateLimitDeployment.replicas
        provider.kubernetes.rateLimitDeployment.container.image
        provider.kubernetes.rateLimitDeployment.container.env.name
        provider.kubernetes.rateLimitDeployment.container.env.valueFrom.secretKeyRef.name
        provider.kubernetes.rateLimitDeployment.container.env.valueFrom.secretKeyRef.key
        provider.kubernetes.rateLimitPDB.maxUnavailable
    """,
}


def check_fields(kind: str, value: object) -> None:
    allowed = FIELDS[kind].split()
    # Fields whose content may have any keys.
    free_fields = ("matchLabels", "labels", "patch.value")

    def paths(value: object, path: str) -> Iterator[str]:
        if isinstance(value, list):
            for each in value:
                yield from paths(each, path)
        elif isinstance(value, dict) and not path.endswith(free_fields):
            for key, each in value.items():
                yield from paths(each, f"{path}.{key}".removeprefix("."))
        else:
            yield path

    assert set(paths(value, "")) <= set(allowed)


@pytest.mark.parametrize("file", ["monitoring", "istio", "kgateway", "contour"])
def test_resources_of_other_projects_have_only_known_fields(file: str) -> None:
    objects = read_objects(f"{file}.yaml")
    checked = [kind for kind, _ in objects if kind in FIELDS]
    assert checked
    for (kind, _), each in objects.items():
        if kind in FIELDS:
            check_fields(kind, each["spec"])


@needs_helm
def test_values_of_envoy_gateway_name_the_release_beside_it() -> None:
    values = yaml.safe_load((DEPLOY / "envoy-gateway.yaml").read_text())
    config = values["config"]["envoyGateway"]
    check_fields("EnvoyGateway", config)
    release = render_release("ratelimit", DEPLOY / "values-envoy-gateway.yaml")
    name, _, port = config["rateLimit"]["backend"]["redis"]["url"].partition(":")
    (service_port,) = release["Service", name]["spec"]["ports"]
    assert service_port["port"] == int(port)
    container = config["provider"]["kubernetes"]["rateLimitDeployment"]["container"]
    chart = yaml.safe_load((DEPLOY / "chart/values.yaml").read_text())
    assert container["image"] == chart["gateway"]["image"]
    (variable,) = container["env"]
    reference = variable["valueFrom"]["secretKeyRef"]
    assert reference["key"] in release["Secret", reference["name"]]["data"]
    # Read by the program under the name `ratelimit`: test_ratelimit_environment.py.
    assert variable["name"] == "REDIS_AUTH"


@needs_helm
def test_values_of_ai_gateway_connect_to_its_controller(
    server: Server, start: Callable[..., Gateway]
) -> None:
    name = "envoy-ai-gateway-ratelimit"
    release = render_release(name, DEPLOY / "values-ai-gateway.yaml")
    ports = {port["name"]: port["port"] for port in release["Service", name]["spec"]["ports"]}
    assert ports["grpc"] == 8081
    (container,) = release["Deployment", name]["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    controller = "ai-gateway-controller.envoy-ai-gateway-system:18002"
    assert variables["RATELIMIT_GATEWAY_XDS"] == controller
    xds_variables = {each: value for each, value in variables.items() if "_XDS" in each}
    with ExitStack() as owned, ControlPlane(owned) as plane:
        plane.node_id = name
        plane.push(resource("ai-gateway-quota", entry("backend_name", limit=limit(1))))
        xds_variables["RATELIMIT_GATEWAY_XDS"] = plane.address
        gateway = start(server.port, environment=xds_variables)
        request = descriptor(backend_name="default/openai")
        passed = [gateway.passes(request, domain="ai-gateway-quota") for _ in range(2)]
        assert passed == [True, False]


def service_of(file: str) -> tuple[str, int]:
    """Return the name and port of the Service that a configuration asks."""
    text = (DEPLOY / file).read_text()
    if match := re.search(r"outbound\|(\d+)\|\|(\w+)\.", text):
        return match[2], int(match[1])
    match = re.search(r"\{name: (ratelimit), port: (\d+)\}", text)
    return match[1], int(match[2])


@pytest.mark.parametrize("file", ["istio.yaml", "kgateway.yaml", "contour.yaml"])
def test_configuration_asks_the_service_of_the_chart(file: str) -> None:
    name, port = service_of(file)
    service = read_objects("ratelimit.yaml")["Service", name]
    assert port in {each["port"] for each in service["spec"]["ports"] if each["name"] == "grpc"}


def apply_istio_patches(configuration: dict) -> dict:
    """Apply the patches of istio.yaml to Envoy's configuration, as Istio does, and return it."""
    resources = configuration["static_resources"]
    (chain,) = resources["listeners"][0]["filter_chains"]
    (manager,) = chain["filters"]
    manager = manager["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    (envoy_filter,) = read_objects("istio.yaml").values()
    for each in envoy_filter["spec"]["configPatches"]:
        value, operation = each["patch"]["value"], each["patch"]["operation"]
        if each["applyTo"] == "HTTP_FILTER":
            assert operation == "INSERT_BEFORE"
            before = each["match"]["listener"]["filterChain"]["filter"]["subFilter"]["name"]
            names = [http_filter["name"] for http_filter in manager["http_filters"]]
            manager["http_filters"].insert(names.index(before), value)
        else:
            assert (each["applyTo"], operation) == ("VIRTUAL_HOST", "MERGE")
            host |= value
    return configuration


def test_filter_of_istio_limits_in_envoy(
    gateway: Gateway, policy: Callable[..., int], origin: Origin, tmp_path: Path
) -> None:
    base = yaml.safe_load((REPOSITORY / "gateway/proxies/envoy.yaml").read_text())
    (listener,) = base["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = manager["http_filters"][1:]
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    del route["route"]["rate_limits"]
    cluster = base["static_resources"]["clusters"][1]
    cluster["name"] = "outbound|8081||ratelimit.default.svc.cluster.local"
    cluster["load_assignment"]["cluster_name"] = cluster["name"]
    folder = tmp_path / "istio"
    folder.mkdir()
    (folder / "envoy.yaml").write_text(yaml.safe_dump(apply_istio_patches(base)))

    policy("web|user", "FIXED 2 1d")
    kind = envoy_kind("envoy.yaml", folder)
    with Proxy("envoy", gateway, origin, tmp_path, kind=kind) as envoy:
        assert envoy.statuses(3, x_user="1") == [200, 200, 429]
        assert envoy.get(x_user="2").status == 200


def contour_request() -> tuple[str, list[str]]:
    """Return the domain and the keys of the descriptor that Contour sends."""
    objects = read_objects("contour.yaml")
    config = yaml.safe_load(objects["ConfigMap", "contour"]["data"]["contour.yaml"])
    check_fields("contour.yaml", config)
    service = config["rateLimitService"]
    namespace, _, name = service["extensionService"].partition("/")
    assert objects["ExtensionService", name]["metadata"]["namespace"] == namespace
    policy = objects["HTTPProxy", "web"]["spec"]["virtualhost"]["rateLimitPolicy"]
    (sent,) = policy["global"]["descriptors"]
    keys = [entry["requestHeader"]["descriptorKey"] for entry in sent["entries"]]
    return service["domain"], keys


def kgateway_request() -> tuple[str, list[str]]:
    """Return the domain and the keys of the descriptor that kgateway sends."""
    objects = read_objects("kgateway.yaml")
    limits = objects["TrafficPolicy", "ratelimit"]["spec"]["rateLimit"]["global"]
    extension = objects["GatewayExtension", limits["extensionRef"]["name"]]
    (sent,) = limits["descriptors"]
    # The key is the name of the header.
    return extension["spec"]["rateLimit"]["domain"], [entry["header"] for entry in sent["entries"]]


@pytest.mark.parametrize("read_request", [contour_request, kgateway_request])
def test_descriptors_are_limited_by_the_policy_that_a_comment_names(
    read_request: Callable, gateway: Gateway, policy: Callable[..., int]
) -> None:
    file = read_request.__name__.replace("_request", ".yaml")
    (name,) = re.findall(r"the policy `(.+?)`", (DEPLOY / file).read_text().replace("\n# ", " "))
    policy(name, "FIXED 2 1d")
    domain, keys = read_request()
    ids = iter(range(3))
    passed = []
    for _ in range(3):
        values = {key: "1" if key != "rl.id" else str(next(ids)) for key in keys}
        entries = {key.replace("rl.id", "rl_id"): value for key, value in values.items()}
        passed.append(gateway.passes(descriptor(**entries), domain=domain))
    assert passed == [True, True, False]
