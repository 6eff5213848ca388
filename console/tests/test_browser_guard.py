"""Warning before an edit that would have denied many calls, by real traffic on a real server."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from api_client import Console
from browser_page import NEEDS_CHROMIUM, Visit, browser, expect, process, visit
from console_process import ConsoleProcess
from redis import Redis

from support import poll
from support.clock import Clock

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]
__all__ = ["browser", "process", "visit"]

PHONE = {"width": 360, "height": 740}


@pytest.fixture
def calls(process: ConsoleProcess, redis: Redis) -> Callable[..., None]:
    """Makes calls, and waits until the console has sampled them."""
    console = Console(process)
    # Waits for the first sample, with which later ones are compared.
    assert console("/api/now").status == 200

    def admitted(policy: str) -> int:
        answer = console("/api/usage", "POST", {"policy": policy})
        return answer.json["counts"]["admitted"]

    def make(policy: str, keys: int, calls_per_key: int) -> None:
        pipeline = redis.pipeline(transaction=False)
        for key in range(keys):
            for _ in range(calls_per_key):
                pipeline.execute_command("RL.LIMIT", f"{policy}:{key}", policy)
        count = sum(reply[0] for reply in pipeline.execute())
        poll.until(lambda: admitted(policy) == count, "the calls are sampled", timeout=30)

    return make


def edit(page: object, policy: str) -> tuple[object, object]:
    """Opens the dialog of an edit, and returns it with its warning."""
    page.get_by_role("button", name=f"Edit… {policy}").click()
    dialog = page.get_by_role("dialog")
    return dialog, dialog.get_by_text(re.compile("have denied"))


@pytest.mark.parametrize("algorithm", ["FIXED", "SLIDING", "SLIDINGLOG"])
def test_limit_cut_to_a_tenth_warns_before_apply(
    visit: Callable[..., Visit],
    calls: Callable[..., None],
    clock: Clock,
    policy: Callable[..., int],
    algorithm: str,
) -> None:
    policy("login", f"{algorithm} 1000 1m")
    calls("login", keys=5, calls_per_key=250)
    clock.advance("30s")
    opened = visit(color_scheme="dark", viewport=PHONE)
    dialog, warning = edit(opened.open("policies/login"), "login")
    limit = dialog.get_by_label("Limit", exact=False).first
    limit.fill("100")
    # Each key makes 250 calls in half of a fixed window, or in a whole trailing window.
    denied = "80" if algorithm == "FIXED" else "60"
    expect(warning).to_have_text(
        re.compile(f"^Would have denied {denied} % of the 1,250 calls that it admitted in the last")
    )
    expect(dialog).to_contain_text("by the usage of 5 keys in use")
    expect(dialog.get_by_role("button", name="Apply")).to_be_enabled()
    opened.assert_accessible()
    for harmless in ("600", "1000", "5000"):
        limit.fill("1")
        expect(warning).to_have_count(1)
        limit.fill(harmless)
        expect(warning).to_have_count(0)


def test_limit_far_above_the_usage_of_many_keys_does_not_warn(
    visit: Callable[..., Visit],
    calls: Callable[..., None],
    clock: Clock,
    policy: Callable[..., int],
) -> None:
    policy("web", "FIXED 1000 1m")
    # All keys together make more calls than one key may make under the new limit.
    calls("web", keys=150, calls_per_key=5)
    clock.advance("30s")
    page = visit().open("policies/web")
    dialog, warning = edit(page, "web")
    limit = dialog.get_by_label("Limit", exact=False).first
    limit.fill("5")
    expect(warning).to_contain_text("Would have denied 50 % of the 750 calls")
    limit.fill("500")
    expect(warning).to_have_count(0)
    limit.fill("9")
    # Exactly 10 % do not warn.
    expect(warning).to_have_count(0)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Scale… web").click()
    scale = dialog.get_by_label("Exactly")
    scale.fill("0.005")
    expect(warning).to_contain_text("Would have denied 50 % of the 750 calls")
    scale.fill("0.5")
    expect(warning).to_have_count(0)


def test_enforcing_a_shadow_limit_warns_by_its_count(
    visit: Callable[..., Visit], calls: Callable[..., None], policy: Callable[..., int]
) -> None:
    policy("web", "FIXED 1000 1m FIXED 10 1m AS new SHADOW")
    calls("web", keys=2, calls_per_key=20)
    dialog, warning = edit(visit().open("policies/web"), "web")
    dialog.get_by_label("Shadow", exact=False).last.uncheck()
    expect(warning).to_contain_text("Would have denied 50 % of the 40 calls")
    expect(dialog).to_contain_text("Counted by its limits in shadow mode")


def test_undo_of_a_raised_limit_warns(
    visit: Callable[..., Visit], process: ConsoleProcess, calls: Callable[..., None], clock: Clock
) -> None:
    console = Console(process)
    version = console.put("web", "FIXED 10 1m").json["version"]
    assert console.put("web", "FIXED 1000 1m", version).status == 200
    calls("web", keys=5, calls_per_key=50)
    clock.advance("30s")
    page = visit().open("changes")
    page.get_by_role("button", name="Undo… set web").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("Would have denied 90 % of the 250 calls")


@contextmanager
def steady_traffic(redis: Redis, clock: Clock) -> Iterator[None]:
    """Calls on 20 keys one after another, each 5 times a second of the server's clock."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            for key in range(20):
                redis.execute_command("RL.LIMIT", f"web:{key}", "web")
                clock.advance("10ms")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_bucket_is_estimated_by_the_time_in_use(
    visit: Callable[..., Visit], redis: Redis, clock: Clock, policy: Callable[..., int]
) -> None:
    policy("web", "TOKENBUCKET 10 10 1s")
    with steady_traffic(redis, clock):
        page = visit().open("policies/web")
        expect(page.get_by_text("admitted").first).to_be_visible()
        dialog, warning = edit(page, "web")
        refill = dialog.get_by_label("Refill")
        refill.fill("1")
        # 5 calls a second and key: 80 % in the long run.
        expect(warning).to_have_text(
            re.compile("^Would have denied [678][0-9] % of the [0-9,]+ calls")
        )
        refill.fill("8")
        expect(warning).to_have_count(0)
        refill.fill("20")
        expect(warning).to_have_count(0)
