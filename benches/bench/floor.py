"""Cost of a call in the server itself, measured with commands in C that compute nothing."""

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from bench.calls import (
    ADMITTED,
    BUCKET,
    DENIED,
    FIVE_YES,
    LIMIT,
    LIMIT_DENIED,
    LIMIT_FOUR,
    MTAKE,
    PEEK,
    THREE_YES,
    Call,
    call,
)
from bench.servers import Setup

SOURCE = Path(__file__).parents[1] / "floor.c"


@dataclass(frozen=True)
class Floor:
    """Call that computes nothing, and the module's calls that cause the same work in the server."""

    call: Call
    ours: tuple[Call, ...]


def build(directory: Path) -> Path:
    """Compiles benches/floor.c."""
    module = directory / "floor.so"
    subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", SOURCE, "-o", module], check=True)
    return module


def floors(module: Path) -> list[Floor]:
    """Returns the floors, to be measured on a server of their own."""
    four = [f"f:{number}" for number in range(4)]
    fill, words = "SET floor a-value EX 3600", "floor 1000000 1000000 1s"
    policy_words = "floor pro"
    result = [
        Floor(
            call("looks at a key", f"FLOOR.LOOK {words}", 6, FIVE_YES, before=fill),
            (DENIED, PEEK),
        ),
        Floor(
            call("changes a key", f"FLOOR.CHANGE {words}", 6, FIVE_YES, before=fill), (ADMITTED,)
        ),
        Floor(
            call(
                "looks at a key by a name",
                f"FLOOR.LOOK {policy_words}",
                6,
                FIVE_YES,
                before=fill,
            ),
            (LIMIT_DENIED,),
        ),
        Floor(
            call(
                "changes a key by a name",
                f"FLOOR.CHANGE {policy_words}",
                6,
                FIVE_YES,
                before=fill,
            ),
            (LIMIT, LIMIT_FOUR),
        ),
        Floor(
            Call(
                "changes four keys",
                (tuple(f"FLOOR.SEVERAL 4 {' '.join(four)} {' '.join([BUCKET] * 4)}".split()),),
                28,
                # The keys have a TTL, like the keys of limiters.
                tuple(("SET", name, "a-value", "EX", "3600") for name in four),
                reply_prefix=THREE_YES,
            ),
            (MTAKE,),
        ),
    ]
    setup = Setup("floor", module=module)
    return [replace(floor, call=replace(floor.call, setup=setup)) for floor in result]
