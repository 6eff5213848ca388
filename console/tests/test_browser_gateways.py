"""Gateways in a browser: outages, the banner on every view, and the worst node in the header."""

from collections.abc import Callable

import pytest
from browser_page import (
    NEEDS_CHROMIUM,
    WRITE_ENVIRONMENT,
    Visit,
    browser,
    expect,
    process,
    visit,
    visits,
)
from console_process import ConsoleProcess
from gateways import HEALTHY, FakeGateway, GatewayProcess

from support import poll
from support.binaries import Binary
from support.server import Server

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]
__all__ = ["browser", "process", "visit"]

Start = Callable[..., ConsoleProcess]
PHONE = {"width": 360, "height": 740}


def gateways(process: ConsoleProcess) -> dict[str, dict]:
    """Returns the gateways that the console knows, by their names."""
    return {row["name"]: row for row in process.get("/api/gateways").json["gateways"]}


@pytest.mark.timeout(300)
def test_gateway_that_fails_open_is_named_on_every_view(
    browser: object, binary: Binary, server: Server, start: Start
) -> None:
    with (
        Server(binary) as lost,
        GatewayProcess(lost.port) as open_gateway,
        GatewayProcess(server.port) as healthy,
        visits(browser) as visit,
    ):
        process = start(
            server.port,
            "--gateway",
            open_gateway.url,
            "--gateway",
            healthy.url,
            environment=WRITE_ENVIRONMENT,
        )
        opened = visit(process)
        page = opened.open("policies")
        banner, status = page.locator("#outage"), page.locator("#server")
        expect(status).to_have_text(f"127.0.0.1:{server.port}")
        expect(banner).to_be_hidden()
        lost.stop("kill")
        poll.until(open_gateway.has_outage, "the gateway notices the outage")
        before = gateways(process)[open_gateway.name]["reads"]
        poll.until(
            lambda: gateways(process)[open_gateway.name]["problems"],
            "the console notices the outage",
        )
        # One read may have begun before the outage. The next one must show it.
        assert gateways(process)[open_gateway.name]["reads"] <= before + 2
        expect(banner).to_contain_text(
            f"Limits are not enforced: {open_gateway.name} gets no reply from a server and lets "
            "those requests pass (--on-outage open). Since "
        )
        expect(banner.locator("p")).to_have_count(1)
        expect(status).to_have_text(f"{open_gateway.name}: outage, open")
        for view in ("now", "key", "replay", "gateways"):
            opened.open(view)
            expect(page.locator(f".view[data-view={view}]")).to_be_visible()
            expect(banner).to_be_visible()
        panel = page.get_by_role("region", name=open_gateway.name)
        expect(panel).to_contain_text("outage, open")
        expect(panel).to_contain_text("a server is away, since")
        expect(panel).to_contain_text("open: requests pass")
        expect(page.get_by_role("region", name=healthy.name)).to_contain_text("enforces limits")
        lost.start()
        expect(banner).to_be_hidden()
        expect(status).to_have_text(f"127.0.0.1:{server.port}")
        expect(panel).to_contain_text("enforces limits")


@pytest.mark.timeout(300)
def test_outage_mode_is_described_in_the_banner_and_the_view(
    browser: object, binary: Binary, server: Server, start: Start
) -> None:
    with (
        Server(binary) as lost,
        GatewayProcess(lost.port, "--on-outage", "closed") as closed,
        GatewayProcess(lost.port, "--on-outage", "local=0.5") as local,
        visits(browser) as visit,
    ):
        words = ["--gateway", f"{closed.url},{local.url}"]
        process = start(server.port, *words, environment=WRITE_ENVIRONMENT)
        page = visit(process, color_scheme="dark").open("now")
        banner, status = page.locator("#outage"), page.locator("#server")
        expect(status).to_have_text(f"127.0.0.1:{server.port}")
        lost.stop("kill")
        expect(banner).to_contain_text("denies those requests (--on-outage closed)")
        expect(banner.locator("p")).to_have_count(1)
        expect(status).to_have_text(f"{closed.name}: outage, closed (+ 1)")
        closed.end()
        expect(status).to_have_text(f"{closed.name}: away (+ 1)")
        expect(banner).to_be_hidden()
        page.get_by_role("link", name=f"{closed.name}: away").click()
        panel = page.get_by_role("region", name=local.name)
        expect(panel).to_contain_text("local=0.5: the gateway counts a share of each limit itself")
        expect(panel.locator(".notice.warn")).to_be_visible()
        local.end()
        expect(banner).to_contain_text(
            f"Limits may not be enforced: no gateway answers ({closed.name}, {local.name})"
        )
        expect(status).to_have_text("all gateways: away (+ 2)")


def test_counts_of_a_gateway_are_shown(
    browser: object, server: Server, start: Start, policy: Callable[..., int]
) -> None:
    with GatewayProcess(server.port) as gateway, visits(browser) as visit:
        process = start(server.port, "--gateway", gateway.url, environment=WRITE_ENVIRONMENT)
        page = visit(process).open("gateways")
        panel = page.get_by_role("region", name=gateway.name)
        expect(panel).to_contain_text("enforces limits")
        assert gateway.get("/check") == 200
        policy("http|client", "FIXED 2 1d")
        assert sorted(gateway.get("/check") for _ in range(5)) == [200, 200, 429, 429, 429]
        for outcome in ("allowed", "denied", "of the server"):
            row = panel.get_by_role("row").filter(has_text=outcome)
            for column in (1, 2):
                expect(row.get_by_role("cell").nth(column)).to_contain_text("ms")
        # Until a policy has applied in a domain, it has no name in the metrics.
        expect(panel).to_contain_text("Unmatched: other")


def with_refused_limits() -> str:
    numbers = [
        'decisions_total{domain="a.very.long.domain.of.an.api.example",outcome="unmatched"} 7',
        'reloads_total{result="refused"} 3',
        "xds_connected 0",
    ]
    lines = "".join(f"ratelimit_gateway_{line}\n" for line in numbers)
    return HEALTHY.replace("refused 0", "refused 1").replace("shadow 0", "shadow 1") + lines


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_view_is_accessible_by_keyboard_on_a_narrow_screen(
    browser: object, server: Server, start: Start, scheme: str
) -> None:
    with FakeGateway() as first, FakeGateway() as second, visits(browser) as visit:
        process = start(
            server.port,
            "--gateway",
            first.url,
            "--gateway",
            second.url,
            environment=WRITE_ENVIRONMENT,
        )
        opened = visit(process, color_scheme=scheme, viewport=PHONE)
        page = opened.open("now")
        expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("g")
        expect(page.get_by_role("heading", name="Gateways", exact=True)).to_be_visible()
        expect(page.get_by_text("enforces limits")).to_have_count(2)
        opened.assert_accessible()
        # A warning in the header, and then a banner.
        first.page = with_refused_limits()
        panel = page.get_by_role("region", name=first.name)
        expect(panel).to_contain_text("the last ones are refused, earlier ones stay, 3 refused")
        expect(panel).to_contain_text("not connected")
        expect(panel.locator(".panel-foot")).to_contain_text("a.very.long.domain.of.an.api.example")
        expect(page.locator("#outage")).to_be_hidden()
        opened.assert_accessible()
        second.page = HEALTHY.replace("outage 0", "outage 1").replace("shadow 0", "shadow 1")
        expect(page.locator("#outage")).to_contain_text("shadow mode on all gateways")
        expect(page.locator("#outage p")).to_have_count(2)
        opened.assert_accessible()
        page.keyboard.press("g")
        page.keyboard.press("n")
        expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
        opened.assert_accessible()
        opened.press(page.locator("#outage").get_by_role("link", name="Show").first)
        expect(page.get_by_role("heading", name="Gateways", exact=True)).to_be_visible()
        page.go_back()
        opened.press(page.locator("#server").get_by_role("link"))
        expect(page.get_by_role("heading", name="Gateways", exact=True)).to_be_visible()
        # No target is smaller than 24 pixels.
        link = page.locator("#server").get_by_role("link").bounding_box()
        assert min(link["width"], link["height"]) >= 24


def test_console_without_gateways_names_the_option(visit: Callable[..., Visit]) -> None:
    opened = visit(viewport=PHONE)
    page = opened.open("gateways")
    expect(page.get_by_text("--gateway http://host:8080")).to_be_visible()
    opened.assert_accessible()
