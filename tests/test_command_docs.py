"""What COMMAND DOCS says of a command's words is what the command takes."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import pytest
from redis import Redis

from support.clock import START_US
from support.server import Server

# A value for every argument that is not a word of the syntax, by its name. {n} tells those apart of
# which there are several.
VALUES = {
    **dict.fromkeys(["capacity", "refill", "leak", "limit", "max_burst", "count"], "10"),
    **dict.fromkeys(["window", "ttl"], "60s"),
    "key": "k{n}",
    "period": "60",
    "holder": "holder{n}",
    "cost": "2",
    "maxwait": "1s",
    "quantity": "2",
    "effect": f"rl-bucket 1 {START_US // 1000 + 60_000} 1 1",
}

# The options that there are. Any may stand behind any algorithm's numbers, as far as words go.
OPTIONS = [
    ("ALIGNED",),
    ("STRICT",),
    ("COST", "2"),
    ("UPTO",),
    ("FORCE",),
    ("MAXWAIT", "1s"),
]

# Any word is a holder.
WITHOUT_OPTIONS = {"rl.release"}

Words = tuple[str, ...]


class Call(NamedTuple):
    """A call, and which of its words could be left out."""

    words: Words
    options: frozenset[Words] = frozenset()

    def __add__(self, other: "Call") -> "Call":
        return Call(self.words + other.words, self.options | other.options)


Docs = dict[str, list[dict[bytes, object]]]


@pytest.fixture
def docs(resp3: Redis, server: Server) -> Docs:
    """The arguments of every command."""
    if server.version < (7,):
        pytest.skip("the server has no COMMAND DOCS")
    names = [name for name in resp3.command() if name.startswith("rl.")]
    assert len(names) == 14
    told = resp3.execute_command("COMMAND DOCS", *names)
    return {name.decode(): each[b"arguments"] for name, each in told.items()}


def sequences(arguments: list[dict[bytes, object]], times: int) -> Iterator[Call]:
    """The calls that some arguments allow, each that may come again `times` times."""
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


def numbered(words: Words) -> Words:
    seen: Counter[str] = Counter()
    found = []
    for word in words:
        seen[word] += 1
        found.append(word.format(n=seen[word]))
    return tuple(found)


def answers(redis: Redis, calls: list[Words]) -> list[object]:
    """Each call's, on an empty server."""
    pipeline = redis.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command(*call).flushall()
    return pipeline.execute(raise_on_error=False)[::2]


@pytest.mark.parametrize("times", [1, 2])
def test_every_call_that_is_documented_is_accepted(redis: Redis, docs: Docs, times: int) -> None:
    calls = [
        (name, *numbered(call.words))
        for name, arguments in docs.items()
        for call in sequences(arguments, times)
    ]
    # Of two specs, every pair.
    assert len(calls) > (200 if times == 1 else 2000)
    refused = {
        " ".join(call): str(answer)
        for call, answer in zip(calls, answers(redis, calls), strict=True)
        if isinstance(answer, Exception)
    }
    assert refused == {}


def test_every_option_that_a_command_takes_is_documented_and_no_other(
    redis: Redis, docs: Docs
) -> None:
    tried = {}
    for name in docs.keys() - WITHOUT_OPTIONS:
        documented = set(sequences(docs[name], 1))
        for base in {call.words for call in documented if not call.options}:
            words = (name, *numbered(base))
            allowed = {call.options for call in documented if call.words[: len(base)] == base}
            for count in range(1, 4):
                for options in combinations(OPTIONS, count):
                    tried[sum(options, words)] = frozenset(options) in allowed
    assert sum(tried.values()) > 100
    told = answers(redis, list(tried))
    accepted = {
        call: not isinstance(answer, Exception) for call, answer in zip(tried, told, strict=True)
    }
    assert {" ".join(call) for call in tried if accepted[call] != tried[call]} == set()
