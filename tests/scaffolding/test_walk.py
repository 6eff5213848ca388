"""A call crosses few source files between its words and its reply, with an AOF as in production.

The files are those of core/ and src/ whose lines every call executes, as callgrind sees them. Those
of numbers, words and algorithms are not counted, and core/src/syntax counts as one.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from bench import calls, valgrind
from bench.calls import Call, prepare
from bench.servers import AOF
from bench.wire import Pipe
from support import binaries

# vgdb does not find a server that runs with the libraries of another folder, as in `make matrix`.
pytestmark = pytest.mark.once

REPOSITORY = Path(__file__).parents[2]
NOT_COUNTED = re.compile(r"core/src/(number|wire|algorithm)\b")
BEFORE, COUNTED = 100, 200

# The goal is 10: each file is one more that a reader has to open.
MAX_FILES = {
    calls.ADMITTED: 17,
    calls.LIMIT: 22,
    calls.LIMITS: 34,
    calls.MTAKE: 26,
}


@pytest.mark.skipif(not valgrind.is_installed(), reason="valgrind is not installed")
@pytest.mark.parametrize("call", MAX_FILES, ids=lambda call: call.name)
def test_a_call_crosses_few_files(call: Call) -> None:
    files = files_of(call.with_setup(AOF))
    assert files, "the module has no line tables"
    assert len(files) <= MAX_FILES[call], sorted(files)


def files_of(call: Call) -> set[str]:
    with valgrind.counting_server(binaries.chosen(), call.setup) as counting:
        prepare(counting.server, call)
        with Pipe(counting.server.port) as pipe:
            pipe.run(call.batch(0, BEFORE), call.lines * BEFORE, call.reply_prefix)
            counting.dump()
            pipe.run(call.batch(BEFORE, COUNTED), call.lines * COUNTED, call.reply_prefix)
            dump = counting.dump()
    instructions: Counter[str] = Counter()
    for each in valgrind.executed_instructions(dump):
        instructions[each.source] += each.count
    paths = (path for path, count in instructions.items() if count >= COUNTED)
    return {file for path in paths if (file := source(path))}


def source(path: str) -> str | None:
    """Returns a file of core/ or src/ that is counted."""
    relative = re.search(r"(?:core/)?src/.*", path)
    if relative is None or "/registry/" in path or NOT_COUNTED.match(relative[0]):
        return None
    if not (REPOSITORY / relative[0]).exists():
        return None
    return re.sub(r"^core/src/syntax\b.*", "core/src/syntax", relative[0])
