"""Pictures of the documents, light and dark: `make console-test PICTURES=docs` writes them."""

import io
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser_page import NEEDS_CHROMIUM, PICTURES, Visit, browser, expect, process, visit
from redis import Redis

from support.binaries import Binary
from support.server import Server

pytestmark = [
    pytest.mark.browser,
    NEEDS_CHROMIUM,
    pytest.mark.timeout(300),
    pytest.mark.skipif(PICTURES is None, reason="no pictures are requested: PICTURES=docs"),
]
__all__ = ["browser", "process", "visit"]

ENDING = {"light": "", "dark": "-dark"}


@pytest.fixture
def server(binary: Binary) -> Iterator[Server]:
    """Server on the real clock, because the page compares times with its own clock."""
    with Server(binary) as server:
        yield server


def draw(page: object, name: str, scheme: str, **options: object) -> None:
    image = pytest.importorskip("PIL.Image")
    page.mouse.move(0, 0)
    # 128 colours take a third of the bytes.
    drawn = image.open(io.BytesIO(page.screenshot(**options))).convert("RGB").quantize(128)
    drawn.save(Path(PICTURES) / f"{name}{ENDING[scheme]}.png", optimize=True)


def call(redis: Redis, count: int) -> None:
    """Makes `count` random calls of many clients, two of which are denied often."""
    chance = random.Random(count)
    calls = redis.pipeline(transaction=False)
    for _ in range(count):
        share = chance.random()
        if share < 0.08:
            address = chance.choice(["203.0.113.66"] * 3 + ["203.0.113.7"])
            calls.execute_command("RL.LIMIT", f"login:{address}", "login")
        elif share < 0.25:
            item = f"198.51.100.{min(chance.randrange(40), chance.randrange(40))}"
            calls.execute_command("RL.LIMIT", "addresses", "per-address", "ITEM", item)
        elif share < 0.6:
            user = min(chance.randrange(60) for _ in range(3))
            calls.execute_command("RL.LIMIT", f"user:{user}", "plan:free")
        else:
            calls.execute_command("RL.LIMIT", f"org:{chance.randrange(30)}", "plan:pro")
    calls.execute()


@pytest.mark.parametrize("scheme", ENDING)
def test_pictures_of_the_console(
    scheme: str, visit: Callable[..., Visit], redis: Redis, policy: Callable[..., int]
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    policy("login", "FIXED 5 1m BAN 500 10m 1h")
    policy("per-address", "SKETCH 30 30 1m")
    policy("plan:free", "TOKENBUCKET 60 60 1m FIXED 500 1d AS day SHADOW")
    policy("plan:pro", "TOKENBUCKET 600 600 1m")
    redis.execute_command("RL.POLICYSCALE", "plan:pro", "1.5", "FOR", "10m")
    opened = visit(color_scheme=scheme, viewport={"width": 1180, "height": 700})
    page = opened.open("now")
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
    for second in range(25):
        # Calls for each second that the page shows.
        with page.expect_response(lambda response: "/api/now" in response.url):
            call(redis, 150 + 10 * (second % 7))
    expect(page.get_by_role("row").filter(has_text="login:203.0.113.66")).to_be_visible()
    draw(page, "console-now", scheme)
    page.set_viewport_size({"width": 1180, "height": 620})
    page = opened.open("policies")
    page.get_by_role("row").filter(has_text="login").get_by_role("button", name="Edit…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Limit", exact=False).first.fill("8")
    expect(dialog.locator(".difference .new")).to_contain_text("8 per minute")
    draw(page, "console-policies", scheme)
    redis.execute_command("RL.BAN", "login:203.0.113.66", "1h")
    page.keyboard.press("Escape")
    page = opened.open("key/login%3A203.0.113.66")
    expect(page.locator(".notice").filter(has_text="Banned until")).to_be_visible()
    draw(page, "console-key", scheme)


@pytest.mark.parametrize("scheme", ENDING)
def test_pictures_of_the_views_without_a_server(scheme: str, visit: Callable[..., Visit]) -> None:
    opened = visit(signed_in=False, color_scheme=scheme, viewport={"width": 1240, "height": 800})
    page = opened.open("playground?example=boundary&every=0&speed=1000")
    fixed = page.locator('[data-lane="fixed"]').get_by_role("status")
    expect(fixed).to_contain_text("20 passed")
    draw(page, "playground", scheme, full_page=True)
    page = opened.open("playground?example=addresses&speed=1000")
    sketch = page.locator('[data-lane="sketch"]').get_by_role("status")
    expect(sketch).to_contain_text(re.compile(r"[1-9]\d denied"))
    draw(page, "playground-sketch", scheme, full_page=True)
    page = opened.open("replay")
    page.get_by_role("button", name="Use an example").click()
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator(".rp-smallest")).to_be_visible()
    draw(page, "replay", scheme, full_page=True)
