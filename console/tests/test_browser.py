"""Views and changes of the console in a real browser, compared with the server."""

import signal
from collections.abc import Callable

import pytest
from browser_page import NEEDS_CHROMIUM, Visit, browser, expect, process, visit
from console_process import ConsoleProcess
from redis import Redis

axe = pytest.importorskip("axe_playwright_python.sync_playwright")
pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]
__all__ = ["browser", "process", "visit"]


def test_operator_finds_and_bans_the_most_denied_key(
    visit: Callable[..., Visit], redis: Redis, policy: Callable[..., int]
) -> None:
    policy("login", "FIXED 5 1h")
    policy("plan:free", "FIXED 100 1m")
    for _ in range(12):
        redis.execute_command("RL.LIMIT", "login:10.0.0.7", "login")
    page = visit().open("now")
    row = page.get_by_role("row").filter(has_text="login:10.0.0.7")
    expect(row).to_contain_text("7")
    expect(row.get_by_role("link", name="login", exact=True)).to_be_visible()
    row.get_by_role("link", name="login:10.0.0.7").click()
    expect(page.get_by_text("5 of 5")).to_be_visible()
    page.get_by_role("button", name="Ban…", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Every call on this key is denied until")
    dialog.get_by_role("button", name="Ban", exact=True).click()
    expect(page.get_by_text("Banned until", exact=False).first).to_be_visible()
    assert redis.execute_command("RL.LIMIT", "login:10.0.0.7", "login")[3] == 3_600_000
    page.get_by_role("link", name="Policies", exact=True).click()
    row = page.get_by_role("row").filter(has_text="plan:free")
    row.get_by_role("button", name="Scale…").click()
    expect(dialog).to_contain_text("150 per min")
    dialog.get_by_role("button", name="Apply").click()
    expect(row).to_contain_text("\N{MULTIPLICATION SIGN} 1.5")
    (scaled,) = [row for row in redis.execute_command("RL.POLICYLIST") if row[0] == "plan:free"]
    assert scaled[3:] == ["1.5", 600_000]


def test_shadow_limit_is_set_by_keyboard(visit: Callable[..., Visit], redis: Redis) -> None:
    page = visit().open("now")
    expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page.get_by_text("No policies yet")).to_be_visible()
    page.get_by_role("button", name="New policy").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("login")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Algorithm").select_option("FIXED")
    dialog.get_by_label("Shadow", exact=False).focus()
    page.keyboard.press("Space")
    expect(dialog).to_contain_text("denials are counted and not enforced")
    dialog.get_by_label("Name", exact=True).first.focus()
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("row").filter(has_text="login")).to_contain_text("100 per min")
    assert redis.execute_command("RL.POLICYLIST")[0][2] == "FIXED 100 1m SHADOW"


def test_concurrent_edit_must_be_confirmed(
    visit: Callable[..., Visit], redis: Redis, policy: Callable[..., int]
) -> None:
    policy("plan", "FIXED 5 1m")
    page = visit().open("policies")
    page.get_by_role("row").filter(has_text="plan").get_by_role("button", name="Edit…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Limit", exact=False).first.fill("7")
    policy("plan", "FIXED 6 1m")
    expect(dialog).to_contain_text("Somebody has changed this policy meanwhile")
    expect(dialog.get_by_role("button", name="Apply")).to_be_disabled()
    dialog.get_by_role("button", name="Keep mine, change theirs").click()
    expect(dialog.locator(".difference .gone")).to_contain_text("6 per min")
    dialog.get_by_role("button", name="Apply").click()
    expect(dialog).to_be_hidden()
    assert redis.execute_command("RL.POLICYLIST")[0][2] == "FIXED 7 1m"


def test_markup_in_names_is_shown_as_text(visit: Callable[..., Visit], redis: Redis) -> None:
    name = "<img src=x onerror=alert(1)><script>alert(2)</script>\x1b\N{RIGHT-TO-LEFT OVERRIDE}"
    redis.execute_command("RL.POLICYSET", name, "FIXED", 1, "1h")
    for _ in range(3):
        redis.execute_command("RL.LIMIT", name, name)
    opened = visit()
    shown = name.replace("\x1b", "\N{SYMBOL FOR ESCAPE}")
    shown = shown.replace("\N{RIGHT-TO-LEFT OVERRIDE}", "<U+202E>")
    for view in ("now", "policies"):
        expect(opened.open(view).get_by_text(shown).first).to_be_visible()
    opened.page.get_by_role("link", name=shown).first.click()
    expect(opened.page.get_by_role("heading", name=shown)).to_be_visible()
    assert opened.page.locator("img").count() == 0
    denied = opened.open("now").get_by_role("region", name="Denied most")
    denied.get_by_role("link", name=shown).first.click()
    expect(opened.page.get_by_text("1 of 1")).to_be_visible()


def test_4096_policies_are_listed_and_searched(visit: Callable[..., Visit], redis: Redis) -> None:
    setting = redis.pipeline(transaction=False)
    for n in range(4096):
        setting.execute_command("RL.POLICYSET", f"plan:{n:04}", "FIXED", n + 1, "1m")
    setting.execute()
    page = visit().open("policies")
    expect(page.get_by_text("of 3,996")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("plan:4095")
    expect(page.get_by_role("row").filter(has_text="plan:4095")).to_contain_text("4,096 per min")
    expect(page.get_by_text("1 of 4,096")).to_be_visible()


def test_page_reports_a_stopped_console_and_reconnects(
    visit: Callable[..., Visit], process: ConsoleProcess
) -> None:
    page = visit().open("now")
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
    process.end(signal.SIGKILL)
    expect(page.locator("#outage")).to_contain_text("console does not answer")
    process.start()
    expect(page.locator("#outage")).to_be_hidden()


def test_reader_sees_no_controls_until_signed_in(
    visit: Callable[..., Visit], policy: Callable[..., int]
) -> None:
    policy("plan", "FIXED 5 1m")
    page = visit(signed_in=False).open("policies")
    expect(page.get_by_role("row").filter(has_text="5 per min")).to_be_visible()
    assert page.get_by_role("button", name="Edit…").count() == 0
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Token").first.fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("does not know this token")
    page.get_by_label("Token").first.fill("may-change-0123456789")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Edit…").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible_and_fits_a_narrow_screen(
    visit: Callable[..., Visit], redis: Redis, policy: Callable[..., int], scheme: str
) -> None:
    policy("login", "FIXED 5 1h AS hour TOKENBUCKET 20 10 1m SHADOW BAN 100 1h 1d")
    for _ in range(7):
        redis.execute_command("RL.LIMIT", "login:10.0.0.7", "login")
    opened = visit(color_scheme=scheme, viewport={"width": 360, "height": 740})
    views = {"now": "login:10.0.0.7", "policies": "5 per h", "key/login%3A10.0.0.7": "5 of 5"}
    views |= {"policies/login": "share denied"}
    for view, shows in views.items():
        page = opened.open(view)
        expect(page.get_by_text(shows).locator("visible=true").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 360, view
        found = axe.Axe().run(page).response["violations"]
        assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found] == [], view
