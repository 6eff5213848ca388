"""Token budgets with an unmodified Envoy: reserved and settled, or charged after the response."""

import http.client
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from origin import Origin
from proxies import Proxy, envoy_kind
from redis import Redis
from running import REPOSITORY, Gateway

from support import markdown, poll
from support.server import Server

Run = Callable[..., Proxy]
BUDGET, ESTIMATE = 10_000, 4000
RESERVED, POSTPAID = "", "/postpaid"
SETTLE_ENTRY = "- generic_key: {descriptor_key: rl.settle, descriptor_value: done}"


@pytest.fixture
def envoy(origin: Origin, tmp_path: Path) -> Iterator[Run]:
    with ExitStack() as proxies:

        def run(gateway: Gateway, **edits: str) -> Proxy:
            kind = envoy_kind("envoy-tokens.yaml")
            proxy = Proxy("envoy", gateway, origin, tmp_path, kind=kind, **edits)
            return proxies.enter_context(proxy)

        yield run


@pytest.fixture
def remaining(redis: Redis) -> Callable[[str], int]:
    """Returns the tokens that remain to a user under the first limit."""

    def remaining(user: str) -> int:
        words = ["COST", 0, "EACH", "POLICY", "tokens|user"]
        return redis.execute_command("RL.PEEK", f"rl:tokens|user={user}", *words)[2][0][2]

    return remaining


@pytest.fixture
def proxy(gateway: Gateway, envoy: Run, policy: Callable[..., int]) -> Proxy:
    policy("tokens|user", f"FIXED {BUDGET} 1h")
    return envoy(gateway)


def send_request(proxy: Proxy, path: str, user: str) -> http.client.HTTPConnection:
    """Sends a request without reading the response."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
    connection.request("GET", path, headers={"x-user": user})
    return connection


@pytest.mark.parametrize("prefix", [RESERVED, POSTPAID])
def test_response_is_charged_its_usage(
    proxy: Proxy, origin: Origin, remaining: Callable[[str], int], prefix: str
) -> None:
    for path, tokens in (("/stream", 123), ("/json", 77)):
        origin.tokens = tokens
        assert proxy.statuses(1, prefix + "/v1" + path, x_user=path[1:]) == [200]
        poll.until(lambda: remaining(path[1:]) == BUDGET - tokens, f"{path} is charged {tokens}")  # noqa: B023


@pytest.mark.parametrize("prefix", [RESERVED, POSTPAID])
def test_response_without_usage_is_charged_the_estimate(
    proxy: Proxy, origin: Origin, remaining: Callable[[str], int], gateway: Gateway, prefix: str
) -> None:
    assert proxy.statuses(1, prefix + "/v1/unmetered", x_user="unmetered") == [200]
    assert proxy.statuses(1, prefix + "/v1/dead", x_user="dead") == [503]
    connection = send_request(proxy, prefix + "/v1/slow-stream", "gone")
    assert origin.waiting.acquire(timeout=20)
    connection.close()
    settled = lambda: gateway.metric("ratelimit_gateway_units_total", outcome="settled")  # noqa: E731
    poll.until(lambda: settled() == 3 * ESTIMATE, "all three are settled")
    assert [remaining(user) for user in ("unmetered", "dead", "gone")] == [BUDGET - ESTIMATE] * 3


@pytest.mark.parametrize(
    "words",
    [
        f"FIXED {BUDGET} 1h",
        f"FIXED {BUDGET} 1m AS minute FIXED 100000 1d AS day CONCURRENCY 5 5m AS answers",
        f"FIXED {BUDGET} 1m AS minute FIXED 8000 1d AS day CONCURRENCY 5 5m AS answers",
        f"FIXED 100000 1d AS day FIXED {BUDGET} 1h AS hour CONCURRENCY 2 5m AS answers",
    ],
)
def test_concurrent_requests_pass_while_a_reservation_fits(
    proxy: Proxy,
    origin: Origin,
    policy: Callable[..., int],
    remaining: Callable[[str], int],
    words: str,
) -> None:
    policy("tokens|user", words)
    origin.tokens = 123
    connections = [send_request(proxy, "/v1/slow-stream", "1") for _ in range(5)]
    # Streams send their headers at once.
    answers = [connection.getresponse() for connection in connections]
    assert Counter(answer.status for answer in answers) == {200: 2, 429: 3}
    before = remaining("1") + 2 * ESTIMATE
    origin.release.set()
    for answer in answers:
        answer.read()
    poll.until(lambda: remaining("1") == before - 2 * 123, "two requests are settled")
    for connection in connections:
        connection.close()
    assert proxy.statuses(1, "/v1/stream", x_user="1") == [200]


TOKENS = "{selectors: [{key: usage}, {key: total_tokens}]"
FORMAT = 'hits_addend: {format: "%DYNAMIC_METADATA(llm:tokens)%"}'


@pytest.fixture
def recipes() -> dict[str, str]:
    """Returns YAML blocks of the document by their heading: parts of Envoy's configuration."""
    text = (REPOSITORY / "docs/ai-gateways.md").read_text()
    recipes = {}
    for section in text.split("\n##")[1:]:
        heading, _, body = section.lstrip("# ").partition("\n")
        for block in markdown.blocks(body):
            if block.language == "yaml":
                recipes[heading] = block.text.rstrip("\n")
    return recipes


def edits_for(recipes: dict[str, str]) -> dict[str, str]:
    rules = recipes["Recipes"].splitlines()
    by_sse = [*(f"- rule: {rule}" for rule in rules), f"- rule: {TOKENS}"]
    by_json = [*(f"- {rule}" for rule in rules), f"- {TOKENS}"]
    estimates = 'value: {tokens: 4000, model: "", input: 3000, output: 1000}'
    assert estimates in (REPOSITORY / "docs/ai-gateways.md").read_text()
    return {
        by_sse[-1]: ("\n" + 30 * " ").join(by_sse),
        by_json[-1]: ("\n" + 26 * " ").join(by_json),
        "value: {tokens: 4000}": estimates,
    }


@pytest.mark.parametrize(
    ("heading", "models", "expected"),
    [
        ("Weights by model", ("small", "large"), (150, 1500)),
        # 100 tokens of input, 50 of output.
        ("Money", ("small", "large"), (45, 45)),
    ],
)
def test_recipe_charges_by_an_expression(
    gateway: Gateway,
    envoy: Run,
    policy: Callable[..., int],
    origin: Origin,
    remaining: Callable[[str], int],
    recipes: dict[str, str],
    heading: str,
    models: tuple[str, ...],
    expected: tuple[int, ...],
) -> None:
    policy("tokens|user", f"FIXED {BUDGET} 1h")
    proxy = envoy(gateway, edits=edits_for(recipes) | {FORMAT: recipes[heading]})
    origin.tokens = 150
    for prefix in (RESERVED, POSTPAID):
        for path in ("/json", "/stream"):
            for origin.model, cost in zip(models, expected, strict=True):
                user = f"{prefix}{path}{origin.model}".replace("/", "-")
                assert proxy.statuses(1, prefix + "/v1" + path, x_user=user) == [200]
                condition = f"{user} costs {cost}"
                poll.until(lambda: remaining(user) == BUDGET - cost, condition)  # noqa: B023


def test_recipe_limits_input_and_output(
    gateway: Gateway,
    envoy: Run,
    policy: Callable[..., int],
    origin: Origin,
    redis: Redis,
    recipes: dict[str, str],
) -> None:
    first = "\n".join(
        [
            "- actions:",
            36 * " " + "- request_headers: {header_name: x-user, descriptor_key: user}",
            36 * " " + SETTLE_ENTRY,
        ]
    )
    lines = recipes["Input and output tokens"].splitlines()
    by_input = ("\n" + 32 * " ").join(lines) + "\n" + 32 * " "
    by_output = by_input.replace("input", "output")
    proxy = envoy(gateway, edits=edits_for(recipes) | {first: by_input + by_output + first})
    origin.tokens = 150
    for kind in ("input", "output"):
        policy(f"tokens|kind={kind}|user", "FIXED 1000 1h")
    assert proxy.statuses(1, "/postpaid/v1/stream", x_user="1") == [200]

    def remaining(kind: str) -> int:
        name = f"tokens|kind={kind}|user"
        return redis.execute_command("RL.PEEK", f"rl:{name}=1", "POLICY", name)[2]

    poll.until(
        lambda: [remaining("input"), remaining("output")] == [900, 950], "each costs its tokens"
    )


def count_passed(
    proxy: Proxy, path: str, requests: int, usage: Callable[[], int], hits: int
) -> int:
    """Counts requests that pass. Each is sent once the previous is charged 300 and `hits`."""
    count = 0
    for _ in range(requests):
        status = proxy.get(path, x_user="1").status
        assert status in (200, 429)
        if status == 200:
            count += 1
            expected = min(1000, count * (300 + hits))
            poll.until(lambda: usage() >= expected, "the answer is charged")  # noqa: B023
    return count


@pytest.mark.parametrize(
    ("prefix", "edits"),
    [(POSTPAID, {}), (RESERVED, {"hits_addend: {number: 4000}": "hits_addend: {number: 1}"})],
)
def test_budget_of_a_policy_is_used_up(
    gateway: Gateway,
    envoy: Run,
    policy: Callable[..., int],
    origin: Origin,
    remaining: Callable[[str], int],
    prefix: str,
    edits: dict[str, str],
) -> None:
    """An estimate of 1 always has room until the budget is used up."""
    policy("tokens|user", "FIXED 1000 1h")
    origin.tokens = 300
    proxy = envoy(gateway, edits=edits)
    assert count_passed(proxy, prefix + "/v1/stream", 400, lambda: 1000 - remaining("1"), 0) == 4


@pytest.mark.parametrize("hits", [0, 1])
def test_budget_of_a_file_is_used_up_by_charges_after_responses(
    server: Server,
    start: Callable[..., Gateway],
    envoy: Run,
    origin: Origin,
    redis: Redis,
    file: Path,
    hits: int,
) -> None:
    """Envoy Gateway and others check a limit first, with 0 or 1 hits, and have no rl.settle."""
    rule = "{key: user, rate_limit: {unit: hour, requests_per_unit: 1000}}"
    file.write_text(f"{{domain: tokens, descriptors: [{rule}]}}")
    edits = {SETTLE_ENTRY: "", "hits_addend: {number: 0}": f"hits_addend: {{number: {hits}}}"}
    proxy = envoy(start(server.port, "--config", file), edits=edits)
    origin.tokens = 300

    def usage() -> int:
        words = ["FIXED", "1000", "1h", "ALIGNED"]
        return 1000 - redis.execute_command("RL.PEEK", "rl:tokens|user=1", *words)[2]

    assert count_passed(proxy, "/postpaid/v1/stream", 400, usage, hits) == 4
