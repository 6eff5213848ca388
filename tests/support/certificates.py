"""Certificates of localhost, signed by a test authority, and a server with one."""

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.binaries import Binary
from support.server import Server, ServerError

NEW_KEY = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]


def make_authority(folder: Path) -> None:
    names = "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n"
    (folder / "extensions").write_text(names)
    words = ["-x509", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=ca"]
    subprocess.run([*NEW_KEY, *words], cwd=folder, check=True, capture_output=True)


def make_certificate(folder: Path, name: str = "own") -> None:
    """Creates a certificate and key of localhost, signed by the authority in the folder."""
    files = ["-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=localhost"]
    authority = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions"]
    sign = ["openssl", "x509", "-req", "-in", f"{name}.csr", *authority, "-days", "2"]
    for words in ([*NEW_KEY, *files], [*sign, "-out", f"{name}.crt"]):
        subprocess.run(words, cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an authority (ca.crt), and a certificate and key of localhost."""
    folder = tmp_path_factory.mktemp("tls")
    make_authority(folder)
    make_certificate(folder)
    return folder


def tls_server(binary: Binary, folder: Path, port: int) -> Server:
    files = {"cert": "own.crt", "key": "own.key", "ca_cert": "ca.crt"}
    settings = {f"tls_{name}_file": str(folder / file) for name, file in files.items()}
    # Without a test clock: the certificates are valid only at the real time.
    return Server(binary, tls_port=port, tls_auth_clients="yes", **settings)


@contextlib.contextmanager
def running_with_tls(binary: Binary, folder: Path, port: int) -> Iterator[Server]:
    """Runs a server with a TLS port and a policy, or skips the test if it is built without TLS."""
    with ExitStack() as owned:
        try:
            server = owned.enter_context(tls_server(binary, folder, port))
        except ServerError as error:
            if "tls-port" not in str(error):
                raise
            pytest.skip("the server is built without TLS")
        server.client().execute_command("RL.POLICYSET", "http|client", "FIXED", 1, "1h")
        yield server
