"""Commands on many keys, from `user:00000000` on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.wire import Pipe, pack

# Placeholder of the same length as the numbers.
_NUMBER = "\0" * 8
BATCH = 1_000


@dataclass(frozen=True)
class Template:
    """Commands written as in redis-cli, with {key} in the place of the key."""

    commands: tuple[str, ...]
    # Total number of lines in the replies to all commands.
    lines: int

    def for_key(self, number: int) -> bytes:
        return self._pattern % ((number,) * self._key_count)

    @cached_property
    def _key_count(self) -> int:
        return sum(command.count("{key}") for command in self.commands)

    @cached_property
    def _pattern(self) -> bytes:
        filled = (command.format(key=f"user:{_NUMBER}") for command in self.commands)
        packed = b"".join(pack(command.split()) for command in filled)
        return packed.replace(b"%", b"%%").replace(_NUMBER.encode(), b"%08d")


def template(*commands: str, lines: int = 6) -> Template:
    return Template(commands, lines)


def batches(form: Template, numbers: Sequence[int], size: int) -> Iterator[tuple[bytes, int]]:
    """Yields batches of commands on the keys, with the number of lines of their replies."""
    for start in range(0, len(numbers), size):
        part = numbers[start : start + size]
        yield b"".join(map(form.for_key, part)), form.lines * len(part)


def fill(pipe: Pipe, form: Template, numbers: range, times: int = 1) -> None:
    for batch, lines in batches(form, numbers, BATCH):
        for _ in range(times):
            pipe.run(batch, lines)
