"""History of the console, with a clock that tests move: a past spike is found and named."""

import re
from collections.abc import Callable

import pytest
from api_client import Console
from browser_page import NEEDS_CHROMIUM, WRITE_ENVIRONMENT, Visit, browser, expect, visit, visits
from console_process import ConsoleProcess
from prometheus_stub import prometheus_stub
from redis import Redis

from support import poll
from support.clock import START_US, Clock
from support.server import Server

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]
__all__ = ["browser", "visit"]

HOT = "login:203.0.113.66"


@pytest.fixture
def process(server: Server, clock: Clock, start: Callable[..., ConsoleProcess]) -> ConsoleProcess:
    """Console whose wall clock is that of the server."""
    return start(server.port, environment=WRITE_ENVIRONMENT | clock.environment)


def test_past_spike_shows_its_policies_and_keys(
    visit: Callable[..., Visit],
    process: ConsoleProcess,
    redis: Redis,
    clock: Clock,
    policy: Callable[..., int],
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    console = Console(process, token=None)

    def history(minutes: int = 1440) -> dict:
        return console(f"/api/history?minutes={minutes}").json

    # No page is open during the spike.
    policy("login", "FIXED 5 1h")
    poll.until(lambda: history()["points"], "the sampler runs")
    for _ in range(45):
        redis.execute_command("RL.LIMIT", HOT, "login")
    poll.until(lambda: history()["points"][0]["policies"].get("login"), "the spike is sampled")
    clock.advance("70s")
    poll.until(lambda: history()["keys"], "the keys of the minute are read")
    clock.advance("9h")
    poll.until(lambda: len(history()["points"]) == 3, "the morning is sampled")
    ((_, [key]),) = history()["keys"]
    assert (key["key"], key["denied"], key["policy"]) == (HOT, 40, "login")
    assert history(60)["keys"] == []

    opened = visit(color_scheme="dark", viewport={"width": 360, "height": 740})
    page = opened.open("now")
    opened.press(page.get_by_role("button", name="24 h", exact=True))
    assert page.evaluate("location.hash") == "#/now?range=24h"
    time = page.get_by_role("slider", name="Time")
    opened.reach(time)
    readout = page.locator(".readout")
    page.keyboard.press("Home")
    expect(readout).to_contain_text("denied / s")
    expect(readout.get_by_role("link", name="login", exact=True)).to_be_visible()
    expect(readout).to_contain_text("40 denied in the minute")
    expect(time).to_have_attribute("aria-valuetext", re.compile(f"{HOT} 40 denied in the minute$"))
    opened.assert_accessible()
    page.keyboard.press("End")
    expect(readout).to_contain_text("0 denied / s")
    expect(readout.get_by_role("link")).to_have_count(0)
    # The pointer chooses the nearest time with values.
    box = time.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 20)
    opened.press(readout.get_by_role("link", name=HOT))
    expect(page.get_by_role("heading", name="Key", exact=True)).to_be_visible()
    page.go_back()
    expect(page.get_by_role("button", name="24 h", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )


def test_live_values_are_shown_under_the_pointer(
    visit: Callable[..., Visit], redis: Redis, clock: Clock, policy: Callable[..., int]
) -> None:
    policy("login", "FIXED 5 1h")
    page = visit().open("now")
    time = page.get_by_role("slider", name="Time")
    time.locator("path.line").first.wait_for(state="attached")

    def is_read_out() -> bool:
        redis.execute_command("RL.LIMIT", HOT, "login")
        clock.advance("1s")
        box = time.bounding_box()
        page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
        page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20)
        return "login" in page.locator(".readout").inner_text()

    poll.until(is_read_out, "the policy of a denial is under the pointer")
    page.get_by_role("button", name="15 min", exact=False).first.click()
    expect(page.locator(".readout")).to_be_empty()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_spike_of_last_week_is_found_in_prometheus(
    browser: object,
    server: Server,
    clock: Clock,
    start: Callable[..., ConsoleProcess],
    scheme: str,
) -> None:
    now = START_US // 1_000_000
    end = now - now % 600 - 5 * 86_400
    with prometheus_stub() as stub, visits(browser) as visit:
        times = range(now - now % 600 - 6 * 86_400, now, 600)
        stub.all_calls = [
            ({"key": "ratelimit:admitted"}, dict.fromkeys(times, 20)),
            ({"key": "ratelimit:denied"}, dict.fromkeys(times, 0) | {end: 7}),
        ]
        stub.policies = [({"policy": "login", "key": "policy:login:denied"}, {end: 7})]
        process = start(
            server.port, "--prometheus", stub.url, environment=WRITE_ENVIRONMENT | clock.environment
        )
        opened = visit(
            process,
            color_scheme=scheme,
            viewport={"width": 360, "height": 740},
            timezone_id="Pacific/Auckland",
        )
        page = opened.open("now")
        source = page.locator(".decisions > [role=status]")
        expect(source).to_be_empty()
        opened.press(page.get_by_role("button", name="7 d", exact=True))
        assert page.evaluate("location.hash") == "#/now?range=7d"
        expect(source).to_have_text(
            f"From Prometheus at {stub.url}; keys from the console's samples."
        )
        time = page.get_by_role("slider", name="Time")
        opened.reach(time)
        page.keyboard.press("Home")
        readout = page.locator(".readout")
        for _ in range(144):
            page.keyboard.press("ArrowRight")
        # The page is in another time zone. In UTC it was 22:00 of the day before.
        expect(readout).to_contain_text("2023-11-10 11:00:00")
        expect(readout).to_contain_text("7.0 denied / s, 25.9 %")
        expect(readout.get_by_role("link", name="login", exact=True)).to_be_visible()
        opened.assert_accessible()
        stub.failure = 503, {}
        clock.advance("10s")
        page.get_by_role("button", name="24 h", exact=True).click()
        expect(source).to_have_text(
            f"Prometheus at {stub.url}: status 503 Service Unavailable. "
            "Samples of the console are shown."
        )
        opened.assert_accessible()
        page.get_by_role("button", name="5 min", exact=True).first.click()
        expect(source).to_be_empty()
