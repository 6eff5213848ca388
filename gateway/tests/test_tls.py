"""TLS to a server that requires a client certificate, and TLS listeners for Envoy."""

import http.client
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from running import BINARY, Gateway

from support import poll
from support.binaries import Binary
from support.certificates import (
    certificates,
    make_authority,
    make_certificate,
    running_with_tls,
)
from support.ports import reserve_port
from support.server import Server

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
__all__ = ["certificates"]

LISTENERS = ("grpc", "http", "debug")


@pytest.fixture
def port(binary: Binary, certificates: Path) -> Iterator[int]:
    with ExitStack() as owned:
        port = reserve_port(owned)
        owned.enter_context(running_with_tls(binary, certificates, port))
        yield port


def test_gateway_speaks_tls_to_the_server_and_to_envoy(
    port: int, start: Callable[..., Gateway], certificates: Path
) -> None:
    certificate, key = certificates / "own.crt", certificates / "own.key"
    server = ["--server-ca", certificates / "ca.crt", "--server-cert", certificate]
    listener = ["--grpc-cert", certificate, "--grpc-key", key]
    gateway = start(f"rediss://localhost:{port}", *server, "--server-key", key, *listener)
    assert [gateway.get("/check").status for _ in range(2)] == [200, 429]
    trusted = grpc.ssl_channel_credentials((certificates / "ca.crt").read_bytes())
    with grpc.secure_channel(f"localhost:{gateway.grpc}", trusted) as channel:
        ask = health_pb2_grpc.HealthStub(channel).Check
        serving = health_pb2.HealthCheckResponse.SERVING
        request = health_pb2.HealthCheckRequest()
        poll.until(lambda: ask(request, timeout=10).status == serving, "the gateway is healthy")


def test_http_listener_speaks_tls(
    server: Server, start: Callable[..., Gateway], certificates: Path
) -> None:
    words = ["--http-cert", certificates / "own.crt", "--http-key", certificates / "own.key"]
    gateway = start(server.port, *words, wait_until_ready=False, scheme="https")
    server.client().execute_command("RL.POLICYSET", "http|client", "FIXED", 1, "1h")
    trusted = ssl.create_default_context(cafile=certificates / "ca.crt")

    def status(version: list[str]) -> int:
        trusted.set_alpn_protocols(version)
        connection = http.client.HTTPSConnection("localhost", gateway.http, context=trusted)
        with closing(connection):
            connection.request("GET", "/check")
            return connection.getresponse().status

    assert [status(["http/1.1"]) for _ in range(2)] == [200, 429]
    with socket.create_connection(("127.0.0.1", gateway.http), timeout=30) as plain:
        plain.sendall(b"GET /check HTTP/1.1\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP/"), "without TLS nothing is answered"
    assert status(["http/1.1"]) == 429


@pytest.mark.parametrize("content", [b"", b"\n", None], ids=["empty", "newline", "directory"])
@pytest.mark.parametrize(
    "empty",
    [
        *(f"{listener}-{kind}" for listener in LISTENERS for kind in ("cert", "key", "client-ca")),
        *("server-ca", "server-cert", "server-key"),
    ],
)
def test_error_names_an_empty_tls_file(
    empty: str, content: bytes | None, certificates: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    files = {
        f"{side}-{kind}": certificates / f"own.{'crt' if kind == 'cert' else 'key'}"
        for side in (*LISTENERS, "server")
        for kind in ("cert", "key")
    }
    files |= {"server-ca": certificates / "ca.crt", empty: file}
    words = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    words += ["--server", "rediss://localhost:1"]
    words += [word for name, path in files.items() for word in (f"--{name}", str(path))]
    completed = subprocess.run(
        [BINARY, "serve", *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert completed.returncode == 1
    assert f"{file}: " in completed.stderr


def test_listeners_use_renewed_certificates_without_a_restart(
    server: Server, start: Callable[..., Gateway], certificates: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(certificates, tmp_path / "tls"))
    files = {"cert": folder / "own.crt", "key": folder / "own.key"}
    words = [
        word
        for listener in ("grpc", "http")
        for name, file in files.items()
        for word in (f"--{listener}-{name}", file)
    ]
    gateway = start(server.port, *words, scheme="https")
    ports = gateway.grpc, gateway.http

    def served_certificates() -> set[str]:
        return {ssl.get_server_certificate(("127.0.0.1", port)).strip() for port in ports}

    def reloads(result: str) -> float:
        path, trusted = "/metrics", ssl.create_default_context(cafile=folder / "ca.crt")
        connection = http.client.HTTPSConnection("localhost", gateway.http, context=trusted)
        with closing(connection):
            connection.request("GET", path)
            lines = connection.getresponse().read().decode().splitlines()
        name = f'ratelimit_gateway_reloads_total{{result="{result}"}} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = files["cert"].read_text().strip()
    assert served_certificates() == {before}
    make_certificate(folder, "renewed")
    # The new certificate does not belong to the old key.
    shutil.copy(folder / "renewed.crt", files["cert"])
    poll.until(lambda: reloads("refused") >= 2, "the certificate without its key is refused")
    assert served_certificates() == {before}
    shutil.copy(folder / "renewed.key", files["key"])
    renewed = files["cert"].read_text().strip()
    poll.until(
        lambda: served_certificates() == {renewed}, "all listeners use the renewed certificate"
    )
    assert reloads("applied") >= 2
    gateway.end()
    assert "the certificate of a listener" in gateway.log


def test_connections_use_renewed_certificates_without_a_restart(
    binary: Binary, start: Callable[..., Gateway], certificates: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(certificates, tmp_path / "tls"))
    with ExitStack() as owned:
        port = reserve_port(owned)
        words = ["--server-ca", folder / "ca.crt", "--server-cert", folder / "own.crt"]
        words += ["--server-key", folder / "own.key", "--on-outage", "closed"]
        with running_with_tls(binary, folder, port) as server:
            gateway = start(f"rediss://localhost:{port}", *words)
            assert gateway.get("/check").status == 200
            client = server.client()
            before = client.info("stats")["total_connections_received"]
            make_certificate(folder)
            poll.until(
                lambda: client.info("stats")["total_connections_received"] > before,
                "a new connection uses the renewed certificate",
            )
            assert gateway.get("/check").status == 429, "there was no outage meanwhile"
        make_authority(folder)
        make_certificate(folder)
        with running_with_tls(binary, folder, port):
            statuses = (200, 429)
            poll.until(
                lambda: gateway.get("/check").status in statuses, "the new authority is trusted"
            )


def listener_options(folder: Path) -> list[str | Path]:
    """Return options with the certificates of all listeners and the authority of their clients."""
    files = {"cert": "own.crt", "key": "own.key", "client-ca": "clients.crt"}
    return [
        word
        for listener in LISTENERS
        for name, file in files.items()
        for word in (f"--{listener}-{name}", folder / file)
    ]


def test_listeners_serve_only_clients_with_a_certificate(
    server: Server, start: Callable[..., Gateway], certificates: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(certificates, tmp_path / "tls"))
    shutil.copy(folder / "ca.crt", folder / "clients.crt")
    with ExitStack() as owned:
        debug = reserve_port(owned)
        words = listener_options(folder)
        gateway = start(server.port, *words, "--debug", f"127.0.0.1:{debug}", scheme="https")
        anonymous = ssl.create_default_context(cafile=folder / "ca.crt")
        identified = ssl.create_default_context(cafile=folder / "ca.crt")
        identified.load_cert_chain(folder / "own.crt", folder / "own.key")

        def status(port: int, context: ssl.SSLContext) -> int | None:
            connection = http.client.HTTPSConnection("localhost", port, context=context)
            with closing(connection):
                try:
                    connection.request("GET", "/healthz")
                    return connection.getresponse().status
                except OSError:
                    return None

        def answers(**client: bytes) -> bool:
            roots = (folder / "ca.crt").read_bytes()
            credentials = grpc.ssl_channel_credentials(roots, **client)
            with grpc.secure_channel(f"localhost:{gateway.grpc}", credentials) as channel:
                try:
                    ask = health_pb2_grpc.HealthStub(channel).Check
                    return bool(ask(health_pb2.HealthCheckRequest(), timeout=10).status)
                except grpc.RpcError:
                    return False

        client = {
            "private_key": (folder / "own.key").read_bytes(),
            "certificate_chain": (folder / "own.crt").read_bytes(),
        }
        assert [status(port, identified) for port in (gateway.http, debug)] == [200, 200]
        assert answers(**client)
        assert [status(port, anonymous) for port in (gateway.http, debug)] == [None, None]
        assert not answers()
        # Another authority, which has not signed the certificate of the client.
        other = tmp_path / "other"
        other.mkdir()
        make_authority(other)
        shutil.copy(other / "ca.crt", folder / "clients.crt")
        poll.until(lambda: status(debug, identified) is None, "the new authority applies")
        poll.until(lambda: not answers(**client), "the new authority applies to gRPC, too")


def test_untrusted_server_gets_no_calls(port: int, start: Callable[..., Gateway]) -> None:
    gateway = start(f"rediss://localhost:{port}", "--on-outage", "closed", wait_until_ready=False)
    assert gateway.get("/check").status == 503
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 1, "the outage is reported")
    gateway.end()
    assert "UnknownIssuer" in gateway.log
