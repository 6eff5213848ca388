"""Shared loop of the programs in this folder: reads a question from each line, and prints its
answer.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping


def integers(reply: object) -> Iterator[int]:
    """Yields the integers of a nested reply."""
    if isinstance(reply, list | tuple):
        for item in reply:
            yield from integers(item)
    elif isinstance(reply, Exception):
        raise reply
    else:
        yield int(reply)


def answer(reply: object) -> None:
    print("=", *integers(reply), flush=True)


def report(error: Exception) -> None:
    print("!", type(error).__name__, *str(error).split(), flush=True)


def serve(verbs: Mapping[str, Callable[..., object]]) -> None:
    for line in sys.stdin:
        verb, *words = line.split()
        try:
            answer(verbs[verb](*words))
        except Exception as error:
            report(error)


async def serve_async(verbs: Mapping[str, Callable[..., Awaitable[object]]]) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *words = line.split()
        try:
            answer(await verbs[verb](*words))
        except Exception as error:
            report(error)
