"""The limits that docs/migrating.md shows in place of nginx's limit_req decide as nginx does.

The tests compare nginx's decisions and the counts in its log, never how long it took.
"""

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from redis import Redis

from support import poll
from support.clock import UNITS_US, Clock
from support.ports import reserve_port
from support.server import REPOSITORY, Server

pytestmark = pytest.mark.once

DOCUMENT = (REPOSITORY / "docs/migrating.md").read_text()
ROW = re.compile(r"^\| `rate=(\d+)r/s (burst=(\d+)( nodelay| delay=(\d+)|))` \| `([A-Z0-9a-z ]+)`")
PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

# A single process that writes only in its own folder.
CONFIGURATION = """
daemon off;
master_process off;
pid nginx.pid;
error_log error.log warn;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    limit_req_zone $server_name zone=all:1m rate=RATE;
    server {
        listen 127.0.0.1:PORT;
        server_name all;
        root .;
        location = /limited { limit_req zone=all WORDS; }
    }
}
"""


class Row(NamedTuple):
    """Row of the table: a limit of nginx and the equivalent spec."""

    # Requests a second.
    rate: int
    # Arguments of limit_req after the zone.
    words: str
    burst: int
    # Number of requests in the burst that do not wait.
    delay: int
    spec: str

    def scaled(self, factor: Fraction) -> list[str]:
        """Returns the spec's arguments with all durations multiplied."""

        def word(text: str) -> str:
            found = re.fullmatch(r"(\d+)(ms|s)", text)
            if found is None:
                return text
            return f"{int(int(found[1]) * UNITS_US[found[2]] * factor / 1000)}ms"

        return [word(text) for text in self.spec.split()]


def rows() -> list[Row]:
    matches = [match for line in DOCUMENT.splitlines() if (match := ROW.match(line))]
    return [
        Row(
            rate=int(match[1]),
            words=match[2],
            burst=int(match[3]),
            # Without delay=, all requests of the burst wait; with nodelay, no request waits.
            delay=int(match[3]) if "nodelay" in match[4] else int(match[5] or 0),
            spec=match[6],
        )
        for match in matches
    ]


class Outcome(NamedTuple):
    """Decision of nginx."""

    allowed: bool
    # Excess in thousandths of a request, or None if nginx logged none.
    excess: int | None


class Nginx:
    """Server of nginx with one limit for all requests, within a `with` block."""

    def __init__(self, rate: str, words: str, folder: Path) -> None:
        self._owned = ExitStack()
        self._folder = folder
        self._port = reserve_port(self._owned)
        text = CONFIGURATION.replace("RATE", rate).replace("WORDS", words)
        (folder / "nginx.conf").write_text(text.replace("PORT", str(self._port)))
        (folder / "limited").write_text("passed\n")
        self._request_count = 0

    def __enter__(self) -> Self:
        command = [PROGRAM, "-p", self._folder, "-c", "nginx.conf", "-e", "error.log"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self._owned.callback(process.wait)
        self._owned.callback(process.kill)
        poll.until(self._listens, "nginx listens")
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def ask(self) -> Outcome:
        """Sends a request and returns once nginx has decided, without waiting for a delayed
        response.
        """
        self._request_count += 1
        connection = socket.create_connection(("127.0.0.1", self._port), 30)
        self._owned.callback(connection.close)
        request = f"GET /limited?{self._request_count} HTTP/1.1"
        connection.sendall(f"{request}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        connection.setblocking(False)
        count = r"(limiting|delaying) requests?, excess: (\d+)\.(\d+),? by zone"
        logged = re.compile(rf'{count}.* "{re.escape(request)}"')
        outcome: list[Outcome] = []

        def is_decided() -> bool:
            try:
                status = connection.recv(100).split(b" ")[1]
            except BlockingIOError:
                status = None
            log = (self._folder / "error.log").read_text()
            if found := logged.search(log):
                outcome.append(Outcome(found[1] == "delaying", int(found[2] + found[3])))
            elif status is not None:
                assert status == b"200"
                outcome.append(Outcome(True, None))
            return bool(outcome)

        poll.until(is_decided, "nginx decides")
        return outcome[0]


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Callable[[str, str], Nginx]]:
    if PROGRAM is None:
        pytest.skip("needs nginx")
    with ExitStack() as running:
        yield lambda rate, words: running.enter_context(Nginx(rate, words, tmp_path))


@pytest.fixture
def redis(server: Server) -> Redis:
    return server.client()


def test_table_has_every_kind_of_burst() -> None:
    assert [row.words for row in rows()] == ["burst=20 nodelay", "burst=5", "burst=12 delay=8"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.words)
def test_burst_is_decided_as_nginx_decides_it(
    row: Row, redis: Redis, nginx: Callable[[str, str], Nginx]
) -> None:
    # With nginx's slowest rate, no usage recovers between requests even on a slow machine.
    running = nginx("1r/m", row.words)
    algorithm, *words = row.scaled(Fraction(60 * row.rate))
    for number in range(row.burst + 3):
        allowed, excess = running.ask()
        waits = 0 if excess is None else round(excess / 1000) - row.delay
        reply = redis.execute_command(f"RL.{algorithm}", "limited", *words)
        assert reply[0] == allowed == (number <= row.burst)
        if allowed:
            assert reply[3] == waits * 60_000


def test_waits_of_the_documented_delays(redis: Redis) -> None:
    row = rows()[2]
    algorithm, *words = row.spec.split()
    replies = [redis.execute_command(f"RL.{algorithm}", "k", *words) for _ in range(14)]
    waits = [reply[3] for reply in replies if reply[0]]
    assert waits == [0] * 9 + [200, 400, 600, 800]
    assert [reply[0] for reply in replies] == [1] * 13 + [0]


def test_waits_follow_nginx_to_the_millisecond(
    redis: Redis, clock: Clock, nginx: Callable[[str, str], Nginx]
) -> None:
    """Derives the time that nginx counted since its last request from the excess that it logs."""
    row = rows()[1]
    # Ten times the documented rate: the excess falls by ten thousandths of a request each ms.
    running = nginx(f"{10 * row.rate}r/s", row.words)
    algorithm, *words = row.scaled(Fraction(1, 10))
    assert running.ask() == (True, None)
    redis.execute_command(f"RL.{algorithm}", "limited", *words)
    last, last_excess, delayed, denied = clock.now, 0, 0, 0
    # A limited number of tries, as a slow machine may never send requests faster than the limit.
    for _ in range(500):
        allowed, excess = running.ask()
        elapsed = last_excess + 1000 - (excess or 0)
        assert excess is None or elapsed % 10 == 0
        clock.set(last + -(-elapsed // 10) * 1000)
        reply = redis.execute_command(f"RL.{algorithm}", "limited", *words)
        assert reply[0] == allowed
        if allowed:
            assert reply[3] * 10 == (excess or 0)
            last, last_excess = clock.now, excess or 0
            delayed += excess is not None
        else:
            assert reply[3] * 10 == excess - 1000 * row.burst
            denied += 1
        if delayed >= 10 and denied >= 5:
            break
    assert delayed
