"""TLS of the console's listener."""

import http.client
import shutil
import socket
import ssl
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from api_client import Console
from console_fixtures import Start
from console_process import run_console

from support import poll
from support.binaries import Binary
from support.certificates import certificates, make_certificate, running_with_tls
from support.ports import reserve_port
from support.server import Server

__all__ = ["certificates"]
pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")


def test_console_listens_with_tls(server: Server, start: Start, certificates: Path) -> None:
    own = ["--cert", certificates / "own.crt", "--key", certificates / "own.key"]
    process = start(server.port, *own, scheme="https")
    trusted = ssl.create_default_context(cafile=certificates / "ca.crt")

    def ask(path: str) -> http.client.HTTPResponse:
        address = "localhost", process.port
        with closing(http.client.HTTPSConnection(*address, context=trusted)) as connection:
            connection.request("GET", path)
            return connection.getresponse()

    # A silent handshake does not block other connections.
    with socket.create_connection(("127.0.0.1", process.port), timeout=30):
        assert [ask(path).status for path in ("/", "/api/session", "/api/nothing")] == [
            200,
            200,
            404,
        ]
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP/"), "without TLS nothing is answered"
    process.end()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--cert", "own.crt"], "--key"),
        (["--cert", "own.crt", "--key", "own.csr"], "own.csr"),
    ],
)
def test_certificate_without_a_valid_key_is_refused(
    words: list[str], error: str, certificates: Path
) -> None:
    started = run_console("serve", "--listen", "127.0.0.1:0", *words, cwd=certificates)
    assert started.returncode != 0
    assert error in started.stderr


def test_renewed_certificate_is_used_without_a_restart(
    server: Server, start: Start, certificates: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(certificates, tmp_path / "tls"))
    own = {"cert": folder / "own.crt", "key": folder / "own.key"}
    words = [word for name, path in own.items() for word in (f"--{name}", path)]
    process = start(server.port, *words, scheme="https")

    def served_certificate() -> str:
        return ssl.get_server_certificate(("127.0.0.1", process.port)).strip()

    assert served_certificate() == own["cert"].read_text().strip()
    make_certificate(folder, "renewed")
    shutil.copy(folder / "renewed.key", own["key"])
    shutil.copy(folder / "renewed.crt", own["cert"])
    renewed = own["cert"].read_text().strip()
    poll.until(lambda: served_certificate() == renewed, "the renewed certificate is used")
    process.end()
    assert "the certificate of a listener" in process.log


def test_console_sends_its_client_certificate_to_the_server(
    binary: Binary, start: Start, certificates: Path
) -> None:
    own = ["--server-cert", certificates / "own.crt", "--server-key", certificates / "own.key"]
    with ExitStack() as owned:
        port = reserve_port(owned)
        owned.enter_context(running_with_tls(binary, certificates, port))
        process = start(f"rediss://localhost:{port}", "--server-ca", certificates / "ca.crt", *own)
        (policy,) = Console(process, None)("/api/policies").json
        assert policy["name"] == "http|client"
