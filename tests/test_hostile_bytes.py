"""Whatever bytes a client sends, it gets a reply or an error, and the server lives."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis, ResponseError

HOSTILE = {
    "empty": b"",
    "NUL": b"\0",
    "a NUL within": b"a\0b",
    "a number and a NUL": b"10\0",
    "line ends": b"1\r\n+OK\r\n$-1\r\n",
    "a line end": b"\n",
    "no UTF-8": b"\xff\xfe\x80",
    "all bytes": bytes(range(256)),
    "quotes": b"'\"`\\'\\x00",
    "percent signs": b"%s%n%d%p",
    "a minus": b"-",
    "not ASCII": "1\u20ac\U0001f600".encode(),
    "blanks": b" \t 1 \v\f",
    "32 bytes": b"\xe2\x82\xac" * 10 + b"ab",
    "33 bytes": b"\xe2\x82\xac" * 11,
    "1 MB of nines": b"9" * 1_000_000,
    "1 MB of zeros": b"0" * 1_000_000,
    "1 MB of exponent": b"1e" + b"9" * 1_000_000,
    "1 MB of negative exponent": b"1e-" + b"9" * 1_000_000,
    "1 MB of fraction": b"0." + b"7" * 1_000_000 + b"s",
    "1 MB of 0xff": b"\xff" * 1_000_000,
    "1 MB of quotes": b"'\\" * 500_000,
}

CALLS = [
    b"RL.TOKENBUCKET k 10 1 1s COST 1 MAXWAIT 1s",
    b"RL.LEAKYBUCKET k 10 1 1s COST 1 UPTO",
    b"RL.FIXED k 10 60s ALIGNED COST 1",
    b"RL.SLIDING k 10 60s STRICT COST 1",
    b"RL.SLIDINGLOG k 10 60s COST 1 FORCE",
    b"RL.SKETCH k item 10 1 1s COST 1 SIZE 64kb",
    b"RL.TAKE k TOKENBUCKET 10 1 1s COST 1 MAXWAIT 1s",
    b"RL.PEEK k FIXED 10 60s COST 1",
    b"RL.MTAKE 1 k FIXED 10 60s COST 1",
    b"RL.MPEEK 1 k FIXED 10 60s COST 1",
    b"RL.ACQUIRE k 10 60s holder COST 1",
    b"RL.RELEASE k holder",
    b"RL.BAN k 60s",
    b"RL.TAKE k COST 1 ONCE id 1m EACH FIXED 10 60s AS name KEEP 10% SLIDING 10 1h BAN 3 1m 1h",
    b"RL.TAKE k SETTLE id 1 TOKENBUCKET 10 10 1m FIXED 10 1w ALIGNED OFFSET +09:00 AS week",
    b"RL.ACQUIRE k 10 60s holder NX AS name",
    b"RL.MTAKE 1 k ONCE id 60s FIXED 10 60s AS name",
    b"RL.THROTTLE k 10 1 60 1",
    b"RL.INFO k",
    b"RL.TOP COUNT 5",
    b"RL.POLICYSET gold NX TOKENBUCKET 10 1 1s COST 1 AS name SHADOW CONCURRENCY 3 1m BAN 3 1m 1h",
    b"RL.POLICYSCALE gold 0.5 FOR 1m",
    b"RL.POLICYGET gold",
    b"RL.POLICYLIST MATCH g*",
    b"RL.LIMIT k none OR gold COST 1 ONCE id 1m EACH",
    b"RL.DELAY k gold OR none ONCE id 1m",
    b"RL.TAKE k COST 1 POLICY none OR gold ONCE id 1m",
    b"RL.MTAKE 1 k ONCE id 1m POLICY gold OR none KEEP 1",
    b"RL.POLICYDEL gold none",
    b"RL.POLICYEFFECT record",
    b"RL.EFFECT k effect",
]


@pytest.fixture(scope="module")
def commands(shared_server) -> list[str]:
    with shared_server.client() as client:
        found = sorted(name for name in client.command() if name.startswith("rl."))
    # Checks that CALLS has all commands, so that none goes untested.
    assert found == sorted({call.split()[0].decode().lower() for call in CALLS})
    return found


def answer(redis: Redis, *words: bytes | str) -> object:
    """Returns the reply, or the error's text, which must be one printable line. The next reply on
    the connection must be that of the next call.
    """
    pipeline = redis.pipeline(transaction=False).execute_command(*words).echo(b"here")
    reply, echo = pipeline.execute(raise_on_error=False)
    if isinstance(reply, ResponseError):
        reply = f"{reply.status_code or ''} {reply}".strip()
        assert reply.isascii()
        assert reply.isprintable()
        # A policy's name may have 256 bytes, and an error repeats it.
        assert len(reply) < (1000 if " policy '" in reply else 300)
        assert "internal error" not in reply  # a panic, caught
    assert echo == b"here"
    return reply


def every_key_expires(redis: Redis) -> bool:
    return all(redis.pttl(key) >= 0 for key in redis.scan_iter())


@contextmanager
def annotating(description: str) -> Iterator[None]:
    """Adds the sent call to any failure within the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"sent: {description}")
        raise


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.decode())
def test_any_argument_may_be_any_bytes(server, redis, call):
    words = call.split()
    for hostile, value in HOSTILE.items():
        # Policies are deleted too, as those from earlier calls would change the reply.
        server.empty()
        for index in range(1, len(words)):
            with annotating(f"{hostile} for word {index}"):
                reply = answer(redis, *words[:index], value, *words[index + 1 :])
                codes = ("ERR ", "WRONGTYPE ", "NOPOLICY ")
                assert not isinstance(reply, str) or reply.startswith(codes)
        with annotating(f"{hostile} after all words"):
            answer(redis, *words, value)
            assert every_key_expires(redis)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_key_may_have_any_name(redis, name):
    key = HOSTILE[name]
    assert answer(redis, "RL.TOKENBUCKET", key, 10, 1, 1) == [1, 10, 9, 0, 1000]
    assert answer(redis, "RL.TAKE", key, "TOKENBUCKET", 10, 1, 1) == [1, 10, 8, 0, 2000]
    assert answer(redis, "RL.PEEK", key, "TOKENBUCKET", 10, 1, 1) == [1, 10, 8, 0, 2000]
    assert redis.keys() == [key]
    assert redis.type(key) == b"rl-bucket"
    assert answer(redis, "RL.TOKENBUCKET", key, 10, 1, 1, "COST", -2) == [1, 10, 10, 0, 0]
    assert redis.keys() == []


@settings(max_examples=100)
@given(keys=st.lists(st.binary(max_size=40), min_size=1, max_size=4, unique=True))
def test_keys_that_differ_in_a_byte_are_different_limiters(redis, keys):
    redis.flushall()
    for used, key in enumerate(keys, start=1):
        assert answer(redis, "RL.FIXED", key, 10, 60, "COST", used) == [1, 10, 10 - used, 0, 60_000]
    for used, key in enumerate(keys, start=1):
        assert answer(redis, "RL.PEEK", key, "FIXED", 10, 60)[2] == 10 - used
    assert sorted(redis.keys()) == sorted(keys)


def test_a_key_may_have_a_name_of_a_megabyte(redis):
    one, other = b"x" * 1_000_000 + b"1", b"x" * 1_000_000 + b"2"
    assert answer(redis, "RL.FIXED", one, 1, 60)[0] == 1
    assert answer(redis, "RL.FIXED", one, 1, 60)[0] == 0
    assert answer(redis, "RL.FIXED", other, 1, 60)[0] == 1


@pytest.mark.parametrize(
    ("number", "limit"),
    [
        (b"0" * 63 + b"7", 7),
        (b"7." + b"0" * 62, 7),
        (b"7." + b"9" * 62, 7),
        (b"0." + b"0" * 57 + b"7e58", 7),
        (b"7" + b"0" * 59 + b"e-59", 7),
        (b"7e" + b"0" * 62, 7),
    ],
    ids=["zeros before", "zeros after", "nines after", "exponent", "negative exponent", "e000"],
)
def test_a_number_of_up_to_64_characters_is_parsed_entirely(redis, number, limit):
    assert answer(redis, "RL.FIXED", "k", number, 60, "COST", 0) == [1, limit, limit, 0, 0]


def test_the_last_of_64_characters_counts(redis):
    assert answer(redis, "RL.FIXED", "k", 1, 60, "COST", b"1." + b"0" * 62)[0] == 1
    redis.delete("k")
    reply = answer(redis, "RL.FIXED", "k", 1, 60, "COST", b"1." + b"0" * 61 + b"1")
    assert reply == [0, 1, 1, -1, 0]


NUMBERS_AND_DURATIONS = [
    b"RL.TOKENBUCKET k # 1 1s",
    b"RL.TOKENBUCKET k 10 # 1s",
    b"RL.TOKENBUCKET k 10 1 #",
    b"RL.TOKENBUCKET k 10 1 1s COST #",
    b"RL.TOKENBUCKET k 10 1 1s COST -#",
    b"RL.TOKENBUCKET k 10 1 1s MAXWAIT #",
    b"RL.TOKENBUCKET k 10 1 1s KEEP #",
    b"RL.TOKENBUCKET k 10 1 1s KEEP #%",
    b"RL.FIXED k 10 #",
    b"RL.ACQUIRE k 10 # holder",
    b"RL.TAKE k ONCE id # FIXED 10 1m",
    b"RL.TAKE k SETTLE id # FIXED 10 1m",
    b"RL.TAKE k FIXED 10 1m BAN # 1m",
    b"RL.TAKE k FIXED 10 1m BAN 3 #",
    b"RL.SKETCH k item 10 1 1s SIZE #",
    b"RL.THROTTLE k # 1 60",
    b"RL.THROTTLE k 10 1 #",
    b"RL.THROTTLE k 10 1 60 #",
    b"RL.BAN k #",
    b"RL.TOP COUNT #",
    b"RL.TOP SINCE #",
    b"RL.POLICYSCALE p #",
    b"RL.POLICYSCALE p MUL #",
    b"RL.POLICYSCALE p 0.5 FOR #",
    b"RL.POLICYDEL p VERSION #",
    b"RL.MTAKE # k FIXED 10 1m",
]


@pytest.mark.parametrize("call", NUMBERS_AND_DURATIONS, ids=lambda call: call.decode())
def test_a_number_of_more_than_64_characters_is_refused(redis, call):
    for number in (b"0" * 64 + b"1", b"1" * 16_000_000):
        words = [word.replace(b"#", number) for word in call.split()]
        refused = answer(redis, *words)
        assert refused.startswith(("ERR", "NOPOLICY")), refused
        assert redis.exists("k") == 0


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        (b"FOO", "FOO"),
        (b"", ""),
        (b"a'b", r"a\'b"),
        (b'a"b', r"a\"b"),
        (b"a\\b", r"a\\b"),
        (b"\r\n", r"\r\n"),
        (b"\0\xff", r"\x00\xff"),
        (b"x" * 32, "x" * 32),
        (b"x" * 33, "x" * 32 + "..."),
        (b"x" * 1_000_000, "x" * 32 + "..."),
        (b"\0" * 8, r"\x00" * 8),
        (b"\0" * 9, r"\x00" * 8 + "..."),
    ],
    ids=lambda value: f"{len(value)} of {value[:3]!r}",
)
def test_an_unexpected_argument_is_truncated_and_escaped(redis, word, shown):
    unexpected = f"ERR syntax error, unexpected '{shown}', where an option"
    options = "COST, UPTO, FORCE, KEEP, AS, STRICT, ONCE or SETTLE"
    assert answer(redis, "RL.SLIDING", "k", 10, 60, word) == f"{unexpected} is needed: {options}"
    unexpected += ", POLICY or an algorithm is needed:"
    algorithms = "TOKENBUCKET, LEAKYBUCKET, FIXED, SLIDING, SLIDINGLOG, CONCURRENCY or SKETCH"
    expected = f"{unexpected} COST, UPTO, FORCE, MAXWAIT, KEEP, ONCE, SETTLE or EACH; {algorithms}"
    for command in ("RL.TAKE", "RL.PEEK"):
        error = f"{expected}; for a policy: {command} key POLICY name"
        assert answer(redis, command, "k", word, 10, 60) == error
    expected = f"{unexpected} COST, FORCE, MAXWAIT, KEEP, ONCE or SETTLE; {algorithms}"
    expected += "; numkeys must be the number of keys"
    assert answer(redis, "RL.MTAKE", 1, "k", word, 10, 60) == expected
    assert answer(redis, "RL.MPEEK", 1, "k", word, 10, 60) == expected


@pytest.mark.parametrize("word", [b"COST", b"1", b"UPTO", b"", b"\xff", b"FIXED"])
def test_two_thousand_arguments_are_an_ordinary_error(redis, commands, word):
    for command in commands:
        reply = answer(redis, command, *[word] * 2000)
        takes_names = command in {"rl.release", "rl.policydel"}
        assert isinstance(reply, str) or (takes_names and reply == 0)
    assert redis.dbsize() == 0


def test_two_thousand_options_are_an_ordinary_error(redis):
    def unexpected(option):
        return f"ERR syntax error, unexpected '{option}', which is given twice"

    words = ["RL.TOKENBUCKET", "k", 10, 1, 1, "COST", 1]
    assert answer(redis, *words, *["COST", 1] * 1000) == unexpected("COST")
    assert answer(redis, *words, *["FORCE"] * 2000) == unexpected("FORCE")
    assert redis.dbsize() == 0


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.decode())
def test_command_getkeys_accepts_any_arguments(redis, call):
    words = call.split()
    for length in range(1, len(words) + 1):
        answer(redis, "COMMAND GETKEYS", *words[:length])
    for number in [b"0", b"-1", b"x", b"2", b"1000", b"99999999999999999999", *HOSTILE.values()]:
        answer(redis, "COMMAND GETKEYS", words[0], number, *words[2:])


# Arguments that pass further into the grammar than random bytes do.
WORDS = st.one_of(
    st.binary(max_size=20),
    st.binary(max_size=3),
    st.sampled_from([word for call in CALLS for word in call.split()[1:]]),
    st.sampled_from([b"0", b"-1", b"0.5", b"1e12", b"3650d", b"1us", b"TOKENBUCKET", b"SLIDING"]),
    st.sampled_from(list(HOSTILE.values())[:12]),
    st.integers(-(2**70), 2**70).map(lambda number: str(number).encode()),
    st.floats().map(lambda number: repr(number).encode()),
)
ARGUMENTS = st.lists(WORDS, max_size=12)


@settings(max_examples=40)
@given(calls=st.lists(ARGUMENTS, min_size=1, max_size=8))
def test_random_arguments_get_an_answer_from_every_command(redis, commands, calls):
    redis.flushall()
    for command in commands:
        for words in calls:
            answer(redis, command, *words)
    assert every_key_expires(redis)


@settings(max_examples=150)
@given(data=st.data())
def test_a_call_with_a_few_arguments_changed_gets_an_answer(redis, data):
    redis.flushall()
    for _ in range(5):
        words = data.draw(st.sampled_from(CALLS)).split()
        for _ in range(data.draw(st.integers(0, 3))):
            index = data.draw(st.integers(1, len(words)))
            words[index : index + data.draw(st.integers(0, 1))] = [data.draw(WORDS)]
        answer(redis, *words)
    assert every_key_expires(redis)
