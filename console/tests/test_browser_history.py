"""History of the console, with a clock that tests move: a past spike is found and named."""

import re
from collections.abc import Callable, Iterator

import pytest
from asking import Console
from browsing import NEEDED, WRITES, Visit, browser, expect, visit
from redis import Redis
from running import ConsoleProcess

from support import poll
from support.clock import Clock
from support.server import Server

pytestmark = [pytest.mark.browser, NEEDED]
__all__ = ["browser", "visit"]

HOT = "login:203.0.113.66"


@pytest.fixture
def process(
    server: Server, clock: Clock, start: Callable[..., ConsoleProcess]
) -> Iterator[ConsoleProcess]:
    """Console whose wall clock is that of the server."""
    return start(server.port, environment=WRITES | clock.environment)


def test_spike_of_last_night_is_found_and_named(
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

    # Nobody looks at the page while it happens.
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
