"""Cost of a call by the number of keys, and by the size of the tables and logs in a key."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from bench.fill import batches, fill, template
from bench.pairs import Pair, alternate
from bench.scale import Scale
from bench.servers import MeasuredServer, Setup, serving
from bench.wire import Pipe, pack
from support.binaries import Binary

# Calls of one round.
CALLS = 50_000
BATCH = 100

SET_EX = "SET EX"
BUCKET = "RL.TOKENBUCKET"
BY_KEYS = {
    SET_EX: template("SET {key} value EX 1000000", lines=1),
    # The recovery takes longer than the benchmark, so that no key expires.
    BUCKET: template("RL.TOKENBUCKET {key} 1000000 100000 3650d"),
}

LOG = "RL.SLIDINGLOG, a charge and a give-back"
RENEWAL = "RL.ACQUIRE, a renewal"
LEASE = "RL.ACQUIRE and RL.RELEASE"
REPEATED = "RL.TAKE, ONCE, sent again"
WITHOUT_ONCE = "RL.TAKE without ONCE"
BY_SIZE = (LOG, RENEWAL, LEASE, REPEATED, WITHOUT_ONCE)
# Setup whose maxima are above the largest size.
ROOM = Setup("room", module_args="max-log-entries 1000000 max-leases 1000000")

# Batches of commands, and the lines of the replies to each.
Batches = Iterator[tuple[bytes, int]]
Numbers = list[int] | range


@dataclass(frozen=True)
class Growth:
    """Server processor time of a call, by the number of keys or entries."""

    # Time by the number of keys, compared with SET EX with as many keys.
    by_keys: dict[int, Pair]
    # Time by the call's name and the size, compared with the same call at the smallest size.
    by_size: dict[tuple[str, int], Pair]


def measure(binary: Binary, scale: Scale) -> Growth:
    return Growth(_by_keys(binary, scale), _by_size(binary, scale))


def _by_keys(binary: Binary, scale: Scale) -> dict[int, Pair]:
    """Times calls on random keys. Each kind of key has a server of its own."""
    pairs_by_count = {}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serving(binary)) for name in BY_KEYS}
        pipes = {name: stack.enter_context(Pipe(server.port)) for name, server in servers.items()}
        key_count = 0
        for count in scale.key_counts:

            def run(name: str, count: int = count) -> float:
                keys = random.choices(range(count), k=CALLS)
                return _cost(servers[name], pipes[name], batches(BY_KEYS[name], keys, BATCH))

            for name, form in BY_KEYS.items():
                fill(pipes[name], form, range(key_count, count))
            key_count = count
            set_ex, bucket = (partial(run, name) for name in BY_KEYS)
            pairs_by_count[count] = alternate(set_ex, {BUCKET: bucket}, scale.rounds)[BUCKET]
    return pairs_by_count


def _by_size(binary: Binary, scale: Scale) -> dict[tuple[str, int], Pair]:
    batch_functions: list[Callable[[int], Batches]] = [
        _log,
        _renewals,
        _leases,
        _repeated,
        _without_once,
    ]
    pairs_by_size = {}
    with serving(binary, ROOM) as server, Pipe(server.port) as pipe:
        for size in scale.table_sizes:
            for batches_of in (_acquires, _takes_once):
                for batch, lines in batches_of(size, range(size)):
                    pipe.run(batch, lines)

        def run(batches_of: Callable[[int], Batches], size: int) -> float:
            if batches_of is _log:
                _lengthen_log(server, pipe, size)
            return _cost(server, pipe, batches_of(size))

        smallest, *others = scale.table_sizes
        for name, batches_of in zip(BY_SIZE, batch_functions, strict=True):
            runs = {str(size): partial(run, batches_of, size) for size in others}
            pairs = alternate(partial(run, batches_of, smallest), runs, scale.rounds)
            pairs_by_size |= {(name, int(size)): pair for size, pair in pairs.items()}
    return pairs_by_size


def _cost(server: MeasuredServer, pipe: Pipe, batches: Batches) -> float:
    """Returns the nanoseconds of processor time of the server for each of CALLS calls."""
    batch_list = list(batches)
    before = server.cpu_seconds()
    for batch, lines in batch_list:
        pipe.run(batch, lines)
    return (server.cpu_seconds() - before) / CALLS * 1e9


def _charge(size: int) -> tuple[str, ...]:
    return ("RL.SLIDINGLOG", f"log:{size}", "1000000", "1h")


def _lengthen_log(server: MeasuredServer, pipe: Pipe, size: int) -> None:
    """Adds entries until the log has `size` entries. Calls in one microsecond share an entry."""
    command = pack(_charge(size))
    while (missing := size - _entries(server.admin.execute_command("RL.INFO", f"log:{size}"))) > 0:
        count = min(missing, BATCH)
        pipe.run(command * count, 6 * count)


def _entries(info: list[str | int] | None) -> int:
    """Returns the number of entries in a reply of RL.INFO, where names and values alternate."""
    return int(info[info.index("entries") + 1]) if info else 0


def _log(size: int) -> Batches:
    """Yields pairs of a charge and a give-back, which removes the oldest entry."""
    pair = pack(_charge(size)) + pack((*_charge(size), "COST", "-1"))
    for _ in range(CALLS // BATCH):
        yield pair * BATCH, 12 * BATCH


def _renewals(size: int) -> Batches:
    return _acquires(size, random.choices(range(size), k=CALLS))


def _leases(size: int) -> Batches:
    """Yields calls of a holder that is not in the table."""
    pair = pack(_acquire(size, "new")) + pack(("RL.RELEASE", f"pool:{size}", "new"))
    for _ in range(CALLS // BATCH):
        yield pair * BATCH, 7 * BATCH


def _acquire(size: int, holder: str) -> tuple[str, ...]:
    return ("RL.ACQUIRE", f"pool:{size}", "1000000", "1h", holder)


def _acquires(size: int, holders: Numbers) -> Batches:
    return _batches_of(lambda holder: _acquire(size, f"worker-{holder}"), holders)


def _takes_once(size: int, ids: Numbers) -> Batches:
    return _batches_of(lambda id_: _take(size, "ONCE", f"req-{id_}", "1d"), ids)


def _repeated(size: int) -> Batches:
    return _takes_once(size, random.choices(range(size), k=CALLS))


def _without_once(size: int) -> Batches:
    """Returns calls without an id, on a key with ids."""
    return _batches_of(lambda _: _take(size), range(CALLS))


def _take(size: int, *options: str) -> tuple[str, ...]:
    return ("RL.TAKE", f"ids:{size}", *options, "TOKENBUCKET", "1000000000", "1000000", "1s")


def _batches_of(words: Callable[[int], tuple[str, ...]], numbers: Numbers) -> Batches:
    for start in range(0, len(numbers), BATCH):
        part = numbers[start : start + BATCH]
        yield b"".join(pack(words(number)) for number in part), 6 * len(part)
