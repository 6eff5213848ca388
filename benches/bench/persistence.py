"""Cost of saving and loading many keys, compared with as many strings.

Here, the AOF is rewritten as commands (aof-use-rdb-preamble no). By default, it is rewritten as a
snapshot, which costs half as much as a reload.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from bench import calls
from bench.calls import prepare
from bench.fill import fill, template
from bench.pairs import Pair, alternate
from bench.scale import Scale
from bench.servers import AOF, MeasuredServer, Setup, serving
from bench.wire import Pipe
from support import poll
from support.binaries import Binary

SET_EX, BUCKET = "SET EX", "RL.TOKENBUCKET"
KEYS = {
    SET_EX: template("SET {key} value EX 1000000", lines=1),
    BUCKET: template("RL.TOKENBUCKET {key} 1000000 100000 3650d"),
}
RELOAD, REWRITE = "reload", "AOF rewrite"
WRITING_CALLS = [calls.SET_EX, calls.ADMITTED, calls.IN_USE, calls.LIMIT, calls.LIMIT_IN_USE]
WRITING_CALLS += [calls.LIMIT_FOUR, calls.MTAKE]
AOF_BATCH, AOF_BATCHES = 100, 20
AS_COMMANDS = Setup("as commands", (("aof-use-rdb-preamble", "no"),))


@dataclass(frozen=True)
class Persistence:
    keys: int
    # Processor time for all keys, compared with as many keys of SET EX, by RELOAD and REWRITE.
    pairs: dict[str, Pair]
    # Bytes that a call adds to the AOF, by the call's name.
    aof_bytes: dict[str, float]


def measure(binary: Binary, scale: Scale) -> Persistence:
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(binary, AS_COMMANDS)) for _ in KEYS]
        for server, form in zip(servers, KEYS.values(), strict=True):
            with Pipe(server.port) as pipe:
                fill(pipe, form, range(scale.keys))
        pairs = {}
        kinds: dict[str, Callable[[MeasuredServer], float]] = {RELOAD: _reload, REWRITE: _rewrite}
        for kind, run in kinds.items():
            set_ex, bucket = (partial(run, server) for server in servers)
            pairs |= alternate(set_ex, {kind: bucket}, scale.rounds)
    return Persistence(scale.keys, pairs, _aof_bytes(binary))


def _aof_bytes(binary: Binary) -> dict[str, float]:
    """Returns the bytes that calls on one key add to the AOF, without the bytes that create the
    key.
    """
    bytes_per_call = {}
    with serving(binary, AOF) as server:

        def size() -> int:
            info = server.admin.info("persistence")
            # Writes are buffered while the disk is synchronised.
            return info["aof_current_size"] + info["aof_buffer_length"]

        for call in WRITING_CALLS:
            prepare(server, call)
            with Pipe(server.port) as pipe:
                batch, lines = call.batch(0, AOF_BATCH), call.lines * AOF_BATCH
                pipe.run(batch, lines, call.reply_prefix)
                before = size()
                for _ in range(AOF_BATCHES):
                    pipe.run(batch, lines, call.reply_prefix)
                bytes_per_call[call.name] = (size() - before) / (AOF_BATCH * AOF_BATCHES)
    return bytes_per_call


def _reload(server: MeasuredServer) -> float:
    """Saves and loads all keys, like a restart. Returns the processor time in nanoseconds."""
    before = server.cpu_seconds()
    server.admin.execute_command("DEBUG", "RELOAD")
    return (server.cpu_seconds() - before) * 1e9


def _rewrite(server: MeasuredServer) -> float:
    """Rewrites the AOF. Returns the processor time of the child in nanoseconds."""

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
    return (children() - before) * 1e9
