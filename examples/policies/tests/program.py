"""Runs of the program, as in CI."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.server import Server

EXAMPLE = Path(__file__).parents[1]

Run = Callable[..., subprocess.CompletedProcess[str]]


def for_server(server: Server) -> Run:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        url = f"redis://127.0.0.1:{server.port}"
        command = [sys.executable, EXAMPLE / "policies.py", "--redis", url]
        return subprocess.run(
            [*command, *arguments], check=False, capture_output=True, text=True, timeout=30
        )

    return run
