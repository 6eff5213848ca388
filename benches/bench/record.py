"""Measured results as JSON, from which pages and charts can be written without new measurements."""

import json
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from bench.report import Results
from bench.scale import Scale
from bench.waiting import Size, Waiting

FOLDER = Path(__file__).parents[1] / "measured"


@dataclass(frozen=True)
class Everything:
    """Results of a run of `make bench`."""

    server: str
    # Load average at the beginning.
    load: float
    scale: Scale
    results: Results


@dataclass(frozen=True)
class Waits:
    """Results of a run of `make bench-waiting`."""

    server: str
    load: float
    size: Size
    found: Waiting


Kind = TypeVar("Kind", Everything, Waits)
FILES = {Everything: "benchmarks.json", Waits: "waiting.json"}


def write(run: Everything | Waits, folder: Path) -> Path:
    path = folder / FILES[type(run)]
    path.write_text(_formatted(_plain(run)) + "\n")
    return path


def _formatted(plain: Any, indent: str = "") -> str:
    """Formats JSON with a line for each entry that is short or has no nested entries."""
    line = json.dumps(plain)
    if not isinstance(plain, dict | list) or len(line) < 100:
        return line
    within = indent + " "
    if isinstance(plain, dict):
        parts = [f"{json.dumps(name)}: {_formatted(each, within)}" for name, each in plain.items()]
    elif any(isinstance(each, dict | list) for each in plain):
        parts = [_formatted(each, within) for each in plain]
    else:
        return line
    text = f",\n{within}".join(parts)
    return f"{line[0]}\n{within}{text}\n{indent}{line[-1]}"


def read(kind: type[Kind]) -> Kind:
    """Reads the results that docs/ shows."""
    return _read(kind, json.loads((FOLDER / FILES[kind]).read_text()))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        # JSON allows neither tuples nor numbers as names.
        return [[_plain(name), _plain(each)] for name, each in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _read(kind: Any, plain: Any) -> Any:
    if is_dataclass(kind):
        of = get_type_hints(kind)
        return kind(**{name: _read(of[name], each) for name, each in plain.items()})
    origin, of = get_origin(kind), get_args(kind)
    if origin is UnionType:
        (some,) = (part for part in of if part is not type(None))
        return None if plain is None else _read(some, plain)
    if origin is dict:
        return {_read(of[0], name): _read(of[1], each) for name, each in plain}
    if origin is list:
        return [_read(of[0], each) for each in plain]
    if origin is tuple:
        kinds = of if len(of) == len(plain) and of[-1] is not ... else of[:1] * len(plain)
        return tuple(_read(each, one) for each, one in zip(kinds, plain, strict=True))
    return plain
