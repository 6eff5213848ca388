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

# Units in microseconds, largest first: a duration is shown in the largest unit that divides it.
UNITS = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
CALENDAR_WINDOWS = ("1w", "1mo", "3mo", "1y")


def format_number(word: str, rounding: str = ROUND_DOWN) -> str:
    text = f"{Decimal(word).quantize(Decimal('0.000001'), rounding=rounding):f}"
    return text.rstrip("0").rstrip(".")


def format_cost(word: str) -> str:
    return format_number(word, ROUND_UP)


def format_duration(word: str) -> str:
    """Formats a duration in the largest unit that divides it, like the server. No unit: seconds."""
    if word in CALENDAR_WINDOWS:
        return word
    digits = word.rstrip("dhmsu")
    us = Decimal(digits) * UNITS[word[len(digits) :] or "s"]
    largest = next((unit for unit in UNITS if us % UNITS[unit] == 0), "us")
    return f"{format_number(str(us / UNITS[largest]))}{largest}"


def unchanged(word: str) -> str:
    return word


# Arguments of each word of a policy: algorithms, then options in the order of the server.
ALGORITHMS = {
    "TOKENBUCKET": (format_number, format_number, format_duration),
    "LEAKYBUCKET": (format_number, format_number, format_duration),
    "FIXED": (format_number, format_duration),
    "SLIDING": (format_number, format_duration),
    "SLIDINGLOG": (format_number, format_duration),
    "CONCURRENCY": (format_number, format_duration),
    "BAN": (format_number, format_duration, format_duration),
}
OPTIONS = {
    "ALIGNED": (),
    "OFFSET": (unchanged,),
    "ANCHOR": (format_number,),
    "STRICT": (),
    "COST": (format_cost,),
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
        formatters = ALGORITHMS.get(name, OPTIONS.get(name))
        if formatters is None or (name in OPTIONS and not specs):
            raise ValueError(f"unexpected {word!r}")
        try:
            arguments = [format_argument(next(words)) for format_argument in formatters]
        except (InvalidOperation, KeyError):
            raise ValueError(f"{word} takes another kind of argument") from None
        except StopIteration:
            raise ValueError(f"{word} takes {len(formatters)} arguments") from None
        if name in ALGORITHMS:
            specs.append(([name, *arguments], {}))
        else:
            specs[-1][1][name] = arguments
    if not specs:
        raise ValueError("no specs")
    return tuple(
        " ".join(
            [
                *limit,
                *(word for name in OPTIONS if name in options for word in [name, *options[name]]),
            ]
        )
        for limit, options in specs
    )


def read_file(path: Path) -> dict[bytes, Specs]:
    """Parses a file. A name begins a line, and its specs follow on indented lines."""
    blocks: dict[bytes, tuple[int, list[str]]] = {}
    specs: list[str] | None = None
    for line_number, text in enumerate(path.read_text().splitlines(), 1):
        content = text.partition("#")[0].rstrip()
        if not content:
            continue
        if not content[0].isspace():
            name, specs = unquote_to_bytes(content), []
            if content.split() != [content]:
                raise ValueError(f"{path}:{line_number}: a name has no spaces: {content!r}")
            if name in blocks:
                raise ValueError(f"{path}:{line_number}: {content} is there twice")
            blocks[name] = line_number, specs
        elif specs is None:
            raise ValueError(f"{path}:{line_number}: specs before the first name")
        else:
            specs.append(content)
    policies = {}
    for name, (line_number, lines) in blocks.items():
        try:
            policies[name] = read_specs(" ".join(lines))
        except ValueError as error:
            raise ValueError(f"{path}:{line_number}: {escape_name(name)}: {error}") from None
    return policies


def escape_name(name: bytes) -> str:
    return quote_from_bytes(name, safe=":/@")


@dataclass(frozen=True)
class ServerPolicy:
    """A policy of the server."""

    version: int
    specs: Specs


def read_server(redis: Redis) -> dict[bytes, ServerPolicy]:
    policies = {}
    for name, version, text, *_ in redis.execute_command("RL.POLICYLIST"):
        try:
            specs = read_specs(text.decode())
        except ValueError:
            # A policy of a later module cannot be parsed, but it can be compared and deleted.
            specs = (text.decode(errors="replace"),)
        policies[name] = ServerPolicy(version, specs)
    return policies


@dataclass(frozen=True)
class Change:
    """A change of one policy. Empty specs mean that the policy does not exist before or after."""

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
                f"{sign} {escape_name(self.name)}{version}",
                *(f"{line[0]}     {line[2:]}" for line in lines),
            ]
        )


def changes(
    desired: dict[bytes, Specs], stored: dict[bytes, ServerPolicy], *, prune: bool
) -> Iterator[Change]:
    for name in sorted(desired | stored):
        current = stored.get(name, ServerPolicy(0, ()))
        specs = desired.get(name, () if prune else current.specs)
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
    errors = {}
    for change in plan:
        try:
            apply(redis, change)
        except RedisError as error:
            errors[change.name] = str(error)
    return errors


def export(stored: dict[bytes, ServerPolicy]) -> str:
    blocks = (
        "\n".join([escape_name(name), *(f"    {spec}" for spec in policy.specs)])
        for name, policy in sorted(stored.items())
    )
    return "\n\n".join(blocks)


class Parser(argparse.ArgumentParser):
    """Parser that exits with 1 for an invalid argument, because 2 means a difference."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ERROR, f"{self.prog}: {message}\n")


def parse_arguments() -> argparse.Namespace:
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=None
    )
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--redis", default=os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
    parser.add_argument("--apply", action="store_true", help="change the server")
    parser.add_argument("--prune", action="store_true", help="delete what the file does not have")
    parser.add_argument("--export", action="store_true", help="print the server's policies")
    arguments = parser.parse_args()
    if (arguments.file is None) != arguments.export:
        parser.error("a file or --export, and not both")
    return arguments


def compare(redis: Redis, arguments: argparse.Namespace) -> int:
    desired, stored = read_file(arguments.file), read_server(redis)
    plan = list(changes(desired, stored, prune=arguments.prune))
    for change in plan:
        print(change, end="\n\n")
    added = sum(not change.before for change in plan)
    removed = sum(not change.after for change in plan)
    changed = len(plan) - added - removed
    print(f"{added} to add, {changed} to change, {removed} to delete")
    if others := sorted(stored.keys() - desired.keys()) if not arguments.prune else []:
        print(f"not in {arguments.file}, and left alone: {', '.join(map(escape_name, others))}")
    if not arguments.apply:
        return DIFFERENT if plan else SAME
    errors = apply_all(redis, plan)
    unapplied = {
        change.name for change in changes(desired, read_server(redis), prune=arguments.prune)
    }
    for name in sorted(unapplied | errors.keys()):
        print(f"{escape_name(name)}: {errors.get(name, 'still different')}", file=sys.stderr)
    print(f"{len(plan) - len(errors.keys() | unapplied)} of {len(plan)} applied")
    return ERROR if unapplied or errors else SAME


def main() -> int:
    arguments = parse_arguments()
    # No retries: a repeated call would take its own change for a concurrent one.
    connection = Redis.from_url(arguments.redis, socket_timeout=10, retry=Retry(NoBackoff(), 0))
    with connection as redis:
        try:
            if arguments.export:
                print(export(read_server(redis)))
                return SAME
            return compare(redis, arguments)
        except (RedisError, OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return ERROR


if __name__ == "__main__":
    sys.exit(main())
