"""What it costs the server to save and to load many keys, beside as many strings.

An AOF is rewritten as commands here (aof-use-rdb-preamble no). With the preamble, the default, it
is a snapshot, the saving of which is half of a reload.
"""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench import calls
from bench.calls import prepare
from bench.fill import fill, template
from bench.scale import Scale
from bench.servers import AOF, Measured, Setup, serving
from bench.wire import Pipe
from support import poll
from support.binaries import Binary

SET_EX, BUCKET = "SET EX", "RL.TOKENBUCKET"
KEYS = {
    SET_EX: template("SET {key} value EX 1000000", lines=1),
    BUCKET: template("RL.TOKENBUCKET {key} 1000000 100000 3650d"),
}
RELOAD, REWRITE = "reload", "AOF rewrite"
WRITING = [calls.SET_EX, calls.ADMITTED, calls.IN_USE, calls.LIMIT, calls.LIMIT_IN_USE]
WRITING += [calls.LIMIT_FOUR, calls.MTAKE]
AOF_BATCH, AOF_BATCHES = 100, 20
AS_COMMANDS = Setup("as commands", (("aof-use-rdb-preamble", "no"),))


@dataclass(frozen=True)
class Persistence:
    keys: int
    # Seconds of processor time, by what is done and which keys.
    seconds: dict[tuple[str, str], float]
    # What a call adds to the AOF, in bytes, by the call's name. Figures from before have none.
    aof_bytes: dict[str, float] = field(default_factory=dict)


def measure(binary: Binary, scale: Scale) -> Persistence:
    rounds: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serving(binary, AS_COMMANDS)) for name in KEYS}
        for name, server in servers.items():
            with Pipe(server.port) as pipe:
                fill(pipe, KEYS[name], range(scale.keys))
        kinds: dict[str, Callable[[Measured], float]] = {RELOAD: _reload, REWRITE: _rewrite}
        for _ in range(scale.rounds):
            for kind, measured in kinds.items():
                for name, server in servers.items():
                    rounds.setdefault((kind, name), []).append(measured(server))
    seconds = {which: statistics.median(found) for which, found in rounds.items()}
    return Persistence(scale.keys, seconds, _aof_bytes(binary))


def _aof_bytes(binary: Binary) -> dict[str, float]:
    """What calls on one key add to the AOF. The first calls make the key, and are not counted."""
    found = {}
    with serving(binary, AOF) as server:

        def size() -> int:
            return server.admin.info("persistence")["aof_current_size"]

        for call in WRITING:
            prepare(server, call)
            with Pipe(server.port) as pipe:
                batch, lines = call.batch(0, AOF_BATCH), call.lines * AOF_BATCH
                pipe.run(batch, lines, call.begins)
                before = size()
                for _ in range(AOF_BATCHES):
                    pipe.run(batch, lines, call.begins)
                found[call.name] = (size() - before) / (AOF_BATCH * AOF_BATCHES)
    return found


def _reload(server: Measured) -> float:
    """Saves and loads, as a restart does."""
    before = server.cpu_seconds()
    server.admin.execute_command("DEBUG", "RELOAD")
    return server.cpu_seconds() - before


def _rewrite(server: Measured) -> float:
    """Of the child that writes."""

    def children() -> float:
        info = server.admin.info("cpu")
        return info["used_cpu_user_children"] + info["used_cpu_sys_children"]

    before = children()
    server.admin.bgrewriteaof()
    poll.until(
        lambda: not server.admin.info("persistence")["aof_rewrite_in_progress"],
        "the AOF is rewritten",
        timeout=120,
    )
    return children() - before
