"""The shipped exporter script, dashboard and alerts work in Prometheus and Grafana."""

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from support import poll
from support.clock import START_US, Clock
from support.monitoring import (
    COUNTS,
    DASHBOARD,
    DOCUMENT,
    MONITORING,
    NAMES,
    PROMTOOL,
    Ask,
    blocked_calls,
    exercise,
    script_values,
    time_out_a_waiter,
    wait_for_series,
)
from support.server import Server


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


def panels() -> Iterator[dict]:
    """Returns the panels that have queries; rows have none."""
    yield from (panel for panel in DASHBOARD["panels"] if "targets" in panel)


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def documented_expressions() -> list[str]:
    """Returns the expressions in the document's table of what to watch."""
    table = DOCUMENT.partition("### What to watch\n")[2]
    cells = re.findall(r"^\| (`.*?`) \| ", table, re.MULTILINE)
    spans = re.findall("`(.*?)`", " ".join(cells))
    return [span.replace(r"\|", "|") for span in spans]


def variable(name: str) -> dict:
    variables = DASHBOARD["templating"]["list"]
    (found,) = (variable for variable in variables if variable["name"] == name)
    return found


def in_grafana(expression: str, **values: str) -> str:
    """Inserts values as Grafana does: it escapes a multi-value variable for a regular expression,
    and the result for a string.
    """
    for name, value in values.items():
        is_all = value == variable(name).get("allValue")
        escaped = value if is_all else re.sub(r"[\\^$*+?.()|\[\]{}]", r"\\\\\g<0>", value)
        expression = expression.replace(f"${name}", escaped)
    expression = expression.replace("$__rate_interval", "5m")
    assert "$" not in re.sub(r'"\$1"', "", re.sub(r"\\\\\$", "", expression)), expression
    return expression


def test_the_dashboard_queries_existing_metrics(used_server: Server) -> None:
    with used_server.client(decode_responses=True) as client, blocked_calls(used_server, "pool"):
        exercise(client, "user")
        keys = list(script_values(client))
    shown = {"policy": "login", "instance": ".*"}
    queries = " ".join(in_grafana(expression, **shown) for expression in expressions())
    patterns = re.findall(r'key=~"([^"]+)"', queries)
    assert len(patterns) >= 10
    for pattern in patterns:
        assert any(re.fullmatch(pattern, key) for key in keys), pattern


def test_the_dashboard_has_a_row_for_each_policy() -> None:
    all_panels = DASHBOARD["panels"]
    (index,) = (n for n, panel in enumerate(all_panels) if panel.get("repeat") == "policy")
    row, *below = all_panels[index:]
    assert row["type"] == "row"
    assert "$policy" in row["title"]
    expressions = " ".join(target["expr"] for panel in below for target in panel["targets"])
    # Grafana repeats all panels up to the next row.
    assert set(re.findall(r"policy:\$policy:(\w+)", expressions)) == set(COUNTS) - {"calls"}
    assert all("$policy" in target["expr"] for panel in below for target in panel["targets"])
    assert len({panel["id"] for panel in all_panels}) == len(all_panels)


def test_prometheus_answers_all_queries_of_the_dashboard_and_the_document(
    used_server: Server, ask: Ask
) -> None:
    rounds = iter(range(1000))
    unanswered = {*expressions(), *documented_expressions()}
    assert len(unanswered) > len(set(expressions()))

    def is_answered(expression: str) -> bool:
        policies = NAMES.values() if "$policy" in expression else [""]
        return all(query(ask, expression, policy) for policy in policies)

    with used_server.client() as client, blocked_calls(used_server, "pool"):

        def all_is_answered() -> bool:
            user = next(rounds)
            exercise(client, user)
            # A new key, and a denial by a plain limit.
            for _ in range(2):
                client.execute_command("RL.FIXED", f"{user}:plain", 1, "1d")
            unanswered.difference_update(list(filter(is_answered, unanswered)))
            return not unanswered

        wait_for_series(all_is_answered, unanswered)


def test_the_dashboard_shows_each_policy_by_its_name(used_server: Server, ask: Ask) -> None:
    with used_server.client(decode_responses=True) as client:
        exercise(client, "user")
        counts = script_values(client)
    expected = {
        shown: {f"policy:{shown}:{count}": counts[f"policy:{shown}:{count}"] for count in COUNTS}
        for shown in NAMES.values()
    }
    counts_of_policy = f'redis_script_values{{key=~"policy:$policy:({"|".join(COUNTS)})"}}'

    def are_known() -> bool:
        found = {}
        for shown in NAMES.values():
            series = query(ask, counts_of_policy, shown)
            found[shown] = {sample["metric"]["key"]: int(sample["value"][1]) for sample in series}
        return found == expected

    poll.until(are_known, "Prometheus has the counts of each policy")
    assert values_of(ask, "policy") == set(NAMES.values())
    assert len(values_of(ask, "instance")) == 1

    (top_policies,) = (
        expression
        for expression in expressions()
        if "topk" in expression and '"policy:' in expression
    )
    with used_server.client() as client:
        rounds = iter(range(1000))
        missing = set(NAMES.values())

        def all_are_shown() -> bool:
            exercise(client, next(rounds))
            series = query(ask, top_policies)
            missing.difference_update(sample["metric"]["policy"] for sample in series)
            return not missing

        wait_for_series(all_are_shown, missing)


def query(ask: Ask, expression: str, policy: str = "") -> list[dict]:
    """Returns the result of a panel's query for all servers and one policy."""
    return ask("query", query=in_grafana(expression, instance=".*", policy=policy))["result"]


def values_of(ask: Ask, name: str) -> set[str]:
    """Returns the possible values of a dashboard's variable."""
    definition = variable(name)
    series, label = re.fullmatch(
        r"label_values\((.*), (\w+)\)", definition["query"]["query"]
    ).groups()
    found = ask(f"label/{label}/values", match=in_grafana(series, instance=".*"))
    pattern = definition.get("regex", "/(.*)/").strip("/")
    return {re.search(pattern, value)[1] for value in found}


# Alerts that calls on one server can cause for each policy, and for the server.
POLICY_ALERTS = {
    "RatelimitPolicyDenies",
    "RatelimitPolicyNear",
    "RatelimitShadowWouldDeny",
    "RatelimitPolicyBans",
}
SERVER_ALERTS = {"RatelimitNoPolicy", "RatelimitErrors", "RatelimitWaitsTimeOut"}
# Alert that needs a cluster.
CLUSTER_ALERTS = {"RatelimitPoliciesDiffer"}


def test_calls_raise_the_alerts(used_server: Server, ask: Ask, clock: Clock) -> None:
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    alerts = {rule["name"]: rule for rule in rules if rule["type"] == "alerting"}
    assert alerts.keys() == POLICY_ALERTS | SERVER_ALERTS | CLUSTER_ALERTS
    for rule in alerts.values():
        assert rule["duration"] > 0, rule
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}, rule
        assert rule["annotations"].keys() == {"summary", "description", "console"}, rule
    shown = re.findall(r"^\| `(Ratelimit\w+)` \| .* \| (\w+) \|$", DOCUMENT, re.MULTILINE)
    assert dict(shown) == {name: rule["labels"]["severity"] for name, rule in alerts.items()}
    assert ask("alerts")["alerts"] == []

    expected = {(alert, policy) for alert in POLICY_ALERTS for policy in NAMES.values()}
    expected |= {(alert, None) for alert in SERVER_ALERTS}
    missing, unexpected = set(expected), set()
    rounds = iter(range(1000))
    with used_server.client() as client:

        def all_are_raised() -> bool:
            exercise(client, next(rounds))
            time_out_a_waiter(client, clock)
            alerts = [alert["labels"] for alert in ask("alerts")["alerts"]]
            raised = {(labels["alertname"], labels.get("policy")) for labels in alerts}
            missing.difference_update(raised)
            unexpected.update(raised - expected)
            return not missing

        wait_for_series(all_are_raised, missing)
    assert not unexpected
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["health"] for rule in rules} == {
        rule["name"]: "ok" for rule in rules
    }


@pytest.mark.parametrize("name", ["alerts", "gateway_alerts"])
def test_alerts_fire_under_their_conditions(name: str) -> None:
    if PROMTOOL is None:
        pytest.skip("promtool, which comes with Prometheus, is not installed")
    result = subprocess.run(
        [PROMTOOL, "test", "rules", f"{name}_test.yml"],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    # Each alert is expected at one time of its test, and not expected at another time.
    alerts = (MONITORING / f"{name}.yml").read_text()
    expected: dict[str, set[str]] = {
        alert: set() for alert in re.findall(r"- alert: (\w+)", alerts)
    }
    assert expected
    assert alerts.count("\n          console: ") == len(expected), "each alert has a link"
    tests = (MONITORING / f"{name}_test.yml").read_text()
    for alert, expectation in re.findall(
        r"- alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:( \[\]|\n)", tests
    ):
        expected[alert].add(expectation.strip())
    assert all(expectations == {"", "[]"} for expectations in expected.values()), expected
