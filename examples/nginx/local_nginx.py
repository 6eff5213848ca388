"""Runs nginx with nginx.conf, in a temporary folder, with the server in $REDIS_URL:

    python local_nginx.py --port 8080

With --find it only prints the path of nginx, and fails if there is none with Lua.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import redis

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from support import lifetime  # noqa: E402

# Folder of get_nginx.sh.
FETCHED = HERE.parents[1] / "target/nginx/root"

# Modules in the order in which nginx must load them.
MODULES = ("ndk_http_module.so", "ngx_http_lua_module.so")

# Policies that nginx.conf names, set unless they exist.
POLICIES = {
    "plan:free": "TOKENBUCKET 60 60 1m",
    "plan:pro": "TOKENBUCKET 600 600 1m FIXED 100000 1mo ALIGNED AS month",
    "anonymous": "TOKENBUCKET 20 20 1m",
    "login": "FIXED 5 1m",
}


@dataclass(frozen=True)
class Program:
    """nginx and its Lua modules."""

    path: Path
    modules: tuple[Path, ...]

    @property
    def environment(self) -> dict[str, str]:
        """Returns the paths to the libraries of a fetched nginx."""
        libraries = [*FETCHED.glob("usr/lib/*-linux-gnu"), *FETCHED.glob("lib/*-linux-gnu")]
        return {
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "LUA_PATH": f"{FETCHED}/usr/share/lua/5.1/?.lua;;",
        }


def find() -> Program | None:
    """Finds the fetched nginx or that of the system, and its modules in either place."""
    path = shutil.which(FETCHED / "usr/sbin/nginx") or shutil.which(
        "nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"
    )
    folders = [FETCHED / "usr/lib/nginx/modules", Path("/usr/lib/nginx/modules")]
    found = [
        next((folder / name for folder in folders if (folder / name).exists()), None)
        for name in MODULES
    ]
    modules = tuple(module for module in found if module)
    return Program(Path(path), modules) if path and len(modules) == len(MODULES) else None


def start(
    program: Program,
    folder: Path,
    changes: Mapping[str, str],
    redis_url: str,
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts nginx with all of its files in `folder` and the `changes` to nginx.conf. It logs to
    `output`.
    """
    configuration = (HERE / "nginx.conf").read_text()
    for old, new in changes.items():
        if configuration.count(old) != 1:
            raise ValueError(f"nginx.conf has not one {old!r}")
        configuration = configuration.replace(old, new)
    (folder / "nginx.conf").write_text(configuration)
    shutil.copy(HERE / "ratelimit.lua", folder)
    enabled = "".join(f"load_module {module};\n" for module in program.modules)
    write(folder / "modules-enabled/lua.conf", enabled)
    # Debian's default is /var/lib/nginx, which may not be writable.
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    write(folder / "conf.d/temporary.conf", "".join(f"{k}_temp_path {k};\n" for k in kinds))
    write(folder / "files/index.html", "<!doctype html><title>hello</title>\n")
    # By default, workers of root run as nobody, who may not read the folder.
    user = "user root; " if os.geteuid() == 0 else ""
    words = ["-e", "stderr", "-p", folder, "-c", "nginx.conf"]
    return lifetime.start(
        [program.path, *words, "-g", f"daemon off; pid nginx.pid; {user}"],
        env=os.environ | program.environment | {"REDIS_URL": redis_url},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        # Ctrl-C in the terminal must reach only the parent, which ends nginx.
        start_new_session=True,
    )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--find", action="store_true")
    arguments = parser.parse_args()

    program = find()
    if program is None:
        sys.exit("there is no nginx with Lua (Debian: apt install nginx libnginx-mod-http-lua)")
    if arguments.find:
        print(program.path)
        return
    url = os.environ["REDIS_URL"]
    with redis.Redis.from_url(url) as server:
        for name, specs in POLICIES.items():
            server.execute_command("RL.POLICYSET", name, "NX", *specs.split())
    lifetime.end_in_order()
    with tempfile.TemporaryDirectory(prefix="ratelimit-nginx-") as folder:
        changes = {"listen 8080;": f"listen {arguments.port};"}
        nginx = start(program, Path(folder), changes, url)
        print(f"nginx is at http://localhost:{arguments.port}", flush=True)
        try:
            sys.exit(nginx.wait())
        except KeyboardInterrupt:
            pass
        finally:
            nginx.terminate()
            nginx.wait()


if __name__ == "__main__":
    main()
