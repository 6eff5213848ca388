"""Memory per key, with its name and expiry, of a million keys."""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.calls import Peer, Script
from bench.fill import Template, fill, template
from bench.scale import Scale
from bench.servers import PLAIN, MeasuredServer, Setup, serving
from bench.wire import Pipe
from support.binaries import Binary


@dataclass(frozen=True)
class State:
    """State for one user, and the commands that create it."""

    name: str
    template: Template
    # Number of times that the commands are sent.
    times: int = 1
    script: Script | None = None
    setup: Setup = PLAIN


@dataclass(frozen=True)
class Memory:
    """Bytes for one user, by the name of the state."""

    keys: int
    ours: dict[str, int]
    others: dict[str, int]
    peers: dict[str, int]


def _idempotent(count: int, form: str) -> Template:
    """Returns `count` calls, each with an idempotency key as long as a UUID."""
    calls = (form.format(id=f"{number:036}") for number in range(count))
    return template(*calls, lines=6 * count)


def _leases(count: int) -> State:
    calls = (f"RL.ACQUIRE {{key}} 100 1d worker-{number}" for number in range(count))
    return State(f"RL.ACQUIRE, {count} leases", template(*calls, lines=6 * count))


BUCKET = State("RL.TOKENBUCKET", template("RL.TOKENBUCKET {key} 100 100 100d"))
LEASE = State("RL.ACQUIRE, 1 lease", template("RL.ACQUIRE {key} 100 1d worker-1"))
TWO_LIMITS = State("RL.TAKE of 2 limits", template("RL.TAKE {key} FIXED 100 1h FIXED 100 1d"))
FOUR_LIMITS = State(
    "RL.TAKE of 4 limits",
    template("RL.TAKE {key} FIXED 100 1h FIXED 100 1d FIXED 100 7d TOKENBUCKET 10 1 1d"),
)
_ONCE = "RL.TAKE {{key}} ONCE {id} 1d TOKENBUCKET 100 100 100d"
IDEMPOTENT = State("RL.TAKE, ONCE, 1 idempotency key", _idempotent(1, _ONCE))
OURS = [
    BUCKET,
    State("RL.FIXED", template("RL.FIXED {key} 100 1d")),
    State("RL.SLIDING", template("RL.SLIDING {key} 100 1d")),
    State("RL.SLIDING STRICT", template("RL.SLIDING {key} 100 1d STRICT")),
    State("RL.SLIDINGLOG, 1 entry", template("RL.SLIDINGLOG {key} 100 1d")),
    State("RL.SLIDINGLOG, 10 entries", template("RL.SLIDINGLOG {key} 100 1d"), times=10),
    LEASE,
    _leases(10),
    TWO_LIMITS,
    FOUR_LIMITS,
    IDEMPOTENT,
    State("RL.TAKE, ONCE, 10 idempotency keys", _idempotent(10, _ONCE)),
]

_SCRIPT = Script.read("token_bucket")
_HASH = template(" ".join(_SCRIPT.eval("{key}", "100 100 8640000 1")))
STRING = "a string with an expiry (SET EX)"
# The bucket is charged twice, because from the second charge on the tokens are a fraction.
LUA_BUCKET = State("the Lua token bucket, charged twice", _HASH, times=2, script=_SCRIPT)
OTHERS = [State(STRING, template("SET {key} value EX 100000", lines=1)), LUA_BUCKET]


def measure(binary: Binary, scale: Scale, peers: Iterable[Peer]) -> Memory:
    def bytes_by_name(states: Iterable[State]) -> dict[str, int]:
        return {state.name: _bytes(binary, state, scale.keys) for state in states}

    return Memory(
        scale.keys,
        bytes_by_name(OURS),
        bytes_by_name(OTHERS),
        bytes_by_name(
            State(peer.name, template(peer.line, lines=peer.lines), setup=peer.setup)
            for peer in peers
        ),
    )


def _bytes(binary: Binary, state: State, keys: int) -> int:
    with serving(binary, state.setup) as server:
        if state.script:
            server.admin.execute_command(*state.script.load)
        before = _used_memory(server)
        with Pipe(server.port) as pipe:
            fill(pipe, state.template, range(keys), state.times)
        # The server's own memory is subtracted.
        return round((_used_memory(server) - before) / keys)


def _used_memory(server: MeasuredServer) -> int:
    return server.admin.info("memory")["used_memory"]
