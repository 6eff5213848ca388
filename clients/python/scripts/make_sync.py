"""Generates the code for threads from the code for asyncio: `make sync`.

Code that differs only by `await` is written once, in the files for asyncio. tests/test_sync.py
fails if the generated files are out of date. Code that differs in other ways is written twice:
transports (tasks.py, threads.py), the renewal of leases, and the locking of units.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import unasync

SOURCE = Path(__file__).parents[1] / "src/redis_ratelimit"

# Generated files by their source files.
TARGETS = {"aio.py": "limiter.py", "aio_bound.py": "bound.py", "aio_gate.py": "sync_gate.py"}

# Replacements of names.
NAMES = {
    "aclose": "close",
    "aio_bound": "bound",
    "AsyncBound": "Bound",
    "AsyncGate": "Gate",
    "AsyncLease": "Lease",
    "AsyncUnits": "Units",
    "tasks": "threads",
}

# Replacements of texts that are not names, or that must be replaced only in one place.
TEXTS = {
    '"""The limiter for asyncio. Its calls are those of `redis_ratelimit.Limiter`, awaited."""': (
        '"""The limiter, for programs with threads or none. `redis_ratelimit.aio` has the one for '
        'asyncio."""'
    ),
    '"""Limits under a name, for asyncio."""': (
        '"""Limits under a name: `limiter.limit("api", Fixed(100, "1m"))`."""'
    ),
    "    @pending\n": "",
    "from redis_ratelimit.pending import pending\n": "",
    '"""Limits of requests, for asyncio."""': '"""Limits of requests, for threads."""',
    "an `async with` block": "a `with` block",
}

HEAD = "# Generated from {} by scripts/make_sync.py: edit that file, and run `make sync`.\n\n"


def sync_code(name: str) -> str:
    """Generates the code for threads from a file for asyncio."""
    code = (SOURCE / name).read_text()
    for text, replacement in TEXTS.items():
        code = code.replace(text, replacement)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "async" / name
        path.parent.mkdir()
        path.write_text(code)
        rule = unasync.Rule(str(path.parent), f"{folder}/sync", additional_replacements=NAMES)
        unasync.unasync_files([str(path)], [rule])
        code = (Path(folder) / "sync" / name).read_text()
    target = SOURCE / TARGETS[name]
    for command in (["check", "--select", "I", "--fix-only"], ["format"]):
        code = subprocess.run(
            [
                sys.executable,
                "-m",
                "ruff",
                *command,
                "--stdin-filename",
                target,
                "-",
            ],
            input=code,
            capture_output=True,
            check=True,
            text=True,
            cwd=SOURCE.parents[1],
        ).stdout
    return HEAD.format(name) + code


if __name__ == "__main__":
    for source, target in TARGETS.items():
        (SOURCE / target).write_text(sync_code(source))
