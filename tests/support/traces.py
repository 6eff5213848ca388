"""Calls with the replies of a server, for limiters that decide in the process of an application.

`clients/traces.json` contains them. The packages replay the file in their own tests, test_traces.py
replays it on a server, and scripts/make_traces.py writes it.
"""

import json
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import redis

from support.clock import START_US, UNITS_US, Clock
from support.random_traces import Calls, random_traces
from support.written_traces import WRITTEN

FILE = Path(__file__).parents[2] / "clients/traces.json"

ABOUT = {
    "start": "the clock before each trace, in microseconds since 1970; there are no keys",
    "traces": "each step is the microseconds by which the clock moves first, a call, and its "
    "reply; an error is the first word of the server's",
}

# Microseconds by which the clock moves, a call, and its reply.
Step = tuple[int, str, Any]


def recorded(client: redis.Redis, clock: Clock) -> dict[str, list[Step]]:
    """Records each trace with the replies of the server. Expired keys are removed only when a call
    finds them, so that a clock that is set back finds the same keys each time.
    """
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    # The fencing tokens of a deleted key go on growing, so each trace begins later than the last.
    return {
        name: list(_replies(calls, client, clock, index * 97 * UNITS_US["d"]))
        for index, (name, calls) in enumerate(_traces())
    }


def read() -> dict[str, list[Step]]:
    """Reads the traces of the file."""
    traces = json.loads(FILE.read_text())["traces"]
    return {name: [tuple(step) for step in steps] for name, steps in traces.items()}


def write(traces: dict[str, list[Step]]) -> None:
    """Writes the file, with a line for each step."""
    lines = [
        f"  {json.dumps(name)}: [\n"
        + ",\n".join(f"   {json.dumps(step, separators=(',', ':'))}" for step in steps)
        + "\n  ]"
        for name, steps in traces.items()
    ]
    head = f'{{\n "about": {json.dumps(ABOUT)},\n "start": {START_US},\n "traces": {{\n'
    FILE.write_text(head + ",\n".join(lines) + "\n }\n}\n")


def _replies(calls: Calls, client: redis.Redis, clock: Clock, delay_us: int) -> Generator[Step]:
    client.flushall()
    clock.reset()
    advance, call = next(calls)
    advance += delay_us
    while True:
        clock.advance(advance)
        reply = _reply(client, call)
        yield advance, call, reply
        try:
            advance, call = calls.send(reply)
        except StopIteration:
            return


def _reply(client: redis.Redis, call: str) -> Any:
    try:
        return _text(client.execute_command(*call.split()))
    except redis.ResponseError as error:
        return "WRONGTYPE" if str(error).startswith("WRONGTYPE") else "ERR"


def _text(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_text(item) for item in reply]
    return reply.decode() if isinstance(reply, bytes) else reply


def _traces() -> Generator[tuple[str, Calls]]:
    yield from random_traces()
    for name, calls in WRITTEN.items():
        yield name, _written(calls)


def _written(calls: Iterable[str | tuple[int, str]]) -> Calls:
    for call in calls:
        yield (0, call) if isinstance(call, str) else call
