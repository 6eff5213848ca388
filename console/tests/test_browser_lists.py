"""Lists of denied keys, policies and keys in the console: room, links, files, and the URL."""

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from api_client import Console
from browser_page import NEEDS_CHROMIUM, WRITE_ENVIRONMENT, Visit, browser, expect, process, visit
from console_process import ConsoleProcess
from redis import Redis

from support.server import Server

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]
__all__ = ["browser", "process", "visit"]

LONG = "plan:free-tier:europe-west:mobile-clients"
# A key that a spreadsheet would run.
FORMULA = '=HYPERLINK("x", 1)'
PHONE, LAPTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 720}


@pytest.fixture
def denied_keys(redis: Redis, policy: Callable[..., int]) -> None:
    """Keys of two policies with 1 to 12 denials."""
    redis.execute_command("RL.TOP", "RESET")
    policy("login", "FIXED 5 1h")
    policy(LONG, "FIXED 5 1h AS hour")
    for number in range(1, 13):
        key = FORMULA if number == 3 else f"login:10.0.0.{number}"
        for _ in range(5 + number):
            redis.execute_command("RL.LIMIT", key, LONG if number % 2 else "login")


def rows_of(page: object) -> object:
    return page.get_by_role("region", name="Denied most").locator("tbody tr")


@pytest.mark.usefixtures("denied_keys")
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_ten_denied_keys_fit_on_a_screen(visit: Callable[..., Visit], size: dict) -> None:
    page = visit(viewport=size).open("now")
    rows = rows_of(page)
    expect(rows).to_have_count(12)
    expect(rows.first).to_contain_text("12 in this minute, at most 12 a minute")
    expect(rows.first.locator("svg.spark:visible")).to_have_count(1)
    if size is PHONE:
        rows.first.evaluate("row => scrollTo(0, row.offsetTop + row.closest('section').offsetTop)")
        rows.first.scroll_into_view_if_needed()
    first, tenth = rows.first.bounding_box(), rows.nth(9).bounding_box()
    header = page.locator("header.top").bounding_box()["height"]
    height = tenth["y"] + tenth["height"] - (first["y"] if size is PHONE else 0)
    assert height <= size["height"] - (header if size is PHONE else 0)


@pytest.mark.usefixtures("denied_keys")
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_link_of_a_denied_key_keeps_its_focus(
    visit: Callable[..., Visit], redis: Redis, size: dict
) -> None:
    opened = visit(viewport=size)
    page = opened.open("now")
    row = rows_of(page).filter(has=page.get_by_role("link", name="login:10.0.0.12", exact=True))
    link = row.get_by_role("link", name="login", exact=True)
    opened.reach(link)
    for _ in range(9):
        redis.execute_command("RL.LIMIT", "login:10.0.0.12", "login")
    expect(row).to_contain_text("21 in this minute")
    expect(link).to_be_focused()


@contextmanager
def blocked_call(server: Server, key: str) -> Iterator[None]:
    """Blocks a call on a lease of the key."""
    with server.client() as client:
        client.execute_command("RL.ACQUIRE", key, 1, "1d", "holder")
        connection = client.connection_pool.get_connection()
        connection.send_command("RL.ACQUIRE", key, 1, "1d", "another", "BLOCK", 0)
        try:
            yield
        finally:
            connection.disconnect()


def test_keys_that_calls_wait_for_keep_their_focus(
    visit: Callable[..., Visit], server: Server
) -> None:
    opened = visit()
    with blocked_call(server, "pool"):
        page = opened.open("now")
        region = page.get_by_role("region", name="Waiting")
        link = region.get_by_role("link", name="pool", exact=True)
        opened.reach(link)
        with blocked_call(server, "another"):
            expect(region).to_contain_text("2 calls for 2 keys")
            expect(link).to_be_focused()
        expect(region).to_contain_text("1 calls for 1 keys")
        expect(link).to_be_focused()
    expect(region).to_contain_text("No calls are waiting")


@pytest.mark.usefixtures("denied_keys")
def test_keys_that_a_policy_denies_keep_their_focus(
    visit: Callable[..., Visit], redis: Redis
) -> None:
    opened = visit()
    page = opened.open("policies/login")
    item = page.get_by_role("listitem").filter(has_text="login:10.0.0.12")
    link = item.get_by_role("link")
    opened.reach(link)
    for _ in range(9):
        redis.execute_command("RL.LIMIT", "login:10.0.0.12", "login")
    expect(item).to_contain_text("21 denied")
    expect(link).to_be_focused()


@pytest.mark.usefixtures("denied_keys")
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_policy_names_stay_on_one_line(visit: Callable[..., Visit], size: dict) -> None:
    opened = visit(viewport=size)
    for view in ["now", "policies", f"policies/{LONG}", "key/login%3A10.0.0.11"]:
        page = opened.open(view)
        names = page.get_by_text(LONG, exact=True).locator("visible=true")
        names.first.wait_for()
        for name in names.all():
            lines = name.evaluate(
                "name => { const range = document.createRange(); range.selectNodeContents(name);"
                " return new Set([...range.getClientRects()].map(({ top }) => top)).size; }"
            )
            assert lines == 1, view
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], view


SMALL_TARGETS = """() => [...document.querySelectorAll("a, button, input, select, summary")]
    .filter((element) => element.checkVisibility() && !element.matches(".skip, .rp-file"))
    // Links in running text are as high as its lines.
    .filter((element) => !(element.matches("a") && element.closest("p, .panel-foot, .empty")))
    .map((element) => element.matches("[type=checkbox], [type=radio]")
        ? element.closest("label") : element)
    .map((element) => [element, element.getBoundingClientRect()])
    .filter(([, { width, height }]) => width < 24 || height < 24)
    .map(([element, { width, height }]) => [element.outerHTML.slice(0, 120), width, height])"""


@pytest.mark.usefixtures("denied_keys")
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_click_targets_have_at_least_24_pixels(
    visit: Callable[..., Visit], process: ConsoleProcess, size: dict
) -> None:
    console = Console(process, WRITE_ENVIRONMENT["RATELIMIT_CONSOLE_WRITE_TOKEN"])
    console(f"/api/policies/{LONG}/scale", "POST", {"factor": 2, "for": "1h"})
    console("/api/key/ban", "POST", {"key": "login:10.0.0.12", "for": "1h"})
    opened = visit(viewport=size)
    shown = {
        "now": "login:10.0.0.12",
        "policies": LONG,
        "policies/login": "Copy the call",
        "key": "login:10.0.0.12",
        "key?prefix=login": "login:10.0.0.12",
        "key/login%3A10.0.0.12": "5 of 5",
        "changes": "somebody at 127.0.0.1 banned",
        "playground": "admitted",
        "replay": "Limit",
    }
    for view, text in shown.items():
        page = opened.open(view)
        if view == "playground":
            page.locator("[data-lane]").first.wait_for()
        else:
            page.get_by_text(text).locator("visible=true").first.wait_for()
        assert page.evaluate(SMALL_TARGETS) == [], view
    for name in ["Edit… login", "Scale… login"]:
        page = opened.open("policies/login")
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert page.evaluate(SMALL_TARGETS) == [], name
        page.keyboard.press("Escape")


@pytest.mark.usefixtures("denied_keys")
def test_search_sort_and_time_stay_in_the_url(visit: Callable[..., Visit]) -> None:
    opened = visit()
    page = opened.open("policies")
    rows = page.get_by_role("region", name="Policies").locator("tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Calls", exact=True).click()
    page.get_by_label("Search policies").fill("Login")
    expect(rows).to_have_count(1)
    assert page.evaluate("location.hash") == "#/policies?search=Login&sort=calls"
    rows.get_by_role("link", name="login", exact=True).click()
    expect(page.get_by_role("heading", name="login", exact=True)).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Search policies")).to_have_value("Login")
    expect(rows).to_have_count(1)
    expect(page.get_by_role("columnheader", name="Calls")).to_have_attribute(
        "aria-sort", "descending"
    )
    page = opened.open("now")
    hour = page.get_by_role("group", name="Since").get_by_role("button", name="1 h", exact=True)
    hour.click()
    assert page.evaluate("location.hash") == "#/now?since=1h"
    page.reload()
    expect(hour).to_have_attribute("aria-pressed", "true")


@pytest.mark.usefixtures("denied_keys")
def test_lists_are_saved_as_csv_and_json(visit: Callable[..., Visit], redis: Redis) -> None:
    opened = visit()

    def save(page: object, kind: str) -> str:
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Export as {kind}").click()
        assert download.value.suggested_filename.endswith(f".{kind.lower()}")
        return Path(download.value.path()).read_bytes().decode()

    page = opened.open("now")
    expect(rows_of(page)).to_have_count(12)
    saved = json.loads(save(page, "JSON"))
    top = redis.execute_command("RL.TOP", "COUNT", "100", "SINCE", "5m")
    assert [[row["key"], row["denied"]] for row in saved] == [row[:2] for row in top]
    rows = list(csv.DictReader(save(page, "CSV").splitlines()))
    # With the apostrophe, a spreadsheet shows the formula and does not run it.
    names = [f"'{row[0]}" if row[0] == FORMULA else row[0] for row in top]
    assert [row["key"] for row in rows] == names
    assert [int(row["denied"]) for row in rows] == [row[1] for row in top]
    page = opened.open("policies?search=login")
    expect(page.get_by_role("region", name="Policies").locator("tbody tr")).to_have_count(1)
    (row,) = csv.DictReader(save(page, "CSV").splitlines())
    assert (row["name"], row["specs"], row["denied"]) == ("login", "FIXED 5 1h", "42")


@pytest.mark.usefixtures("denied_keys")
def test_keys_are_found_by_their_prefix(visit: Callable[..., Visit], redis: Redis) -> None:
    redis.set("login:text", "of another type")
    opened = visit(color_scheme="dark", viewport=PHONE)
    page = opened.open("key")
    opened.fill(page.get_by_label("Key", exact=True), "login:10.0.0.1")
    opened.press(page.get_by_role("button", name="By prefix"))
    keys = page.get_by_role("region", name="Keys").get_by_role("link")
    expect(keys).to_have_text([f"login:10.0.0.{number}" for number in (1, 10, 11, 12)])
    assert page.evaluate("location.hash") == "#/key?prefix=login%3A10.0.0.1"
    opened.assert_accessible()
    opened.press(keys.nth(1))
    expect(page.get_by_text("5 of 5")).to_be_visible()
    page.go_back()
    expect(keys).to_have_count(4)
    page = opened.open("key?prefix=login:t")
    expect(page.get_by_text("No key begins so")).to_be_visible()


@pytest.mark.usefixtures("denied_keys")
def test_lift_button_is_shown_only_during_a_ban(visit: Callable[..., Visit], redis: Redis) -> None:
    page = visit().open("key/login%3A10.0.0.12")
    lift = page.get_by_role("button", name="Lift ban…")
    expect(page.get_by_role("button", name="Ban…", exact=True)).to_be_visible()
    expect(page.get_by_text("5 of 5")).to_be_visible()
    expect(lift).to_be_hidden()
    redis.execute_command("RL.BAN", "login:10.0.0.12", "1h")
    lift.click()
    page.get_by_role("dialog").get_by_role("button", name="Lift", exact=True).click()
    expect(lift).to_be_hidden()
    assert redis.execute_command("RL.LIMIT", "login:10.0.0.12", "login")[3] == 3_600_000
