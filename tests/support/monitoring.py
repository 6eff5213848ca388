"""Exporter and Prometheus that read a server, and calls of every kind that they count."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, ResponseError

from support import poll
from support.clock import Clock
from support.ports import reserve_port
from support.server import REPOSITORY, Server

MONITORING = REPOSITORY / "monitoring"
SCRIPT = MONITORING / "ratelimit.lua"
DASHBOARD = json.loads((MONITORING / "grafana.json").read_text())
ALERTS = MONITORING / "alerts.yml"
DOCUMENT = (REPOSITORY / "docs/observability.md").read_text()
EXPORTER = shutil.which("prometheus-redis-exporter") or shutil.which("redis_exporter")
PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")

# Policy names, with their escaped form in INFO. They include a name without a letter, a name like
# the counter of another policy, and a name with special characters of INFO, Lua, PromQL and regular
# expressions.
NAMES = {
    b"plan:pro": "plan:pro",
    b"login": "login",
    b"42": "42",
    b"plan:pro:denied": "plan:pro:denied",
    b'a=1,b:2\r\n"$.*%d{}\\\xff': "a%3D1%2Cb:2%0D%0A%22%24.%2A%25d%7B%7D%5C%FF",
}
# Limit of a user, a shadow limit at half of it, and bans.
LIMITS = ["FIXED", 10, "1d", "FIXED", 5, "1d", "AS", "new", "SHADOW", "BAN", 2, "1d", "1d"]
COUNTS = ("calls", "admitted", "denied", "near", "shadow_denied", "banned", "repeated")


@pytest.fixture
def used_server(fresh_server: Callable[..., Server]) -> Server:
    """Server that has allowed one call and denied one, with policies that were never used."""
    server = fresh_server(module_args="policies yes")
    with server.client() as client:
        for _ in range(2):
            client.execute_command("RL.TOKENBUCKET", "k", 1, 1, "1h")
        for name in NAMES:
            client.execute_command("RL.POLICYSET", name, *LIMITS)
    return server


def exercise(client: Redis, user: object) -> None:
    """Calls every policy with every counted outcome. Each user has separate usage."""
    for name, shown in NAMES.items():
        key = f"{user}:{shown}"
        # Ten calls are allowed, five of them past the shadow limit and three near the limit. Three
        # calls are denied, the last of them by the ban.
        for _ in range(13):
            client.execute_command("RL.LIMIT", key, name)
        for _ in range(2):
            client.execute_command("RL.LIMIT", f"{key}:once", name, "ONCE", "id", "1h")
    with pytest.raises(ResponseError, match="NOPOLICY"):
        client.execute_command("RL.LIMIT", user, "no-such-policy")


# Counts of each policy that `exercise` adds.
EXERCISED = {
    "calls": 15,
    "admitted": 11,
    "denied": 3,
    "near": 3,
    "shadow_denied": 8,
    "banned": 1,
    "repeated": 1,
}


@contextmanager
def running(
    *command: object, answers: Callable[[], object], name: str
) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen([str(word) for word in command], stderr=subprocess.DEVNULL)

    def is_up() -> bool:
        assert process.poll() is None, f"{name} has ended"
        try:
            return bool(answers())
        except OSError:
            return False

    try:
        poll.until(is_up, f"{name} answers", timeout=20)
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def blocked_calls(server: Server, *keys: object) -> Iterator[None]:
    """Blocks a call on the lease of each key."""
    with ExitStack() as closing:
        for key in keys:
            client = closing.enter_context(server.client())
            connection = client.connection_pool.get_connection()
            closing.callback(connection.disconnect)
            assert client.execute_command("RL.ACQUIRE", key, 1, "1d", "holder")[0] == 1
            connection.send_command("RL.ACQUIRE", key, 1, "1d", "another", "BLOCK", 0)

        def all_wait() -> bool:
            return client.info("ratelimit_waiting")["ratelimit_blocked_clients"] == len(keys)

        poll.until(all_wait, "all callers wait")
        yield


def time_out_a_waiter(client: Redis, clock: Clock) -> None:
    """Blocks a call, and advances the clock to its timeout."""
    client.execute_command("RL.ACQUIRE", "full", 1, "1d", "holder")
    connection = client.connection_pool.get_connection()
    connection.send_command("RL.ACQUIRE", "full", 1, "1d", "another", "BLOCK", "1us")

    def is_answered() -> bool:
        clock.advance("1us")
        return connection.can_read(0)

    poll.until(is_answered, "the waiter is answered")
    assert connection.read_response()[0] == 0
    client.connection_pool.release(connection)


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture
def reservations() -> Iterator[ExitStack]:
    """Ports that other tests must not use until this test has ended."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def exporter(used_server: Server, reservations: ExitStack) -> Iterator[str]:
    """Address of an exporter that reads `used_server`."""
    if EXPORTER is None:
        pytest.skip("the Prometheus exporter for Redis is not installed")
    address = f"127.0.0.1:{reserve_port(reservations)}"
    with running(
        EXPORTER,
        f"-redis.addr=redis://127.0.0.1:{used_server.port}",
        f"-web.listen-address={address}",
        f"-script={SCRIPT}",
        answers=lambda: get(f"http://{address}/metrics"),
        name="the exporter",
    ):
        yield address


@pytest.fixture
def scrape(exporter: str) -> Callable[[], dict[str, float]]:
    """Returns a function that scrapes an exporter: series by name and labels, as in the text
    format.
    """

    def scrape() -> dict[str, float]:
        lines = get(f"http://{exporter}/metrics").splitlines()
        series = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in series}

    return scrape


Ask = Callable[..., Any]


@pytest.fixture
def ask(exporter: str, tmp_path: Path, reservations: ExitStack) -> Iterator[Ask]:
    """Returns a function that queries a Prometheus with our rules, which scrapes the exporter."""
    if PROMETHEUS is None:
        pytest.skip("Prometheus is not installed")
    address = f"127.0.0.1:{reserve_port(reservations)}"
    # JSON is valid YAML.
    config = {
        "global": {
            "scrape_interval": "500ms",
            "scrape_timeout": "500ms",
            "evaluation_interval": "500ms",
        },
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "redis", "static_configs": [{"targets": [exporter]}]}],
    }
    file = tmp_path / "prometheus.yml"
    file.write_text(json.dumps(config))

    def ask(endpoint: str, **arguments: str) -> Any:
        # The name of a repeatable argument ends in brackets.
        words = {name.replace("match", "match[]"): value for name, value in arguments.items()}
        query = urllib.parse.urlencode(words)
        answer = json.loads(get(f"http://{address}/api/v1/{endpoint}?{query}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    with running(
        PROMETHEUS,
        f"--config.file={file}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}",
        answers=lambda: get(f"http://{address}/-/ready"),
        name="Prometheus",
    ):
        yield ask


def script_values(client: Redis) -> dict[str, float]:
    """Returns the values that the exporter's script reads from a server."""
    flat = client.eval(SCRIPT.read_text(), 0)
    keys, values = flat[::2], flat[1::2]
    assert len(set(keys)) == len(keys)
    return {key: float(value) for key, value in zip(keys, values, strict=True)}


def wait_for_series(has_all: Callable[[], bool], missing: set) -> None:
    """Waits until Prometheus has read all series. Otherwise reports the series that `has_all`
    leaves in `missing`.
    """
    try:
        poll.until(has_all, "Prometheus has all series", timeout=30)
    except TimeoutError:
        pytest.fail(f"Prometheus has no value of {missing}")
