"""View of changes in the browser: who changed what and why, undo, bans and scaled policies."""

import json
from collections.abc import Callable

import pytest
from api_client import Console
from browser_page import NEEDS_CHROMIUM, Visit, browser, expect, visits
from console_process import ConsoleProcess
from redis import Redis

from support.clock import Clock
from support.server import Server

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]
__all__ = ["browser"]

ANNA, BERT = "anna-0123456789abc", "bert-0123456789abc"
TOKENS = {"RATELIMIT_CONSOLE_WRITE_TOKEN": f"anna:{ANNA},bert:{BERT}"}
PHONE = {"width": 360, "height": 740}
SCRAPER = "login:203.0.113.66"


@pytest.fixture
def process(server: Server, start: Callable[..., ConsoleProcess]) -> ConsoleProcess:
    return start(server.port, environment=TOKENS)


@pytest.fixture
def colleague(server: Server, start: Callable[..., ConsoleProcess]) -> ConsoleProcess:
    """Another console of the same server."""
    return start(server.port, environment=TOKENS)


@pytest.fixture
def anna(process: ConsoleProcess) -> Console:
    return Console(process, ANNA)


@pytest.fixture
def visit(browser: object):
    with visits(browser) as make:
        yield make


def changes_of(page: object) -> object:
    return page.get_by_role("region", name="Last changes").locator("li")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colleague_undoes_an_edit_by_keyboard(
    visit: Callable[..., Visit],
    process: ConsoleProcess,
    colleague: ConsoleProcess,
    redis: Redis,
    clock: Clock,
    policy: Callable[..., int],
    scheme: str,
) -> None:
    policy("login", "FIXED 100 1m")
    options = {"color_scheme": scheme, "viewport": PHONE}
    opened = visit(process, token=ANNA, **options)
    page = opened.open("policies/login")
    opened.press(page.get_by_role("button", name="Edit…"))
    dialog = page.get_by_role("dialog")
    opened.fill(dialog.get_by_label("in each"), "1d")
    opened.fill(dialog.get_by_label("Why"), "a flood of logins")
    opened.assert_accessible()
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    assert redis.execute_command("RL.POLICYLIST")[0][2] == "FIXED 100 1d"
    clock.advance("9h")

    opened = visit(colleague, token=BERT, **options)
    page = opened.open("now")
    expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("c")
    change = changes_of(page)
    expect(change).to_have_count(1)
    expect(change).to_contain_text("anna set login")
    expect(change).to_contain_text("a flood of logins")
    expect(change.locator(".difference .gone")).to_contain_text("100 per min")
    expect(change.locator(".difference .new")).to_contain_text("100 per d")
    opened.assert_accessible()
    opened.press(change.get_by_role("button", name="Undo…"))
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".difference .new")).to_contain_text("100 per min")
    opened.fill(dialog.get_by_label("Why"), "a day by mistake")
    opened.assert_accessible()
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    assert redis.execute_command("RL.POLICYLIST")[0][2] == "FIXED 100 1m"
    expect(change.first).to_contain_text("bert undid a change: set login")
    expect(change.last).to_contain_text("undone by bert")
    expect(change.last.get_by_role("button")).to_have_count(0)
    opened.assert_accessible()


def test_deletion_is_undone(
    visit: Callable[..., Visit], process: ConsoleProcess, anna: Console, redis: Redis
) -> None:
    anna.put("plan", "FIXED 5 1m AS calls FIXED 100 1d AS day")
    anna("/api/policies/plan/scale", "POST", {"factor": 2})
    opened = visit(process, token=BERT, viewport=PHONE)
    page = opened.open("policies/plan")
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Why").fill("of no use")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("No policies yet")).to_be_visible()
    page = opened.open("changes")
    deleted = changes_of(page).filter(has_text="bert deleted plan")
    expect(deleted).to_contain_text("of no use")
    deleted.get_by_role("button", name="Undo…").click()
    expect(dialog).to_contain_text(
        "Scale: none before, \N{MULTIPLICATION SIGN} 2 until changed after"
    )
    opened.assert_accessible()
    dialog.get_by_role("button", name="Undo", exact=True).click()
    expect(deleted).to_contain_text("undone by bert")
    ((_, _, specs, *scale),) = redis.execute_command("RL.POLICYLIST")
    assert (specs, scale) == ("FIXED 5 1m AS calls FIXED 100 1d AS day", ["2", -1])


def test_undo_is_refused_if_the_policy_has_changed_meanwhile(
    visit: Callable[..., Visit],
    process: ConsoleProcess,
    anna: Console,
    redis: Redis,
    policy: Callable[..., int],
) -> None:
    anna.put("plan", "FIXED 5 1m", None)
    anna.put("plan", "FIXED 6 1m", redis.execute_command("RL.POLICYLIST")[0][1])
    page = visit(process, token=BERT).open("changes")
    changes_of(page).first.get_by_role("button", name="Undo…").click()
    dialog = page.get_by_role("dialog")
    policy("plan", "FIXED 7 1m")
    dialog.get_by_role("button", name="Undo", exact=True).click()
    expect(dialog.get_by_role("alert").last).to_contain_text("the policy has changed since")
    expect(dialog).to_contain_text("FIXED 7 1m")
    expect(dialog.get_by_role("button", name="Undo", exact=True)).to_be_disabled()
    assert redis.execute_command("RL.POLICYLIST")[0][2] == "FIXED 7 1m"
    page.keyboard.press("Escape")
    expect(changes_of(page).first).to_contain_text("changed the policy without a console")
    expect(changes_of(page).get_by_role("button", name="Undo…")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bans_and_scaled_policies_show_their_remaining_time(
    visit: Callable[..., Visit],
    process: ConsoleProcess,
    anna: Console,
    redis: Redis,
    clock: Clock,
    policy: Callable[..., int],
    scheme: str,
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    policy("login", "FIXED 1 1m BAN 2 1m 1h")
    policy("plan", "FIXED 1 1m")
    anna("/api/policies/plan/scale", "POST", {"factor": 2, "for": "10m"})
    anna("/api/key/ban", "POST", {"key": SCRAPER, "for": "2h", "why": "a scraper"})
    anna("/api/key/ban", "POST", {"key": "other", "for": "2h"})
    anna("/api/key/reset", "POST", {"key": "other"})
    for _ in range(4):
        redis.execute_command("RL.LIMIT", "login:limited", "login")
    redis.execute_command("RL.BAN", "by:hand", "30m")
    clock.advance("5m")
    opened = visit(process, token=BERT, color_scheme=scheme, viewport=PHONE)
    page = opened.open("changes")
    scaled = page.get_by_role("region", name="Scaled policies").get_by_role("listitem")
    expect(scaled).to_have_count(1)
    expect(scaled).to_contain_text("plan")
    expect(scaled).to_contain_text("\N{MULTIPLICATION SIGN} 2 · 5 min more")
    bans = page.get_by_role("region", name="Current bans")
    rows = bans.get_by_role("listitem")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text(SCRAPER)
    expect(rows.first).to_contain_text("1 h 55 min more")
    expect(rows.first).to_contain_text("by anna: a scraper")
    expect(rows.last).to_contain_text("by a limit, or without a console")
    expect(bans).to_contain_text("the last 1,000 changes")
    reset = changes_of(page).filter(has_text="reset other")
    expect(reset).to_contain_text("what a key has forgotten cannot be restored")
    expect(reset.get_by_role("button")).to_have_count(0)
    opened.assert_accessible()
    opened.press(bans.get_by_role("button", name="Look through all keys"))
    expect(rows).to_have_count(3)
    expect(rows.last).to_contain_text("by:hand")
    opened.press(rows.first.get_by_role("button", name="Lift…"))
    opened.press(page.get_by_role("dialog").get_by_role("button", name="Lift", exact=True))
    expect(rows).to_have_count(2)
    lifted = changes_of(page).filter(has_text="bert lifted the ban of")
    opened.press(lifted.get_by_role("button", name="Undo…"))
    opened.press(page.get_by_role("dialog").get_by_role("button", name="Undo", exact=True))
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("1 h 55 min more")
    opened.assert_accessible()


def test_foreign_entries_do_not_break_the_list(
    visit: Callable[..., Visit], process: ConsoleProcess, anna: Console, redis: Redis
) -> None:
    anna.put("plan", "FIXED 5 1m")
    user = "\N{RIGHT-TO-LEFT OVERRIDE}trebla"
    scaled = {"what": "policy scaled", "policy": "<img src=x>", "before": None, "after": None}
    for entry in ({"what": "else"}, scaled | {"who": "<b>", "user": user}):
        redis.xadd("ratelimit:console:changes", {"change": json.dumps(entry)})
    page = visit(process, token=BERT).open("changes")
    expect(changes_of(page)).to_have_count(2)
    expect(changes_of(page).first).to_contain_text("<U+202E>trebla scaled <img src=x>")
    expect(changes_of(page).first).to_contain_text('{"before":null,"after":null}')
    expect(changes_of(page).last).to_contain_text("anna set plan")


def test_reader_sees_the_changes_without_buttons(
    visit: Callable[..., Visit], process: ConsoleProcess, anna: Console
) -> None:
    anna.put("plan", "FIXED 5 1m")
    anna("/api/policies/plan/scale", "POST", {"factor": 2})
    anna("/api/key/ban", "POST", {"key": SCRAPER, "for": "2h"})
    page = visit(process, signed_in=False).open("changes")
    expect(changes_of(page)).to_have_count(3)
    expect(page.get_by_role("region", name="Current bans")).to_contain_text("2 h more")
    expect(page.get_by_role("region", name="Scaled policies")).to_contain_text("plan")
    names = ["Undo…", "Lift…", "Scale…"]
    assert [page.get_by_role("button", name=name).count() for name in names] == [0, 0, 0]
