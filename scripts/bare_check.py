"""Runs README.md's two commands as somebody does whose machine is new: Debian with exactly the
packages that README.md names, no root, 1,024 files, and a rustup that has no compiler yet.

Each Debian is a folder that debootstrap fills from the mirror that this machine's apt has, and what
is committed here is cloned into it, in a folder whose name has a space. The compiler is this
machine's, brought in by a mount; what stands for rustup says on stderr what rustup says while it
fetches one. It needs root, and some ten minutes each. `bare_check.py trixie` takes that one alone.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import two_commands
from debian_folder import CACHE, CERTIFICATES, DEVICES, Root, debian

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support import lifetime  # noqa: E402

SUITES = {"bookworm": "Debian 12", "trixie": "Debian 13"}

HOME = "/home/somebody"
CLONE = f"{HOME}/my projects/redis-ratelimit"
TOOLCHAIN = "/opt/toolchain"

# The first time it is called, it has to fetch what rust-toolchain.toml names.
RUSTUP = """\
#!/bin/sh
if mkdir ~/.rustup 2>/dev/null; then
	echo "info: syncing channel updates for '{version}-x86_64-unknown-linux-gnu'" >&2
	echo "info: downloading component 'cargo'" >&2
	echo "info: installing component 'rustc'" >&2
fi
exec {toolchain}/bin/${{0##*/}} "$@"
"""


def packages() -> list[str]:
    """What README.md says that `apt install` is to get."""
    readme = (REPOSITORY / "README.md").read_text()
    return re.search(r"On Debian and Ubuntu, `apt install ([\w -]+)`", readme)[1].split()


def check(suite: str, folder: Path) -> None:
    subprocess.run(["cp", "-a", debian(suite, packages()), folder], check=True)
    root = Root(folder)
    for name in (*DEVICES, "zero", "full", "random", "tty"):
        root.path(f"/dev/{name}").touch()
    root.path("/dev/shm").mkdir(exist_ok=True)
    root.path("/dev/shm").chmod(0o1777)
    for name in ("/etc/resolv.conf", "/etc/hosts"):
        shutil.copy(name, root.path(name))
    root.run("useradd --create-home --shell /bin/sh somebody")
    bring_rust(root)
    if Path(CERTIFICATES).exists():
        root.mount(Path(CERTIFICATES), CERTIFICATES)
        root.environment |= dict.fromkeys(("PIP_CERT", "CARGO_HTTP_CAINFO"), CERTIFICATES)
    # It keeps the modes and times that a clone of one's own has.
    root.path(CLONE).parent.mkdir()
    clone = ["git", "clone", "--quiet", "--no-hardlinks", REPOSITORY, root.path(CLONE)]
    subprocess.run(clone, check=True)
    root.run(f"chown -R somebody:somebody {HOME}")
    number = re.search(
        r"^somebody:x:(\d+):(\d+)", root.path("/etc/passwd").read_text(), re.MULTILINE
    )
    root.user = f"{number[1]}:{number[2]}"
    root.environment |= {"HOME": HOME, "USER": "somebody", "LOGNAME": "somebody"}
    root.environment["PATH"] = f"{HOME}/.cargo/bin:/usr/local/bin:/usr/bin:/bin"
    root.directory = CLONE
    print(f"{SUITES[suite]} with {' '.join(packages())}, as somebody, in {CLONE}", flush=True)
    two_commands.run_both(root.command)


def bring_rust(root: Root) -> None:
    sysroot, version = (
        subprocess.run(
            ["rustc", *words], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        for words in (["--print", "sysroot"], ["--version"])
    )
    root.mount(Path(sysroot).resolve(), TOOLCHAIN)
    programs = root.path(f"{HOME}/.cargo/bin")
    programs.mkdir(parents=True)
    for name in ("cargo", "rustc", "rustdoc"):
        program = programs / name
        program.write_text(RUSTUP.format(version=version.split()[1], toolchain=TOOLCHAIN))
        program.chmod(0o755)


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("this needs root, for chroot")
    for program in ("debootstrap", "unshare", "setpriv", "git", "rustc"):
        if not shutil.which(program):
            sys.exit(f"{program} is not installed")
    suites = sys.argv[1:] or list(SUITES)
    if unknown := set(suites) - SUITES.keys():
        sys.exit(f"not one of {', '.join(SUITES)}: {', '.join(unknown)}")
    lifetime.end_in_order()
    os.nice(10)
    work = CACHE / f"work-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        for suite in suites:
            check(suite, work / suite)
            shutil.rmtree(work / suite)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"both commands are green on bare {' and '.join(SUITES[suite] for suite in suites)}")


if __name__ == "__main__":
    main()
