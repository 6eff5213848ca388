"""A call with wrong arguments gets a precise error and changes nothing.

core/src/syntax/tests.rs specifies which arguments are wrong.
"""

import pytest
from redis import Redis, ResponseError

pytestmark = pytest.mark.every_server

# Every algorithm's positional arguments: name in the syntax line, type, and a valid value.
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
    "FIXED": [("limit", "amount", "10"), ("window", "window", "60s")],
    "SLIDING": [("limit", "amount", "10"), ("window", "duration", "60s")],
    "SLIDINGLOG": [("limit", "amount", "10"), ("window", "duration", "60s")],
}

# Every form of call: its words before the positional arguments of the algorithm, and these.
FORMS = {
    form: arguments
    for name, arguments in ALGORITHMS.items()
    for form in (f"RL.{name} k", f"RL.TAKE k {name}", f"RL.PEEK k {name}")
}

# Error texts by type: for a malformed value, and for one out of range.
MUST_BE = {
    "amount": ("a number such as 100", "a number from 0 to 1000000000000, such as 100"),
    "rate": ("a number such as 100", "a number from 0.000001 to 1000000000000, such as 100"),
    "duration": ("a duration such as 60s", "a duration from 1us to 3650d, such as 60s"),
    "cost": ("a number such as 1", "a number from -1000000000000 to 1000000000000, such as 1"),
    "maxwait": (
        "0 or a duration such as 500ms",
        "0 or a duration from 1us to 3650d, such as 500ms",
    ),
}
MUST_BE["window"] = MUST_BE["duration"]
CALENDAR = "a duration from 1us to 3650d, or with ALIGNED 1w, 1mo, 3mo or 1y, such as 60s"
UNITS = " (units: us ms s m h d)"
# Names of all algorithms, and of leases.
NAMES = f"{', '.join(ALGORITHMS)}, CONCURRENCY or SKETCH"
OPTIONS = "COST, UPTO, FORCE, MAXWAIT, KEEP, ONCE, SETTLE or EACH"


# Malformed values for each type of argument.
REFUSED = {
    "amount": ["x", "1000000000001", "-1"],
    "rate": ["x", "1000000000001", "-1", "0"],
    "duration": ["x", "3651d", "-1s", "0"],
    "window": ["x", "3651d", "-1s", "0", "2w", "1mo"],
    "cost": ["x", "1000000000001", "-1000000000001"],
    "maxwait": ["x", "3651d", "-1s"],
}


def answer(redis: Redis, *words: str) -> object:
    """Returns the reply, or an error as it stands on the wire."""
    try:
        return redis.execute_command(*words)
    except ResponseError as error:
        return f"{error.status_code} {error}"


def refused(name: str, kind: str, value: str) -> str:
    """Returns the error for a value of that type, without the hint at the end of errors in a
    spec.
    """
    malformed, out_of_range = MUST_BE[kind]
    if value in ("2w", "1mo"):
        missing = " (ALIGNED is missing)" if value == "1mo" else ""
        return f"ERR {name} must be {CALENDAR}, not '{value}'{missing}"
    if value != "x":
        return f"ERR {name} must be {out_of_range}, not '{value}'"
    units = UNITS if kind in ("duration", "window", "maxwait") else ""
    return f"ERR {name} must be {malformed}, not 'x'{units}"


def valid(form: str) -> list[str]:
    return [*form.split(), *(value for _, _, value in FORMS[form])]


def wrong_arity(words: list[str]) -> str:
    # Some servers show the name in lower case, others as it was sent.
    return f"ERR wrong number of arguments for '{words[0].lower()}' command"


# Arguments


@pytest.mark.parametrize("form", FORMS)
def test_error_of_an_invalid_argument_has_its_name(redis, form):
    for position, (name, kind, _) in enumerate(FORMS[form], start=len(form.split())):
        words = valid(form)
        answers = {}
        for value in REFUSED[kind]:
            words[position] = value
            answers[value] = answer(redis, *words)
        expected = {value: refused(name, kind, value) for value in answers}
        if kind in ("amount", "rate"):
            # The hint: the value may be a key, or an argument of another position.
            algorithm = (
                form.split()[-1]
                if form.startswith(("RL.TAKE", "RL.PEEK"))
                else form.split()[0].removeprefix("RL.")
            )
            order = " ".join(argument for argument, _, _ in FORMS[form])
            may_be_a_key = position == len(form.split()) and form.startswith(("RL.TAKE", "RL.PEEK"))
            expected["x"] += (
                f" ({algorithm} {order}, with no key between)"
                if may_be_a_key
                else f" (the order is {order})"
            )
        assert answers == expected


@pytest.mark.parametrize("form", FORMS)
def test_invalid_cost_is_refused(redis, form):
    answers = {value: answer(redis, *valid(form), "COST", value) for value in REFUSED["cost"]}
    assert answers == {value: refused("cost", "cost", value) for value in answers}


@pytest.mark.parametrize("form", [form for form in FORMS if "TOKENBUCKET" in form])
def test_invalid_maxwait_is_refused(redis, form):
    answers = {value: answer(redis, *valid(form), "MAXWAIT", value) for value in REFUSED["maxwait"]}
    assert answers == {value: refused("maxwait", "maxwait", value) for value in answers}


# Options


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("RL.FIXED k 10 60s ALIGNED COST 1 Aligned", "Aligned"),
        ("RL.SLIDING k 10 60s FORCE STRICT UPTO", "UPTO"),
    ],
)
def test_a_surplus_argument_is_a_syntax_error(redis, line, word):
    command, _, words = line.removeprefix("RL.").partition(" k ")
    for call in (line, f"RL.TAKE k {command} {words}", f"RL.PEEK k {command} {words}"):
        assert answer(redis, call).startswith(f"ERR syntax error, unexpected '{word}'"), call


@pytest.mark.parametrize(
    ("line", "word", "options"),
    [
        (
            "RL.TOKENBUCKET k 10 1 1s COST 1 FOO",
            "FOO",
            "COST, UPTO, FORCE, MAXWAIT, KEEP, AS, ONCE or SETTLE",
        ),
        (
            "RL.LEAKYBUCKET k 10 1 1s MAXWAIT 1s",
            "MAXWAIT",
            "COST, UPTO, FORCE, KEEP, AS, ONCE or SETTLE",
        ),
        (
            "RL.SLIDINGLOG k 10 60s STRICT",
            "STRICT",
            "COST, UPTO, FORCE, KEEP, AS, ONCE or SETTLE",
        ),
    ],
)
def test_error_of_a_misplaced_argument_lists_the_possible_options(redis, line, word, options):
    command, _, words = line.removeprefix("RL.").partition(" k ")
    unexpected = f"ERR syntax error, unexpected '{word}', where an option"
    assert answer(redis, line) == f"{unexpected} is needed: {options}"
    expected = f"{unexpected} of the spec before, BAN or an algorithm is needed: {options}; {NAMES}"
    assert answer(redis, f"RL.TAKE k {command} {words}") == expected
    assert answer(redis, f"RL.PEEK k {command} {words}") == expected


@pytest.mark.parametrize(
    ("spec", "word", "hint"),
    [
        ("NOSUCH 10 60s", "NOSUCH", "for a policy: {} key POLICY name"),
        ("RL.FIXED 10 60s", "RL.FIXED", "did you mean FIXED?"),
    ],
)
@pytest.mark.parametrize("command", ["RL.TAKE", "RL.PEEK"])
def test_error_of_an_unknown_algorithm_lists_all_algorithms(redis, command, spec, word, hint):
    needed = f"where an option, POLICY or an algorithm is needed: {OPTIONS}; {NAMES}"
    expected = f"ERR syntax error, unexpected '{word}', {needed}; {hint.format(command)}"
    assert answer(redis, f"{command} k {spec}") == expected


@pytest.mark.parametrize("command", ["RL.TAKE", "RL.PEEK"])
def test_a_second_spec_of_one_window_needs_a_name(redis, command):
    reply = answer(redis, f"{command} k FIXED 10 60s FIXED 20 60s")
    assert str(reply).startswith("ERR specs of one kind must have different windows")


# Missing words


@pytest.mark.parametrize("form", FORMS)
def test_error_of_a_missing_argument_has_its_name_unless_the_server_checks_the_arity(redis, form):
    words = [word.lower() for word in valid(form)]
    first, algorithm = len(form.split()), form.split()[-1]
    arity = 3 if form.startswith(("RL.TAKE", "RL.PEEK")) else len(words)
    syntax = f"{algorithm} {' '.join(name for name, _, _ in FORMS[form])}"
    for length in range(1, len(words)):
        reply = answer(redis, *words[:length])
        if length < arity:
            assert reply == wrong_arity(words)
        else:
            assert reply == f"ERR {FORMS[form][length - first][0]} is missing: {syntax}"
    assert answer(redis, *words, "cost") == "ERR cost is missing: COST amount"
    if "TOKENBUCKET" in form:
        assert answer(redis, *words, "maxwait") == "ERR maxwait is missing: MAXWAIT duration"


# Errors write nothing


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
