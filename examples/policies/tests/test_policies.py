"""The program shows differences, applies them, and leaves other policies alone."""

import re
from pathlib import Path

import policies
import pytest
from policies import Change, ServerPolicy, apply_all, changes, read_file, read_server, read_specs
from program import EXAMPLE, Run
from redis import Redis

from support.server import Server


def policy(redis: Redis, name: str) -> tuple[int, str] | None:
    """Returns the policy's version and specs."""
    policies_by_name = {
        name: (version, specs)
        for name, version, specs, *_ in redis.execute_command("RL.POLICYLIST")
    }
    return policies_by_name.get(name)


def set_policy(redis: Redis, name: str, specs: str) -> int:
    return redis.execute_command("RL.POLICYSET", name, *specs.split())


def version_of(redis: Redis, name: str) -> int:
    """Returns the version of a policy, or 0 if it does not exist."""
    return (policy(redis, name) or (0, ""))[0]


@pytest.fixture
def file(tmp_path: Path, redis: Redis) -> Path:
    """Returns a file with one new, one changed and one unchanged policy."""
    set_policy(redis, "changed", "FIXED 5 1m FIXED 100 1d")
    set_policy(redis, "same", "SLIDING 10 1m")
    set_policy(redis, "other", "SLIDINGLOG 3 1h")
    file = tmp_path / "policies.txt"
    file.write_text(
        "new\n  FIXED 1 1m\nchanged\n  fixed 5 60\n  FIXED 200 24h\nsame\n  SLIDING 10 60s\n"
    )
    return file


PLAN = """\
~ changed (version VERSION)
      FIXED 5 1m
-     FIXED 100 1d
+     FIXED 200 1d

+ new
+     FIXED 1 1m

1 to add, 1 to change, 0 to delete
not in FILE, and left alone: other
"""


def test_difference_is_shown_and_nothing_changed(redis: Redis, file: Path, run: Run) -> None:
    result = run(file)
    assert (result.returncode, result.stderr) == (2, "")
    version, specs = policy(redis, "changed")
    assert result.stdout == PLAN.replace("FILE", str(file)).replace("VERSION", str(version))
    assert policy(redis, "new") is None
    assert specs == "FIXED 5 1m FIXED 100 1d"


def test_apply_shows_the_difference_and_changes_the_server(
    redis: Redis, file: Path, run: Run
) -> None:
    before = {name: policy(redis, name) for name in ("changed", "same", "other")}
    result = run("--apply", file)
    assert (result.returncode, result.stderr) == (0, "")
    plan = PLAN.replace("FILE", str(file)).replace("VERSION", str(before["changed"][0]))
    assert result.stdout == plan + "2 of 2 applied\n"
    assert policy(redis, "new")[1] == "FIXED 1 1m"
    assert policy(redis, "changed")[1] == "FIXED 5 1m FIXED 200 1d"
    # Unchanged policies are not set again.
    for name in ("same", "other"):
        assert policy(redis, name) == before[name]

    again = run(file)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith("0 to add, 0 to change, 0 to delete\n")


def test_prune_deletes_policies_that_the_file_lacks(redis: Redis, file: Path, run: Run) -> None:
    run("--apply", file)
    planned = run("--prune", file)
    assert (planned.returncode, planned.stderr) == (2, "")
    version = version_of(redis, "other")
    assert planned.stdout == (
        f"- other (version {version})\n-     SLIDINGLOG 3 1h\n\n"
        "0 to add, 0 to change, 1 to delete\n"
    )
    assert policy(redis, "other")
    assert run("--prune", "--apply", file).returncode == 0
    assert policy(redis, "other") is None
    assert len(redis.execute_command("RL.POLICYLIST")) == 3


def test_concurrent_change_is_not_overwritten(redis: Redis, file: Path, server: Server) -> None:
    with server.client() as client:
        desired = read_file(file)
        plan = list(changes(desired, read_server(client), prune=True))
        read_version = version_of(redis, "changed")
        new_versions = {
            name: set_policy(redis, name, "FIXED 7 1m") for name in ("new", "changed", "other")
        }
        errors = apply_all(client, plan)
        different = [change.name for change in changes(desired, read_server(client), prune=True)]
    assert errors.keys() == {b"changed", b"other"}
    new_version = new_versions["changed"]
    assert errors[b"changed"] == f"policy 'changed' has version {new_version}, not {read_version}"
    assert f"policy 'other' has version {new_versions['other']}, not" in errors[b"other"]
    # A policy that was added concurrently is no error of the server, but still a difference.
    assert different == [b"changed", b"new", b"other"]
    for name, version in new_versions.items():
        assert policy(redis, name) == (version, "FIXED 7 1m")


def test_concurrent_deletion_is_kept(redis: Redis, file: Path, server: Server) -> None:
    with server.client() as client:
        plan = list(changes(read_file(file), read_server(client), prune=False))
        redis.execute_command("RL.POLICYDEL", "changed")
        assert apply_all(client, plan).keys() == {b"changed"}
    assert policy(redis, "changed") is None
    assert policy(redis, "new")


def test_refused_policy_is_reported_and_others_are_applied(
    redis: Redis, tmp_path: Path, run: Run
) -> None:
    file = tmp_path / "policies.txt"
    file.write_text("bad\n  FIXED 5 9999d\ngood\n  FIXED 5 1m\n")
    result = run("--apply", file)
    assert result.returncode == 1
    assert re.fullmatch(r"bad: .*window.*\n", result.stderr)
    assert result.stdout.endswith("1 of 2 applied\n")
    assert policy(redis, "good")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("  FIXED 5 1m\n", ":1: specs before the first name"),
        ("a\n", ":1: a: no specs"),
        ("# no\n\na\n  FIXED 5 1m\nb\n  FIXED 5\n", ":5: b: FIXED takes 2 arguments"),
        ("a\n  FIXED 5 1m FIXD 5 1d\n", ":1: a: unexpected 'FIXD'"),
        ("a\n  SHADOW FIXED 5 1d\n", ":1: a: unexpected 'SHADOW'"),
        ("a\n  FIXED 5 soon\n", ":1: a: FIXED takes another kind of argument"),
        ("a\n  FIXED five 1d\n", ":1: a: FIXED takes another kind of argument"),
        ("a\n  FIXED 5 1m\na\n  FIXED 6 1m\n", ":3: a is there twice"),
        ("a b\n  FIXED 5 1m\n", ":1: a name has no spaces: 'a b'"),
    ],
)
def test_invalid_file_changes_nothing(
    redis: Redis, tmp_path: Path, run: Run, text: str, error: str
) -> None:
    file = tmp_path / "policies.txt"
    file.write_text(text)
    result = run("--apply", "--prune", file)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"{file}{error}\n")
    assert redis.execute_command("RL.POLICYLIST") == []


@pytest.mark.parametrize(
    "arguments",
    [[], ["no-such-file"], ["--export", "a-file"], ["--redis", "redis://127.0.0.1:1", "-"]],
)
def test_error_has_another_status_than_a_difference(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr


# Every algorithm and option, not in canonical form.
SPECS = [
    "tokenbucket 200.50 100 60 as burst cost 2",
    "LEAKYBUCKET 10 0.1234567 1500ms",
    "FIXED 5 1440m",
    "FIXED 5 1.5h SHADOW",
    "FIXED 1000 1mo ANCHOR 15 OFFSET +09:00 ALIGNED AS month",
    "FIXED 1000 1w ALIGNED",
    "SLIDING 100 90s STRICT COST 0.0000001",
    "SLIDINGLOG 3 600s SHADOW AS log FIXED 20 1d",
    "CONCURRENCY 10 300 COST 2 FIXED 5 0.25s AS As BAN 3 600s 24h",
    "FIXED 007 1m",
]


@pytest.mark.parametrize("text", SPECS)
def test_specs_are_canonical_like_those_of_the_server(redis: Redis, text: str) -> None:
    set_policy(redis, "p", text)
    assert " ".join(read_specs(text)) == policy(redis, "p")[1]


def test_every_known_word_is_tested() -> None:
    words = {word.upper() for text in SPECS for word in text.split()}
    assert words >= policies.ALGORITHMS.keys() | policies.OPTIONS.keys()


def test_difference_of_one_word_is_found(redis: Redis, server: Server) -> None:
    set_policy(redis, "p", "FIXED 5 1d AS x")
    with server.client() as client:
        for text in (
            "FIXED 6 1d AS x",
            "FIXED 5 2d AS x",
            "FIXED 5 1d AS X",
            "FIXED 5 1d",
            "FIXED 5 1d AS x SHADOW",
            "FIXED 5 1d ALIGNED AS x",
            "SLIDING 5 1d AS x",
            "FIXED 5 1d AS x SLIDING 5 1d",
        ):
            plan = list(changes({b"p": read_specs(text)}, read_server(client), prune=False))
            assert [change.after for change in plan] == [read_specs(text)], text


def test_export_is_a_file_with_the_same_policies(
    redis: Redis, tmp_path: Path, run: Run, server: Server
) -> None:
    for number, text in enumerate(SPECS):
        set_policy(redis, f"plan:{number}", text)
    redis.execute_command("RL.POLICYSET", b"a # b%\n\xff", "FIXED", 5, "1m")
    exported = run("--export")
    assert (exported.returncode, exported.stderr) == (0, "")
    assert "\na%20%23%20b%25%0A%FF\n" in f"\n{exported.stdout}"
    file = tmp_path / "policies.txt"
    file.write_text(exported.stdout)
    assert run("--prune", file).returncode == 0
    with server.client() as client:
        client.execute_command("RL.POLICYDEL", *read_file(file))
    assert run("--apply", file).returncode == 0
    assert run("--export").stdout == exported.stdout


def test_example_file_is_valid(redis: Redis, run: Run) -> None:
    result = run("--apply", EXAMPLE / "policies.txt")
    assert (result.returncode, result.stderr) == (0, "")
    allowed, *_ = redis.execute_command("RL.LIMIT", "user:7", "user:7", "OR", "default")
    assert allowed == 1


def test_policy_of_a_later_module_is_shown_unchanged() -> None:
    stored = {b"p": ServerPolicy(3, ("ORACLE 5 1m",))}
    (change,) = changes({b"p": ("FIXED 5 1m",)}, stored, prune=False)
    assert change == Change(b"p", 3, ("ORACLE 5 1m",), ("FIXED 5 1m",))
    assert str(change) == "~ p (version 3)\n-     ORACLE 5 1m\n+     FIXED 5 1m"
