"""The server's ACL checks the command and every key of a call, in MULTI and in scripts too. A call
that it refuses charges nothing.

test_introspection.py checks the ACL categories of each command; here, calls are made directly, in a
transaction and from a script.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from redis import Redis, ResponseError

from conftest import Pair
from support.clock import START_US
from support.server import REPOSITORY, Server
from support.workload import Limiter, State, Word, each_limiter, state

pytestmark = pytest.mark.every_server

# First versions with selectors and read-only key patterns, with ACL categories for commands of
# modules, and with categories that a module adds.
SELECTORS = (7, 0)
CATEGORIZED = (7, 2)
ADDS_CATEGORIES = (7, 4)

EFFECT = f"rl-bucket 1 {START_US // 1000 + 3_600_000} 1000000 {START_US}"
# Commands that an ordinary user need not call.
DANGEROUS = (
    *("rl.effect", "rl.top"),
    *("rl.policyset", "rl.policyscale", "rl.policydel", "rl.policyeffect"),
)
# Rights that a user needs to send calls in a transaction and from a script.
WAYS = "+multi +exec +eval"

Call = tuple[Word, ...]


@pytest.fixture
def user(pair: Pair) -> Iterator[Callable[[str], Redis]]:
    """`user("+@all ~app:*")` returns a client of a user with these rights."""
    with pair.primary.client() as admin, pair.primary.client() as client:

        def allow(rules: str) -> Redis:
            admin.execute_command("ACL SETUSER", "user", "reset", "on", ">word", *rules.split())
            client.execute_command("AUTH", "user", "word")
            return client

        yield allow
        admin.execute_command("ACL DELUSER", "user")


def directly(client: Redis, call: Call) -> object:
    return client.execute_command(*call)


def in_a_transaction(client: Redis, call: Call) -> object:
    with client.pipeline(transaction=True) as pipeline:
        pipeline.execute_command(*call)
        return pipeline.execute()[0]


def by_a_script(client: Redis, call: Call) -> object:
    # The script declares no key, so the ACL checks the call itself and not EVAL's keys.
    return client.eval("return redis.call(unpack(ARGV))", 0, *call)


each_way = pytest.mark.parametrize("send", [directly, in_a_transaction, by_a_script])


def may_call(send: Callable[[Redis, Call], object], client: Redis, call: Call) -> bool:
    try:
        send(client, call)
    except ResponseError as error:
        # The error text depends on the way and on the server.
        text = f"{error.status_code or ''} {error}"
        refused = "NOPERM" in text or "ACL failure" in text or "permission" in text
        if not refused and "can't" not in text:
            raise
        return False
    return True


@contextmanager
def unchanged(pair: Pair) -> Iterator[None]:
    """Checks that the block changes no key and propagates nothing."""

    def state_and_offset() -> tuple[dict[bytes, State], int]:
        client = pair.primary.client()
        return state(client), client.info("replication")["master_repl_offset"]

    before = state_and_offset()
    yield
    assert state_and_offset() == before


def calls(limiter: Limiter, key: str) -> list[Call]:
    """Returns a call of every command on a key of this limiter."""
    found: list[Call] = [
        limiter.take(key, 2),
        ("RL.TAKE", key, *limiter.words(2)),
        ("RL.MTAKE", 1, key, *limiter.words(2)),
        limiter.peek(key),
        ("RL.MPEEK", 1, key, *limiter.words()),
        ("RL.INFO", key),
    ]
    if limiter.has_leases:
        found.append(("RL.RELEASE", key, "holder"))
    if limiter.type == b"rl-bucket":
        found += [("RL.THROTTLE", key, 9, 10, 3600), ("RL.EFFECT", key, EFFECT)]
    # A ban is last, as it creates a composite key or converts the key to one.
    return [*found, ("RL.BAN", key, "1s")]


@each_way
@each_limiter
def test_only_keys_that_the_pattern_allows_are_charged(
    limiter: Limiter,
    send: Callable[[Redis, Call], object],
    user: Callable[[str], Redis],
    pair: Pair,
) -> None:
    pair.primary.client().execute_command(*limiter.take("b:k", 4))
    before = state(pair.primary.client())
    client = user("+@all ~a:*")
    with unchanged(pair):
        for call in calls(limiter, "b:k") + calls(limiter, "b:new"):
            assert not may_call(send, client, call), call
    for call in calls(limiter, "a:k"):
        assert may_call(send, client, call), call
    assert state(pair.primary.client())[b"b:k"] == before[b"b:k"]


@each_way
@pytest.mark.parametrize("count", [2, 3, 20])
def test_one_forbidden_key_refuses_the_whole_call(
    count: int,
    send: Callable[[Redis, Call], object],
    user: Callable[[str], Redis],
    pair: Pair,
) -> None:
    client = user("+@all ~a:*")
    allowed = [f"a:{number}" for number in range(count)]

    def several(keys: list[str]) -> list[Call]:
        specs = ["FIXED", 10, "1h"] * count
        return [
            ("RL.MTAKE", count, *keys, *specs),
            ("RL.MPEEK", count, *keys, *specs),
            ("RL.EFFECT", *(word for key in keys for word in (key, EFFECT))),
        ]

    with unchanged(pair):
        for index in range(count):
            for call in several([*allowed[:index], "b", *allowed[index + 1 :]]):
                assert not may_call(send, client, call), call
    for call in several(allowed):
        # The error text shows that the key was refused, not the command.
        assert may_call(send, client, call), call
        pair.primary.client().flushall()


@each_way
@each_limiter
def test_only_permitted_commands_are_executed(
    limiter: Limiter,
    send: Callable[[Redis, Call], object],
    user: Callable[[str], Redis],
    pair: Pair,
) -> None:
    pair.primary.client().execute_command(*limiter.take("k", 4))
    for permitted in calls(limiter, "k"):
        client = user(f"+{permitted[0]} {WAYS} ~*")
        with unchanged(pair):
            for call in calls(limiter, "k") + calls(limiter, "new"):
                if call[0] != permitted[0]:
                    assert not may_call(send, client, call), (permitted, call)
        assert may_call(send, client, permitted)


@each_limiter
def test_permissions_revoked_before_exec_are_missing_at_exec(
    limiter: Limiter, user: Callable[[str], Redis], pair: Pair
) -> None:
    client = user("+@all ~k")
    with unchanged(pair):
        client = client.client()
        client.execute_command("AUTH", "user", "word")
        client.execute_command("MULTI")
        assert client.execute_command(*limiter.take("k")) == b"QUEUED"
        pair.primary.client().execute_command("ACL SETUSER", "user", f"-{limiter.command}")
        (answer,) = client.execute_command("EXEC")
        assert "NOPERM" in f"{answer.status_code} {answer}"
    client.close()


@pytest.fixture
def selectors(pair: Pair) -> None:
    if pair.primary.version < SELECTORS:
        pytest.skip("the server has neither selectors nor read-only key patterns")


@each_way
@each_limiter
@pytest.mark.usefixtures("selectors")
def test_read_permission_on_a_key_allows_peeks_and_no_charges(
    limiter: Limiter,
    send: Callable[[Redis, Call], object],
    user: Callable[[str], Redis],
    pair: Pair,
) -> None:
    pair.primary.client().execute_command(*limiter.take("k", 4))
    client = user("+@all %R~*")
    with unchanged(pair):
        for call in calls(limiter, "k"):
            assert may_call(send, client, call) == (
                call[0] in {"RL.PEEK", "RL.MPEEK", "RL.INFO"}
            ), call
        # The same user may write another key.
        client = user("+@all ~mine %R~k")
        for keys in (("mine", "k"), ("k", "mine")):
            arguments = (2, *keys, *limiter.words(), *limiter.words())
            assert not may_call(send, client, ("RL.MTAKE", *arguments))
            assert may_call(send, client, ("RL.MPEEK", *arguments))


@each_way
@each_limiter
@pytest.mark.usefixtures("selectors")
def test_commands_of_a_selector_are_permitted_on_its_keys_only(
    limiter: Limiter,
    send: Callable[[Redis, Call], object],
    user: Callable[[str], Redis],
    pair: Pair,
) -> None:
    client = user(f"{WAYS} (+rl.take +rl.mtake ~charge:*) (+rl.peek +rl.mpeek %R~look:*)")
    assert may_call(send, client, ("RL.TAKE", "charge:k", *limiter.words(4)))
    assert may_call(send, client, limiter.peek("look:k"))
    with unchanged(pair):
        for call in [
            ("RL.TAKE", "look:k", *limiter.words(4)),
            ("RL.MTAKE", 2, "charge:k", "look:k", *limiter.words(), *limiter.words()),
            ("RL.MTAKE", 2, "look:k", "charge:k", *limiter.words(), *limiter.words()),
            limiter.peek("charge:k"),
            ("RL.MPEEK", 2, "look:k", "charge:k", *limiter.words(), *limiter.words()),
            limiter.take("charge:k"),
        ]:
            assert not may_call(send, client, call), call


# RL.EFFECT, RL.TOP and the commands of policies


def without_dangerous(server: Server) -> list[str]:
    """Returns ACL rules of a user who may call everything but dangerous commands."""
    rules = [f"+@all {' '.join(f'-{name}' for name in DANGEROUS)} ~*"]
    if server.version >= CATEGORIZED:
        rules += ["+@all -@dangerous ~*", f"+@read +@write -@dangerous {WAYS} ~*"]
    if server.version >= ADDS_CATEGORIES:
        rules += [f"+@ratelimit {WAYS} ~*"]
    return rules


@each_way
def test_users_without_dangerous_commands_apply_no_effect(
    send: Callable[[Redis, Call], object], user: Callable[[str], Redis], pair: Pair
) -> None:
    limited = ("RL.TAKE", "k", "TOKENBUCKET", 10, 1, "1h", "COST", 4)
    for rules in without_dangerous(pair.primary):
        pair.primary.client().flushall()
        client = user(rules)
        assert may_call(send, client, limited)
        with unchanged(pair):
            for effect in (EFFECT, "rl-bucket del", "nonsense", ""):
                assert not may_call(send, client, ("RL.EFFECT", "k", effect)), rules
                assert not may_call(send, client, ("RL.EFFECT", "new", effect)), rules


@each_way
def test_users_without_dangerous_commands_see_no_other_key_names(
    send: Callable[[Redis, Call], object], user: Callable[[str], Redis], pair: Pair
) -> None:
    admin = pair.primary.client()
    admin.execute_command("RL.TOP RESET")
    admin.execute_command("RL.FIXED secret 1 1h COST 2")
    for rules in without_dangerous(pair.primary):
        client = user(rules)
        assert not may_call(send, client, ("RL.TOP",)), rules
        assert not may_call(send, client, ("RL.TOP", "RESET")), rules
    client = user(f"+rl.top {WAYS}")
    top = send(client, ("RL.TOP",))
    assert top == [[b"secret", 1, 0, None, None]], "RL.TOP needs no permission for a key"


@each_way
def test_users_without_dangerous_commands_read_policies_and_change_none(
    send: Callable[[Redis, Call], object], user: Callable[[str], Redis], pair: Pair
) -> None:
    admin = pair.primary.client()
    admin.execute_command("RL.POLICYSET gold FIXED 10 1h")
    record = admin.execute_command("RL.POLICYGET gold")
    for rules in without_dangerous(pair.primary):
        client = user(rules)
        with unchanged(pair):
            for call in (
                ("RL.POLICYSET", "gold", "FIXED", 99, "1h"),
                ("RL.POLICYSET", "gold", "NX", "FIXED", 99, "1h"),
                ("RL.POLICYSCALE", "gold", 2),
                ("RL.POLICYDEL", "gold"),
                ("RL.POLICYEFFECT", "nonsense"),
            ):
                assert not may_call(send, client, call), (rules, call)
        assert may_call(send, client, ("RL.LIMIT", "k", "gold"))
        assert may_call(send, client, ("RL.POLICYLIST",))
    assert admin.execute_command("RL.POLICYGET gold")[:10] == record[:10]


@each_way
def test_users_with_permission_for_policies_alone_cannot_choose_limits(
    send: Callable[[Redis, Call], object], user: Callable[[str], Redis], pair: Pair
) -> None:
    pair.primary.client().execute_command("RL.POLICYSET gold FIXED 10 1h")
    client = user(f"+rl.limit +rl.peek {WAYS} ~*")
    assert send(client, ("RL.LIMIT", "k", "gold"))[:3] == [1, 10, 9]
    assert send(client, ("RL.PEEK", "k", "POLICY", "gold"))[:3] == [1, 10, 9]
    with unchanged(pair):
        assert send(client, ("RL.PEEK", "k", "FIXED", 99, "1h"))[:3] == [1, 99, 98]
        for call in (
            ("RL.FIXED", "k", 99, "1h"),
            ("RL.TAKE", "k", "FIXED", 99, "1h"),
            ("RL.TAKE", "k", "POLICY", "gold"),
            ("RL.MTAKE", 1, "k", "POLICY", "gold"),
            ("RL.DELAY", "k", "gold"),
            ("RL.POLICYSET", "gold", "FIXED", 99, "1h"),
        ):
            assert not may_call(send, client, call), call


@each_way
def test_users_with_permission_for_effects_make_only_valid_states(
    send: Callable[[Redis, Call], object], user: Callable[[str], Redis], pair: Pair
) -> None:
    client = user(f"+rl.effect {WAYS} ~k")
    for effect in (EFFECT.replace("1000000", "0"), EFFECT.replace(" 1 ", " 2 "), "no effect"):
        with pytest.raises(ResponseError, match="invalid effect"):
            send(client, ("RL.EFFECT", "k", effect))
    assert pair.primary.client().dbsize() == 0
    assert may_call(send, client, ("RL.EFFECT", "k", EFFECT))
    assert pair.primary.client().pttl("k") > 0


@pytest.mark.parametrize("file", ["docs/operation.md", "redis.conf.example"])
def test_documented_acl_rules_name_every_command(pair: Pair, file: str) -> None:
    lines = re.findall(r"^(?:# )?user (\w+) (.*)$", (REPOSITORY / file).read_text(), re.MULTILINE)
    users = [(user, set(re.findall(r"([+-])(rl\.\w+)", rules))) for user, rules in lines]
    names = {name for name in pair.primary.client().command() if name.startswith("rl.")}
    for_operators = {*DANGEROUS, "rl.ban"}
    # The longest line of a user is for servers without ACL categories.
    limiter = max((rules for user, rules in users if user == "limiter"), key=len)
    assert limiter == {("+", name) for name in names - for_operators}
    app = max((rules for user, rules in users if user == "app"), key=len)
    assert app == {("-", name) for name in for_operators}
    assert {name for _, rules in users for _, name in rules} == names
