"""TLS on both sides: to a server that asks for a certificate, and for Envoy."""

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
from support.server import Server, ServerError, reserve_port

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
NEW_KEY = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority (ca.crt), and a certificate and key of localhost."""
    folder = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n"
    (folder / "extensions").write_text(names)
    authority = ["-x509", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=ca"]
    own = ["-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=localhost"]
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions"]
    for words in (
        [*NEW_KEY, *authority],
        [*NEW_KEY, *own],
        ["openssl", "x509", "-req", "-in", "own.csr", *signed, "-days", "2", "-out", "own.crt"],
    ):
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def port(binary: Binary, certificates: Path) -> Iterator[int]:
    with ExitStack() as owned:
        port = reserve_port(owned)
        files = {"cert": "own.crt", "key": "own.key", "ca_cert": "ca.crt"}
        settings = {f"tls_{name}_file": str(certificates / it) for name, it in files.items()}
        try:
            # By the real time, at which the certificates are valid.
            server = Server(binary, tls_port=port, tls_auth_clients="yes", **settings)
            owned.enter_context(server)
        except ServerError as error:
            if "tls-port" not in str(error):
                raise
            pytest.skip("the server is built without TLS")
        server.client().execute_command("RL.POLICYSET", "http|client", "FIXED", 1, "1h")
        yield port


def test_both_sides(port: int, start: Callable[..., Gateway], certificates: Path) -> None:
    own = certificates / "own.crt", certificates / "own.key"
    server = ["--server-ca", certificates / "ca.crt", "--server-cert", own[0], "--server-key"]
    envoy = ["--grpc-cert", own[0], "--grpc-key", own[1]]
    gateway = start(f"rediss://localhost:{port}", *server, own[1], *envoy)
    assert [gateway.get("/check").status for _ in range(2)] == [200, 429]
    trusted = grpc.ssl_channel_credentials((certificates / "ca.crt").read_bytes())
    with grpc.secure_channel(f"localhost:{gateway.grpc}", trusted) as channel:
        ask = health_pb2_grpc.HealthStub(channel).Check
        serving = health_pb2.HealthCheckResponse.SERVING
        asked = health_pb2.HealthCheckRequest()
        poll.until(lambda: ask(asked, timeout=10).status == serving, "it is healthy")


def test_proxies_ask_over_tls(
    server: Server, start: Callable[..., Gateway], certificates: Path
) -> None:
    own = ["--http-cert", certificates / "own.crt", "--http-key", certificates / "own.key"]
    gateway = start(server.port, *own, wait=False, scheme="https")
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


def test_operators_look_over_tls(
    server: Server, start: Callable[..., Gateway], certificates: Path
) -> None:
    own = ["--console-cert", certificates / "own.crt", "--console-key", certificates / "own.key"]
    gateway = start(server.port, *own, console=True)
    trusted = ssl.create_default_context(cafile=certificates / "ca.crt")

    def ask(path: str) -> http.client.HTTPResponse:
        address = "localhost", gateway.console
        with closing(http.client.HTTPSConnection(*address, context=trusted)) as connection:
            connection.request("GET", path)
            return connection.getresponse()

    # Whoever says nothing in the handshake keeps nobody waiting.
    with socket.create_connection(("127.0.0.1", gateway.console), timeout=30):
        assert [ask(path).status for path in ("/", "/api/session", "/api/nothing")] == [
            200,
            200,
            404,
        ]
    with socket.create_connection(("127.0.0.1", gateway.console), timeout=30) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP/"), "without TLS nothing is answered"
    gateway.end()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--console-cert", "own.crt"], "--console-key"),
        (["--console-cert", "own.crt", "--console-key", "own.csr"], "own.csr"),
    ],
)
def test_a_certificate_of_the_console_takes_its_key(
    words: list[str], told: str, certificates: Path
) -> None:
    ports = ["--console", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    started = subprocess.run(
        [BINARY, "serve", *ports, *words],
        cwd=certificates,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert started.returncode != 0
    assert told in started.stderr


def test_a_server_that_is_not_trusted_is_not_asked(
    port: int, start: Callable[..., Gateway]
) -> None:
    gateway = start(f"rediss://localhost:{port}", "--on-outage", "closed", wait=False)
    assert gateway.get("/check").status == 503
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 1, "it is told of")
    gateway.end()
    assert "UnknownIssuer" in gateway.log
