"""What is shipped for Prometheus and Grafana: the exporter's script, the dashboard, the alerts."""

import json
import re
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
from support.clock import START_US, Clock
from support.server import REPOSITORY, Server, reserve_port

MONITORING = REPOSITORY / "monitoring"
SCRIPT = MONITORING / "ratelimit.lua"
DASHBOARD = json.loads((MONITORING / "grafana.json").read_text())
ALERTS = MONITORING / "alerts.yml"
DOCUMENT = (REPOSITORY / "docs/observability.md").read_text()
EXPORTER = shutil.which("prometheus-redis-exporter") or shutil.which("redis_exporter")
PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")

# Their names, and as INFO and all that reads it has them. One has no letter, one looks like a count
# of another, and one has whatever means something in INFO, Lua, PromQL or a regular expression.
NAMES = {
    b"plan:pro": "plan:pro",
    b"login": "login",
    b"42": "42",
    b"plan:pro:denied": "plan:pro:denied",
    b'a=1,b:2\r\n"$.*%d{}\\\xff': "a%3D1%2Cb:2%0D%0A%22%24.%2A%25d%7B%7D%5C%FF",
}
# What a user may do, and from what on a limit that is on trial would deny.
LIMITS = ["FIXED", 10, "1d", "FIXED", 5, "1d", "AS", "new", "SHADOW", "BAN", 2, "1d", "1d"]
COUNTS = ("calls", "admitted", "denied", "near", "shadow_denied", "banned", "repeated")


@pytest.fixture
def used(fresh_server: Callable[..., Server]) -> Server:
    """A server that has admitted one call and denied one, and has policies nobody has called."""
    server = fresh_server(module_args="policies yes")
    with server.client() as client:
        for _ in range(2):
            client.execute_command("RL.TOKENBUCKET", "k", 1, 1, "1h")
        for name in NAMES:
            client.execute_command("RL.POLICYSET", name, *LIMITS)
    return server


def exercise(client: Redis, user: object) -> None:
    """Calls on every policy, of every kind that is counted. Each user is limited for itself."""
    for name, shown in NAMES.items():
        key = f"{user}:{shown}"
        # Ten are admitted, five of them past the shadow and three near the limit. Of three that are
        # denied, the ban denies the last.
        for _ in range(13):
            client.execute_command("RL.LIMIT", key, name)
        for _ in range(2):
            client.execute_command("RL.LIMIT", f"{key}:once", name, "ONCE", "id", "1h")
    with pytest.raises(ResponseError, match="NOPOLICY"):
        client.execute_command("RL.LIMIT", user, "no-such-policy")


# What `exercise` adds to the counts of each policy.
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
    *command: object, answers: Callable[[], object], what: str
) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen([str(word) for word in command], stderr=subprocess.DEVNULL)

    def is_up() -> bool:
        assert process.poll() is None, f"{what} has ended"
        try:
            return bool(answers())
        except OSError:
            return False

    try:
        poll.until(is_up, f"{what} answers", timeout=20)
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def waiting(server: Server, *keys: object) -> Iterator[None]:
    """Somebody holds the lease of each key, and another waits for it."""
    with ExitStack() as closing:
        for key in keys:
            client = closing.enter_context(server.client())
            connection = client.connection_pool.get_connection()
            closing.callback(connection.disconnect)
            assert client.execute_command("RL.ACQUIRE", key, 1, "1d", "holder")[0] == 1
            connection.send_command("RL.ACQUIRE", key, 1, "1d", "another", "BLOCK", 0)

        def all_wait() -> bool:
            return client.info("ratelimit_waiting")["ratelimit_blocked_clients"] == len(keys)

        poll.until(all_wait, "they all wait")
        yield


def waits_in_vain(client: Redis, clock: Clock) -> None:
    """A call that waits for as long as it would."""
    client.execute_command("RL.ACQUIRE", "full", 1, "1d", "holder")
    connection = client.connection_pool.get_connection()
    connection.send_command("RL.ACQUIRE", "full", 1, "1d", "another", "BLOCK", "1us")

    def is_answered() -> bool:
        clock.advance("1us")
        return connection.can_read(0)

    poll.until(is_answered, "who waits is answered")
    assert connection.read_response()[0] == 0
    client.connection_pool.release(connection)


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """What is kept from other tests until this one has ended: ports."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def exporter(used: Server, held: ExitStack) -> Iterator[str]:
    """The address of an exporter of that server."""
    if EXPORTER is None:
        pytest.skip("the Prometheus exporter for Redis is not installed")
    address = f"127.0.0.1:{reserve_port(held)}"
    with running(
        EXPORTER,
        f"-redis.addr=redis://127.0.0.1:{used.port}",
        f"-web.listen-address={address}",
        f"-script={SCRIPT}",
        answers=lambda: get(f"http://{address}/metrics"),
        what="the exporter",
    ):
        yield address


@pytest.fixture
def scrape(exporter: str) -> Callable[[], dict[str, float]]:
    """Asks an exporter: series by name and labels, as in the text of the scrape."""

    def ask() -> dict[str, float]:
        lines = get(f"http://{exporter}/metrics").splitlines()
        series = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in series}

    return ask


Ask = Callable[..., Any]


@pytest.fixture
def ask(exporter: str, tmp_path: Path, held: ExitStack) -> Iterator[Ask]:
    """Asks a Prometheus that has read the exporter, and has our rules: the data of its answer."""
    if PROMETHEUS is None:
        pytest.skip("Prometheus is not installed")
    address = f"127.0.0.1:{reserve_port(held)}"
    # JSON is YAML, too.
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

    def ask(what: str, **arguments: str) -> Any:
        # An argument that may be given several times has brackets in its name.
        words = {name.replace("match", "match[]"): value for name, value in arguments.items()}
        query = urllib.parse.urlencode(words)
        answer = json.loads(get(f"http://{address}/api/v1/{what}?{query}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    with running(
        PROMETHEUS,
        f"--config.file={file}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}",
        answers=lambda: get(f"http://{address}/-/ready"),
        what="Prometheus",
    ):
        yield ask


def test_the_exporter_shows_every_count(scrape: Callable[[], dict[str, float]]) -> None:
    found = scrape()
    for key, value in {
        "ratelimit:calls": 2 + len(NAMES),
        "ratelimit:admitted": 1,
        "ratelimit:denied": 1,
        "ratelimit:errors": 0,
        "ratelimit:effects_propagated": 0,
        "ratelimit:policies": len(NAMES),
        "ratelimit:policy_peers_differ": 0,
        "ratelimit:blocked_clients": 0,
        "ratelimit:timed_out": 0,
        "rl.tokenbucket:denied": 1,
        "rl.mtake:calls": 0,
        "rl-bucket:keys_made": 1,
        "rl-leases:admitted": 0,
        "ratelimit:policies_shown": len(NAMES),
        "ratelimit:policy_stamps_refused": 0,
        "policy:plan:pro:version": START_US,
        "policy:plan:pro:scale": 1,
        "policy:plan:pro:scale_ms": -1,
        "policy:plan:pro:calls": 0,
    }.items():
        assert found[f'redis_script_values{{key="{key}"}}'] == value, key
    assert found['redis_commands_total{cmd="rl.tokenbucket"}'] == 2


def info(client: Redis) -> str:
    # Of a reply of its own the client makes a dictionary.
    return client.eval("return redis.call('INFO', 'ratelimit')", 0)


def by_script(client: Redis) -> dict[str, float]:
    flat = client.eval(SCRIPT.read_text(), 0)
    keys, values = flat[::2], flat[1::2]
    assert len(set(keys)) == len(keys)
    return {key: float(value) for key, value in zip(keys, values, strict=True)}


def test_the_script_returns_what_info_counts(used: Server) -> None:
    with used.client(decode_responses=True) as client, waiting(used, *NAMES):
        exercise(client, "user")
        client.execute_command("RL.POLICYSCALE", "login", "0.5", "FOR", "10m")
        counts = by_script(client)
        shown = info(client)
        assert counts["policy:login:scale"] == 0.5
        assert counts["policy:login:scale_ms"] == 600_000
        assert counts["rl.tokenbucket:admitted"] == 1
        assert counts["ratelimit:blocked_clients"] == len(NAMES)
        for name in NAMES.values():
            assert counts[f"blocked:0:{name}:waiting"] == 1
        assert counts["rl-bucket:keys_made"] == 1
        expected = {}
        for name, value in re.findall(r"^ratelimit_([^:]+):(.*?)\r?$", shown, re.MULTILINE):
            fields = dict(field.split("=") for field in value.split(",") if "=" in field)
            of = f"policy:{fields.pop('name')}" if "name" in fields else name
            of = f"blocked:{fields.pop('db')}:{fields.pop('key')}" if "key" in fields else of
            if fields:
                expected |= {f"{of}:{field}": float(count) for field, count in fields.items()}
            elif name not in ("policies_digest", "version"):
                expected[f"ratelimit:{name}"] = int(value)
    # The calls of INFO and of the script are no calls of ours.
    assert counts == expected


def test_the_script_returns_what_policyget_counts_of_each_policy(used: Server) -> None:
    with used.client(decode_responses=True) as client:
        exercise(client, "user")
        counts = by_script(client)
        for shown in NAMES.values():
            of_policy = {count: counts[f"policy:{shown}:{count}"] for count in COUNTS}
            assert of_policy == EXERCISED, shown
            assert counts[f"policy:{shown}:version"] >= START_US
            assert counts[f"policy:{shown}:scale"] == 1
            assert counts[f"policy:{shown}:scale_ms"] == -1
        ours = [key for key in counts if key.startswith("policy:")]
        assert len(ours) == len(NAMES) * (len(COUNTS) + 3)


def test_the_script_leaves_out_what_has_become_of_no_calls(used: Server) -> None:
    with used.client(decode_responses=True) as client:
        client.execute_command("RL.LIMIT", "user", "login", "COST", 0)
        ours = [key for key in by_script(client) if key.startswith("policy:")]
    expected = {
        f"policy:{shown}:{field}"
        for shown in NAMES.values()
        for field in ("version", "scale", "scale_ms", "calls")
    }
    assert set(ours) == expected | {f"policy:login:{count}" for count in COUNTS}


def test_a_digest_of_digits_is_no_count(used: Server) -> None:
    with used.client(decode_responses=True) as client:
        client.execute_command("RL.POLICYDEL", *NAMES)
        # Of no policies it is all zeros.
        assert "ratelimit_policies_digest:0000000000000000" in info(client)
        assert [key for key in by_script(client) if "polic" in key and "rl." not in key] == [
            "ratelimit:policies",
            "ratelimit:policy_peers_differ",
            "ratelimit:policy_stamps_refused",
            "ratelimit:policies_shown",
        ]


def panels() -> Iterator[dict]:
    """Those that ask for something; rows do not."""
    yield from (panel for panel in DASHBOARD["panels"] if "targets" in panel)


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def documented() -> list[str]:
    """The expressions of the table of what to watch, where a bar is escaped."""
    table = DOCUMENT.partition("### What to watch\n")[2]
    cells = re.findall(r"^\| (`.*?`) \| ", table, re.MULTILINE)
    spans = re.findall("`(.*?)`", " ".join(cells))
    return [span.replace(r"\|", "|") for span in spans]


def variable(name: str) -> dict:
    (found,) = (each for each in DASHBOARD["templating"]["list"] if each["name"] == name)
    return found


def in_grafana(expression: str, **values: str) -> str:
    """As Grafana asks for it: it escapes a variable of which there may be several values for a
    regular expression, and that for a string.
    """
    for name, value in values.items():
        is_all = value == variable(name).get("allValue")
        escaped = value if is_all else re.sub(r"[\\^$*+?.()|\[\]{}]", r"\\\\\g<0>", value)
        expression = expression.replace(f"${name}", escaped)
    expression = expression.replace("$__rate_interval", "5m")
    assert "$" not in re.sub(r'"\$1"', "", re.sub(r"\\\\\$", "", expression)), expression
    return expression


def test_the_dashboard_asks_for_what_there_is(used: Server) -> None:
    with used.client(decode_responses=True) as client, waiting(used, "pool"):
        exercise(client, "user")
        keys = list(by_script(client))
    shown = {"policy": "login", "instance": ".*"}
    queries = " ".join(in_grafana(expression, **shown) for expression in expressions())
    asked = re.findall(r'key=~"([^"]+)"', queries)
    assert len(asked) >= 10
    for pattern in asked:
        assert any(re.fullmatch(pattern, key) for key in keys), pattern


def test_the_dashboard_has_a_row_for_each_policy() -> None:
    (at,) = (n for n, panel in enumerate(DASHBOARD["panels"]) if panel.get("repeat") == "policy")
    row, *below = DASHBOARD["panels"][at:]
    assert row["type"] == "row"
    assert "$policy" in row["title"]
    asked = " ".join(target["expr"] for panel in below for target in panel["targets"])
    # A row repeats all below it, up to the next one.
    assert set(re.findall(r"policy:\$policy:(\w+)", asked)) == set(COUNTS) - {"calls"}
    assert all("$policy" in target["expr"] for panel in below for target in panel["targets"])
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_prometheus_answers_all_that_the_dashboard_and_the_document_ask(
    used: Server, ask: Ask
) -> None:
    rounds = iter(range(1000))
    unanswered = {*expressions(), *documented()}
    assert len(unanswered) > len(set(expressions()))

    def is_answered(expression: str) -> bool:
        policies = NAMES.values() if "$policy" in expression else [""]
        return all(query(ask, expression, policy) for policy in policies)

    with used.client() as client, waiting(used, "pool"):

        def all_is_answered() -> bool:
            user = next(rounds)
            exercise(client, user)
            # A key that is new, and a denial by a plain limit.
            for _ in range(2):
                client.execute_command("RL.FIXED", f"{user}:plain", 1, "1d")
            unanswered.difference_update(list(filter(is_answered, unanswered)))
            return not unanswered

        until_none(all_is_answered, unanswered)


def test_the_dashboard_shows_each_policy_by_its_name(used: Server, ask: Ask) -> None:
    with used.client(decode_responses=True) as client:
        exercise(client, "user")
        counts = by_script(client)
    of_policies = {
        shown: {f"policy:{shown}:{count}": counts[f"policy:{shown}:{count}"] for count in COUNTS}
        for shown in NAMES.values()
    }
    all_of_one = f'redis_script_values{{key=~"policy:$policy:({"|".join(COUNTS)})"}}'

    def are_known() -> bool:
        found = {}
        for shown in NAMES.values():
            series = query(ask, all_of_one, shown)
            found[shown] = {one["metric"]["key"]: int(one["value"][1]) for one in series}
        return found == of_policies

    poll.until(are_known, "Prometheus has the counts of each policy")
    assert values_of(ask, "policy") == set(NAMES.values())
    assert len(values_of(ask, "instance")) == 1

    (most,) = (each for each in expressions() if "topk" in each and '"policy:' in each)
    with used.client() as client:
        rounds = iter(range(1000))
        missing = set(NAMES.values())

        def all_are_shown() -> bool:
            exercise(client, next(rounds))
            missing.difference_update(one["metric"]["policy"] for one in query(ask, most))
            return not missing

        until_none(all_are_shown, missing)


def query(ask: Ask, expression: str, policy: str = "") -> list[dict]:
    """What a panel shows of all servers, and of one policy."""
    return ask("query", query=in_grafana(expression, instance=".*", policy=policy))["result"]


def values_of(ask: Ask, name: str) -> set[str]:
    """What a variable of the dashboard may be."""
    asked = variable(name)
    series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", asked["query"]["query"]).groups()
    found = ask(f"label/{label}/values", match=in_grafana(series, instance=".*"))
    pattern = asked.get("regex", "/(.*)/").strip("/")
    return {re.search(pattern, value)[1] for value in found}


def until_none(are_none: Callable[[], bool], missing: set) -> None:
    """Until Prometheus has read often enough; else says what is missing."""
    try:
        poll.until(are_none, "Prometheus has all", timeout=30)
    except TimeoutError:
        pytest.fail(f"Prometheus has nothing of {missing}")


# Those that calls on one server can cause.
BY_POLICY = {
    "RatelimitPolicyDenies",
    "RatelimitPolicyNear",
    "RatelimitShadowWouldDeny",
    "RatelimitPolicyBans",
}
OF_SERVER = {"RatelimitNoPolicy", "RatelimitErrors", "RatelimitWaitsTimeOut"}
OF_CLUSTER = {"RatelimitPoliciesDiffer"}


def test_calls_raise_the_alerts(used: Server, ask: Ask, clock: Clock) -> None:
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    alerts = {rule["name"]: rule for rule in rules if rule["type"] == "alerting"}
    assert alerts.keys() == BY_POLICY | OF_SERVER | OF_CLUSTER
    for rule in alerts.values():
        assert rule["duration"] > 0, rule
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}, rule
        assert rule["annotations"].keys() == {"summary", "description"}, rule
    shown = re.findall(r"^\| `(Ratelimit\w+)` \| .* \| (\w+) \|$", DOCUMENT, re.MULTILINE)
    assert dict(shown) == {name: rule["labels"]["severity"] for name, rule in alerts.items()}
    assert ask("alerts")["alerts"] == []

    expected = {(alert, policy) for alert in BY_POLICY for policy in NAMES.values()}
    expected |= {(alert, None) for alert in OF_SERVER}
    missing, others = set(expected), set()
    rounds = iter(range(1000))
    with used.client() as client:

        def all_are_raised() -> bool:
            exercise(client, next(rounds))
            waits_in_vain(client, clock)
            labels = [alert["labels"] for alert in ask("alerts")["alerts"]]
            raised = {(of["alertname"], of.get("policy")) for of in labels}
            missing.difference_update(raised)
            others.update(raised - expected)
            return not missing

        until_none(all_are_raised, missing)
    # Nor that of a cluster, which this server is no part of.
    assert not others
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["health"] for rule in rules} == {
        rule["name"]: "ok" for rule in rules
    }


def test_the_alerts_are_raised_when_they_are_meant_to_be() -> None:
    if PROMTOOL is None:
        pytest.skip("promtool, which comes with Prometheus, is not installed")
    ran = subprocess.run(
        [PROMTOOL, "test", "rules", "alerts_test.yml"],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # Each is expected somewhere, and nowhere too early.
    expected = dict.fromkeys(re.findall(r"- alert: (\w+)", ALERTS.read_text()), ())
    assert expected
    tests = (MONITORING / "alerts_test.yml").read_text()
    for name, follows in re.findall(
        r"- alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:( \[\]|\n)", tests
    ):
        expected[name] += (follows.strip(),)
    assert all(set(both) == {"", "[]"} for name, both in expected.items()), expected
