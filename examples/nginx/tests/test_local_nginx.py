"""`make run`."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import local_nginx
from gateway import ALICE, PLAIN, fields
from redis import Redis

from support import poll
from support.ports import reserve_port
from support.server import Server


def test_it_runs_the_configuration_as_it_is_until_it_is_ended(
    server: Server, redis: Redis, tmp_path: Path
) -> None:
    redis.execute_command("RL.POLICYSET", "plan:pro", "FIXED", 9, "1m")
    with ExitStack() as until:
        port, log = reserve_port(until), tmp_path / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, local_nginx.__file__, "--port", str(port)],
                env=os.environ | {"REDIS_URL": f"redis://127.0.0.1:{server.port}"},
                stdout=output,
                stderr=output,
            )
        try:
            poll.until(lambda: "nginx is at" in log.read_text(), "nginx runs", timeout=20)
            ask = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=ALICE, **PLAIN)
            told: dict[str, str] = {}

            def is_told() -> bool:
                assert process.poll() is None, log.read_text()
                try:
                    told.update(fields(ask.get("/")))
                except httpx.ConnectError:
                    return False
                return bool(told)

            with ask:
                poll.until(is_told, "it answers", timeout=20)
            # Policies that there are stay as they are.
            assert told["x-ratelimit-limit"] == "9"
            names = {name for name, *_ in redis.execute_command("RL.POLICYLIST")}
            assert names == local_nginx.POLICIES.keys()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)
        # Nobody has the port any more.
        poll.until(lambda: refused(port), "nginx has ended", timeout=20)


def refused(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}", **PLAIN)
    except httpx.ConnectError:
        return True
    return False
