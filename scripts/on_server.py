"""Runs pytest on one of the available servers: on_server.py NUMBER ARGUMENT...

If $SERVER is set, it is the only available server.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import binaries


def main() -> int:
    number, arguments = int(sys.argv[1]), sys.argv[2:]
    try:
        servers = [binaries.chosen().path] if os.environ.get("SERVER") else binaries.available()
    except ValueError as error:
        sys.exit(str(error))
    if number > len(servers):
        print(f"not tested on a server number {number}: {len(servers)} within reach")
        return 0
    words = [sys.executable, "-m", "pytest", "--numprocesses", "auto", *arguments]
    environment = os.environ | {"SERVER": str(servers[number - 1])}
    return subprocess.run(words, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
