"""Each view of the console in a browser, and one change. The browser test of `make test`."""

from collections.abc import Callable

import pytest
from browser_page import NEEDS_CHROMIUM, Visit, browser, expect, number, process, visit
from redis import Redis

pytestmark = [NEEDS_CHROMIUM]
__all__ = ["browser", "process", "visit"]


def figure(page: object, label: str) -> object:
    return page.locator(".figure").filter(has=page.get_by_text(label, exact=True)).locator("b")


@pytest.mark.timeout(300)
def test_each_view_shows_server_data_and_a_policy_is_changed(
    visit: Callable[..., Visit], redis: Redis, policy: Callable[..., int]
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    policy("login", "FIXED 5 1h")
    for _ in range(12):
        redis.execute_command("RL.LIMIT", "login:10.0.0.7", "login")
    opened = visit()
    # The view Now.
    page = opened.open("now")
    row = page.get_by_role("row").filter(has_text="login:10.0.0.7")
    ((key, denied, _, policy_name, _),) = redis.execute_command("RL.TOP", "SINCE", "5m")
    expect(row).to_contain_text(key)
    expect(row.get_by_role("link", name=policy_name, exact=True)).to_be_visible()
    assert number(row.get_by_role("cell").nth(1)) == denied == 7
    expect(figure(page, "policies")).to_have_text("1")
    # All bars are relative to the longest, even if it appears later.
    for _ in range(19):
        redis.execute_command("RL.FIXED", "search", 5, "1h")
    for key, width in {"search": "100%", "login:10.0.0.7": "50%"}.items():
        bar = page.get_by_role("row").filter(has_text=key).locator(".bar > i")
        expect(bar).to_have_attribute("style", f"width: {width};")
    # Policies, and a change.
    page = opened.open("policies")
    row = page.get_by_role("row").filter(has_text="login")
    expect(row).to_contain_text("5 per h")
    counts = redis.execute_command("RL.POLICYGET", "login")[-1]
    counts = dict(zip(counts[::2], counts[1::2], strict=True))
    shown = [number(row.get_by_role("cell").nth(column)) for column in (2, 3, 4)]
    assert shown == [counts["calls"], counts["admitted"], counts["denied"]] == [12, 5, 7]
    row.get_by_role("button", name="Edit…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Limit", exact=False).first.fill("8")
    expect(dialog.locator(".difference .gone")).to_contain_text("5 per h")
    expect(dialog.locator(".difference .new")).to_contain_text("8 per h")
    dialog.get_by_role("button", name="Apply").click()
    expect(dialog).to_be_hidden()
    expect(row).to_contain_text("8 per h")
    assert redis.execute_command("RL.POLICYLIST")[0][2] == "FIXED 8 1h"
    # A key.
    page = opened.open("key/login%3A10.0.0.7")
    expect(page.get_by_text("5 of 8")).to_be_visible()
    assert redis.execute_command("RL.PEEK", "login:10.0.0.7", "POLICY", "login")[1:3] == [8, 3]
    # The playground: two bursts across the end of a window, by the core's own decisions.
    page = opened.open("playground?example=boundary&every=0&speed=1000&show=fixed,log")
    fixed = page.locator('[data-lane="fixed"]').get_by_role("status")
    expect(fixed).to_contain_text("20 passed")
    log = page.locator('[data-lane="log"]').get_by_role("status")
    expect(log).to_contain_text("11 passed")
    expect(log).to_contain_text("9 denied")
    # Replay.
    page = opened.open("replay")
    lines = [f"{1_767_603_600 + at} {key}" for at in range(10) for key in ["hot"] * 5 + ["calm"]]
    page.get_by_role("textbox", name="Log").fill("\n".join(lines))
    page.get_by_role("combobox", name="Limit").fill("FIXED 2 1s")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator(".rp-result")).to_contain_text("1 of 2keys were denied something")
    expect(page.locator(".rp-smallest")).to_have_text("FIXED 5 1s")
