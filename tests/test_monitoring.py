"""What the Prometheus exporter for Redis reads of the module by the script that is shipped."""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from support import poll
from support.server import REPOSITORY, Server, reserve_port

SCRIPT = REPOSITORY / "monitoring/ratelimit.lua"
DASHBOARD = REPOSITORY / "monitoring/grafana.json"
EXPORTER = shutil.which("prometheus-redis-exporter") or shutil.which("redis_exporter")


@pytest.fixture
def used(fresh_server: Callable[..., Server]) -> Server:
    """A server that has admitted one call and denied one."""
    server = fresh_server()
    with server.client() as client:
        for _ in range(2):
            client.execute_command("RL.TOKENBUCKET", "k", 1, 1, "1h")
    return server


@pytest.fixture
def port() -> Iterator[int]:
    """For an exporter."""
    with ExitStack() as held:
        yield reserve_port(held)


@pytest.fixture
def scrape(used: Server, port: int) -> Iterator[Callable[[], dict[str, float]]]:
    """Asks an exporter: series by name and labels, as in the text of the scrape."""
    if EXPORTER is None:
        pytest.skip("the Prometheus exporter for Redis is not installed")
    exporter = subprocess.Popen(
        [
            EXPORTER,
            f"-redis.addr=redis://127.0.0.1:{used.port}",
            f"-web.listen-address=127.0.0.1:{port}",
            f"-script={SCRIPT}",
        ],
        stderr=subprocess.DEVNULL,
    )

    def ask() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        series = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in series}

    def answers() -> bool:
        try:
            return bool(ask())
        except OSError:
            return False

    try:
        poll.until(answers, "the exporter answers")
        yield ask
    finally:
        exporter.terminate()
        exporter.wait()


def test_the_exporter_shows_every_count(scrape: Callable[[], dict[str, float]]) -> None:
    found = scrape()
    for key, value in {
        "ratelimit:calls": 2,
        "ratelimit:admitted": 1,
        "ratelimit:denied": 1,
        "ratelimit:errors": 0,
        "ratelimit:effects_propagated": 0,
        "rl.tokenbucket:denied": 1,
        "rl.mtake:calls": 0,
        "rl-bucket:keys_made": 1,
        "rl-leases:admitted": 0,
    }.items():
        assert found[f'redis_script_values{{key="{key}"}}'] == value, key
    # Seven in all, four of each of fifteen commands, three of each of seven kinds.
    ours = [name for name in found if name.startswith("redis_script_values")]
    assert len(ours) == 7 + 15 * 4 + 7 * 3
    assert found['redis_commands_total{cmd="rl.tokenbucket"}'] == 2


def test_the_script_returns_what_info_counts(used: Server) -> None:
    with used.client(decode_responses=True) as client:
        flat = client.eval(SCRIPT.read_text(), 0)
        counts = dict(zip(flat[::2], flat[1::2], strict=True))
        assert counts["ratelimit:calls"] == "2"
        assert counts["rl.tokenbucket:admitted"] == "1"
        assert counts["rl-bucket:keys_made"] == "1"


def test_the_dashboard_asks_for_what_there_is(used: Server) -> None:
    with used.client(decode_responses=True) as client:
        keys = client.eval(SCRIPT.read_text(), 0)[::2]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = re.findall(r'key=~"([^"]+)"', " ".join(t["expr"] for p in panels for t in p["targets"]))
    assert len(asked) >= 10
    for pattern in asked:
        assert any(re.fullmatch(pattern, key) for key in keys), pattern
