"""Output of `make gateway`, once all programs are built."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from running import BINARY, REPOSITORY

from support import poll
from support.binaries import Binary
from support.ports import reserve_port
from support.server import MODULE

CONSOLE = Path(
    os.environ.get("RATELIMIT_CONSOLE", BINARY.with_name("ratelimit-console"))
).absolute()


def gateways(console: str) -> list[tuple[str, str | None]]:
    """Returns each gateway that a console reads, and the reason if it is away."""
    url = f"http://127.0.0.1:{console}/api/gateways"
    with urllib.request.urlopen(url, timeout=30) as response:
        return [(row["name"], row["away"]) for row in json.load(response)["gateways"]]


def test_first_requests_of_each_protocol_are_shown(binary: Binary) -> None:
    with ExitStack() as owned:
        ports = [str(reserve_port(owned)) for _ in range(4)]
        pairs = zip(("--port", "--grpc", "--http", "--console"), ports, strict=True)
        options = [word for pair in pairs for word in pair]
        words = [REPOSITORY / "scripts/gateway.py", MODULE, BINARY, CONSOLE]
        words += ["--server", binary.path]
        process = subprocess.Popen(
            # Background processes of a shell ignore SIGINT, so its default is restored.
            ["env", "--default-signal=INT", sys.executable, *words, *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            printed = []
            for line in process.stdout:
                printed.append(line.strip())
                if line.startswith("Ctrl-C"):
                    poll.until(
                        lambda: gateways(ports[3]) == [(f"127.0.0.1:{ports[2]}", None)],
                        "the console reads the gateway",
                    )
                    process.send_signal(signal.SIGINT)
        assert process.returncode == 0
    statuses = [line.split()[0] for line in printed if line.startswith(("200 ", "429 "))]
    assert statuses == ["200", "200", "429", "429"]
    assert [line for line in printed if line in ("OK", "OVER_LIMIT")] == ["OK", "OK"]
    assert "shutting all of them down" in printed
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(port))) != 0, "each port is free again"
