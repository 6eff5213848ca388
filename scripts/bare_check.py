"""Runs README.md's `make run` and `make test` on a bare Debian: only the packages that README.md
names, an ordinary account, 1,024 open files, and a rustup without a compiler.

debootstrap creates each Debian in a folder, and the last commit is cloned into a copy of the
folder. The compiler of this machine is mounted there. The script needs root. `bare_check.py trixie`
tests one Debian.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from debian_folder import CACHE, command_inside, debian

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support.ports import reserve_port  # noqa: E402

HOME, TOOLCHAIN, USER = "/home/somebody", "/opt/toolchain", "1000"
CLONE = f"{HOME}/my projects/redis-ratelimit"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
CALL = b"RL.TOKENBUCKET user:42 200 100 60s\r\n"
REPLY = b"*5\r\n:1\r\n:200\r\n:199\r\n:0\r\n:600\r\n"
# Programs that report a download on their first call, like those of rustup.
MESSAGE = 'mkdir ~/.rustup 2>/dev/null && echo "info: syncing channel updates" >&2'
RUSTUP = f'#!/bin/sh\n{MESSAGE}\nexec {TOOLCHAIN}/bin/${{0##*/}} "$@"\n'


def prepare(suite: str, root: Path) -> list[str]:
    """Copies a Debian and clones the repository. Returns words that run a command there."""
    readme = (REPOSITORY / "README.md").read_text()
    packages = re.search(r"On Debian and Ubuntu, `apt install ([\w -]+)`", readme)[1].split()
    image = debian(suite, packages, CACHE / f"image/{'-'.join([suite, *packages])}")
    subprocess.run(["cp", "-a", f"{image}/.", root], check=True)
    sysroot = subprocess.check_output(["rustc", "--print", "sysroot"], cwd=REPOSITORY, text=True)
    mounts = {sysroot.strip(): TOOLCHAIN}
    environment = {"HOME": HOME, "PATH": f"{HOME}/.cargo/bin:/usr/bin:/bin"}
    if Path(CERTIFICATES).exists():
        mounts[CERTIFICATES] = CERTIFICATES
        names = ("PIP_CERT", "SSL_CERT_FILE", "CARGO_HTTP_CAINFO")
        environment |= dict.fromkeys(names, CERTIFICATES)
    programs = root / HOME.lstrip("/") / ".cargo/bin"
    programs.mkdir(parents=True)
    for name in ("cargo", "rustc", "rustdoc"):
        (programs / name).write_text(RUSTUP)
        (programs / name).chmod(0o755)
    clone = root / CLONE.lstrip("/")
    clone.parent.mkdir()
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", REPOSITORY, clone], check=True)
    accounts = root / "etc/passwd"
    accounts.write_text(f"{accounts.read_text()}somebody:x:{USER}:{USER}::{HOME}:/bin/sh\n")
    subprocess.run(["chown", "-R", f"{USER}:{USER}", root / HOME.lstrip("/")], check=True)
    words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "sh", "-c"]
    words += ['ulimit -Sn 1024 && cd "$0" && exec "$@"', CLONE]
    return command_inside(root, mounts, environment, words)


def make_run(prefix: list[str], port: int) -> None:
    """Runs `make run` until its server replies to a call, and ends it with SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words = [*prefix, "make", "run", f"PORT={port}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as make:
        try:
            for line in make.stdout:
                print(line, end="", flush=True)
                if line.startswith("Ctrl-C"):
                    break
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(CALL)
                assert connection.recv(100) == REPLY
            os.killpg(make.pid, signal.SIGINT)
            make.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(make.pid, signal.SIGKILL)
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        sys.exit("the server is still there after Ctrl-C")


def main() -> None:
    for suite in sys.argv[1:] or ["bookworm", "trixie"]:
        CACHE.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=CACHE, prefix="work-") as work,
            ExitStack() as reserved,
        ):
            prefix = prepare(suite, Path(work))
            make_run(prefix, reserve_port(reserved))
            if subprocess.run([*prefix, "make", "test"], check=False).returncode:
                sys.exit(f"make test failed on {suite}")


if __name__ == "__main__":
    main()
