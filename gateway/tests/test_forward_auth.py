"""Unmodified proxies with and without a gateway.

Each cell of the table in docs/gateway.md is tested.
"""

import contextlib
import http.client
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from origin import Origin
from proxies import KINDS, Proxy
from running import REPOSITORY, Gateway

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.server import Server

Start = Callable[..., Gateway]
Policy = Callable[..., int]
DOCUMENT = REPOSITORY / "docs/gateway.md"

# Short test runs use only Caddy; Envoy has tests of its own.
ALL_PROXIES = [
    pytest.param(name, marks=[] if name == "caddy" else pytest.mark.proxies) for name in KINDS
]
HTTP_PROXIES = [param for param in ALL_PROXIES if param.values != ("envoy",)]

# Changes to the files after which requests are denied while the gateway does not respond.
EDITS_THAT_DENY = {
    "envoy": {"failure_mode_deny: false": "failure_mode_deny: true"},
    "caddy": {"handle_errors 502 504": "handle_errors 599"},
    "traefik": {"address: http://127.0.0.1:10001/check": "address: http://127.0.0.1:8080/check"},
    "haproxy": {"if unanswered then return end": ""},
    "nginx": {"error_page 502 504 = @pass;": ""},
}


def table() -> dict[str, list[str]]:
    """Return the cells of the documented table after the first, by proxy."""
    text = DOCUMENT.read_text()
    body = text[text.index("| proxy |") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
    return {row[0].lower(): row[1:] for row in rows[2:]}


def documented_statuses(name: str, column: int) -> list[int]:
    """Return the statuses in a cell. The origin answers 200 to a request that passes."""
    cell = table()[name][column]
    return [200] if cell == "passes" else [int(number) for number in re.findall(r"\d+", cell)]


# Columns of the table: without a gateway, in an outage of the server (--on-outage open or closed),
# and without a gateway after the edits that deny requests.
WITHOUT_GATEWAY, OPEN, CLOSED, DENIES = range(4)


def test_table_has_a_row_for_each_proxy() -> None:
    assert sorted(table()) == sorted(KINDS)
    assert all(documented_statuses(name, column) for name in KINDS for column in range(4))


def wait_for_routes(proxy: Proxy) -> None:
    """Waits until the proxy has its routes. Traefik listens before it has them."""
    poll.until(lambda: proxy.get("/").status == 200, "the proxy has its routes")


@pytest.fixture
def proxy(
    request: pytest.FixtureRequest, gateway: Gateway, origin: Origin, tmp_path: Path
) -> Iterator[Proxy]:
    with Proxy(request.param, gateway, origin, tmp_path) as proxy:
        wait_for_routes(proxy)
        yield proxy


class OverloadedHandler(BaseHTTPRequestHandler):
    """Handler that rejects requests like a gateway that exceeds its byte budget."""

    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("retry-after", "1")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("name", HTTP_PROXIES)
def test_request_that_an_overloaded_gateway_rejects_is_denied(
    name: str, origin: Origin, tmp_path: Path
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OverloadedHandler) as overloaded:
        thread = threading.Thread(target=overloaded.serve_forever, args=(0.01,))
        thread.start()
        gateway = SimpleNamespace(http=overloaded.server_port, grpc=overloaded.server_port)
        with Proxy(name, gateway, origin, tmp_path) as proxy:
            poll.until(lambda: proxy.get().status == 503, "the proxy has its routes")
            assert proxy.statuses(3) == [503] * 3
        overloaded.shutdown()
        thread.join()


@pytest.mark.parametrize("proxy", HTTP_PROXIES, indirect=True)
def test_limit_is_exact_and_a_changed_policy_applies(proxy: Proxy, policy: Policy) -> None:
    policy("http|client", "FIXED 3 1h")
    assert proxy.statuses(4) == [200, 200, 200, 429]
    denied = proxy.get()
    assert denied.headers["Retry-After"] == "3600"
    assert denied.headers["RateLimit"] == '"default";r=0;t=3600'
    assert denied.headers["RateLimit-Policy"].startswith('"default";q=3')
    policy("http|client", "FIXED 4 1h")
    # The gateway remembers the denial for up to a second.
    poll.until(lambda: proxy.get().status == 200, "the new policy applies")
    assert proxy.statuses(1) == [429]


@pytest.mark.parametrize("proxy", HTTP_PROXIES, indirect=True)
def test_passing_response_shows_the_limit(
    request: pytest.FixtureRequest, proxy: Proxy, policy: Policy
) -> None:
    assert "RateLimit" not in proxy.get().headers, "without a limit there is nothing to show"
    policy("http|client", "FIXED 3 1h")
    passed = proxy.get()
    fields = [passed.headers[name] for name in ("RateLimit", "RateLimit-Policy")]
    assert passed.status == 200
    if request.node.callspec.params["proxy"] == "traefik":
        assert fields == [None, None], "docs/gateway.md documents this exception"
    else:
        assert fields[0] == '"default";r=2;t=3600'
        assert fields[1].startswith('"default";q=3')


RULES = """
http:
  rules:
    - {path: /teapot, limit: FIXED 1 1h, key: "{client}", cost: "{header.x-cost}"}
    - method: POST
      path: "/pay/*"
      header: {x-plan: "g*"}
      limit: FIXED 1 1h
      key: "pay:{header.x-user}"
"""


@pytest.mark.parametrize("name", HTTP_PROXIES)
def test_rules_see_method_path_and_headers_of_the_client(
    name: str, server: Server, start: Start, file: Path, origin: Origin, tmp_path: Path
) -> None:
    file.write_text(RULES)
    gateway = start(server.port, "--config", file)
    with Proxy(name, gateway, origin, tmp_path) as proxy:
        wait_for_routes(proxy)
        gold = {"x_plan": "gold", "x_user": "1"}
        responses = [proxy.get("/pay/2?a=b", "POST", **gold) for _ in range(2)]
        assert [response.status for response in responses] == [200, 429]
        assert proxy.get("/pay/2", "POST", x_plan="gold", x_user="2").status == 200
        assert proxy.get("/pay/2", "POST", x_plan="free", x_user="1").status == 200
        assert proxy.get("/pay/2", **gold).status == 200
        assert proxy.get("/teapot", x_cost="rubbish").status == 400
        assert origin.posts == ["/pay/2?a=b", "/pay/2", "/pay/2"]


@pytest.mark.parametrize("name", HTTP_PROXIES)
def test_no_spelling_of_a_path_bypasses_its_rule(
    name: str, server: Server, start: Start, file: Path, origin: Origin, tmp_path: Path
) -> None:
    file.write_text("http: {rules: [{path: /login, limit: FIXED 0 1h, key: login}]}")
    gateway = start(server.port, "--config", file)
    with Proxy(name, gateway, origin, tmp_path) as proxy:
        wait_for_routes(proxy)
        spellings = ["/login", "/%6cogin", "//login", "/./login", "/x/../login", "/login/"]
        spellings += ["/login;a=b", "/login?a", "/x/%2e%2e/login", "http://127.0.0.1/login"]
        spellings += ["/login%00", "/x/..;/login", "/x//../login", "/%2e/;a/login//"]
        spellings.append("/x#/../login")
        passed = [path for path in spellings if proxy.get(path).status < 400]
        assert passed == []
        assert proxy.get("/LOGIN").status == 200


@pytest.mark.parametrize("proxy", HTTP_PROXIES, indirect=True)
def test_origin_errors_reach_the_client_and_no_request_is_retried(
    proxy: Proxy, gateway: Gateway, origin: Origin
) -> None:
    def posted_statuses() -> list[int]:
        origin.posts.clear()
        statuses = [proxy.get(path, "POST").status for path in ("/", "/500", "/broken")]
        assert origin.posts == ["/", "/500", "/broken"]
        return statuses

    with_gateway = posted_statuses()
    assert with_gateway[:2] == [200, 500]
    assert with_gateway[2] >= 500
    gateway.end(signal.SIGKILL)
    without_gateway = posted_statuses()
    assert without_gateway[:2] == [200, 500]
    assert without_gateway[2] >= 500


@contextlib.contextmanager
def suspended(gateway: Gateway) -> Iterator[None]:
    os.kill(gateway.pid, signal.SIGSTOP)
    # On a busy machine, the gateway may answer until the stop takes effect.
    os.waitid(os.P_PID, gateway.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        os.kill(gateway.pid, signal.SIGCONT)


def ask(proxy: Proxy) -> http.client.HTTPResponse:
    """Send a request that counts for `web|user` in envoy.yaml, or `http|client` elsewhere."""
    return proxy.get(x_user="1")


@pytest.mark.parametrize("name", ALL_PROXIES)
def test_request_without_a_gateway_gets_the_documented_status(
    name: str, gateway: Gateway, origin: Origin, tmp_path: Path, policy: Policy
) -> None:
    policy("web|user", "FIXED 0 1h")
    with Proxy(name, gateway, origin, tmp_path, documented_timeout=True) as proxy:
        policy("http|client", "FIXED 0 1h")
        # A busy machine may take longer than the documented timeout.
        poll.until(lambda: ask(proxy).status == 429, "the limit holds", timeout=30)
        expected = documented_statuses(name, WITHOUT_GATEWAY)
        with suspended(gateway):
            assert ask(proxy).status in expected
        poll.until(lambda: ask(proxy).status == 429, "the limit holds again", timeout=30)
        gateway.end(signal.SIGKILL)
        assert [ask(proxy).status in expected for _ in range(3)] == [True] * 3
        gateway.start()
        poll.until(lambda: ask(proxy).status == 429, "the limit holds again", timeout=30)


@pytest.mark.parametrize("name", ALL_PROXIES)
def test_request_without_a_gateway_is_denied_if_configured(
    name: str, gateway: Gateway, origin: Origin, tmp_path: Path
) -> None:
    edits = EDITS_THAT_DENY[name]
    with Proxy(name, gateway, origin, tmp_path, edits=edits) as proxy:
        poll.until(lambda: ask(proxy).status == 200, "the proxy has its routes", timeout=30)
        gateway.end(signal.SIGKILL)
        assert ask(proxy).status in documented_statuses(name, DENIES)
        assert ask(proxy).status >= 500


@pytest.fixture
def suspendable_server(binary: Binary, clock: Clock) -> Iterator[Server]:
    """Server that the test may stop."""
    with Server(binary, clock=clock) as server:
        yield server


@pytest.mark.parametrize("on_outage", ["open", "closed"])
@pytest.mark.parametrize("name", ALL_PROXIES)
def test_request_during_an_outage_of_the_server_gets_the_documented_status(
    name: str,
    on_outage: str,
    suspendable_server: Server,
    start: Start,
    origin: Origin,
    tmp_path: Path,
) -> None:
    gateway = start(suspendable_server.port, "--on-outage", on_outage, "--timeout", "200ms")
    with Proxy(name, gateway, origin, tmp_path) as proxy:
        poll.until(lambda: ask(proxy).status == 200, "the proxy has its routes", timeout=30)
        expected = documented_statuses(name, OPEN if on_outage == "open" else CLOSED)
        with suspendable_server.suspended():
            answers = [ask(proxy) for _ in range(5)]
        suspendable_server.stop("kill")
        answers += [ask(proxy) for _ in range(5)]
        assert [answer.status in expected for answer in answers] == [True] * 10
        if on_outage == "closed":
            assert {answer.headers["Retry-After"] for answer in answers} == {"1"}
