#!/usr/bin/env python3
"""Writes clients/traces.json with a server and the module in target/release.

    .venv/bin/python scripts/make_traces.py

tests/support/traces.py describes the file.
"""

import sys
import tempfile
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import binaries, traces
from support.clock import Clock, build_library
from support.server import Server


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Clock(build_library(Path(folder)), Path(folder) / "clock")) as clock,
        Server(binaries.chosen(), clock=clock) as server,
    ):
        traces.write(traces.recorded(server.client(), clock))


if __name__ == "__main__":
    main()
