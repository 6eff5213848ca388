"""Script of `make run`."""

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


def test_script_runs_nginx_until_it_is_terminated(
    server: Server, redis: Redis, tmp_path: Path
) -> None:
    redis.execute_command("RL.POLICYSET", "plan:pro", "FIXED", 9, "1m")
    with ExitStack() as resources:
        port, log = reserve_port(resources), tmp_path / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, local_nginx.__file__, "--port", str(port)],
                env=os.environ | {"REDIS_URL": f"redis://127.0.0.1:{server.port}"},
                stdout=output,
                stderr=output,
            )
        try:
            poll.until(lambda: "nginx is at" in log.read_text(), "nginx runs", timeout=20)
            client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=ALICE, **PLAIN)
            response_fields: dict[str, str] = {}

            def shows_limits() -> bool:
                assert process.poll() is None, log.read_text()
                try:
                    response_fields.update(fields(client.get("/")))
                except httpx.ConnectError:
                    return False
                return bool(response_fields)

            with client:
                poll.until(shows_limits, "responses show the limit", timeout=20)
            # Existing policies are kept.
            assert response_fields["x-ratelimit-limit"] == "9"
            names = {name for name, *_ in redis.execute_command("RL.POLICYLIST")}
            assert names == local_nginx.POLICIES.keys()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)
        # The port is free again.
        poll.until(lambda: is_refused(port), "nginx has ended", timeout=20)


def is_refused(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}", **PLAIN)
    except httpx.ConnectError:
        return True
    return False
