"""COMMAND INFO, DOCS and GETKEYS describe the module's commands as they do native ones."""

import pytest
from redis import ResponseError

from support.command_table import COMMANDS, DOCUMENTED, KEYLESS, KEYS

pytestmark = pytest.mark.every_server

KEEP_AND_AS = "[KEEP keep] [AS name]"
ONCE = "[ONCE id ttl | SETTLE id amount]"
# Arguments of each algorithm. Its own command also takes the options of the call, which stand
# before the first spec in RL.MTAKE.
ALGORITHMS = {
    "TOKENBUCKET": "capacity refill period [COST cost] [UPTO | FORCE | MAXWAIT maxwait]",
    "LEAKYBUCKET": "capacity leak period [COST cost] [UPTO | FORCE]",
    "FIXED": "limit window [ALIGNED [OFFSET offset] [ANCHOR day]] [COST cost] [UPTO | FORCE]",
    "SLIDING": "limit window [STRICT] [COST cost] [UPTO | FORCE]",
    "SLIDINGLOG": "limit window [COST cost] [UPTO | FORCE]",
}
OWN_COMMAND = {name: f"{words} {KEEP_AND_AS} {ONCE}" for name, words in ALGORITHMS.items()}
CONCURRENCY = f"limit ttl holder [COST cost] {KEEP_AND_AS} [NX]"
SKETCH = "[COST cost] [UPTO | FORCE] [KEEP keep]"
SPEC_ARGUMENTS = {
    **OWN_COMMAND,
    "CONCURRENCY": CONCURRENCY,
    "SKETCH": f"capacity refill period item [SIZE size] {SKETCH}",
}
CALL_OPTIONS = f"[COST cost] [UPTO | FORCE | MAXWAIT maxwait] [KEEP keep] {ONCE}"
NAMES = "name [OR other...]"
POLICY = f"POLICY {NAMES} {CALL_OPTIONS} [EACH] [ITEM item]"


def one_or_more(specs: dict[str, str], *others: str) -> str:
    return f"({' | '.join([*(f'{name} {words}' for name, words in specs.items()), *others])})..."


SPECS = one_or_more(SPEC_ARGUMENTS)
BAN = "[BAN strikes window block [MAX longest]]"


def without_upto(words: str) -> str:
    return words.replace("UPTO | ", "")


def without_settle(words: str) -> str:
    return words.replace(" | SETTLE id amount", "")


SPECS_OF_KEYS = one_or_more(SPEC_ARGUMENTS, POLICY).replace(" [EACH]", "").replace(f" {ONCE}", "")
MTAKE_ARGUMENTS = without_upto(f"{CALL_OPTIONS} {SPECS_OF_KEYS}")
# Policies contain no options of the call and no lease holder.
POLICY_SPECS = {
    name: words.replace(" holder", "").replace(" item", "").split(" [COST", maxsplit=1)[0]
    + {
        "SKETCH": " [COST cost] [SHADOW]",
        "CONCURRENCY": " [COST cost] [AS name] [SHADOW]",
    }.get(name, " [COST cost] [AS name] [FORCE | SHADOW]")
    for name, words in SPEC_ARGUMENTS.items()
}
SYNTAX = {
    "rl.tokenbucket": f"key {OWN_COMMAND['TOKENBUCKET']}",
    "rl.leakybucket": f"key {OWN_COMMAND['LEAKYBUCKET']}",
    "rl.fixed": f"key {OWN_COMMAND['FIXED']}",
    "rl.sliding": f"key {OWN_COMMAND['SLIDING']}",
    "rl.slidinglog": f"key {OWN_COMMAND['SLIDINGLOG']}",
    "rl.sketch": f"key item capacity refill period {SKETCH} [SIZE size]",
    "rl.take": f"key {CALL_OPTIONS} [EACH] ({SPECS} {BAN} | {POLICY})",
    "rl.peek": without_settle(f"key {CALL_OPTIONS} [EACH] ({SPECS} {BAN} | {POLICY})"),
    "rl.mtake": f"numkeys key... {MTAKE_ARGUMENTS}",
    "rl.mpeek": without_settle(f"numkeys key... {MTAKE_ARGUMENTS}"),
    "rl.limit": f"key {NAMES} {CALL_OPTIONS} [EACH] [ITEM item]",
    "rl.delay": f"key {NAMES} [COST cost] [FORCE] [KEEP keep] {ONCE} [ITEM item]",
    "rl.acquire": f"key {CONCURRENCY} [BLOCK block] [FENCE]",
    "rl.release": "key holder...",
    "rl.ban": "key duration",
    "rl.throttle": "key max_burst count period [quantity]",
    "rl.info": "key",
    "rl.top": "[COUNT count] [SINCE duration] [RESET]",
    "rl.policyset": f"name [NX | VERSION version] {one_or_more(POLICY_SPECS)} {BAN}",
    "rl.policyscale": (
        "name (factor | MUL factor [MIN least] [EVERY interval] |"
        " ADD step [MAX most] [EVERY interval]) [FOR duration]"
    ),
    "rl.policyget": "name",
    "rl.policylist": "[MATCH pattern]",
    "rl.policydel": "(name VERSION version | name...)",
    "rl.policyeffect": "record...",
    "rl.effect": "(key effect)...",
}


# COMMAND INFO, COMMAND DOCS, COMMAND GETKEYS


def test_every_command_is_listed_with_its_arity_its_flags_and_its_keys(redis, server):
    found = {
        name: (
            command["arity"],
            set(command["flags"]) - {"module"},
            (command["first_key_pos"], command["last_key_pos"], command["step_count"]),
        )
        for name, command in redis.command().items()
        if name.startswith("rl.")
    }
    if server.version >= DOCUMENTED:
        assert found == COMMANDS
    else:
        # Older servers take no arity from a module, and have no flag for blocking commands.
        assert found == {
            name: (-1, flags - {"blocking"}, keys) for name, (_, flags, keys) in COMMANDS.items()
        }


def test_command_info_shows_the_first_key_and_its_use(resp3, server):
    if server.version < DOCUMENTED:
        pytest.skip("the server has no key specifications")
    for name, (_, flags, (first, last, step)) in COMMANDS.items():
        (reply,) = resp3.execute_command("COMMAND INFO", name)
        if first == 0:
            assert not reply[8]
            continue
        (spec,) = reply[8]
        assert spec[b"begin_search"] == {b"type": b"index", b"spec": {b"index": first}}
        key_range = {b"lastkey": 0 if last == first else last, b"keystep": step, b"limit": 0}
        assert spec[b"find_keys"] == {b"type": b"range", b"spec": key_range}
        # The other keys depend on the call: clients ask COMMAND GETKEYS for them.
        assert (b"incomplete" in spec[b"flags"]) == ("movablekeys" in flags)
        assert set(spec[b"flags"]) - {b"incomplete"} == key_flags(name)


def syntax(arguments: list[dict[bytes, object]], separator: str = " ") -> str:
    return separator.join(map(syntax_of_one, arguments))


def syntax_of_one(argument: dict[bytes, object]) -> str:
    kind, flags = argument[b"type"], argument.get(b"flags", [])
    inner = argument.get(b"arguments")
    if kind == b"pure-token":
        text = argument[b"token"].decode()
    elif inner:
        text = syntax(inner, " | " if kind == b"oneof" else " ")
        if b"token" in argument:
            text = f"{argument[b'token'].decode()} {text}"
        if b"multiple" in flags or (kind == b"oneof" and not flags):
            text = f"({text})"
    else:
        text = argument[b"name"].decode()
        if b"token" in argument:
            text = f"{argument[b'token'].decode()} {text}"
    if b"multiple" in flags:
        text = f"{text}..."
    return f"[{text}]" if b"optional" in flags else text


def test_every_command_is_documented(resp3, server):
    if server.version < DOCUMENTED:
        pytest.skip("the server has no COMMAND DOCS")
    docs = resp3.execute_command("COMMAND DOCS", *COMMANDS)
    assert {name.decode(): syntax(reply[b"arguments"]) for name, reply in docs.items()} == SYNTAX
    for reply in docs.values():
        assert reply[b"summary"].endswith(b".")
        assert reply[b"complexity"].startswith(b"O(")
        assert reply[b"since"].count(b".") == 2
        assert reply[b"group"] == b"module"


def test_command_getkeys_shows_the_keys(redis):
    assert [call.split()[0].lower() for call in KEYS] == list(COMMANDS)
    for call, keys in KEYS.items():
        if call in KEYLESS:
            with pytest.raises(ResponseError, match=r"no key arguments|Invalid arguments"):
                redis.execute_command("COMMAND GETKEYS", *call.split())
        else:
            assert redis.execute_command("COMMAND GETKEYS", *call.split()) == keys


def test_command_getkeysandflags_shows_the_use_of_each_key(redis, server):
    if server.version < DOCUMENTED:
        pytest.skip("the server has no COMMAND GETKEYSANDFLAGS")

    def flags(call: str) -> dict[bytes, set[bytes]]:
        found = redis.execute_command("COMMAND GETKEYSANDFLAGS", *call.split())
        return {key: set(flags) for key, flags in found}

    for call, keys in KEYS.items():
        if call in KEYLESS:
            continue
        expected = key_flags(call.split()[0].lower())
        assert flags(call) == {key.encode(): expected for key in keys}


def key_flags(name: str) -> set[bytes]:
    if "readonly" in COMMANDS[name][1]:
        return {b"RO", b"access"}
    return {b"OW", b"update"} if name == "rl.effect" else {b"RW", b"access", b"update"}


# RESP2 and RESP3


@pytest.mark.parametrize(
    "spec",
    [
        "TOKENBUCKET 10 1 1s",
        "LEAKYBUCKET 10 1 1s",
        "FIXED 10 60s",
        "SLIDING 10 60s",
        "SLIDING 10 60s STRICT",
        "SLIDINGLOG 10 60s",
    ],
)
def test_a_decision_is_the_same_whole_numbers_in_resp2_and_resp3(redis, resp3, spec):
    for options in ["COST 4.5", "COST 6", "COST 11", "UPTO", "COST 3 FORCE", "COST -1", "COST 0"]:
        two = redis.execute_command(f"RL.TAKE two {spec} {options}")
        three = resp3.execute_command(f"RL.TAKE three {spec} {options}")
        assert two == three
        # A RESP3 boolean would equal 1 or 0.
        assert type(two) is type(three) is list
        assert {type(value) for value in two + three} == {int}
        peek = f"RL.PEEK two {spec} {options}"
        assert redis.execute_command(peek) == resp3.execute_command(peek)


def test_an_error_is_the_same_in_resp2_and_resp3(redis, resp3):
    for call in ["RL.FIXED k 10 60x", "RL.FIXED k 10 60s NO", "RL.FIXED k 10"]:
        texts = []
        for client in (redis, resp3):
            with pytest.raises(ResponseError) as caught:
                client.execute_command(call)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
