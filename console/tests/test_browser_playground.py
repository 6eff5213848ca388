"""The playground and the replay of a log in a browser."""

import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from playground_process import Playground

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="make console-test installs it")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
expect = sync_api.expect
# The timeout is long, for busy machines.
expect.set_options(timeout=60_000)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium (Debian: apt install chromium)"),
]

# The example without a repetition of its bursts.
ONCE = "example=boundary&every=0&speed=1000"


@pytest.fixture(scope="module")
def playground() -> Iterator[Playground]:
    playground = Playground()
    yield playground
    playground.end()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: "Browser", playground: Playground) -> "Iterator[Page]":
    """Page that must not report errors."""
    context = browser.new_context(base_url=playground.url, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    yield page
    context.close()
    # The browser also reports responses that a test provokes.
    assert [error for error in errors if "400 (Bad Request)" not in error] == []


# Collects the observers that are connected, as `observers`.
COLLECT_OBSERVERS = """
    window.observers = new Set();
    const { observe, disconnect } = MutationObserver.prototype;
    MutationObserver.prototype.observe = function (target, options) {
      if (options.attributeFilter?.includes("data-theme")) observers.add(this);
      return observe.call(this, target, options);
    };
    MutationObserver.prototype.disconnect = function () {
      observers.delete(this);
      return disconnect.call(this);
    };
"""


def lane(page: "Page", name: str) -> "Locator":
    return page.locator(f'[data-lane="{name}"]')


def expect_figures(page: "Page", name: str, *texts: str | re.Pattern[str]) -> None:
    for text in texts:
        expect(lane(page, name).get_by_role("status")).to_contain_text(text)


def test_first_example_shows_what_each_algorithm_grants(page: "Page") -> None:
    page.goto(f"/#/playground?{ONCE}")
    expect_figures(page, "fixed", "20 passed", "0 denied", "19 at most in 10 s")
    expect_figures(page, "sliding", "10 passed", "10 denied", "10 at most in 10 s")
    for name in ["strict", "log"]:
        expect_figures(page, name, "11 passed", "9 denied", "10 at most in 10 s")
    for name in ["token", "leaky"]:
        expect_figures(page, name, "12 passed", "8 denied")
    expect_figures(page, "leaky", "longest wait")
    # Algorithms that grant more than the limit explain why.
    over = page.locator(".pg-over")
    expect(over).to_have_count(2)
    expect(over.first).to_contain_text("Two bursts across the end of a window both pass")


def test_small_sketch_denies_callers_below_their_limit(page: "Page") -> None:
    page.goto("/#/playground?example=addresses&speed=1000")
    sketch = lane(page, "sketch")
    expect(sketch.locator("code")).to_have_text(
        "RL.SKETCH addresses 203.0.113.42 10 10 20s SIZE 64kb"
    )
    # A bucket per caller grants all calls of a caller below its limit.
    expect_figures(
        page, "sketch", re.compile("[1-9].* others denied"), re.compile(r"[1-9]\d* denied")
    )
    expect_figures(page, "token", re.compile(r"passed\s*0 denied"))
    expect(sketch).to_contain_text(re.compile("denies [1-9].* % of new addresses"))
    expect(page.locator(".pg-over .pg-flaw")).to_contain_text(
        "callers below the limit are denied too"
    )
    size = page.get_by_role("slider", name="Size of the sketch")
    size.focus()
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    expect(sketch.locator("code")).to_contain_text("SIZE 512kb")
    expect(sketch).to_contain_text("denies 0 % of new addresses")
    assert "size=512" in page.url
    page.reload()
    expect(size).to_have_value("512")
    expect_figures(page, "sketch", re.compile(r"[1-9]\d* passed\s*0 denied"))
    expect_figures(page, "sketch", re.compile(r"[1-9].* others passed\s*0 others denied"))
    expect(page.locator(".pg-over")).to_have_count(0)
    page.get_by_role("slider", name="Others a second").focus()
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile("others=4900"))
    page.get_by_role("button", name="Policy").click()
    expect(sketch.locator("code")).to_have_text(
        "RL.POLICYSET per-address SKETCH 10 10 20s SIZE 512kb"
    )
    # An invalid URL opens a sketch within bounds.
    page.goto("/#/playground?show=sketch&size=1e9&others=-5")
    expect(sketch.locator("code")).to_contain_text("SIZE 1024kb")
    page.goto("/#/playground?show=sketch&size=99.7&others=77.7")
    expect(sketch.locator("code")).to_contain_text("SIZE 100kb")
    expect(sketch).to_contain_text("of 10 used")


@pytest.mark.parametrize("example", ["late", "steady", "quiet", "random", "slow", "addresses"])
def test_each_example_runs(page: "Page", example: str) -> None:
    page.goto("/#/playground?speed=1000")
    title = {"late": "Late in both", "steady": "Twice the limit", "quiet": "A burst after"}
    title |= {"random": "Random", "slow": "Slow calls", "addresses": "Too many addresses"}
    page.get_by_role("button", name=title[example]).click()
    page.get_by_role("button", name=re.compile("^10.$")).click()
    expect(page.locator(".pg-story")).not_to_be_empty()
    denied = page.locator(".pg-figures").first
    expect(denied).to_contain_text(re.compile(r"[1-9]\d* passed"))
    assert f"example={example}" in page.url


def test_address_has_all_settings_and_sliders_work_by_keyboard(page: "Page") -> None:
    page.goto("/#/playground?bursts=&every=0")
    limit = page.get_by_role("slider", name="Limit", exact=True)
    limit.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(lane(page, "fixed").locator("code")).to_have_text("RL.FIXED user:42 13 10s")
    # The burst follows the limit until it is set.
    page.get_by_role("slider", name="A bucket holds").focus()
    page.keyboard.press("ArrowLeft")
    token = lane(page, "token").locator("code")
    expect(token).to_have_text("RL.TOKENBUCKET user:42 12 13 10s")
    page.reload()
    expect(token).to_have_text("RL.TOKENBUCKET user:42 12 13 10s")
    expect(limit).to_have_value("13")
    page.get_by_role("button", name="Policy").click()
    expect(token).to_have_text("RL.POLICYSET login TOKENBUCKET 12 13 10s")
    page.get_by_role("checkbox", name="Concurrency").check()
    expect(lane(page, "concurrency").locator("code")).to_have_text(
        "RL.POLICYSET login CONCURRENCY 13 60s"
    )


def test_clicks_make_calls_and_changed_limits_keep_usage(page: "Page") -> None:
    page.goto("/#/playground?bursts=&every=0&window=60&show=fixed,log")
    expect(lane(page, "fixed")).to_contain_text("0 of 10 used")
    page.get_by_role("button", name="One call").click()
    expect_figures(page, "fixed", "1 passed", "0 denied")
    page.get_by_role("button", name="A burst of 10").click()
    expect_figures(page, "fixed", "10 passed", "1 denied")
    page.get_by_role("slider", name="Limit", exact=True).focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(lane(page, "fixed")).to_contain_text("10 of 12 used")
    page.get_by_role("button", name="A burst of 10").click()
    expect_figures(page, "fixed", "12 passed", "9 denied")
    expect_figures(page, "log", "12 passed", "9 denied")
    page.get_by_role("button", name="Start again").click()
    expect_figures(page, "fixed", "0 passed", "0 denied")


def test_invalid_address_opens_a_scene_within_bounds(page: "Page") -> None:
    hostile = "%3Cscript%3Ealert(1)%3C%2Fscript%3E"
    page.goto(
        f"/#/playground?example={hostile}&limit=1e9&window=-3&bursts=x:y,1:1e9&show={hostile}"
    )
    expect(lane(page, "fixed").locator("code")).to_have_text("RL.FIXED user:42 60 1s")
    expect(lane(page, "fixed")).to_contain_text("of 60 used")


def test_log_is_replayed_and_markup_in_names_is_text(page: "Page") -> None:
    page.goto("/#/replay")
    hostile = "<img/src=x/onerror=alert(1)>"
    lines = [f"{1_767_603_600 + at} {key}" for at in range(10) for key in [hostile] * 5 + ["calm"]]
    page.get_by_role("textbox", name="Log").fill("\n".join([*lines, "rubbish"]))
    page.get_by_role("combobox", name="Limit").fill("FIXED 2 1s")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator(".rp-result")).to_contain_text("1 of 2keys were denied something")
    expect(page.locator(".rp-result")).to_contain_text("30denied, 50 %")
    expect(page.locator(".rp-smallest")).to_have_text("FIXED 5 1s")
    expect(page.get_by_role("cell", name=hostile)).to_be_visible()
    skipped = "1 line skipped: 1 not understood, the first is line 61: rubbish"
    expect(page.locator(".rp-result")).to_contain_text(skipped)
    page.get_by_role("button", name="Replay it").click()
    expect(page.locator(".rp-result")).to_contain_text("Nobody")
    assert "limit=FIXED+5+1s" in page.url
    page.get_by_role("combobox", name="Limit").fill("FIXED some 1s")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="limit must be")).to_be_visible()


def test_long_file_is_referred_to_the_command_line(page: "Page") -> None:
    page.goto("/#/replay")
    file_input = page.get_by_label("A log file")
    line = b'192.0.2.%d - - [05/Jan/2026:09:00:00 +0100] "GET / HTTP/1.1" 200 1\n'
    log = b"".join(line % (call % 2) for call in range(300))
    file_input.set_input_files({"name": "access.log", "mimeType": "text/plain", "buffer": log})
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_role("cell", name="192.0.2.0")).to_be_visible()
    long = {"name": "long.log", "mimeType": "text/plain", "buffer": b"x" * (16 * 1024 * 1024 + 1)}
    file_input.set_input_files(long)
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator(".rp-result")).to_contain_text(
        "ratelimit-console replay long.log --limit 'FIXED 100 1m' --goal 1%"
    )


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_views_are_accessible_and_fit_the_screen(
    browser: "Browser", playground: Playground, width: int, theme: str
) -> None:
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": theme}
    context = browser.new_context(base_url=playground.url, reduced_motion="reduce", **options)
    page = context.new_page()
    page.goto(f"/#/playground?{ONCE}")
    expect_figures(page, "fixed", "20 passed")
    assert_accessible(page, width)
    page.get_by_role("button", name="Too many addresses").click()
    expect_figures(page, "sketch", re.compile("[1-9].* others passed"))
    assert_accessible(page, width)
    page.goto("/#/replay")
    page.get_by_role("button", name="Use an example").click()
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator(".rp-smallest")).to_be_visible()
    assert_accessible(page, width)
    context.close()


def assert_accessible(page: "Page", width: int) -> None:
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_view_that_is_left_observes_nothing(page: "Page") -> None:
    page.add_init_script(COLLECT_OBSERVERS)
    page.goto(f"/#/playground?{ONCE}")
    expect_figures(page, "fixed", "20 passed")
    assert page.evaluate("observers.size") == 1
    page.goto("/#/replay")
    page.wait_for_function("observers.size === 0")
