"""COMMAND DOCS documents exactly the arguments that each command takes."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import pytest
from redis import Redis

from support.clock import START_US
from support.server import Server

pytestmark = pytest.mark.every_server

# A value for every argument that is not a literal, by name. `{n}` makes repeated values differ: two
# limits must have different windows.
VALUES = {
    **dict.fromkeys(["capacity", "refill", "leak", "limit", "max_burst", "count"], "10"),
    "window": "6{n}s",
    "ttl": "60s",
    "key": "k{n}",
    "period": "6{n}",
    "holder": "holder{n}",
    "item": "item{n}",
    "size": "64kb",
    "cost": "2",
    "maxwait": "1s",
    "keep": "20%",
    "name": "name{n}",
    "id": "id",
    "amount": "3",
    "offset": "+09:00",
    "day": "15",
    "strikes": "3",
    "block": "1h",
    "longest": "1d",
    "least": "0.2",
    "step": "0.1",
    "most": "2",
    "interval": "1s",
    "duration": "1h",
    "quantity": "2",
    "other": "name{n}",
    "version": "1",
    "factor": "0.5",
    "pattern": "name*",
    "record": f"rl-policy 1 3:new {START_US} 7 {START_US} 7 1 1 10:FIXED 5 1h 0 0 1000000 0",
    "effect": f"rl-bucket 1 {START_US // 1000 + 60_000} 1 1",
}

# All options. By the grammar alone, any option may follow the numbers of any algorithm.
OPTIONS = [
    ("ALIGNED",),
    ("ALIGNED", "OFFSET", "+09:00"),
    ("STRICT",),
    ("COST", "2"),
    ("UPTO",),
    ("FORCE",),
    ("MAXWAIT", "1s"),
    ("KEEP", "20%"),
    ("AS", "name{n}"),
    ("NX",),
    ("ONCE", "id", "60s"),
    ("SETTLE", "id", "3"),
    ("EACH",),
    ("SHADOW",),
    ("SIZE", "64kb"),
    ("ITEM", "item{n}"),
]

# Options that exclude each other, although the syntax line allows them together.
EXCLUSIVE = [
    {"KEEP", "FORCE"},
    *({"SETTLE", other} for other in ("COST", "UPTO", "FORCE", "MAXWAIT", "KEEP")),
]

# Parts of errors about arguments that exclude each other, or about an unexpected version.
EXPECTED_ERRORS = (
    ", since ",
    "cannot be combined with",
    "must come before the first",
    "must be the only spec of its key",
    "has version",
)

# Commands whose arguments may be any text: holders, policy names, records.
WITHOUT_OPTIONS = {"rl.release", "rl.policydel", "rl.policyeffect"}

# Calls that set the policies which other calls name.
POLICIES = [("RL.POLICYSET", f"name{number}", "FIXED", "10", "60s") for number in range(1, 5)]

Words = tuple[str, ...]


class Call(NamedTuple):
    """Call, and its optional arguments."""

    words: Words
    options: frozenset[Words] = frozenset()

    def __add__(self, other: "Call") -> "Call":
        return Call(self.words + other.words, self.options | other.options)


Docs = dict[str, list[dict[bytes, object]]]


@pytest.fixture
def docs(resp3: Redis, server: Server) -> Docs:
    """Returns the documented arguments of every command."""
    if server.version < (7,):
        pytest.skip("the server has no COMMAND DOCS")
    names = [name for name in resp3.command() if name.startswith("rl.")]
    assert len(names) == 25
    replies = resp3.execute_command("COMMAND DOCS", *names)
    return {name.decode(): reply[b"arguments"] for name, reply in replies.items()}


def sequences(arguments: list[dict[bytes, object]], times: int) -> Iterator[Call]:
    """Generates the calls that these arguments allow, with repeatable arguments `times` times."""
    for parts in product(*(list(forms(argument, times)) for argument in arguments)):
        yield sum(parts, Call(()))


def forms(argument: dict[bytes, object], times: int) -> Iterator[Call]:
    flags = argument.get(b"flags", [])
    once = list(forms_of_one(argument, times))
    if b"multiple" in flags:
        for parts in product(once, repeat=times):
            yield sum(parts, Call(()))
    elif b"optional" in flags:
        yield Call(())
        yield from (Call(call.words, frozenset([call.words])) for call in once)
    else:
        yield from once


def forms_of_one(argument: dict[bytes, object], times: int) -> Iterator[Call]:
    kind, name = argument[b"type"], argument[b"name"].decode()
    token = Call((argument[b"token"].decode(),) if b"token" in argument else ())
    if kind == b"oneof":
        for choice in argument[b"arguments"]:
            yield from (token + call for call in forms(choice, times))
    elif kind == b"block":
        yield from (token + call for call in sequences(argument[b"arguments"], times))
    elif kind == b"pure-token":
        yield token
    elif name == "numkeys":
        yield token + Call((str(times),))
    else:
        yield token + Call((VALUES[name],))


def random_call(arguments: list[dict[bytes, object]], times: int, rng: random.Random) -> Call:
    """Returns one of the calls that these arguments allow."""
    return sum((random_form(argument, times, rng) for argument in arguments), Call(()))


def random_form(argument: dict[bytes, object], times: int, rng: random.Random) -> Call:
    flags = argument.get(b"flags", [])
    if b"optional" in flags and rng.random() < 0.85:
        return Call(())
    count = times if b"multiple" in flags else 1
    return sum((random_form_of_one(argument, times, rng) for _ in range(count)), Call(()))


def random_form_of_one(argument: dict[bytes, object], times: int, rng: random.Random) -> Call:
    if argument[b"type"] not in (b"oneof", b"block"):
        return next(forms_of_one(argument, times))
    token = Call((argument[b"token"].decode(),) if b"token" in argument else ())
    choices = argument[b"arguments"]
    if argument[b"type"] == b"oneof":
        choices = [rng.choice(choices)]
    return token + random_call(choices, times, rng)


def numbered(words: Words) -> Words:
    """Replaces `{n}` in repeated values by different numbers."""
    occurrences: Counter[str] = Counter()
    found = []
    for word in words:
        occurrences[word] += 1
        found.append(word.format(n=occurrences[word]))
        if word == "ANCHOR":
            # ANCHOR needs a window of months, so the window before it is replaced.
            index = max(index for index, word in enumerate(found) if word in ("61s", "62s"))
            found[index] = ("1mo", "3mo")[found[index] == "62s"]
    return tuple(found)


def is_ruled_out(options: frozenset[Words]) -> bool:
    words = {word for option in options for word in option}
    return any(pair <= words for pair in EXCLUSIVE)


def answers(redis: Redis, calls: list[Words]) -> list[object]:
    """Returns the reply to each call on a server without keys."""
    pipeline, indices = redis.pipeline(transaction=False), []
    for call in calls:
        if not indices or call[0].startswith("rl.policy"):
            # The previous call may have changed the keys or policies.
            for policy in POLICIES:
                pipeline.execute_command("RL.POLICYDEL", policy[1]).execute_command(*policy)
        indices.append(len(pipeline))
        pipeline.execute_command(*call).flushall()
    replies = pipeline.execute(raise_on_error=False)
    return [replies[index] for index in indices]


TAKE_SPECS = ("rl.take", "rl.peek", "rl.mtake", "rl.mpeek")
SPECS = (*TAKE_SPECS, "rl.policyset")

# All servers have the same documentation, so the calls are tried on one server.


@pytest.mark.one_server
@pytest.mark.parametrize("times", [1, 2])
def test_every_call_that_is_documented_is_accepted(redis: Redis, docs: Docs, times: int) -> None:
    calls = [
        (name, *numbered(call.words))
        for name, arguments in docs.items()
        if name not in SPECS
        for call in sequences(arguments, times)
        if not is_ruled_out(call.options)
    ]
    assert len(calls) > 200
    refused = {
        " ".join(call): str(answer)
        for call, answer in zip(calls, answers(redis, calls), strict=True)
        if isinstance(answer, Exception)
    }
    # No generated call knows the current version of a policy.
    assert refused.pop("rl.policydel name1 VERSION 1").endswith(", not 1")
    assert refused == {}


@pytest.mark.one_server
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", SPECS)
def test_a_documented_call_with_specs_is_accepted_or_refused_for_conflicting_arguments(
    redis: Redis, docs: Docs, name: str, times: int
) -> None:
    """Tries random calls, as there are too many to try all of them."""
    rng = random.Random(times)
    calls = [(name, *numbered(random_call(docs[name], times, rng).words)) for _ in range(2000)]
    refused = {
        " ".join(call): str(answer)
        for call, answer in zip(calls, answers(redis, calls), strict=True)
        if isinstance(answer, Exception)
    }
    unexpected = {
        call: error for call, error in refused.items() if not any(map(error.count, EXPECTED_ERRORS))
    }
    assert unexpected == {}
    assert len(refused) < len(calls) / 2


@pytest.mark.one_server
def test_every_option_that_a_command_takes_is_documented_and_no_other(
    redis: Redis, docs: Docs
) -> None:
    should_accept = {}
    for name in docs.keys() - WITHOUT_OPTIONS:
        for before, after, allowed in places(name, docs[name]):
            for count in range(1, 4):
                for options in combinations(OPTIONS, count):
                    call = numbered((name, *sum(options, before), *after))
                    documented = frozenset(options) in allowed
                    should_accept[call] = documented and not is_ruled_out(frozenset(options))
    assert sum(should_accept.values()) > 1000
    replies = answers(redis, list(should_accept))
    accepted = {
        call: not isinstance(answer, Exception)
        for call, answer in zip(should_accept, replies, strict=True)
    }
    assert {
        " ".join(call) for call in should_accept if accepted[call] != should_accept[call]
    } == set()


def places(
    name: str, arguments: list[dict[bytes, object]]
) -> Iterator[tuple[Words, Words, set[frozenset[Words]]]]:
    """Returns each place where options may stand: the arguments before and after it, and the
    documented combinations of options.
    """
    if name in TAKE_SPECS:
        optional = [argument for argument in arguments if b"optional" in argument.get(b"flags", [])]
        arguments = [argument for argument in arguments if argument not in optional]
        (before,) = sequences(arguments[:-1], 1)
        allowed = {call.options for call in sequences(optional, 1)}
        yield before.words, ("FIXED", "10", "60s"), allowed
    documented = list(sequences(arguments, 1))
    for base in {call.words for call in documented if not call.options}:
        yield base, (), {call.options for call in documented if call.words[: len(base)] == base}
