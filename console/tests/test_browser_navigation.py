"""Navigation between the views of the console: a closed view does not act on the next one."""

from collections.abc import Callable

import pytest
from browser_page import NEEDS_CHROMIUM, Visit, browser, expect, process, visit
from redis import Redis

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]
__all__ = ["browser", "process", "visit"]

# Buttons that open a dialog, with their view.
DIALOGS = {
    "policies": ["New policy", "Edit… login", "Scale… login", "Delete… login"],
    "policies/login": ["Edit… login", "Scale… login", "Delete… login"],
    "key/user": ["Ban…", "Lift ban…", "Give back…", "Reset…"],
}


@pytest.fixture
def banned(redis: Redis, policy: Callable[..., int]) -> None:
    """A banned key of a policy."""
    policy("login", "FIXED 5 1h")
    for _ in range(7):
        redis.execute_command("RL.LIMIT", "user", "login")
    redis.execute_command("RL.BAN", "user", "1h")


@pytest.mark.parametrize("view", DIALOGS)
@pytest.mark.usefixtures("banned")
def test_dialog_closes_with_its_view(visit: Callable[..., Visit], redis: Redis, view: str) -> None:
    opened = visit()
    page = opened.open("now")
    dialog = page.get_by_role("dialog")
    for name in [*DIALOGS[view], None]:
        opened.open(view)
        button = page.get_by_role("button", name=name or "Keyboard shortcuts", exact=True)
        button.click()
        expect(dialog).to_be_visible()
        page.go_back()
        expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
        expect(dialog).to_have_count(0)
    assert redis.execute_command("RL.POLICYLIST")[0][2] == "FIXED 5 1h"


@pytest.mark.usefixtures("banned")
def test_dialog_does_not_open_on_the_next_view(visit: Callable[..., Visit]) -> None:
    opened = visit()
    page = opened.open("now")
    # The request is not answered before the view is left.
    page.route("**/api/policies/login", lambda _: None)
    with page.expect_request("**/api/policies/login"):
        opened.open("policies?set=login")
    page.go_back()
    expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
    page.unroute("**/api/policies/login")
    # A later view works, and the dialog of the first one has not appeared.
    opened.open("policies")
    expect(page.get_by_role("row").filter(has_text="login")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.usefixtures("banned")
def test_deletion_in_flight_does_not_leave_the_next_view(
    visit: Callable[..., Visit], redis: Redis
) -> None:
    opened = visit()
    page = opened.open("now")
    opened.open("policies/login")
    page.get_by_role("button", name="Delete… login").click()
    deletions = []

    # Playwright does not accept `deletions.append` as a handler.
    def hold(route: object) -> None:
        deletions.append(route)

    page.route("**/api/policies/login?version=*", hold)
    with page.expect_request("**/api/policies/login?version=*"):
        page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    page.go_back()
    expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
    deletions[0].continue_()
    expect(page.get_by_text("Deleted", exact=True)).to_be_visible()
    assert redis.execute_command("RL.POLICYLIST") == []
    assert page.evaluate("location.hash") == "#/now"
    expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
