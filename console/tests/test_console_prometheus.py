"""History of the console from Prometheus."""

import base64
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from api_client import TOKENS, Console
from console_fixtures import Start
from console_process import run_console
from prometheus_stub import PrometheusStub, prometheus_stub
from redis import Redis

from support import poll
from support.certificates import certificates
from support.clock import START_US, Clock
from support.monitoring import PROMETHEUS, PROMTOOL, get, running
from support.ports import reserve_port
from support.server import Server

__all__ = ["certificates"]

NOW = START_US // 1_000_000
MINUTE = NOW - NOW % 60
WEEK = 7 * 1440


@pytest.fixture
def stub() -> Iterator[PrometheusStub]:
    with prometheus_stub() as stub:
        yield stub


@pytest.fixture
def ask(server: Server, clock: Clock, start: Start) -> Callable[..., Callable[[int], dict]]:
    """Starts a console with options, and returns a function that gets its history."""

    def start_console(*options: str | Path, **environment: str) -> Callable[[int], dict]:
        process = start(server.port, *options, environment=TOKENS | clock.environment | environment)
        console = Console(process)
        poll.until(lambda: console("/api/now").json["ticks"], "the sampler runs")
        ask_history = lambda minutes: console(f"/api/history?minutes={minutes}").json  # noqa: E731
        ask_history.console = console
        return ask_history

    return start_console


def test_history_comes_from_prometheus(
    ask: Callable[..., Callable[[int], dict]], stub: PrometheusStub
) -> None:
    end = NOW - 3600 - NOW % 600
    stub.all_calls = [
        ({"key": "ratelimit:admitted"}, {end: 20, end + 60: 19.456}),
        ({"key": "ratelimit:denied"}, {end: 0, end + 60: 7}),
        ({"key": "shadow_denied"}, {end + 60: 1}),
    ]
    stub.policies = [
        ({"policy": "plan:pro", "key": "policy:plan:pro:denied"}, {end + 60: 7}),
        ({"policy": "plan:pro", "key": "policy:plan:pro:admitted"}, {end + 60: 2}),
        ({"policy": "a%0A%FF", "key": "policy:a%0A%FF:banned"}, {end: 3}),
    ]
    matchers = 'job="redis",cluster=~"eu.*"'
    history = ask("--prometheus", f"{stub.url}/prom/", "--prometheus-match", matchers)
    day = history(1440)
    # The interval that a rate describes ends at the time of the rate.
    assert [point for point in day["points"] if point["at"] < end * 1000 + 60_000] == [
        {
            "at": (end - 60) * 1000,
            "all": [20.0, 0.0, 0.0, 0.0],
            "policies": {"a\n\\xff": [0.0, 0.0, 0.0, 3.0]},
        },
        {
            "at": end * 1000,
            "all": [19.46, 7.0, 1.0, 0.0],
            "policies": {"plan:pro": [2.0, 7.0, 0.0, 0.0]},
        },
    ]
    assert (day["step_ms"], day["keys"], day["why"]) == (60_000, [], None)
    assert (day["source"], day["prometheus"]) == ("prometheus", f"{stub.url}/prom")
    assert all(path.startswith("/prom/api/v1/query") for path, *_ in stub.requests)
    all_calls, policies = stub.queries()
    for arguments in (all_calls, policies):
        assert int(arguments["start"]) == MINUTE - 1440 * 60 + 60
        assert (int(arguments["end"]), int(arguments["step"])) == (MINUTE, 60)
    series = f"redis_script_values{{{matchers},key=~"
    total = 'label_replace(sum(rate({0}"policy:.+:{1}"}}[60s])), "key", "{1}", "", "")'
    assert all_calls["query"] == (
        f'sum by (key) (rate({series}"ratelimit:(admitted|denied)"}}[60s])) or '
        f"{total.format(series, 'shadow_denied')} or {total.format(series, 'banned')}"
    )
    assert policies["query"].count(series) == 3
    assert "topk(10, " in policies["query"]
    # A second viewer causes no query. The interval of the samples is cached.
    history(1440)
    assert stub.requests == []
    week = history(WEEK)
    assert week["step_ms"] == 600_000
    assert (week["points"][0]["at"], week["points"][0]["all"][0]) == ((end - 600) * 1000, 20)
    assert {int(arguments["step"]) for arguments in stub.queries()} == {600}


def test_rates_span_four_samples(
    ask: Callable[..., Callable[[int], dict]], stub: PrometheusStub
) -> None:
    stub.interval = 60
    history = ask("--prometheus", stub.url)
    assert history(15)["step_ms"] == 10_000
    all_calls, policies = stub.queries()
    assert all_calls["query"].count("[240s]") == 3
    assert policies["query"].count("[240s]") == 3
    assert 'redis_script_values{key=~"' in all_calls["query"]


def test_samples_of_the_console_fill_gaps_of_prometheus(
    ask: Callable[..., Callable[[int], dict]],
    stub: PrometheusStub,
    clock: Clock,
    redis: Redis,
    policy: Callable[..., int],
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    history = ask("--prometheus", stub.url)
    policy("login", "FIXED 1 1d")
    for _ in range(4):
        redis.execute_command("RL.LIMIT", "user:1", "login")
    early = history(60)
    assert (early["source"], early["why"]) == ("samples", None), "no two samples yet"

    def is_sampled() -> bool:
        return any(point["policies"] for point in history(60)["points"])

    poll.until(is_sampled, "the denials are sampled")
    clock.advance("70s")
    poll.until(lambda: history(60)["keys"], "the keys of the minute are read")
    now = clock.now // 1_000_000
    last = now - now % 10
    stub.all_calls = [
        ({"key": "ratelimit:admitted"}, dict.fromkeys(range(last - 600, last - 20, 10), 9))
    ]
    clock.advance("10s")
    found = history(60)
    assert (found["source"], found["why"]) == ("both", None)
    rates = {point["at"] // 1000: point["all"][0] for point in found["points"]}
    assert rates[NOW - NOW % 10] == 9, "Prometheus has this interval"
    assert rates[last - 610] == 9
    assert max(rates) >= last
    ((minute, [key]),) = found["keys"]
    assert (minute // 1000, key["key"], key["denied"]) == (MINUTE, "user:1", 3)


def test_failure_of_prometheus_is_named_and_samples_are_shown(
    ask: Callable[..., Callable[[int], dict]], stub: PrometheusStub, clock: Clock
) -> None:
    history = ask("--prometheus", stub.url)

    def why() -> str:
        clock.advance("10s")
        found = history(15)
        assert found["points"]
        assert found["source"] == "samples"
        return found["why"]

    error = {"errorType": "bad_data", "error": "1:5: parse error: unexpected right brace"}
    stub.failure = 400, error
    assert why() == error["error"]
    stub.failure = 401, {}
    assert why() == "status 401 Unauthorized"
    stub.failure = 200, {}
    assert why() == "the response is not that of Prometheus"
    stub.failure = None
    stub.interval = None
    clock.advance("5m")
    assert why().startswith("it has no counts of redis-ratelimit (--prometheus-match, ")
    stub.shutdown()
    stub.server_close()
    assert why().startswith("Connection refused")


@pytest.mark.long
def test_silent_prometheus_blocks_only_its_own_requests(
    ask: Callable[..., Callable[[int], dict]], stub: PrometheusStub
) -> None:
    stub.may_answer.clear()
    history = ask("--prometheus", stub.url)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(history, 15)
        poll.until(lambda: stub.requests, "Prometheus is asked")
        assert history.console("/api/now").status == 200
        assert history.console("/api/state").json["reachable"] is True
        assert not first.done()
        assert first.result()["why"] == "no response in time"
    count = len(stub.requests)
    assert history(15)["why"] == "no response in time"
    assert len(stub.requests) == count, "the failure is remembered"


@pytest.mark.parametrize("kind", ["password", "token file"])
def test_credentials_are_sent(
    kind: str,
    ask: Callable[..., Callable[[int], dict]],
    stub: PrometheusStub,
    tmp_path: Path,
) -> None:
    if kind == "password":
        url = stub.url.replace("//", "//anna:p%40ss@")
        history = ask(RATELIMIT_CONSOLE_PROMETHEUS=url)
        expected = "Basic " + base64.b64encode(b"anna:p@ss").decode()
    else:
        (tmp_path / "token").write_text("s3cret\n")
        environment = {"RATELIMIT_CONSOLE_PROMETHEUS_TOKEN_FILE": str(tmp_path / "token")}
        history = ask("--prometheus", stub.url, **environment)
        expected = "Bearer s3cret"
    assert history(15)["prometheus"] == stub.url
    assert {sent for *_, sent in stub.requests} == {expected}


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_certificate_of_prometheus_is_verified(
    server: Server, start: Start, certificates: Path
) -> None:
    with prometheus_stub(certificates) as stub:
        # On the real clock, because the certificates are not valid at the time of the tests' clock.
        trusting = ["--prometheus", stub.url, "--prometheus-ca", certificates / "ca.crt"]
        histories = [
            Console(start(server.port, *options, environment=TOKENS))("/api/history?minutes=15")
            for options in (trusting, trusting[:2])
        ]
    trusted, untrusted = (history.json["why"] for history in histories)
    assert trusted is None
    assert "certificate" in untrusted


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--prometheus", "prometheus:9090"], "--prometheus: the URL must be http://host:port"),
        (
            ["--prometheus", "http://a:s3cret@host"],
            "the password belongs in RATELIMIT_CONSOLE_PROMETHEUS_PASSWORD",
        ),
        (["--prometheus", "http://a@host"], "a user without RATELIMIT_CONSOLE_PROMETHEUS_PASSWORD"),
        (["--prometheus", "http://host", "--prometheus-ca", "/no-such-file"], "/no-such-file"),
        (["--prometheus-match", 'job="redis"'], "--prometheus <URL>"),
    ],
)
def test_wrong_option_is_refused_at_the_start(words: list[str], error: str) -> None:
    started = run_console("serve", "--listen", "127.0.0.1:0", *words)
    assert started.returncode != 0
    assert error in started.stderr
    assert "s3cret" not in started.stderr


def openmetrics() -> str:
    """Counts of six hours, a sample every 15 seconds: two calls a second are admitted on two
    servers, and three hours before now ten a second are denied for five minutes. The servers of
    another job have 1000 times as many.
    """
    lines = ["# TYPE redis_script_values gauge"]
    spike = range(MINUTE - 3 * 3600, MINUTE - 3 * 3600 + 300)
    series: dict[str, list[str]] = {}
    for job, scale in (("redis", 1), ("other", 1000)):
        for instance in ("one:6379", "two:6379"):
            admitted = denied = 0
            for time in range(MINUTE - 6 * 3600, NOW, 15):
                admitted += 15 * scale
                denied += 75 * scale if time in spike else 0
                counts = {
                    "ratelimit:calls": admitted + denied,
                    "ratelimit:admitted": admitted,
                    "ratelimit:denied": denied,
                    "policy:plan:pro:admitted": admitted,
                    "policy:plan:pro:denied": 0,
                    "policy:plan:pro:shadow_denied": denied,
                    "policy:plan:pro:banned": 0,
                    "policy:login%0A:admitted": 0,
                    "policy:login%0A:denied": denied,
                    "policy:login%0A:shadow_denied": 0,
                    "policy:login%0A:banned": denied,
                    "rl.limit:denied": denied,
                }
                for key, count in counts.items():
                    labels = f'instance="{instance}",job="{job}",key="{key}"'
                    line = f"redis_script_values{{{labels}}} {count} {time}"
                    series.setdefault(labels, []).append(line)
    return "\n".join([*lines, *(line for found in series.values() for line in found), "# EOF\n"])


@pytest.mark.long
@pytest.mark.skipif(None in (PROMETHEUS, PROMTOOL), reason="Prometheus is not installed")
def test_history_of_a_real_prometheus(
    ask: Callable[..., Callable[[int], dict]], tmp_path: Path
) -> None:
    (tmp_path / "counts").write_text(openmetrics())
    (tmp_path / "prometheus.yml").write_text("{}")
    data = tmp_path / "data"
    create = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", tmp_path / "counts", data]
    subprocess.run(create, check=True, capture_output=True)
    with ExitStack() as owned:
        address = f"127.0.0.1:{reserve_port(owned)}"
        command = [
            PROMETHEUS,
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={address}",
        ]
        ready = lambda: get(f"http://{address}/-/ready")  # noqa: E731
        owned.enter_context(running(*command, answers=ready, name="Prometheus"))
        history = ask("--prometheus", f"http://{address}", "--prometheus-match", 'job="redis"')
        for minutes, step in ((1440, 60), (WEEK, 600)):
            found = history(minutes)
            assert (found["why"], found["step_ms"]) == (None, step * 1000)
            points = {point["at"] // 1000: point for point in found["points"]}
            start = MINUTE - 3 * 3600 + (120 if step == 60 else 0)
            start -= start % step
            share = 1 if step == 60 else 0.5
            spike = points[start]
            assert spike["all"] == pytest.approx([2, 10 * share, 10 * share, 10 * share], rel=0.1)
            assert spike["policies"] == {
                "plan:pro": pytest.approx([2, 0, 10 * share, 0], rel=0.1),
                "login\n": pytest.approx([0, 10 * share, 0, 10 * share], rel=0.1),
            }
            calm = points[start - 3600]
            assert calm["all"] == pytest.approx([2, 0, 0, 0], rel=0.01)
            assert list(calm["policies"]) == ["plan:pro"]
