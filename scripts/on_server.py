"""Runs pytest on one of the servers within reach: on_server.py NUMBER ARGUMENT...

The first one is $SERVER, if that is set, and then there is no second one.
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
        found = [binaries.chosen().path] if os.environ.get("SERVER") else binaries.available()
    except ValueError as error:
        sys.exit(str(error))
    if number > len(found):
        print(f"not tested on a server number {number}: {len(found)} within reach")
        return 0
    words = [sys.executable, "-m", "pytest", "--numprocesses", "auto", *arguments]
    environment = os.environ | {"SERVER": str(found[number - 1])}
    return subprocess.run(words, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
