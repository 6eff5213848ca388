"""Gateways in the API of the console: GET /api/gateways, and the problems of GET /api/state."""

from collections.abc import Callable, Iterator

import pytest
from api_client import Console
from console_fixtures import Start
from console_process import run_console
from gateways import HEALTHY, FakeGateway, GatewayProcess

from support import poll
from support.binaries import Binary
from support.server import Server


@pytest.fixture
def fake() -> Iterator[FakeGateway]:
    with FakeGateway() as fake:
        yield fake


@pytest.fixture
def console(server: Server, start: Start, fake: FakeGateway) -> Console:
    return Console(start(server.port, "--gateway", fake.url), None)


def gateways(console: Console) -> list[dict]:
    return console("/api/gateways").json["gateways"]


def read_again(console: Console) -> dict:
    """Returns the first gateway after a read that begins during this call."""
    before = gateways(console)[0]["reads"]
    # The next read to end may have begun before.
    poll.until(lambda: gateways(console)[0]["reads"] >= before + 2, "the gateway is read again")
    return gateways(console)[0]


def problems(console: Console) -> list[tuple[str, str, str, bool]]:
    """Returns level, node, state and banner of each problem, the worst first."""
    found = console("/api/state").json["problems"]
    return [(row["level"], row["node"], row["state"], row["banner"]) for row in found]


def test_counts_and_latencies_are_those_of_the_gateway(
    server: Server, start: Start, policy: Callable[..., int]
) -> None:
    policy("http|client", "FIXED 2 1d")
    # With this format, the page also has the metrics that the console reads.
    with GatewayProcess(server.port, "--metrics-format", "envoyproxy") as gateway:
        console = Console(start(server.port, "--gateway", f"{gateway.url}/metrics"), None)
        found = read_again(console)
        assert (found["name"], found["url"]) == (gateway.name, f"{gateway.url}/metrics")
        assert found["counts"]["decisions"]["denied"] == 0
        statuses = [gateway.get("/check") for _ in range(5)]
        assert sorted(statuses) == [200, 200, 429, 429, 429]
        found = read_again(console)
        seconds, counts = found["seconds"], found["counts"]
        decisions, requests = counts["decisions"], counts["requests"]
        denied = decisions["denied"] + decisions["denied_local"]
        assert round(decisions["allowed"] * seconds) == 2
        assert round(denied * seconds) == 3
        for outcome, count in {"allowed": 2, "denied": 3}.items():
            times = requests[outcome]
            assert round(times["rate"] * seconds) == count
            assert 0 < times["p50_ms"] <= times["p99_ms"] <= times["max_ms"] == 1000
        state = found["outage_mode"], found["servers_away"], found["shadow"], found["refused"]
        assert state == ("open", 0, False, False)
        assert problems(console) == []


def test_outage_is_reported_by_the_first_read_that_shows_it(
    console: Console, fake: FakeGateway
) -> None:
    assert read_again(console)["problems"] == []
    fake.page = HEALTHY.replace("outage 0", "outage 1").replace("seconds 0", "seconds 1.5")
    before = gateways(console)[0]["reads"]
    poll.until(lambda: problems(console), "the outage is reported")
    # One read may have begun before the outage. The next one must show it.
    assert gateways(console)[0]["reads"] <= before + 2
    assert problems(console) == [("bad", fake.name, "outage, open", True)]
    assert console("/api/state").json["problems"][0]["since"] == 1500
    fake.page = HEALTHY
    poll.until(lambda: not problems(console), "the outage is over")


def test_gateway_that_cannot_be_read_is_away(console: Console, fake: FakeGateway) -> None:
    wrong_program = "its metrics are not those of ratelimit-gateway"
    for page, status, why in [
        (HEALTHY, 404, "its metrics are answered with 404 Not Found"),
        ("go_goroutines 7\n", 200, wrong_program),
        ("", 200, wrong_program),
        ("x" * (17 << 20), 200, "length limit exceeded"),
    ]:
        fake.page, fake.status = page, status
        found = read_again(console)
        assert found["away"] == why
        assert [problem["state"] for problem in found["problems"]] == ["away"]
        bad = ("bad", fake.name, "away")
        assert problems(console) == [(*bad, True), (*bad, False)], "it is the only gateway"
    fake.page, fake.status = HEALTHY, 200
    assert read_again(console)["away"] is None


def test_restarted_gateway_is_counted_anew(console: Console, fake: FakeGateway) -> None:
    line = 'ratelimit_gateway_decisions_total{domain="a",outcome="unmatched"} '
    fake.page = f"{HEALTHY}{line}1000\n"
    read_again(console)
    fake.page = f"{HEALTHY}{line}100\n"
    assert read_again(console)["counts"]["unmatched"] == []
    fake.page = f"{HEALTHY}{line}130\n"
    found = read_again(console)
    (unmatched,) = found["counts"]["unmatched"]
    assert (unmatched["domain"], round(unmatched["unmatched"] * found["seconds"])) == ("a", 30)


def test_refused_limits_and_shadow_mode_are_problems(console: Console, fake: FakeGateway) -> None:
    fake.page = HEALTHY.replace("refused 0", "refused 1") + "ratelimit_gateway_xds_connected 0\n"
    read_again(console)
    states = ["refused limits", "no control plane"]
    assert problems(console) == [("warn", fake.name, state, False) for state in states]
    fake.page = HEALTHY.replace("shadow 0", "shadow 1")
    read_again(console)
    expected = [("bad", fake.name, "shadow mode", True), ("warn", fake.name, "shadow mode", False)]
    assert problems(console) == expected


def test_credentials_are_sent_and_never_shown(
    server: Server, start: Start, fake: FakeGateway
) -> None:
    secret = {"RATELIMIT_CONSOLE_GATEWAY_PASSWORD": "not-to-be-shown"}
    url = f"http://anna@{fake.name}/numbers"
    named = {"RATELIMIT_CONSOLE_GATEWAY": f"{url},http://127.0.0.1:1"}
    console = Console(start(server.port, environment=secret | named), None)
    first, second = gateways(console)
    assert (first["name"], first["away"]) == (f"{fake.name}/numbers", None)
    assert second["away"].startswith("Connection refused")
    assert fake.requests[0] == ("/numbers", "Basic YW5uYTpub3QtdG8tYmUtc2hvd24=")
    for path in ("/api/gateways", "/api/state"):
        body = console(path).body
        assert "anna" not in body
        assert "shown" not in body


@pytest.mark.parametrize(
    ("urls", "error"),
    [(["localhost:8080"], "--gateway"), (["http://a:1", "http://a:1/metrics"], "a:1 twice")],
)
def test_malformed_gateway_is_refused_at_start(urls: list[str], error: str) -> None:
    words = [word for url in urls for word in ("--gateway", url)]
    started = run_console("serve", *words)
    assert started.returncode != 0
    assert error in started.stderr


def test_console_without_gateways_has_none(server: Server, start: Start) -> None:
    console = Console(start(server.port), None)
    assert gateways(console) == []
    assert problems(console) == []


def test_server_that_is_away_is_the_worst_problem(binary: Binary, start: Start) -> None:
    with Server(binary) as server, FakeGateway() as fake:
        console = Console(start(server.port, "--gateway", fake.url), None)
        fake.page = HEALTHY.replace("refused 0", "refused 1")
        server.stop("kill")
        address = f"127.0.0.1:{server.port}"
        expected = [
            ("bad", address, "away", True),
            ("warn", fake.name, "refused limits", False),
        ]
        poll.until(lambda: problems(console) == expected, "both problems are reported")
