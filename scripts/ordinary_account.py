"""Runs README.md's two commands as an ordinary account does: no root, 1,024 files, no server on the
PATH but those that `make` gets.

Root runs them as nobody, on a copy of this repository with what is built here. It is mounted in the
repository's place, and the compiler and Python of root's home beside it, for those commands alone;
so nothing is built twice. Anybody else runs them here, as they are. What could not be checked is
told.
"""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import two_commands

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support import lifetime  # noqa: E402

ACCOUNT = "nobody"
SERVERS = {"redis-server", "valkey-server"}

# Of outer makes, of CI, and of whoever started it.
NOT_THEIRS = {
    *("CI", "SERVER", "RATELIMIT_MODULE", "XDG_CACHE_HOME"),
    *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"),
}

# What the short form neither builds nor reads.
LEFT_OUT = [
    *("./target/*/incremental", "./target/doc", "./target/load", "./target/tools"),
    *("./target/package", "./target/msrv", "./target/mutants", "./target/home", "./fuzz/target"),
    "./target/gateway",
    *("./clients/*/.venv*", "./clients/*/node_modules", "./.hypothesis", "./.pytest_cache"),
    *("./examples/*/.venv", "./examples/*/node_modules"),
]


def main() -> None:
    lifetime.end_in_order()
    with tempfile.TemporaryDirectory(prefix="ratelimit-account-") as work:
        folder = Path(work)
        folder.chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if name not in NOT_THEIRS}
        environment["PATH"] = str(without_servers(folder / "bin"))
        if os.geteuid() != 0:
            print(f"as {pwd.getpwuid(os.geteuid()).pw_name}, who runs this", flush=True)
            two_commands.run_both(list, environment, REPOSITORY)
            return
        if why := what_stands_in_the_way():
            print(f"NOT CHECKED: the two commands as an ordinary account: {why}", file=sys.stderr)
            return
        as_nobody(folder, environment)


def without_servers(folder: Path) -> Path:
    """A folder for the PATH with all programs that are on it, but for servers."""
    folder.mkdir()
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).glob("*") if place else ():
            link = folder / program.name
            if program.name not in SERVERS and not link.is_symlink():
                link.symlink_to(program)
    return folder


def what_stands_in_the_way() -> str | None:
    for program in ("unshare", "setpriv", "mount", "tar"):
        if not shutil.which(program):
            return f"{program} is not installed"
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"root may not mount here: {tried.stderr.strip()}" if tried.returncode else None


def as_nobody(folder: Path, environment: dict[str, str]) -> None:
    account = pwd.getpwnam(ACCOUNT)
    home, clone = folder / "home", folder / "clone"
    homes = Path(pwd.getpwuid(0).pw_dir)
    cargo = Path(os.environ.get("CARGO_HOME", homes / ".cargo"))
    rustup = Path(os.environ.get("RUSTUP_HOME", homes / ".rustup"))

    home.mkdir()
    clone.mkdir()
    words = [f"--exclude={pattern}" for pattern in LEFT_OUT]
    copy = f"tar -C {shlex.quote(str(REPOSITORY))} -cf - {shlex.join(words)} . | tar -xf -"
    subprocess.run(["sh", "-c", copy], cwd=clone, check=True)
    venv = REPOSITORY / ".venv"
    if venv.is_symlink():
        (clone / ".venv").unlink()
        subprocess.run(["cp", "-a", f"{venv.resolve()}/.", clone / ".venv"], check=True)
    # Its cargo has what root's has downloaded, in the same place: by that goes what is built. These
    # are 40,000 files that are only read, so they are not copied.
    (home / ".cargo").mkdir()
    for name in ("bin", "config.toml", "config"):
        if (cargo / name).exists():
            subprocess.run(["cp", "-a", cargo / name, home / ".cargo" / name], check=True)
    read = [path for path in (cargo / "registry",) if path.exists()]
    (home / ".cargo" / "registry").mkdir()
    owner = f"{account.pw_uid}:{account.pw_gid}"
    subprocess.run(["chown", "--recursive", "--no-dereference", owner, home, clone], check=True)

    environment |= {
        "HOME": str(home),
        "USER": ACCOUNT,
        "LOGNAME": ACCOUNT,
        "CARGO_HOME": str(cargo),
        "RUSTUP_HOME": str(rustup),
    }
    instead = {REPOSITORY: clone, cargo: home / ".cargo"}
    seen = [
        *(rustup, Path(sys.base_prefix)),
        *(Path(place) for place in os.environ["PATH"].split(":") if place),
        *(Path(value) for value in os.environ.values() if value.startswith("/")),
    ]
    found = [path for path in seen if path.exists()]
    script = [*mounts(folder, found, instead, read), 'exec "$@"']
    before = [
        *("unshare", "--mount", "sh", "-e", "-c", "\n".join(script), "sh"),
        *("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"),
        *("sh", "-c", 'cd "$0" && exec "$@"', str(REPOSITORY)),
    ]
    print(f"as {ACCOUNT}, in {REPOSITORY}", flush=True)
    two_commands.run_both(lambda words: [*before, *words], environment, Path("/"))


def mounts(
    folder: Path, seen: list[Path], instead: dict[Path, Path], read: list[Path]
) -> list[str]:
    """Lines of the shell by which the copies are where they were copied from, and what others may
    not reach, since it is in root's home, can be reached. `read` is what no copy has, though it is
    below one.
    """
    lines = ["mount --make-rprivate /"]
    below = {path: folder / f"read-{number}" for number, path in enumerate(read)}
    for path, place in below.items():
        place.mkdir()
        lines.append(shlex.join(["mount", "--bind", str(path), str(place)]))
    hidden: dict[Path, set[Path]] = {}
    for path in [*seen, *instead]:
        if above := hidden_by(path):
            hidden.setdefault(above, set()).add(path)
    for above, paths in hidden.items():
        kept = {}
        for path in sorted(paths - {above}):
            if any(path.is_relative_to(copied) for copied in instead):
                continue
            kept[path] = folder / f"kept-{len(lines)}"
            if path.is_dir():
                kept[path].mkdir()
            else:
                kept[path].touch()
            lines.append(shlex.join(["mount", "--bind", str(path), str(kept[path])]))
        lines.append(shlex.join(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(above)]))
        for path, source in kept.items():
            make = ["mkdir", "-p", str(path if source.is_dir() else path.parent)]
            lines.append(shlex.join(make))
            if not source.is_dir():
                lines.append(shlex.join(["touch", str(path)]))
            lines.append(shlex.join(["mount", "--bind", str(source), str(path)]))
        lines += [shlex.join(["mkdir", "-p", str(path)]) for path in instead if path in paths]
    last = [*instead.items(), *below.items()]
    lines += [shlex.join(["mount", "--bind", str(source), str(at)]) for at, source in last]
    return lines


def hidden_by(path: Path) -> Path | None:
    """The first folder on the way to it that others may not enter."""
    for above in [*reversed(path.parents), path]:
        if above != Path("/") and above.is_dir() and not above.stat().st_mode & 0o001:
            return above
    return None


if __name__ == "__main__":
    main()
