"""What the server itself spends on a call, whatever a module computes: commands that compute
nothing, in C.
"""

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from bench.calls import ADMITTED, BUCKET, DENIED, FIVE_YES, MTAKE, PEEK, THREE_YES, Call, call
from bench.servers import Setup

SOURCE = Path(__file__).parents[1] / "floor.c"


@dataclass(frozen=True)
class Floor:
    """A call that computes nothing, and those of ours that do all that it does."""

    call: Call
    ours: tuple[Call, ...]


def build(directory: Path) -> Path:
    """Compiles the module."""
    module = directory / "floor.so"
    subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", SOURCE, "-o", module], check=True)
    return module


def floors(module: Path) -> list[Floor]:
    """They have a server of their own."""
    key, words = "SET floor a-value EX 3600", "floor 1000000 1000000 1s"
    found = [
        Floor(
            call("looks at a key", f"FLOOR.LOOK {words}", 6, FIVE_YES, before=key), (DENIED, PEEK)
        ),
        Floor(call("changes a key", f"FLOOR.CHANGE {words}", 6, FIVE_YES, before=key), (ADMITTED,)),
        Floor(
            call(
                "changes four keys",
                f"FLOOR.SEVERAL 4 f:1 f:2 f:3 f:4 {' '.join([BUCKET] * 4)}",
                28,
                THREE_YES,
                before="MSET f:1 a f:2 a f:3 a f:4 a",
            ),
            (MTAKE,),
        ),
    ]
    setup = Setup("floor", module=module)
    return [replace(floor, call=replace(floor.call, setup=setup)) for floor in found]
