"""Compares the policies in a file with those of a server, and can change the server.

    python policies.py policies.txt                     shows the difference
    python policies.py --apply policies.txt             changes the server, too
    python policies.py --apply --prune policies.txt     deletes policies that the file does not have
    python policies.py --export > policies.txt          writes the policies of the server

Exit status: 0 without a difference (any more), 2 with one, 1 after an error.

A change applies only to the version that was compared, so that it overwrites no concurrent change.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_UP, Decimal, InvalidOperation
from difflib import ndiff
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote_from_bytes, unquote_to_bytes

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

SAME, ERROR, DIFFERENT = 0, 1, 2

# Units in microseconds. The largest is first, as the server prefers it.
UNITS = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
CALENDAR = ("1w", "1mo", "3mo", "1y")


def number(word: str, rounding: str = ROUND_DOWN) -> str:
    text = f"{Decimal(word).quantize(Decimal('0.000001'), rounding=rounding):f}"
    return text.rstrip("0").rstrip(".")


def cost(word: str) -> str:
    return number(word, ROUND_UP)


def duration(word: str) -> str:
    """Formats a duration in the largest unit that divides it, like the server. No unit: seconds."""
    if word in CALENDAR:
        return word
    digits = word.rstrip("dhmsu")
    us = Decimal(digits) * UNITS[word[len(digits) :] or "s"]
    largest = next((unit for unit in UNITS if us % UNITS[unit] == 0), "us")
    return f"{number(str(us / UNITS[largest]))}{largest}"


def unchanged(word: str) -> str:
    return word


# Arguments of each word of a policy: algorithms, then options in the order of the server.
ALGORITHMS = {
    "TOKENBUCKET": (number, number, duration),
    "LEAKYBUCKET": (number, number, duration),
    "FIXED": (number, duration),
    "SLIDING": (number, duration),
    "SLIDINGLOG": (number, duration),
    "CONCURRENCY": (number, duration),
    "BAN": (number, duration, duration),
}
OPTIONS = {
    "ALIGNED": (),
    "OFFSET": (unchanged,),
    "ANCHOR": (number,),
    "STRICT": (),
    "COST": (cost,),
    "AS": (unchanged,),
    "SHADOW": (),
}

Specs = tuple[str, ...]


def read_specs(text: str) -> Specs:
    """Parses specs into their canonical form, so that 60s equals 1m and the order is irrelevant."""
    words = iter(text.split())
    specs: list[tuple[list[str], dict[str, list[str]]]] = []
    for word in words:
        name = word.upper()
        takes = ALGORITHMS.get(name, OPTIONS.get(name))
        if takes is None or (name in OPTIONS and not specs):
            raise ValueError(f"unexpected {word!r}")
        try:
            arguments = [read(next(words)) for read in takes]
        except (InvalidOperation, KeyError):
            raise ValueError(f"{word} takes another kind of argument") from None
        except StopIteration:
            raise ValueError(f"{word} takes {len(takes)} arguments") from None
        if name in ALGORITHMS:
            specs.append(([name, *arguments], {}))
        else:
            specs[-1][1][name] = arguments
    if not specs:
        raise ValueError("no specs")
    return tuple(
        " ".join(
            [*limit, *(word for name in OPTIONS if name in own for word in [name, *own[name]])]
        )
        for limit, own in specs
    )


def read_file(path: Path) -> dict[bytes, Specs]:
    """Parses a file. A name begins a line, and its specs follow on indented lines."""
    blocks: dict[bytes, tuple[int, list[str]]] = {}
    specs: list[str] | None = None
    for line, text in enumerate(path.read_text().splitlines(), 1):
        words = text.partition("#")[0].rstrip()
        if not words:
            continue
        if not words[0].isspace():
            name, specs = unquote_to_bytes(words), []
            if words.split() != [words]:
                raise ValueError(f"{path}:{line}: a name has no spaces: {words!r}")
            if name in blocks:
                raise ValueError(f"{path}:{line}: {words} is there twice")
            blocks[name] = line, specs
        elif specs is None:
            raise ValueError(f"{path}:{line}: specs before the first name")
        else:
            specs.append(words)
    found = {}
    for name, (line, lines) in blocks.items():
        try:
            found[name] = read_specs(" ".join(lines))
        except ValueError as error:
            raise ValueError(f"{path}:{line}: {shown(name)}: {error}") from None
    return found


def shown(name: bytes) -> str:
    return quote_from_bytes(name, safe=":/@")


@dataclass(frozen=True)
class ServerPolicy:
    """A policy of the server."""

    version: int
    specs: Specs


def read_server(redis: Redis) -> dict[bytes, ServerPolicy]:
    found = {}
    for name, version, text, *_ in redis.execute_command("RL.POLICYLIST"):
        try:
            specs = read_specs(text.decode())
        except ValueError:
            # The policy of a later module cannot be parsed, but compared and deleted.
            specs = (text.decode(errors="replace"),)
        found[name] = ServerPolicy(version, specs)
    return found


@dataclass(frozen=True)
class Change:
    """A change of one policy. Empty specs mean that it does not exist before or after."""

    name: bytes
    version: int
    before: Specs
    after: Specs

    def __str__(self) -> str:
        sign = "~" if self.before and self.after else "+" if self.after else "-"
        version = f" (version {self.version})" if self.before else ""
        lines = [line for line in ndiff(self.before, self.after) if not line.startswith("?")]
        return "\n".join(
            [
                f"{sign} {shown(self.name)}{version}",
                *(f"{line[0]}     {line[2:]}" for line in lines),
            ]
        )


def changes(
    wanted: dict[bytes, Specs], stored: dict[bytes, ServerPolicy], *, prune: bool
) -> Iterator[Change]:
    for name in sorted(wanted | stored):
        current = stored.get(name, ServerPolicy(0, ()))
        specs = wanted.get(name, () if prune else current.specs)
        if specs != current.specs:
            yield Change(name, current.version, current.specs, specs)


def apply(redis: Redis, change: Change) -> None:
    words = " ".join(change.after).split()
    if not change.after:
        redis.execute_command("RL.POLICYDEL", change.name, "VERSION", change.version)
    elif change.before:
        redis.execute_command("RL.POLICYSET", change.name, "VERSION", change.version, *words)
    else:
        # A policy that was created in the meantime stays, and is reported as different.
        redis.execute_command("RL.POLICYSET", change.name, "NX", *words)


def apply_all(redis: Redis, plan: Iterable[Change]) -> dict[bytes, str]:
    """Applies all changes, also after one that fails. Returns the errors by name."""
    failed = {}
    for change in plan:
        try:
            apply(redis, change)
        except RedisError as error:
            failed[change.name] = str(error)
    return failed


def export(stored: dict[bytes, ServerPolicy]) -> str:
    blocks = (
        "\n".join([shown(name), *(f"    {spec}" for spec in policy.specs)])
        for name, policy in sorted(stored.items())
    )
    return "\n\n".join(blocks)


class Parser(argparse.ArgumentParser):
    """Parser that exits with 1 for an invalid argument, because 2 means a difference."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ERROR, f"{self.prog}: {message}\n")


def arguments() -> argparse.Namespace:
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=None
    )
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--redis", default=os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
    parser.add_argument("--apply", action="store_true", help="change the server")
    parser.add_argument("--prune", action="store_true", help="delete what the file does not have")
    parser.add_argument("--export", action="store_true", help="print the server's policies")
    words = parser.parse_args()
    if (words.file is None) != words.export:
        parser.error("a file or --export, and not both")
    return words


def compare(redis: Redis, words: argparse.Namespace) -> int:
    wanted, stored = read_file(words.file), read_server(redis)
    plan = list(changes(wanted, stored, prune=words.prune))
    for change in plan:
        print(change, end="\n\n")
    added = sum(not change.before for change in plan)
    removed = sum(not change.after for change in plan)
    changed = len(plan) - added - removed
    print(f"{added} to add, {changed} to change, {removed} to delete")
    if others := sorted(stored.keys() - wanted.keys()) if not words.prune else []:
        print(f"not in {words.file}, and left alone: {', '.join(map(shown, others))}")
    if not words.apply:
        return DIFFERENT if plan else SAME
    failed = apply_all(redis, plan)
    unapplied = {change.name for change in changes(wanted, read_server(redis), prune=words.prune)}
    for name in sorted(unapplied | failed.keys()):
        print(f"{shown(name)}: {failed.get(name, 'still different')}", file=sys.stderr)
    print(f"{len(plan) - len(failed.keys() | unapplied)} of {len(plan)} applied")
    return ERROR if unapplied or failed else SAME


def main() -> int:
    words = arguments()
    # No retries: a repeated call would take its own change for a concurrent one.
    connection = Redis.from_url(words.redis, socket_timeout=10, retry=Retry(NoBackoff(), 0))
    with connection as redis:
        try:
            if words.export:
                print(export(read_server(redis)))
                return SAME
            return compare(redis, words)
        except (RedisError, OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return ERROR


if __name__ == "__main__":
    sys.exit(main())
