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
    by_script,
    exercise,
    time_out_a_waiter,
    until_none,
    waiting,
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


def documented() -> list[str]:
    """Returns the expressions in the document's table of what to watch."""
    table = DOCUMENT.partition("### What to watch\n")[2]
    cells = re.findall(r"^\| (`.*?`) \| ", table, re.MULTILINE)
    spans = re.findall("`(.*?)`", " ".join(cells))
    return [span.replace(r"\|", "|") for span in spans]


def variable(name: str) -> dict:
    (found,) = (each for each in DASHBOARD["templating"]["list"] if each["name"] == name)
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


def test_the_dashboard_queries_existing_metrics(used: Server) -> None:
    with used.client(decode_responses=True) as client, waiting(used, "pool"):
        exercise(client, "user")
        keys = list(by_script(client))
    shown = {"policy": "login", "instance": ".*"}
    queries = " ".join(in_grafana(expression, **shown) for expression in expressions())
    patterns = re.findall(r'key=~"([^"]+)"', queries)
    assert len(patterns) >= 10
    for pattern in patterns:
        assert any(re.fullmatch(pattern, key) for key in keys), pattern


def test_the_dashboard_has_a_row_for_each_policy() -> None:
    (at,) = (n for n, panel in enumerate(DASHBOARD["panels"]) if panel.get("repeat") == "policy")
    row, *below = DASHBOARD["panels"][at:]
    assert row["type"] == "row"
    assert "$policy" in row["title"]
    expressions = " ".join(target["expr"] for panel in below for target in panel["targets"])
    # A row repeats all below it, up to the next one.
    assert set(re.findall(r"policy:\$policy:(\w+)", expressions)) == set(COUNTS) - {"calls"}
    assert all("$policy" in target["expr"] for panel in below for target in panel["targets"])
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_prometheus_answers_all_queries_of_the_dashboard_and_the_document(
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
            # A new key, and a denial by a plain limit.
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
            found[shown] = {sample["metric"]["key"]: int(sample["value"][1]) for sample in series}
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
            missing.difference_update(sample["metric"]["policy"] for sample in query(ask, most))
            return not missing

        until_none(all_are_shown, missing)


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


# Alerts that calls on one server can cause.
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
        assert rule["annotations"].keys() == {"summary", "description", "console"}, rule
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
            time_out_a_waiter(client, clock)
            labels = [alert["labels"] for alert in ask("alerts")["alerts"]]
            raised = {(of["alertname"], of.get("policy")) for of in labels}
            missing.difference_update(raised)
            others.update(raised - expected)
            return not missing

        until_none(all_are_raised, missing)
    # The cluster's alert is not raised either: this server is in no cluster.
    assert not others
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["health"] for rule in rules} == {
        rule["name"]: "ok" for rule in rules
    }


@pytest.mark.parametrize("name", ["alerts", "gateway_alerts"])
def test_alerts_fire_under_their_conditions(name: str) -> None:
    if PROMTOOL is None:
        pytest.skip("promtool, which comes with Prometheus, is not installed")
    ran = subprocess.run(
        [PROMTOOL, "test", "rules", f"{name}_test.yml"],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # Each alert is expected at some point, and at no earlier one.
    alerts = (MONITORING / f"{name}.yml").read_text()
    expected = dict.fromkeys(re.findall(r"- alert: (\w+)", alerts), ())
    assert expected
    assert alerts.count("\n          console: ") == len(expected), "each alert has a link"
    tests = (MONITORING / f"{name}_test.yml").read_text()
    for alert, follows in re.findall(
        r"- alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:( \[\]|\n)", tests
    ):
        expected[alert] += (follows.strip(),)
    assert all(set(both) == {"", "[]"} for both in expected.values()), expected
