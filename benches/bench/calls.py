"""Calls that are measured. All are admitted unless their name says otherwise."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from bench.servers import AOF, CLUSTER, PLAIN, REPLICA, MeasuredServer, Setup
from bench.wire import Words, pack

LUA = Path(__file__).parents[1] / "lua"

# Placeholder in the words of a command for a number that differs each time. It is the placeholder
# of redis-benchmark, and as long as the number.
NUMBER = "__rand_int__"


@dataclass(frozen=True)
class Call:
    """Commands that are the same each time, except for a NUMBER."""

    name: str
    commands: tuple[Words, ...]
    # Total number of lines in the replies to all commands.
    lines: int
    # Commands that must be sent once, before the call.
    before: tuple[Words, ...] = ()
    setup: Setup = PLAIN
    # Beginning of the expected reply to the first command.
    reply_prefix: bytes = b""

    @property
    def is_one_command(self) -> bool:
        """Returns `True` for a single command, which redis-benchmark can send."""
        return len(self.commands) == 1

    @property
    def is_set_ex(self) -> bool:
        return self.commands == SET_EX.commands

    @property
    def is_lua(self) -> bool:
        return self.commands[0][0] == "EVALSHA"

    @cached_property
    def encoded(self) -> bytes:
        return b"".join(map(pack, self.commands))

    def batch(self, first: int, count: int) -> bytes:
        """Encodes the call `count` times, with the numbers from `first` on."""
        number = NUMBER.encode()
        if number not in self.encoded:
            return self.encoded * count
        digits = (b"%012d" % value for value in range(first, first + count))
        return b"".join(self.encoded.replace(number, value) for value in digits)

    def with_setup(self, setup: Setup) -> "Call":
        """Returns the same call on a server with this setup."""
        if setup == self.setup:
            return self
        return replace(self, name=f"{self.name}, {setup.name}", setup=setup)


def call(name: str, line: str, lines: int, reply_prefix: bytes, *, before: str = "") -> Call:
    """Creates a call of one command, written as in redis-cli."""
    preparation = (tuple(before.split()),) if before else ()
    return Call(name, (tuple(line.split()),), lines, preparation, reply_prefix=reply_prefix)


@dataclass(frozen=True)
class Script:
    """A Lua script from benches/lua."""

    text: str

    @classmethod
    def read(cls, name: str) -> "Script":
        return cls((LUA / f"{name}.lua").read_text())

    @property
    def load(self) -> Words:
        return ("SCRIPT", "LOAD", self.text)

    @property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode()).hexdigest()

    def eval(self, keys: str, arguments: str) -> Words:
        names = keys.split()
        return ("EVALSHA", self.sha, str(len(names)), *names, *arguments.split())

    def call(self, name: str, keys: str, arguments: str, lines: int, reply_prefix: bytes) -> Call:
        return Call(
            name, (self.eval(keys, arguments),), lines, (self.load,), reply_prefix=reply_prefix
        )


# Beginnings of replies with the given number of integers. The first integer is 1 for an admitted
# call, but 0 in the replies of redis-cell.
FIVE_YES, FIVE_NO = b"*5\r\n:1\r\n", b"*5\r\n:0\r\n"
TWO_YES, THREE_YES, SIX_YES = b"*2\r\n:1\r\n", b"*3\r\n:1\r\n", b"*6\r\n:1\r\n"

# Capacity and refill that are large enough that no measured call is denied.
PLENTY = "1000000 1000000"
BUCKET = f"TOKENBUCKET {PLENTY} 1s"
# Window in milliseconds. It is short, so that the compared logs stay small.
LOG_WINDOW = 50

SET_EX = call("SET EX", "SET string value EX 60", 1, b"+OK")

# Each call creates a key. Only instructions are counted, because timing would create millions of
# keys.
SET_NEW = call("SET EX, a new key", f"SET new:{NUMBER} value EX 60", 1, b"+OK")

ADMITTED = call("RL.TOKENBUCKET", f"RL.TOKENBUCKET bucket {PLENTY} 1s", 6, FIVE_YES)
DENIED = call(
    "RL.TOKENBUCKET denied",
    "RL.TOKENBUCKET full 10 10 1d",
    6,
    FIVE_NO,
    before="RL.TOKENBUCKET full 10 10 1d COST 10",
)
# The bucket never refills completely, so the reply has a reset time.
IN_USE = call("RL.TOKENBUCKET, in use", "RL.TOKENBUCKET used 1000000 1000 1s", 6, FIVE_YES)
NEW = call("RL.TOKENBUCKET, a new key", f"RL.TOKENBUCKET new:{NUMBER} {PLENTY} 1s", 6, FIVE_YES)
NEW_KEYS = [SET_NEW, NEW]
PEEK = call(
    "RL.PEEK",
    f"RL.PEEK peeked {BUCKET}",
    6,
    FIVE_YES,
    before="RL.TOKENBUCKET peeked 1000000 1 1s COST 9000",
)
# The keys share a slot, for clusters.
_FOUR_KEYS = "{m}:1 {m}:2 {m}:3 {m}:4"
MTAKE = call(
    "RL.MTAKE of 4 keys", f"RL.MTAKE 4 {_FOUR_KEYS} {' '.join([BUCKET] * 4)}", 28, THREE_YES
)
FIXED = call("RL.FIXED", "RL.FIXED window 1000000000 1h", 6, FIVE_YES)
SLIDING = call("RL.SLIDING", "RL.SLIDING slider 1000000000 1h", 6, FIVE_YES)
STRICT = call("RL.SLIDING STRICT", "RL.SLIDING strict 1000000000 1h STRICT", 6, FIVE_YES)
LOG = call("RL.SLIDINGLOG", f"RL.SLIDINGLOG log 1000000 {LOG_WINDOW}ms", 6, FIVE_YES)
LEAKY = call("RL.LEAKYBUCKET", f"RL.LEAKYBUCKET queue {PLENTY} 1s", 6, FIVE_YES)
THROTTLE = call("RL.THROTTLE", "RL.THROTTLE throttle 999999 1000000 1", 6, FIVE_NO)
SKETCH = call("RL.SKETCH", f"RL.SKETCH sketch 203.0.113.7 {PLENTY} 1s", 6, FIVE_YES)
SKETCH_DENIED = call(
    "RL.SKETCH denied",
    "RL.SKETCH sketch:full 203.0.113.7 10 10 1d",
    6,
    FIVE_NO,
    before="RL.SKETCH sketch:full 203.0.113.7 10 10 1d COST 10",
)
LEASE = Call(
    "RL.ACQUIRE and RL.RELEASE",
    (("RL.ACQUIRE", "pool", "1000", "1h", "worker"), ("RL.RELEASE", "pool", "worker")),
    7,
    reply_prefix=FIVE_YES,
)
RENEWAL = call("RL.ACQUIRE, a renewal", "RL.ACQUIRE renewed 1000 1h worker", 6, FIVE_YES)

TAKE = call("RL.TAKE", f"RL.TAKE taken {BUCKET}", 6, FIVE_YES)
_FOUR_BUCKETS = " ".join(f"TOKENBUCKET {PLENTY} {seconds}s" for seconds in (1, 2, 3, 4))
LIMITS = call("RL.TAKE of 4 limits", f"RL.TAKE limits {_FOUR_BUCKETS}", 6, FIVE_YES)
_FOUR_SMALL_BUCKETS = " ".join(f"TOKENBUCKET 10 10 {days}d" for days in (1, 2, 3, 4))
LIMITS_DENIED = call(
    "RL.TAKE of 4 limits, denied",
    f"RL.TAKE limits:full {_FOUR_SMALL_BUCKETS}",
    6,
    FIVE_NO,
    before=f"RL.TAKE limits:full COST 10 {_FOUR_SMALL_BUCKETS}",
)
# Lifetime of ids in milliseconds. It is short enough that the ids of a key fit the processor's
# cache, and long enough that they never fit one block, even under valgrind.
ID_LIFETIME_MS = 20
ONCE = call("RL.TAKE, ONCE", f"RL.TAKE once ONCE {NUMBER} {ID_LIFETIME_MS}ms {BUCKET}", 6, FIVE_YES)
REPEATED = call("RL.TAKE, ONCE, sent again", f"RL.TAKE again ONCE id 1d {BUCKET}", 6, FIVE_YES)
SETTLED = Call(
    "RL.TAKE, ONCE, and its SETTLE",
    (
        tuple(f"RL.TAKE settled COST 4000 ONCE {NUMBER} {ID_LIFETIME_MS}ms {BUCKET}".split()),
        tuple(f"RL.TAKE settled SETTLE {NUMBER} 2 {BUCKET}".split()),
    ),
    12,
    reply_prefix=FIVE_YES,
)
SEVERAL = [TAKE, LIMITS, LIMITS_DENIED, MTAKE, ONCE, REPEATED]


def by_policy(
    name: str,
    line: str,
    lines: int,
    reply_prefix: bytes,
    specs: str,
    *,
    fill: str = "",
    others: int = 0,
) -> Call:
    """Creates a call with a policy, whose name is the last word of `line`.

    The server also has `others` other policies. The command `fill` is sent before the call.
    """
    words = tuple(line.split())
    names = [*(f"beside:{number}" for number in range(others)), words[-1]]
    preparation = [("RL.POLICYSET", policy, *specs.split()) for policy in names]
    preparation += [tuple(fill.split())] if fill else []
    policy_call = Call(name, (words,), lines, tuple(preparation), reply_prefix=reply_prefix)
    return replace(policy_call, setup=MANY_POLICIES) if others else policy_call


MANY_POLICIES = replace(PLAIN, name="4,096 policies")
_SMALL_BUCKET = "TOKENBUCKET 10 10 1d"
LIMIT = by_policy("RL.LIMIT", "RL.LIMIT l pro", 6, FIVE_YES, BUCKET)
LIMIT_DENIED = by_policy(
    "RL.LIMIT denied",
    "RL.LIMIT l:full low",
    6,
    FIVE_NO,
    _SMALL_BUCKET,
    fill="RL.LIMIT l:full low COST 10",
)
LIMIT_IN_USE = by_policy(
    "RL.LIMIT, in use", "RL.LIMIT l:used used", 6, FIVE_YES, "TOKENBUCKET 1000000 1000 1s"
)
DELAY = by_policy("RL.DELAY", "RL.DELAY d pro", 1, b":0", BUCKET)
DELAY_DENIED = by_policy(
    "RL.DELAY denied",
    "RL.DELAY d:full low",
    1,
    b":",
    _SMALL_BUCKET,
    fill="RL.LIMIT d:full low COST 10",
)
LIMIT_FOUR = by_policy("RL.LIMIT of 4 limits", "RL.LIMIT l:4 four", 6, FIVE_YES, _FOUR_BUCKETS)
LIMIT_FOUR_DENIED = by_policy(
    "RL.LIMIT of 4 limits, denied",
    "RL.LIMIT l:4:full four:low",
    6,
    FIVE_NO,
    _FOUR_SMALL_BUCKETS,
    fill="RL.LIMIT l:4:full four:low COST 10",
)
LIMIT_AMONG_MANY = by_policy(
    "RL.LIMIT, one of 4,096 policies", "RL.LIMIT l pro", 6, FIVE_YES, BUCKET, others=4095
)
BY_POLICY = [LIMIT, LIMIT_IN_USE, LIMIT_DENIED, DELAY, DELAY_DENIED, LIMIT_FOUR, LIMIT_FOUR_DENIED]

# Calls of this module.
OURS = [
    *(ADMITTED, IN_USE, DENIED, PEEK, FIXED, SLIDING, STRICT, LOG, LEAKY, THROTTLE, RENEWAL),
    *SEVERAL,
    *BY_POLICY,
    LIMIT_AMONG_MANY,
]

# Frequent calls, alone and under the conditions of production.
PRODUCTION = [
    frequent_call.with_setup(setup)
    for setup in (PLAIN, AOF, REPLICA, CLUSTER)
    for frequent_call in (SET_EX, ADMITTED, LIMIT, LIMIT_FOUR, MTAKE, ONCE)
]

_BUCKET = Script.read("token_bucket")
LUA_BUCKET = _BUCKET.call("Lua token bucket", "lua:bucket", f"{PLENTY} 1 1", 6, FIVE_YES)
LUA_FIXED = Script.read("fixed_window").call(
    "Lua fixed window", "lua:window", "1000000000 3600000", 3, TWO_YES
)
LUA_SLIDING = Script.read("sliding_window").call(
    "Lua sliding window", "lua:slider", "1000000000 3600000", 3, TWO_YES
)
LUA_LOG = Script.read("sliding_log").call(
    "Lua sliding log", "lua:log", f"1000000 {LOG_WINDOW}", 3, TWO_YES
)
LUA_ONE_SCRIPT = Script.read("four_token_buckets").call(
    "4 token buckets in one Lua script",
    _FOUR_KEYS.replace("m", "lua"),
    " ".join([f"{PLENTY} 1"] * 4),
    7,
    SIX_YES,
)
LUA_LIMITS = Script.read("four_limits").call(
    "4 token buckets of one key in Lua",
    "lua:limits",
    " ".join(f"{PLENTY} {seconds}" for seconds in (1, 2, 3, 4)),
    7,
    SIX_YES,
)

# Limiters with the equivalent Lua script.
AGAINST_LUA = [
    (ADMITTED, LUA_BUCKET),
    (FIXED, LUA_FIXED),
    (SLIDING, LUA_SLIDING),
    (LOG, LUA_LOG),
    (MTAKE, LUA_ONE_SCRIPT),
    (LIMITS, LUA_LIMITS),
]

SKETCHES = [SKETCH, SKETCH_DENIED]
ALL = list(
    dict.fromkeys(
        [
            *PRODUCTION,
            *NEW_KEYS,
            *OURS,
            *SKETCHES,
            LEASE,
            SETTLED,
            *(lua for _, lua in AGAINST_LUA),
        ]
    )
)


@dataclass(frozen=True)
class Peer:
    """Rate limiting module for comparison, which the user has built."""

    name: str
    module: Path
    # Call with {key} in place of the key. The call is always admitted, and its key lives for
    # minutes.
    line: str = "CL.THROTTLE {key} 5000000 1 1000"
    lines: int = 6

    @classmethod
    def parse(cls, text: str) -> "Peer":
        """Parses NAME=PATH.so, or NAME=PATH.so=LINES=COMMAND for another command."""
        name, path, *rest = text.split("=", 3)
        if not Path(path).is_file():
            raise ValueError(f"{path} is not a file")
        peer = cls(name, Path(path).absolute())
        return replace(peer, lines=int(rest[0]), line=rest[1]) if rest else peer

    @property
    def setup(self) -> Setup:
        """Returns the setup of a server with this module."""
        return Setup(self.name, module=self.module)

    @property
    def call(self) -> Call:
        peer_call = call(
            f"{self.name} {self.line.split()[0]}", self.line.format(key="peer"), self.lines, b""
        )
        return replace(peer_call, setup=self.setup)


def prepare(server: MeasuredServer, call: Call) -> None:
    """Sends the commands that must precede the call."""
    for words in call.before:
        server.admin.execute_command(*words)
