"""A call executes code of few files and types, so that a reader can follow it. The server has an
AOF, as in production.

Callgrind counts how often each line of core/ and src/ is executed. A file counts if every call
executes a line of it, and a type if such a line is in one of its impl blocks. Numbers, encodings
and algorithms do not count, and core/src/syntax counts as one file and one type.
"""

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from bench import calls, valgrind
from bench.calls import Call, prepare
from bench.servers import AOF
from bench.wire import Pipe, Words
from support import binaries

# vgdb does not find a server that runs with the libraries of another folder, as in `make matrix`.
pytestmark = pytest.mark.once

REPOSITORY = Path(__file__).parents[2]
NOT_COUNTED = re.compile(r"core/src/(number|wire|algorithm)\b")
WARM_UP_CALLS, COUNTED_CALLS = 100, 200

SYNTAX = "core/src/syntax"
IMPL = re.compile(r"impl(?:<.*?>)? (?:.* for )?(?:\w+::)*(\w+)")


class Walk(NamedTuple):
    """Source that every call executes."""

    files: frozenset[str]
    # Types whose methods are executed.
    types: frozenset[str]


class Maximum(NamedTuple):
    """Greatest number of files and types. The goals are 10 and 14."""

    files: int
    types: int


MAXIMA = {
    calls.ADMITTED: Maximum(17, 14),
    calls.LIMIT: Maximum(22, 17),
    calls.LIMITS: Maximum(31, 23),
    calls.MTAKE: Maximum(26, 19),
}


@pytest.mark.skipif(not valgrind.is_installed(), reason="valgrind is not installed")
@pytest.mark.parametrize("call", MAXIMA, ids=lambda call: call.name)
def test_a_call_crosses_few_files_and_types(call: Call) -> None:
    walk = walk_of(slowly_refilled(call).with_setup(AOF))
    assert walk.files, "the module has no line tables"
    assert len(walk.files) <= MAXIMA[call].files, sorted(walk.files)
    assert len(walk.types) <= MAXIMA[call].types, sorted(walk.types)


def slowly_refilled(call: Call) -> Call:
    """Returns a call whose keys do not expire between two calls on a busy machine."""

    def refilled(command: Words) -> Words:
        return tuple(" ".join(command).replace(calls.PLENTY, "1000000 1").split())

    commands, before = (tuple(map(refilled, words)) for words in (call.commands, call.before))
    return replace(call, commands=commands, before=before)


def walk_of(call: Call) -> Walk:
    with valgrind.counting_server(binaries.chosen(), call.setup) as counting:
        prepare(counting.server, call)
        with Pipe(counting.server.port) as pipe:
            pipe.run(call.batch(0, WARM_UP_CALLS), call.lines * WARM_UP_CALLS, call.reply_prefix)
            counting.dump()
            batch = call.batch(WARM_UP_CALLS, COUNTED_CALLS)
            pipe.run(batch, call.lines * COUNTED_CALLS, call.reply_prefix)
            dump = counting.dump()
    by_file: Counter[str] = Counter()
    by_line: Counter[tuple[str, int]] = Counter()
    for executed in valgrind.executed_instructions(dump):
        file = counted_file(executed.source)
        if file is not None:
            by_file[file] += executed.count
            by_line[file, executed.line] += executed.count
    files = {file for file, count in by_file.items() if count >= COUNTED_CALLS}
    types = {type_of(*line) for line, count in by_line.items() if count >= COUNTED_CALLS}
    folders = (SYNTAX if file.startswith(SYNTAX) else file for file in files)
    return Walk(frozenset(folders), frozenset(types - {None}))


def counted_file(path: str) -> str | None:
    """Returns the file in the repository for a path, or `None` if it does not count."""
    relative = re.search(r"(?:core/)?src/.*", path)
    if relative is None or "/registry/" in path or NOT_COUNTED.match(relative[0]):
        return None
    return relative[0] if (REPOSITORY / relative[0]).exists() else None


def type_of(file: str, number: int) -> str | None:
    """Returns the type of the impl block that contains a line. The block of a trait has none."""
    if file.startswith(SYNTAX):
        return SYNTAX
    for line in reversed(lines(file)[:number]):
        if line.startswith("}"):
            return None
        if line.startswith(("impl ", "impl<")):
            match = IMPL.match(line)
            return match and match[1]
    return None


@cache
def lines(file: str) -> list[str]:
    return (REPOSITORY / file).read_text().splitlines()
