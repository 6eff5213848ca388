"""Work of an operator, from a denied client to a shadow limit, by keyboard on a narrow dark screen.

Further tests kill the server and use a cluster.
"""

import gzip
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from browser_page import (
    NEEDS_CHROMIUM,
    WRITE_ENVIRONMENT,
    Visit,
    browser,
    expect,
    process,
    visit,
    visits,
)
from console_process import ConsoleProcess
from redis import Redis

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.cluster import Cluster
from support.server import Server

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM, pytest.mark.timeout(300)]
__all__ = ["browser", "process", "visit"]

HOT, CALM = "203.0.113.66", "198.51.100.7"


@pytest.fixture
def server(binary: Binary) -> Iterator[Server]:
    """Server on the real clock, because the page compares times with its own clock."""
    with Server(binary) as server:
        yield server


def write_access_log(folder: Path) -> Path:
    """Writes a compressed access log of two clients. One calls 5 times a second for a minute."""
    line = '{} - - [24/Nov/2026:09:{:02}:{:02} +0000] "POST /login HTTP/1.1" 200 512 "-" "curl"\n'
    lines = []
    for second in range(600):
        clients = [HOT] * 5 if second < 60 else []
        clients += [CALM] if second % 6 == 0 else []
        lines += [line.format(client, second // 60, second % 60) for client in clients]
    log = folder / "access.log.1.gz"
    log.write_bytes(gzip.compress("".join(lines).encode()))
    return log


def test_operator_works_by_keyboard_on_a_narrow_dark_screen(
    visit: Callable[..., Visit], redis: Redis, policy: Callable[..., int], tmp_path: Path
) -> None:
    policy("login", "FIXED 5 1h")
    policy("plan:free", "FIXED 100 1m")
    for _ in range(12):
        redis.execute_command("RL.LIMIT", f"login:{HOT}", "login")
    opened = visit(color_scheme="dark", viewport={"width": 360, "height": 740})
    find_and_ban(opened)
    # A part of the ban's hour has passed.
    assert 3_000_000 < redis.execute_command("RL.LIMIT", f"login:{HOT}", "login")[3] <= 3_600_000
    raise_plan(opened)
    scales = {row[0]: row[3:] for row in redis.execute_command("RL.POLICYLIST")}
    assert scales["plan:free"][0] == "1.5"
    assert 0 < scales["plan:free"][1] <= 600_000
    replay_log(opened, write_access_log(tmp_path))
    try_in_shadow(opened)
    specs = {row[0]: row[2] for row in redis.execute_command("RL.POLICYLIST")}
    assert specs["login"] == "FIXED 5 1h FIXED 100 1m AS tried SHADOW"


def find_and_ban(opened: Visit) -> None:
    """Finds the most denied client and its policy, and bans it for an hour."""
    page = opened.open("now")
    row = page.get_by_role("row").filter(has_text=f"login:{HOT}")
    expect(row.get_by_role("cell").nth(1)).to_have_text("7")
    expect(row.get_by_role("link", name="login", exact=True)).to_be_visible()
    opened.assert_accessible()
    opened.press(row.get_by_role("link", name=f"login:{HOT}"))
    expect(page.get_by_text("5 of 5")).to_be_visible()
    expect(page.get_by_role("link", name="login", exact=True)).to_be_visible()
    opened.press(page.get_by_role("button", name="Ban…", exact=True))
    dialog = page.get_by_role("dialog")
    hour = dialog.get_by_role("button", name="1 h", exact=True)
    expect(hour).to_have_attribute("aria-pressed", "true")
    expect(dialog).to_contain_text("Every call on this key is denied until")
    opened.assert_accessible()
    opened.press(dialog.get_by_role("button", name="Ban", exact=True))
    expect(page.locator(".notice").filter(has_text="Banned until")).to_contain_text("more")
    opened.assert_accessible()


def raise_plan(opened: Visit) -> None:
    """Raises the policy by half for ten minutes."""
    page = opened.page
    page.keyboard.press("g")
    page.keyboard.press("p")
    row = page.get_by_role("row").filter(has_text="plan:free")
    opened.press(row.get_by_role("button", name="Scale…"))
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("150 per min")
    expect(dialog).to_contain_text("after 10 minutes")
    opened.assert_accessible()
    opened.press(dialog.get_by_role("button", name="Apply"))
    expect(row).to_contain_text("\N{MULTIPLICATION SIGN} 1.5")
    opened.assert_accessible()


def replay_log(opened: Visit, log: Path) -> None:
    """Replays a log under a new limit."""
    page = opened.page
    page.keyboard.press("g")
    page.keyboard.press("r")
    opened.reach(page.get_by_label("A log file"))
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(log)
    opened.fill(page.get_by_role("combobox", name="Limit"), "FIXED 100 1m")
    opened.press(page.get_by_role("button", name="Replay", exact=True))
    result = page.locator(".rp-result")
    # One client calls 300 times in its first minute, the other 10 times a minute.
    expect(result).to_contain_text("400calls")
    expect(result).to_contain_text("200denied, 50 %")
    expect(page.get_by_role("row").filter(has_text=HOT)).to_contain_text("200")
    expect(page.locator(".rp-smallest")).to_have_text("FIXED 296 1m")
    opened.assert_accessible()


def try_in_shadow(opened: Visit) -> None:
    """Adds the limit in shadow mode to a policy with an enforced limit."""
    page = opened.page
    opened.press(page.get_by_role("button", name="Set in shadow mode…").first)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("FIXED 100 1m")
    opened.fill(dialog.get_by_label("Policy"), "login")
    page.keyboard.press("Enter")
    expect(dialog.locator(".difference .same")).to_contain_text("5 per h")
    expect(dialog.locator(".difference .new")).to_contain_text("100 per min")
    opened.assert_accessible()
    opened.press(dialog.get_by_role("button", name="Apply"))
    expect(page.get_by_role("heading", name="login", exact=True)).to_be_visible()
    expect(page.get_by_text("FIXED 5 1h FIXED 100 1m AS tried SHADOW")).to_be_visible()
    opened.assert_accessible()


def test_operator_works_with_a_sketch_by_keyboard(
    visit: Callable[..., Visit], redis: Redis, policy: Callable[..., int], tmp_path: Path
) -> None:
    policy("per-address", "SKETCH 10 10 1h SIZE 64kb")
    policy("login", "FIXED 500 1h")
    calls = redis.pipeline(transaction=False)
    for item in [HOT] * 17 + [CALM]:
        calls.execute_command("RL.LIMIT", "addresses", "per-address", "ITEM", item)
    calls.execute()
    opened = visit(color_scheme="dark", viewport={"width": 360, "height": 740})
    find_in_sketch(opened, redis)
    raise_sketch(opened)
    assert redis.execute_command("RL.POLICYLIST")[1][3] == "1.5"
    change_sketch(opened)
    assert redis.execute_command("RL.POLICYLIST")[1][2] == "SKETCH 10 10 1h SIZE 1mb"
    replay_sketch(opened, write_access_log(tmp_path))


def find_in_sketch(opened: Visit, redis: Redis) -> None:
    """Finds a denied item of a sketch, which cannot be banned, and resets the sketch."""
    page = opened.open("now")
    row = page.get_by_role("row").filter(has_text=HOT)
    expect(row).to_contain_text("addresses")
    expect(row.get_by_role("cell").nth(1)).to_have_text("7")
    opened.assert_accessible()
    opened.press(row.get_by_role("link").first)
    expect(page.get_by_text("10 of 10")).to_be_visible()
    expect(page.get_by_text("Items of a sketch cannot be banned")).to_be_visible()
    expect(page.get_by_role("button", name="Ban…", exact=True)).to_be_hidden()
    expect(page.locator(".facts")).to_contain_text("64 KB")
    too_small = page.locator(".notice").filter(has_text="it is too small for so many")
    expect(too_small).to_have_count(0)
    opened.assert_accessible()
    opened.fill(page.get_by_label("item"), CALM)
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 of 10")).to_be_visible()
    # More addresses than the sketch has room for.
    calls = redis.pipeline(transaction=False)
    for number in range(6000):
        calls.execute_command(
            "RL.LIMIT", "addresses", "per-address", "ITEM", str(number), "COST", 10
        )
    calls.execute()
    expect(too_small).to_be_visible()
    opened.press(page.get_by_role("button", name="Reset…"))
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It forgets the usage of all of its items")
    opened.press(dialog.get_by_role("button", name="Reset", exact=True))
    expect(page.get_by_text("0 of 10")).to_be_visible()
    assert redis.exists("addresses") == 0


def test_sketch_without_a_policy_is_shown_by_its_last_call(
    visit: Callable[..., Visit], redis: Redis
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    for _ in range(13):
        redis.execute_command("RL.SKETCH", "inline", HOT, 10, 10, "1h")
    opened = visit(viewport={"width": 360, "height": 740})
    page = opened.open("now")
    opened.press(page.get_by_role("row").filter(has_text=HOT).get_by_role("link").first)
    expect(page.get_by_text("by the numbers of its last call")).to_be_visible()
    expect(page.get_by_text("10 of 10")).to_be_visible()
    expect(page.get_by_text("each item 10 at once, then 10 per hour")).to_be_visible()
    opened.assert_accessible()


def raise_sketch(opened: Visit) -> None:
    page = opened.open("policies")
    row = page.get_by_role("row").filter(has_text="per-address")
    opened.press(row.get_by_role("button", name="Scale…"))
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("each item 15 at once, then 15 per h")
    opened.press(dialog.get_by_role("button", name="Apply"))
    expect(row).to_contain_text("\N{MULTIPLICATION SIGN} 1.5")


def change_sketch(opened: Visit) -> None:
    """Changes the size of a sketch, and replaces a sketch by another algorithm."""
    page = opened.page
    row = page.get_by_role("row").filter(has_text="per-address")
    opened.press(row.get_by_role("button", name="Edit…"))
    dialog = page.get_by_role("dialog")
    add = dialog.get_by_role("button", name="Add a ban")
    expect(add).to_be_hidden()
    dialog.get_by_label("Algorithm").select_option("FIXED")
    expect(dialog).to_contain_text("Calls on the key of the sketch get an error")
    expect(add).to_be_visible()
    opened.assert_accessible()
    dialog.get_by_label("Algorithm").select_option("SKETCH")
    dialog.get_by_label("Burst").fill("10")
    dialog.get_by_label("in each").fill("1h")
    dialog.get_by_text("Size, cost").click()
    opened.fill(dialog.get_by_label("Size"), "1mb")
    expect(dialog).to_contain_text("An existing key keeps its size")
    opened.assert_accessible()
    opened.press(dialog.get_by_role("button", name="Apply"))
    expect(dialog).to_be_hidden()
    opened.press(row.get_by_role("link"))
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.press(page.get_by_role("button", name="Copy the call"))
    expect(page.get_by_text("Copied", exact=True)).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "RL.LIMIT KEY per-address ITEM item"
    page = opened.open("policies")
    opened.press(
        page.get_by_role("row").filter(has_text="login").get_by_role("button", name="Edit…")
    )
    dialog.get_by_label("Algorithm").select_option("SKETCH")
    expect(dialog).to_contain_text("a sketch needs a key of its own. Calls must name an item")
    page.keyboard.press("Escape")


def replay_sketch(opened: Visit, log: Path) -> None:
    """Replays a log under the bucket of a sketch's items, and sets it as a shadow of a policy."""
    page = opened.open("replay")
    page.get_by_label("A log file").set_input_files(log)
    limit = page.get_by_role("combobox", name="Limit")
    opened.fill(limit, "SKETCH 100 100 1m")
    opened.press(page.get_by_role("button", name="Replay", exact=True))
    expect(page.get_by_role("alert")).to_contain_text("replay TOKENBUCKET 100 100 1m,")
    opened.fill(limit, "TOKENBUCKET 100 100 1m")
    opened.press(page.get_by_role("button", name="Replay", exact=True))
    expect(page.get_by_role("row").filter(has_text=HOT)).to_be_visible()
    opened.press(page.get_by_role("button", name="Set in shadow mode…").first)
    dialog = page.get_by_role("dialog")
    opened.fill(dialog.get_by_label("Policy"), "per-address")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("per-address is a sketch, and no limit stands beside one")
    opened.assert_accessible()
    opened.fill(dialog.get_by_label("Policy"), "login")
    page.keyboard.press("Enter")
    expect(dialog.locator(".difference .new")).to_contain_text("100 at once")
    opened.press(dialog.get_by_role("button", name="Apply"))
    expect(page.get_by_text("FIXED 500 1h TOKENBUCKET 100 100 1m SHADOW")).to_be_visible()


def test_page_reports_a_killed_server_and_reconnects(
    browser: object, binary: Binary, start: Callable[..., ConsoleProcess]
) -> None:
    with Server(binary) as server, visits(browser) as visit:
        process = start(server.port, environment=WRITE_ENVIRONMENT)
        server.client().execute_command("RL.POLICYSET", "before", "FIXED", 5, "1h")
        page = visit(process).open("policies")
        expect(page.get_by_role("link", name="before")).to_be_visible()
        server.stop("kill")
        expect(page.locator("#outage")).to_contain_text("The server does not answer")
        # The earlier data stays visible.
        expect(page.get_by_role("link", name="before")).to_be_visible()
        server.start()
        server.client().execute_command("RL.POLICYSET", "after", "FIXED", 7, "1h")
        expect(page.locator("#outage")).to_be_hidden()
        expect(page.get_by_role("link", name="after")).to_be_visible()


@pytest.fixture
def cluster(binary: Binary, shared_clock: Clock, tmp_path: Path) -> Iterator[Cluster]:
    with closing(Clock(shared_clock.library, tmp_path / "running")) as clock:
        # Nodes detect failures by the real time.
        clock.run()
        with Cluster(binary, clock, replicas=False) as cluster:
            yield cluster


def test_cluster_of_three_nodes_is_shown_and_changed(
    browser: object, cluster: Cluster, start: Callable[..., ConsoleProcess]
) -> None:
    admins = [server.client(decode_responses=True) for server in cluster.servers]
    admins[0].execute_command("RL.POLICYSET", "web", "FIXED", "1", "1d")
    for admin in admins:
        stored = lambda admin=admin: admin.execute_command("RL.POLICYGET", "web")  # noqa: E731
        poll.until(stored, "the policy is known on each node")
    for n in range(30):
        for _ in range(2):
            cluster.owner(f"user:{n}").client().execute_command("RL.LIMIT", f"user:{n}", "web")
    process = start(cluster.servers[0].port, environment=WRITE_ENVIRONMENT)
    with visits(browser) as visit:
        opened = visit(process)
        page = opened.open("now")
        nodes = page.get_by_role("region", name="Nodes")
        for server in cluster.servers:
            row = nodes.get_by_role("row").filter(has_text=f":{server.port}")
            expect(row).to_contain_text("same policies")
        page = opened.open("policies")
        row = page.get_by_role("row").filter(has_text="web")
        for column, count in enumerate(["60", "30", "30"], start=2):
            expect(row.get_by_role("cell").nth(column)).to_have_text(count)
        # A change on one node spreads to all.
        row.get_by_role("button", name="Edit…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Limit", exact=False).first.fill("2")
        dialog.get_by_role("button", name="Apply").click()
        expect(row).to_contain_text("2 per d")
        for admin in admins:
            poll.until(
                lambda admin=admin: admin.execute_command("RL.POLICYLIST")[0][2] == "FIXED 2 1d",
                "each node has the change",
            )
        # A hanging node does not block the others.
        hanging = cluster.servers[0]
        with hanging.suspended():
            page = opened.open("now")
            row = nodes.get_by_role("row").filter(has_text=f":{hanging.port}")
            expect(row).to_contain_text("away")
            expect(page.locator("#server")).to_have_text(f"127.0.0.1:{hanging.port}: away")
            page = opened.open("policies")
            expect(page.get_by_role("row").filter(has_text="2 per d")).to_be_visible()
