"""The server's ACL grants the module's commands by name, category and key, as native ones."""

from collections.abc import Callable, Iterator

import pytest
from redis import Redis, ResponseError
from redis.exceptions import NoPermissionError

from support.command_table import COMMANDS, DOCUMENTED, KEYLESS, KEYS
from support.server import Server

pytestmark = pytest.mark.every_server
each_call_on_keys = pytest.mark.parametrize("call", [call for call in KEYS if call not in KEYLESS])
# Commands that an ordinary user need not call.
ADMIN = {"rl.top", "rl.policyset", "rl.policyscale", "rl.policydel"}
DANGEROUS = ADMIN | {"rl.effect", "rl.policyeffect"}
# First versions with ACL categories for commands of modules, and with categories that a module
# adds.
CATEGORIZED = (7, 2)
ADDS_CATEGORIES = (7, 4)


@pytest.fixture
def user(server: Server, redis: Redis) -> Iterator[Callable[[str], Redis]]:
    """`user("+@all ~app:*")` returns a client of a user with these rights."""
    with server.client() as client:

        def allow(rules: str) -> Redis:
            redis.execute_command("ACL SETUSER", "user", "reset", "on", ">word", *rules.split())
            client.execute_command("AUTH", "user", "word")
            return client

        yield allow
    redis.execute_command("ACL DELUSER", "user")


def may_call(client: Redis, call: str) -> bool:
    try:
        client.execute_command(call)
    except NoPermissionError:
        return False
    except ResponseError:
        pass  # rejected by the command: the key's type, or an invalid effect
    return True


def allowed(client: Redis) -> set[str]:
    """Returns the commands that the client may call."""
    return {call.split()[0].lower() for call in KEYS if may_call(client, call)}


def flagged(flag: str) -> set[str]:
    return {name for name, (_, flags, _) in COMMANDS.items() if flag in flags}


@each_call_on_keys
def test_key_patterns_hold_for_every_key_of_a_call(user, call):
    client = user("+@all ~a")
    assert may_call(client, call) == (KEYS[call] == ["a"])
    client = user("+@all ~b")
    assert not may_call(client, call)
    client = user("+@all ~a ~b")
    assert may_call(client, call)


@pytest.mark.parametrize("call", KEYS)
def test_missing_arguments_are_an_error_if_the_acl_looks_for_keys_first(user, call):
    client = user("+@all ~a")
    words = call.split()
    arity = COMMANDS[words[0].lower()][0]
    for length in range(1, abs(arity)):
        with pytest.raises(ResponseError):
            client.execute_command(*words[:length])


@pytest.mark.parametrize("call", KEYS)
def test_a_command_is_granted_by_its_name(user, call):
    name = call.split()[0].lower()
    assert allowed(user(f"+{name} ~*")) == {name}
    assert allowed(user(f"+@all -{name} ~*")) == set(COMMANDS) - {name}


def test_a_user_with_permission_to_peek_charges_nothing(user, redis):
    client = user("+rl.peek ~*")
    assert not may_call(client, "RL.TAKE k FIXED 10 60s")
    assert not may_call(client, "RL.FIXED k 10 60s")
    assert redis.exists("k") == 0
    assert client.execute_command("RL.PEEK k FIXED 10 60s") == [1, 10, 10, 0, 0]


def test_a_key_pattern_for_reading_is_enough_to_peek_and_not_to_take(user, server):
    if server.version < DOCUMENTED:
        pytest.skip("the server has no read-only key patterns")
    keyless = {call.split()[0].lower() for call in KEYLESS}
    assert allowed(user("+@all %R~*")) == flagged("readonly") | keyless
    assert allowed(user("+@all %W~*")) == {"rl.effect"} | keyless
    assert allowed(user("+@all %RW~*")) == set(COMMANDS)
    several = "2 a b FIXED 10 60s FIXED 10 60s"
    assert may_call(user("+@all %R~a %RW~b"), f"RL.MPEEK {several}")
    assert not may_call(user("+@all %R~a %W~b"), f"RL.MPEEK {several}")
    assert not may_call(user("+@all %RW~a %R~b"), f"RL.MTAKE {several}")


def test_acl_categories_of_the_server_contain_the_documented_commands(user, server):
    if server.version < CATEGORIZED:
        pytest.skip("the server gives no categories to a module's commands")
    assert allowed(user("+@read ~*")) == flagged("readonly")
    assert allowed(user("+@write ~*")) == flagged("write")
    assert allowed(user("+@fast ~*")) == flagged("fast")
    assert allowed(user("+@slow ~*")) == set(COMMANDS) - flagged("fast")
    assert allowed(user("+@blocking ~*")) == flagged("blocking") == {"rl.acquire"}
    assert allowed(user("+@admin ~*")) == ADMIN
    assert allowed(user("+@dangerous ~*")) == DANGEROUS
    assert allowed(user("+@all -@dangerous ~*")) == set(COMMANDS) - DANGEROUS


def test_ratelimit_category_contains_all_commands_that_are_not_dangerous(user, server):
    if server.version < ADDS_CATEGORIES:
        pytest.skip("modules cannot add a category on this server")
    assert allowed(user("+@ratelimit ~*")) == set(COMMANDS) - DANGEROUS
