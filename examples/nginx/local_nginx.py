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
DOWNLOADED = HERE.parents[1] / "target/nginx/root"

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
class Nginx:
    """nginx and its Lua modules."""

    path: Path
    modules: tuple[Path, ...]

    @property
    def environment(self) -> dict[str, str]:
        """Returns the paths to the libraries of a downloaded nginx."""
        libraries = [*DOWNLOADED.glob("usr/lib/*-linux-gnu"), *DOWNLOADED.glob("lib/*-linux-gnu")]
        return {
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "LUA_PATH": f"{DOWNLOADED}/usr/share/lua/5.1/?.lua;;",
        }


def find() -> Nginx | None:
    """Returns the downloaded nginx or the system's, with its modules from either place. Returns
    `None` if nginx or a module is missing.
    """
    path = shutil.which(DOWNLOADED / "usr/sbin/nginx") or shutil.which(
        "nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"
    )
    folders = [DOWNLOADED / "usr/lib/nginx/modules", Path("/usr/lib/nginx/modules")]
    module_paths = [
        next((folder / name for folder in folders if (folder / name).exists()), None)
        for name in MODULES
    ]
    modules = tuple(module for module in module_paths if module)
    return Nginx(Path(path), modules) if path and len(modules) == len(MODULES) else None


def start(
    nginx: Nginx,
    folder: Path,
    changes: Mapping[str, str],
    redis_url: str,
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts nginx with all of its files in `folder`, and with nginx.conf changed from each key of
    `changes` to its value. nginx logs to `output`.
    """
    configuration = (HERE / "nginx.conf").read_text()
    for old, new in changes.items():
        if configuration.count(old) != 1:
            raise ValueError(f"nginx.conf does not have {old!r} exactly once")
        configuration = configuration.replace(old, new)
    (folder / "nginx.conf").write_text(configuration)
    shutil.copy(HERE / "ratelimit.lua", folder)
    enabled = "".join(f"load_module {module};\n" for module in nginx.modules)
    write_file(folder / "modules-enabled/lua.conf", enabled)
    # Debian's default is /var/lib/nginx, which may not be writable.
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    write_file(
        folder / "conf.d/temporary.conf", "".join(f"{kind}_temp_path {kind};\n" for kind in kinds)
    )
    write_file(folder / "files/index.html", "<!doctype html><title>hello</title>\n")
    # By default, workers of root run as nobody, a user who may not read the folder.
    user = "user root; " if os.geteuid() == 0 else ""
    options = ["-e", "stderr", "-p", folder, "-c", "nginx.conf"]
    return lifetime.start(
        [nginx.path, *options, "-g", f"daemon off; pid nginx.pid; {user}"],
        env=os.environ | nginx.environment | {"REDIS_URL": redis_url},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        # Ctrl-C in the terminal must reach only the parent, which ends nginx.
        start_new_session=True,
    )


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--find", action="store_true")
    arguments = parser.parse_args()

    nginx = find()
    if nginx is None:
        sys.exit("there is no nginx with Lua (Debian: apt install nginx libnginx-mod-http-lua)")
    if arguments.find:
        print(nginx.path)
        return
    url = os.environ["REDIS_URL"]
    with redis.Redis.from_url(url) as server:
        for name, specs in POLICIES.items():
            server.execute_command("RL.POLICYSET", name, "NX", *specs.split())
    lifetime.end_in_order()
    with tempfile.TemporaryDirectory(prefix="ratelimit-nginx-") as folder:
        changes = {"listen 8080;": f"listen {arguments.port};"}
        process = start(nginx, Path(folder), changes, url)
        print(f"nginx is at http://localhost:{arguments.port}", flush=True)
        try:
            sys.exit(process.wait())
        except KeyboardInterrupt:
            pass
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
