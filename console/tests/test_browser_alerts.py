"""Links of the alerts in monitoring/ open the view of the console that explains them."""

import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from browser_page import NEEDS_CHROMIUM, Visit, browser, expect, process, visit
from console_process import REPOSITORY
from redis import Redis

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]
__all__ = ["browser", "process", "visit"]

NAME = "plan:a b+c/d"
# Headings of the views that the links open.
HEADINGS = {
    "now": "Nodes",
    "policies": "Policies",
    "policies/": "Denied most by it",
    "gateways": "Gateways",
}


def links() -> dict[str, str]:
    """Returns the link of each alert, without the address of the console."""
    rules = [
        (REPOSITORY / f"monitoring/{name}.yml").read_text() for name in ("alerts", "gateway_alerts")
    ]
    link = r"console: '{{ \$externalLabels\.ratelimit_console }}/#/(.*)'"
    found = re.findall(rf"- alert: (\w+)\n(?:(?!- alert).*\n)+? +{link}", "".join(rules))
    return dict(found)


def test_each_alert_links_to_its_view(
    visit: Callable[..., Visit], redis: Redis, policy: Callable[..., int]
) -> None:
    policy(NAME, "FIXED 5 1h")
    for _ in range(7):
        redis.execute_command("RL.LIMIT", "user", NAME)
    opened = visit()
    found = links()
    assert len(found) == 16
    of_gateways = {link for alert, link in found.items() if alert.startswith("RatelimitGateway")}
    assert of_gateways == {"gateways"}
    of_policies = {link for link in found.values() if "$labels.policy" in link}
    # All links of policies have one form. promtool tests its escapes.
    (form,) = of_policies
    assert form == 'policies/{{ $labels.policy | urlquery | reReplaceAll "[+]" "%20" }}'
    for link in {*found.values()} - of_policies | {f"policies/{quote(NAME, safe='')}"}:
        page = opened.open(link)
        heading = HEADINGS.get(link) or HEADINGS["policies/"]
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
        if link.startswith("policies/"):
            expect(page.get_by_role("heading", name=NAME, exact=True)).to_be_visible()
