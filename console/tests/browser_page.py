"""Pages of the console in Debian's chromium, which must not report errors."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from console_process import ConsoleProcess

from support.server import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium (Debian: apt install chromium)"
)
WRITE_ENVIRONMENT = {"RATELIMIT_CONSOLE_WRITE_TOKEN": "may-change-0123456789"}
# Timeout of the page, long enough for busy machines.
TIMEOUT_MS = 60_000
# Folder for the pictures of the documents. Without it, no pictures are written.
PICTURES = os.environ.get("PICTURES") or None


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    playwright = pytest.importorskip("playwright.sync_api", reason="make console-test installs it")
    playwright.expect.set_options(timeout=TIMEOUT_MS)
    with playwright.sync_playwright() as running:
        options = ["--no-sandbox", "--disable-gpu"]
        browser = running.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def process(server: Server, start: Callable[..., ConsoleProcess]) -> ConsoleProcess:
    return start(server.port, environment=WRITE_ENVIRONMENT)


class Visit:
    """Page of the console, and the errors that it reported."""

    def __init__(
        self,
        browser: object,
        process: ConsoleProcess,
        *,
        signed_in: bool = True,
        token: str = WRITE_ENVIRONMENT["RATELIMIT_CONSOLE_WRITE_TOKEN"],
        **options: object,
    ):
        self.errors: list[str] = []
        self.context = browser.new_context(reduced_motion="reduce", **options)
        self.context.set_default_timeout(TIMEOUT_MS)
        if signed_in:
            self.context.add_init_script(f"sessionStorage.setItem('token', '{token}')")
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        # Set before the page loads: a chooser that opens without a listener is lost.
        self.page.on("filechooser", lambda _: None)
        self.base = f"http://127.0.0.1:{process.port}/"

    def open(self, view: str) -> object:
        self.page.goto(f"{self.base}#/{view}")
        return self.page

    def reach(self, target: object) -> None:
        """Focuses an element with the Tab key alone."""
        target.wait_for()
        for _ in range(200):
            if target.evaluate("element => element === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab never reaches {target}")

    def press(self, target: object) -> None:
        self.reach(target)
        self.page.keyboard.press("Enter")

    def fill(self, target: object, text: str) -> None:
        self.reach(target)
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.type(text)

    def assert_accessible(self) -> None:
        """Checks the page by the rules of axe-core, and that nothing is wider than the screen."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright")
        found = axe.Axe().run(self.page).response["violations"]
        assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found] == []
        width = self.page.viewport_size["width"]
        assert self.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.fixture
def visit(browser: object, process: ConsoleProcess) -> Iterator[Callable[..., Visit]]:
    with visits(browser) as make:
        yield lambda **options: make(process, **options)


@contextmanager
def visits(browser: object) -> Iterator[Callable[..., Visit]]:
    """Yields a function that opens pages. At the end, no page may have reported an error."""
    opened: list[Visit] = []

    def make(process: ConsoleProcess, **options: object) -> Visit:
        opened.append(Visit(browser, process, **options))
        return opened[-1]

    yield make
    for visit in opened:
        assert visit.errors == []
        visit.context.close()


def expect(locator: object) -> object:
    # Playwright may be missing where no test has a locator.
    from playwright.sync_api import expect  # noqa: PLC0415

    return expect(locator)


def number(locator: object) -> int:
    """Returns the number that an element shows, such as 1,234."""
    return int(re.sub(r"[^\d]", "", locator.inner_text()))
