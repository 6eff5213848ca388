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
class BenchmarkRun:
    """Results of a run of `make bench`."""

    server: str
    # Load average at the beginning.
    load: float
    scale: Scale
    results: Results


@dataclass(frozen=True)
class WaitingRun:
    """Results of a run of `make bench-waiting`."""

    server: str
    load: float
    size: Size
    found: Waiting


Kind = TypeVar("Kind", BenchmarkRun, WaitingRun)
FILES = {BenchmarkRun: "benchmarks.json", WaitingRun: "waiting.json"}


def write(run: BenchmarkRun | WaitingRun, folder: Path) -> Path:
    path = folder / FILES[type(run)]
    path.write_text(_formatted(_to_json(run)) + "\n")
    return path


def _formatted(plain: Any, indent: str = "") -> str:
    """Formats JSON with a line for each entry that is short or has no nested entries."""
    line = json.dumps(plain)
    if not isinstance(plain, dict | list) or len(line) < 100:
        return line
    inner = indent + " "
    if isinstance(plain, dict):
        parts = [f"{json.dumps(name)}: {_formatted(value, inner)}" for name, value in plain.items()]
    elif any(isinstance(item, dict | list) for item in plain):
        parts = [_formatted(item, inner) for item in plain]
    else:
        return line
    text = f",\n{inner}".join(parts)
    return f"{line[0]}\n{inner}{text}\n{indent}{line[-1]}"


def read(kind: type[Kind]) -> Kind:
    """Reads the results that docs/ shows."""
    return _from_json(kind, json.loads((FOLDER / FILES[kind]).read_text()))


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        # JSON allows neither tuples nor numbers as names.
        return [[_to_json(name), _to_json(item)] for name, item in value.items()]
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value


def _from_json(kind: Any, plain: Any) -> Any:
    if is_dataclass(kind):
        types = get_type_hints(kind)
        return kind(**{name: _from_json(types[name], value) for name, value in plain.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        (some,) = (part for part in arguments if part is not type(None))
        return None if plain is None else _from_json(some, plain)
    if origin is dict:
        names, values = arguments
        return {_from_json(names, name): _from_json(values, value) for name, value in plain}
    if origin is list:
        return [_from_json(arguments[0], item) for item in plain]
    if origin is tuple:
        is_of_fixed_length = len(arguments) == len(plain) and arguments[-1] is not ...
        kinds = arguments if is_of_fixed_length else arguments[:1] * len(plain)
        return tuple(_from_json(part, item) for part, item in zip(kinds, plain, strict=True))
    return plain
