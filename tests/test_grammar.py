"""What the words of a call may be, and what is said, and not done, if they are not."""

from itertools import permutations

import pytest
from redis import Redis, ResponseError

# Every algorithm's positional arguments: name in the syntax line, kind, and a value.
ALGORITHMS = {
    "TOKENBUCKET": [
        ("capacity", "amount", "10"),
        ("refill", "rate", "1"),
        ("period", "duration", "1s"),
    ],
    "LEAKYBUCKET": [
        ("capacity", "amount", "10"),
        ("leak", "rate", "1"),
        ("period", "duration", "1s"),
    ],
    "FIXED": [("limit", "amount", "10"), ("window", "duration", "60s")],
    "SLIDING": [("limit", "amount", "10"), ("window", "duration", "60s")],
    "SLIDINGLOG": [("limit", "amount", "10"), ("window", "duration", "60s")],
}

# Every way to call them: the words up to the key or the algorithm's name, and its arguments.
FORMS = {
    form: arguments
    for name, arguments in ALGORITHMS.items()
    for form in (f"RL.{name} k", f"RL.TAKE k {name}", f"RL.PEEK k {name}")
}

MUST_BE = {
    "amount": "a number from 0 to 1000000000000, such as 100",
    "rate": "a number from 0.000001 to 1000000000000, such as 100",
    "duration": "a duration from 1us to 3650d, such as 60s",
    "cost": "a number from -1000000000000 to 1000000000000, such as 1",
    "maxwait": "0 or a duration from 1us to 3650d, such as 500ms",
}
COST_WITH_UPTO = "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10"
COST_WITH_MODE = (
    "ERR cost must be a number from 0 to 1000000000000 with FORCE or MAXWAIT, such as 1"
)
# Every algorithm's name, and the leases'.
NAMES = f"{', '.join(ALGORITHMS)} or CONCURRENCY"

NO_NUMBERS = [
    *["", " ", "x", "ten", "1x", "1s", "0x10", "1,5", "1_000", "\u0661", "1/2", "1%"],
    *["1.", ".5", ".", "1.5.5", "1..5", "+1", "+", "-", "--1", "+-1", "- 1", " 1", "1 ", "1\n"],
    *["e", "e1", "1e", "1e+", "1e-", "1e1.5", "1ee1", "1E3", "1e 3", "1.e3"],
    *["nan", "NaN", "inf", "-inf", "Infinity"],
]
# In either direction: ranges are checked before anything is rounded.
TOO_MUCH = [
    *["1000000000001", "1000000000000.000001", "1000000000000.0000001", "1e13", "1e300"],
    *["18446744073709551616", "1e9223372036854775808", "1e99999999999999999999", "9" * 100],
    "1000000000000." + "0" * 100 + "1",
]
LESS_THAN_0 = ["-1", "-0.0000001", "-1e-99999999999999999999", "-1e12"]
TOO_SLOW = ["0", "0.0", "0e5", "0.0000009", "9e-7", "0.00000099999999999999"]

NO_DURATIONS = [
    *["", "s", "us", "x", "1S", "1Ms", "1MS", "1H", "1sec", "1min", "1w", "1y", "1ns", "1ss"],
    *["1 s", " 1s", "1s ", "1d2h", "1h30m", "00:01:00", "1.s", ".5s", "+1s", "1e", "1em", "1E3s"],
    *["infs", "inf", "nan", "1s\n"],
    *["-1s", "-1", "-0.5us"],
    *["3651d", "3650.0000001d", "3650.00000000000000000001d", "87600.1h", "315360000.000001"],
    *["315360000000001ms", "1e10", "1e400d", "1e99999999999999999999d", "9" * 100 + "us"],
]
NO_TIME = ["0", "0s", "0us", "0d", "0.0", "0e9", "-0"]
LESS_THAN_A_MICROSECOND = ["0.9us", "0.0000009", "1e-7", "0.0009ms", "1e-99999999999999999999d"]

REFUSED = {
    "amount": [*NO_NUMBERS, *TOO_MUCH, *LESS_THAN_0],
    "rate": [*NO_NUMBERS, *TOO_MUCH, *LESS_THAN_0, *TOO_SLOW],
    "duration": [*NO_DURATIONS, *NO_TIME, *LESS_THAN_A_MICROSECOND],
    "cost": [*NO_NUMBERS, *TOO_MUCH, *(f"-{much}" for much in TOO_MUCH), "-.5", "-1.", "-+1"],
    "maxwait": [*NO_DURATIONS, *LESS_THAN_A_MICROSECOND],
}


def answer(redis: Redis, *words: str) -> object:
    """The reply, or an error as it stands on the wire."""
    try:
        return redis.execute_command(*words)
    except ResponseError as error:
        return f"{error.status_code} {error}"


def valid(form: str) -> list[str]:
    return [*form.split(), *(value for _, _, value in FORMS[form])]


def wrong_arity(words: list[str]) -> str:
    # Servers differ in whether they tell the name in lower case or as it was sent.
    return f"ERR wrong number of arguments for '{words[0].lower()}' command"


# Arguments


@pytest.mark.parametrize("form", FORMS)
def test_an_argument_is_refused_by_its_name(redis, form):
    for position, (name, kind, _) in enumerate(FORMS[form], start=len(form.split())):
        words = valid(form)
        answers = {}
        for value in REFUSED[kind]:
            words[position] = value
            answers[value] = answer(redis, *words)
        assert answers == dict.fromkeys(answers, f"ERR {name} must be {MUST_BE[kind]}")


@pytest.mark.parametrize("form", FORMS)
def test_a_cost_is_refused(redis, form):
    answers = {value: answer(redis, *valid(form), "COST", value) for value in REFUSED["cost"]}
    assert answers == dict.fromkeys(answers, f"ERR cost must be {MUST_BE['cost']}")


@pytest.mark.parametrize("form", [form for form in FORMS if "TOKENBUCKET" in form])
def test_a_maxwait_is_refused(redis, form):
    answers = {value: answer(redis, *valid(form), "MAXWAIT", value) for value in REFUSED["maxwait"]}
    assert answers == dict.fromkeys(answers, f"ERR maxwait must be {MUST_BE['maxwait']}")


@pytest.mark.parametrize(
    ("number", "whole_units"),
    [
        ("0", 0),
        ("0.0", 0),
        ("1", 1),
        ("007", 7),
        ("0007.5000", 7),
        ("1.999999", 1),
        # A limit rounds down.
        ("1.9999999", 1),
        ("0.0000001", 0),
        ("1e-99999999999999999999", 0),
        ("0e99999999999999999999", 0),
        ("1e3", 1000),
        ("1e+3", 1000),
        ("1e003", 1000),
        ("12345e-2", 123),
        ("0.00000000000000000000000000005e30", 50),
        ("1" + "0" * 100 + "e-95", 100_000),
        ("4294967296", 2**32),
        ("999999999999.999999", 999_999_999_999),
        ("1000000000000", 10**12),
        ("1000000000000.0000000000", 10**12),
        ("1e12", 10**12),
        ("0.001e15", 10**12),
    ],
)
def test_a_number_is_digits_with_a_fraction_and_an_exponent(redis, number, whole_units):
    assert answer(redis, "RL.FIXED", "k", number, "1s", "COST", "0")[1] == whole_units
    assert answer(redis, "RL.SLIDING", "k", number, "1s", "COST", "0")[1] == whole_units
    assert answer(redis, "RL.TOKENBUCKET", "k", number, "1e12", "1s", "COST", "0")[1] == whole_units


@pytest.mark.parametrize(
    ("duration", "us"),
    [
        ("1us", 1),
        ("0.0000010", 1),
        ("1e-6s", 1),
        # Rounded up to whole microseconds.
        ("1.1us", 2),
        ("0.0000011", 2),
        ("0.0010001ms", 2),
        ("1.0000000000000000000001us", 2),
        ("100ms", 100_000),
        ("0.5", 500_000),
        ("1", 1_000_000),
        ("1s", 1_000_000),
        ("1e3ms", 1_000_000),
        ("60", 60_000_000),
        ("1m", 60_000_000),
        ("1.5h", 5_400_000_000),
        ("1d", 86_400_000_000),
        ("0.1d", 8_640_000_000),
        ("3650d", 3650 * 86_400_000_000),
        ("87600h", 3650 * 86_400_000_000),
        ("315360000", 3650 * 86_400_000_000),
    ],
)
def test_a_duration_is_a_number_with_a_unit_or_of_seconds(redis, clock, duration, us):
    assert answer(redis, "RL.FIXED", "k", "1", duration) == [1, 1, 0, 0, -(-us // 1000)]
    clock.advance(us - 1)
    assert answer(redis, "RL.FIXED", "k", "1", duration) == [0, 1, 0, 1, 1]
    clock.advance(1)
    assert answer(redis, "RL.FIXED", "k", "1", duration)[0] == 1


@pytest.mark.parametrize(
    ("cost", "remaining"),
    [
        ("0", 5),
        ("-0", 5),
        ("-0.0", 5),
        ("-0e5", 5),
        ("1.5", 3),
        ("5e0", 0),
        # A cost rounds up, a give-back down.
        ("0.0000001", 4),
        ("4.9999999", 0),
        ("-0.9999999", 5),
        ("-1", 6),
        ("-1e-99999999999999999999", 5),
        ("-1e12", 10),
    ],
)
def test_a_cost_may_be_negative(redis, cost, remaining):
    answer(redis, "RL.FIXED", "k", "10", "60s", "COST", "5")
    assert answer(redis, "RL.FIXED", "k", "10", "60s", "COST", cost)[2] == remaining


@pytest.mark.parametrize("algorithm", ["TOKENBUCKET", "LEAKYBUCKET"])
@pytest.mark.parametrize("command", ["RL.{} k", "RL.TAKE k {}", "RL.PEEK k {}"])
def test_a_refill_that_takes_more_than_36500d_for_the_capacity_is_refused(
    redis, algorithm, command
):
    words = command.format(algorithm).split()
    rate = ALGORITHMS[algorithm][1][0]
    too_slow = [
        "36500.000001 1 1d",
        "36501 1 24h",
        "36500 0.999999 1d",
        "10.000001 1 3650d",
        "1e12 1 1s",
        "1e12 0.000001 3650d",
    ]
    enough = ["36500 1 1d", "10 1 3650d", "0 0.000001 3650d", "1e12 1e11 3650d"]
    answers = {limit: answer(redis, *words, *limit.split()) for limit in too_slow}
    must_be = "enough to refill the capacity within 36500d, such as the capacity itself"
    assert answers == dict.fromkeys(answers, f"ERR {rate} must be {must_be}")
    # So it is, however slow the capacity is and long the period.
    for limit in ["1e12 1e12 3650d", "0.000001 0.000001 3650d"]:
        assert isinstance(answer(redis, *words, *limit.split()), list), limit
    for limit in enough:
        assert isinstance(answer(redis, *words, *limit.split()), list), limit


# Options


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("RL.TOKENBUCKET k 10 1 1s", ["COST 12", "FORCE"]),
        ("RL.TOKENBUCKET k 10 1 1s", ["COST 12", "UPTO"]),
        ("RL.TOKENBUCKET k 10 1 1s", ["COST 7", "MAXWAIT 5s"]),
        ("RL.LEAKYBUCKET k 10 1 1s", ["COST 12", "FORCE"]),
        ("RL.FIXED k 10 60s", ["ALIGNED", "COST 12", "UPTO"]),
        ("RL.FIXED k 10 60s", ["ALIGNED", "COST 12", "FORCE"]),
        ("RL.FIXED k 10 60s", ["ALIGNED", "COST -1"]),
        ("RL.SLIDING k 10 60s", ["STRICT", "COST 12", "UPTO"]),
        ("RL.SLIDING k 10 60s", ["STRICT", "COST 12", "FORCE"]),
        ("RL.SLIDINGLOG k 10 60s", ["COST 12", "FORCE"]),
        ("RL.TAKE k FIXED 10 60s", ["ALIGNED", "COST 12", "FORCE"]),
        ("RL.PEEK k SLIDING 10 60s", ["STRICT", "COST 12", "UPTO"]),
    ],
)
def test_options_come_in_any_order_and_any_case(redis, command, options):
    def called(line: str) -> tuple[object, object]:
        redis.delete("k")
        redis.execute_command(command, *(["STRICT"] if "STRICT" in line.upper() else []))
        return redis.execute_command(line), redis.dump("k")

    expected = called(f"{command} {' '.join(options)}")
    for order in permutations(options):
        for spell in (str.upper, str.lower, str.title, str.swapcase):
            # A unit is lower case.
            words = [
                word if word.endswith("5s") else spell(word) for word in " ".join(order).split()
            ]
            assert called(f"{command} {' '.join(words)}") == expected


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("RL.TOKENBUCKET k 10 1 1s 5", "5"),
        ("RL.TOKENBUCKET k 10 1 1s COST 1 FOO", "FOO"),
        ("RL.TOKENBUCKET k 10 1 1s CO", "CO"),
        ("RL.TOKENBUCKET k 10 1 1s COSTS 1", "COSTS"),
        ("RL.TOKENBUCKET k 10 1 1s ALIGNED", "ALIGNED"),
        ("RL.TOKENBUCKET k 10 1 1s STRICT", "STRICT"),
        ("RL.LEAKYBUCKET k 10 1 1s MAXWAIT 1s", "MAXWAIT"),
        ("RL.FIXED k 10 60s STRICT", "STRICT"),
        ("RL.FIXED k 10 60s MAXWAIT 1s", "MAXWAIT"),
        ("RL.SLIDING k 10 60s ALIGNED", "ALIGNED"),
        ("RL.SLIDING k 10 60s MAXWAIT 1s", "MAXWAIT"),
        ("RL.SLIDING k 10 60s STRICT MAXWAIT 1s", "MAXWAIT"),
        ("RL.SLIDINGLOG k 10 60s STRICT", "STRICT"),
        ("RL.SLIDINGLOG k 10 60s MAXWAIT 1s", "MAXWAIT"),
        # Twice
        ("RL.TOKENBUCKET k 10 1 1s COST 1 COST 1", "COST"),
        ("RL.TOKENBUCKET k 10 1 1s cost 1 UPTO cost 1", "cost"),
        ("RL.TOKENBUCKET k 10 1 1s UPTO UPTO", "UPTO"),
        ("RL.TOKENBUCKET k 10 1 1s FORCE COST 1 force", "force"),
        ("RL.TOKENBUCKET k 10 1 1s MAXWAIT 1s MAXWAIT 1s", "MAXWAIT"),
        ("RL.FIXED k 10 60s ALIGNED COST 1 Aligned", "Aligned"),
        ("RL.SLIDING k 10 60s STRICT STRICT", "STRICT"),
        ("RL.SLIDINGLOG k 10 60s COST 1 COST 1", "COST"),
        # Two of which there may be one
        ("RL.TOKENBUCKET k 10 1 1s UPTO FORCE", "FORCE"),
        ("RL.TOKENBUCKET k 10 1 1s FORCE UPTO", "UPTO"),
        ("RL.TOKENBUCKET k 10 1 1s UPTO MAXWAIT 1s", "MAXWAIT"),
        ("RL.TOKENBUCKET k 10 1 1s MAXWAIT 1s COST 1 FORCE", "FORCE"),
        ("RL.LEAKYBUCKET k 10 1 1s UPTO FORCE", "FORCE"),
        ("RL.FIXED k 10 60s UPTO ALIGNED FORCE", "FORCE"),
        ("RL.SLIDING k 10 60s FORCE STRICT UPTO", "UPTO"),
        ("RL.SLIDINGLOG k 10 60s FORCE UPTO", "UPTO"),
    ],
)
def test_a_word_out_of_place_is_a_syntax_error(redis, line, word):
    command, _, words = line.removeprefix("RL.").partition(" k ")
    expected = f"ERR syntax error, unexpected '{word}'"
    assert answer(redis, line) == expected
    assert answer(redis, f"RL.TAKE k {command} {words}") == expected
    assert answer(redis, f"RL.PEEK k {command} {words}") == expected


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("NOSUCH 10 60s", "NOSUCH"),
        ("RL.FIXED 10 60s", "RL.FIXED"),
        ("THROTTLE 10 10 60", "THROTTLE"),
        ("FIXE 10 60s", "FIXE"),
        ("STRICT 10 60s", "STRICT"),
        ("10 FIXED 60s", "10"),
    ],
)
@pytest.mark.parametrize("command", ["RL.TAKE", "RL.PEEK"])
def test_an_unknown_algorithm_is_answered_with_those_that_there_are(redis, command, spec, word):
    expected = f"ERR syntax error, unexpected '{word}', where an algorithm is needed: {NAMES}"
    assert answer(redis, f"{command} k {spec}") == expected


@pytest.mark.parametrize("command", ["RL.TAKE", "RL.PEEK"])
def test_a_second_spec_is_a_syntax_error(redis, command):
    expected = "ERR syntax error, unexpected 'FIXED'"
    assert answer(redis, f"{command} k FIXED 10 60s FIXED 10 60s") == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_cost_upto_which_is_granted_is_a_whole_number_from_1(redis, form):
    costs = ["0", "-0", "0.5", "1.5", "0.0000001", "1.000001", "1.0000001", "-1", "-0.0000001"]
    answers = {cost: answer(redis, *valid(form), "COST", cost, "UPTO") for cost in costs}
    assert answers == dict.fromkeys(answers, COST_WITH_UPTO)
    for cost in ["1", "1.0", "1e0", "10e-1", "1000000000000"]:
        assert len(answer(redis, *valid(form), "UPTO", "COST", cost)) == 6


@pytest.mark.parametrize("cost", ["0.9999999", "1.9999999", "0.99999999999999999999"])
def test_a_cost_upto_which_is_granted_is_checked_before_it_is_rounded(redis, cost):
    assert answer(redis, "RL.FIXED", "k", "10", "60s", "COST", cost, "UPTO") == COST_WITH_UPTO


@pytest.mark.parametrize("form", FORMS)
def test_a_give_back_has_no_other_option(redis, form):
    options = [["FORCE"], ["MAXWAIT", "1s"]] if "TOKENBUCKET" in form else [["FORCE"]]
    for option in options:
        for cost in ["-1", "-0.0000001", "-1e12"]:
            for words in (["COST", cost, *option], [*option, "COST", cost]):
                assert answer(redis, *valid(form), *words) == COST_WITH_MODE
        assert answer(redis, *valid(form), "COST", "-0", *option)[0] == 1


# Missing words


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("option", ["COST", "MAXWAIT"])
def test_missing_words_are_a_wrong_number_of_arguments(redis, form, option):
    words = [word.lower() for word in valid(form)]
    for length in range(1, len(words)):
        assert answer(redis, *words[:length]) == wrong_arity(words)
    if option == "COST" or "TOKENBUCKET" in form:
        assert answer(redis, *words, option) == wrong_arity(words)


# Nothing is written when there is an error


def refused_calls() -> list[list[str]]:
    calls = []
    for form, arguments in FORMS.items():
        words = valid(form)
        calls += [words[:length] for length in range(1, len(words))]
        for position, (_, kind, _) in enumerate(arguments, start=len(form.split())):
            for value in REFUSED[kind]:
                calls.append([*words[:position], value, *words[position + 1 :]])
        for options in [
            *(
                f"COST {cost}"
                for cost in ("x", "1e13", "+1", ".5", "-1 FORCE", "0.5 UPTO", "-1 UPTO")
            ),
            *("COST", "FOO", "FORCE FOO", "COST 1 COST 1", "UPTO FORCE", "COST 1 FORCE 1"),
        ]:
            calls.append([*words, *options.split()])
    return calls


@pytest.mark.parametrize("exists", [False, True])
def test_nothing_is_written_when_there_is_an_error(pair, exists):
    with pair.primary.client() as redis:
        if exists:
            redis.execute_command("RL.TOKENBUCKET k 10 1 1h")

        def state() -> tuple[object, ...]:
            value = redis.dump("k"), redis.pttl("k"), redis.dbsize()
            return *value, redis.info("replication")["master_repl_offset"]

        before = state()
        assert before[2] == exists
        for words in refused_calls():
            assert str(answer(redis, *words)).startswith("ERR "), words
        assert state() == before
