"""Subscribers get an event `rl.take` for a charge, and `del` or `expired` for a key that is
removed.
"""

from collections.abc import Callable, Iterator

import pytest
from redis import Redis
from redis.client import PubSub

from support import poll
from support.binaries import NO_MODULE_CONFIG
from support.clock import START_US, Clock
from support.server import Server
from support.workload import LIMITERS, Limiter, Word, each_limiter

pytestmark = pytest.mark.every_server

NewEvents = Callable[[], list[tuple[str, str]]]


@pytest.fixture
def own_server(fresh_server: Callable[..., Server]) -> Server:
    return fresh_server()


@pytest.fixture
def client(own_server: Server) -> Redis:
    return own_server.client()


@pytest.fixture
def new_events(own_server: Server, client: Redis) -> Iterator[NewEvents]:
    """Subscribes to all classes of events. Returns a function that returns the key and the event of
    all events since its last call.
    """
    with own_server.client(decode_responses=True).pubsub() as subscriber:
        subscriber.psubscribe("__keyspace@0__:*", "end")
        messages(subscriber, 2)
        client.config_set("notify-keyspace-events", "KA")

        def new_events() -> list[tuple[str, str]]:
            client.publish("end", "")
            found = []
            while True:
                (message,) = messages(subscriber, 1)
                if message["channel"] == "end":
                    return found
                found.append((message["channel"].split(":", 1)[1], message["data"]))

        yield new_events


def messages(subscriber: PubSub, count: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []

    def receive() -> bool:
        message = subscriber.get_message(timeout=1)
        if message is not None:
            found.append(message)
        return len(found) == count

    poll.until(receive, "the subscriber has the event")
    return found


@each_limiter
def test_a_charge_sends_an_rl_take_event(
    limiter: Limiter, client: Redis, new_events: NewEvents
) -> None:
    client.execute_command(*limiter.take("k", 3))
    assert new_events() == [("k", "rl.take")]
    client.execute_command(*limiter.for_holder("other").take("k", 3))
    assert new_events() == [("k", "rl.take")]
    client.execute_command("RL.TAKE", "k", *limiter.for_holder("third").words(3))
    assert new_events() == [("k", "rl.take")]


@each_limiter
def test_calls_without_change_send_no_event(
    limiter: Limiter, client: Redis, new_events: NewEvents
) -> None:
    client.execute_command(*limiter.take("k", 7))
    new_events()
    other = limiter.for_holder("other")
    calls: list[tuple[Word, ...]] = [
        other.take("k", 4),
        other.take("k", 11),
        other.take("missing", 11),
        other.peek("k"),
        other.peek("missing"),
        ("RL.MTAKE", 2, "k", "missing", *other.words(1), "FIXED", 0, "1h"),
        ("RL.MPEEK", 1, "k", *other.words(1)),
        ("RL.INFO", "k"),
        limiter.give_back("missing"),
    ]
    if limiter.has_leases:
        calls += [("RL.RELEASE", "k", "nobody")]
    else:
        calls += [limiter.take("k", 0), limiter.take("k", 0, "FORCE")]
    for call in calls:
        client.execute_command(*call)
        assert new_events() == [], call


@each_limiter
def test_a_give_back_sends_rl_take_and_the_last_one_del(
    limiter: Limiter, client: Redis, new_events: NewEvents
) -> None:
    client.execute_command(*limiter.take("k", 3))
    client.execute_command(*limiter.for_holder("other").take("k", 3))
    new_events()
    client.execute_command(*limiter.give_back("k", 3))
    assert new_events() == [("k", "rl.take")]
    client.execute_command(*limiter.for_holder("other").give_back("k", 3))
    assert new_events() == [("k", "del")]
    assert not client.exists("k")


def test_a_call_over_several_keys_sends_an_event_for_each_charged_key(
    client: Redis, new_events: NewEvents
) -> None:
    names = [limiter.name for limiter in LIMITERS]
    specs = [word for limiter in LIMITERS for word in limiter.words(1)]
    client.execute_command("RL.MTAKE", len(names), *names, *specs)
    assert sorted(new_events()) == sorted((name, "rl.take") for name in names)
    specs = ["FIXED", 10, "1h", "COST", 0, "SLIDINGLOG", 10, "1h", "SLIDINGLOG", 9, "1h"]
    client.execute_command("RL.MTAKE", 3, "FIXED", "SLIDINGLOG", "new", *specs)
    assert sorted(new_events()) == [("SLIDINGLOG", "rl.take"), ("new", "rl.take")]


@each_limiter
def test_a_key_that_expires_sends_an_expired_event(
    limiter: Limiter, client: Redis, new_events: NewEvents, clock: Clock
) -> None:
    client.execute_command(*limiter.take("k", 3))
    new_events()
    clock.advance("3h")
    poll.until(lambda: client.dbsize() == 0, "the key has expired")
    assert new_events() == [("k", "expired")]


@each_limiter
def test_a_denied_call_that_writes_a_step_back_sends_an_event(
    limiter: Limiter, client: Redis, new_events: NewEvents, clock: Clock
) -> None:
    client.execute_command(*limiter.take("k", 7))
    new_events()
    clock.advance("-1h")
    client.execute_command(*limiter.for_holder("other").peek("k", 4))
    assert new_events() == []
    client.execute_command(*limiter.for_holder("other").take("k", 4))
    assert new_events() == [("k", "rl.take")]


# Events of calls on a plain key of which 7 of 10 units are used.
EVENTS = {
    "RL.TAKE k FIXED 10 1h FIXED 10 1m": ["del", "rl.take"],
    "RL.FIXED k 10 1h ONCE id 1h": ["del", "rl.take"],
    "RL.BAN k 1h": ["del", "rl.take"],
    "RL.TAKE k COST 4 FIXED 10 1h FIXED 10 1m": [],
    "RL.TAKE k COST 4 FIXED 10 1h BAN 3 1m 1h": ["del", "rl.take"],
    "RL.TAKE k FIXED 10 1h SETTLE id 1": [],
    "RL.BAN k 0": [],
}


@pytest.mark.parametrize("call", EVENTS)
def test_a_converted_plain_key_sends_del_and_rl_take_events(
    call: str, client: Redis, new_events: NewEvents
) -> None:
    client.execute_command("RL.FIXED", "k", 10, "1h", "COST", 7)
    new_events()
    client.execute_command(*call.split())
    assert new_events() == [("k", event) for event in EVENTS[call]]


def test_only_changes_of_a_key_with_several_limits_send_events(
    client: Redis, new_events: NewEvents
) -> None:
    for call, events in {
        "RL.TAKE k COST 3 ONCE id 1h FIXED 10 1h SLIDING 10 1h": ["rl.take"],
        "RL.FIXED k 10 1h ONCE id 1h": [],
        "RL.FIXED k 10 1h SETTLE id 2": ["rl.take"],
        "RL.FIXED k 10 1h SETTLE id 1": [],
        "RL.FIXED k 10 1h SETTLE other 1": [],
        "RL.TAKE k COST 10 FIXED 10 1h BAN 2 1m 1h": ["rl.take"],
        "RL.BAN k 1m": ["rl.take"],
        "RL.BAN k 1s": [],
        "RL.FIXED k 10 1h": [],
        "RL.BAN k 0": ["rl.take"],
    }.items():
        client.execute_command(*call.split())
        assert new_events() == [("k", event) for event in events], call


def test_an_effect_sends_the_events_of_its_call(client: Redis, new_events: NewEvents) -> None:
    client.execute_command("RL.EFFECT", "k", f"rl-bucket 1 1800000000000 5 {START_US}")
    assert new_events() == [("k", "rl.take")]
    client.execute_command("RL.EFFECT", "k", "rl-bucket del")
    assert new_events() == [("k", "del")]
    client.execute_command("RL.EFFECT", "k", "rl-bucket del")
    assert new_events() == []


@pytest.fixture
def denials_are_events(client: Redis, own_server: Server) -> None:
    if not own_server.binary.has_module_config:
        pytest.skip(NO_MODULE_CONFIG)
    client.config_set("ratelimit.denial-events", "yes")


@pytest.mark.usefixtures("denials_are_events")
@each_limiter
def test_a_denial_sends_an_rl_denied_event_if_enabled(
    limiter: Limiter, client: Redis, new_events: NewEvents
) -> None:
    client.execute_command(*limiter.take("k", 7))
    new_events()
    other = limiter.for_holder("other")
    for call in [other.take("k", 4), other.take("k", 11), ("RL.TAKE", "k", *other.words(4))]:
        client.execute_command(*call)
        assert new_events() == [("k", "rl.denied")], call
    client.execute_command(*other.take("missing", 11))
    assert new_events() == [("missing", "rl.denied")]
    client.execute_command(*other.peek("k", 4))
    client.execute_command(*other.take("k", 1))
    assert new_events() == [("k", "rl.take")]
    client.config_set("ratelimit.denial-events", "no")
    client.execute_command(*other.take("k", 11))
    assert new_events() == []


@pytest.mark.usefixtures("denials_are_events")
def test_denial_events_name_the_keys_that_denied(client: Redis, new_events: NewEvents) -> None:
    specs = ["FIXED", 1, "1h", "FIXED", 0, "1h", "SLIDINGLOG", 0, "1h"]
    client.execute_command("RL.MTAKE", 3, "a", "b", "c", *specs)
    assert new_events() == [("b", "rl.denied"), ("c", "rl.denied")]
    client.execute_command("RL.THROTTLE", "k", 0, 1, 3600, 2)
    assert new_events() == [("k", "rl.denied")]


def test_denial_events_may_be_an_argument_of_the_module(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(module_args="denial-events yes", notify_keyspace_events="Kd")
    with server.client(decode_responses=True).pubsub() as subscriber:
        subscriber.psubscribe("__keyspace@0__:*")
        messages(subscriber, 1)
        server.client().execute_command("RL.FIXED", "k", 0, "1h")
        assert [message["data"] for message in messages(subscriber, 1)] == ["rl.denied"]


def test_a_throttle_call_sends_an_event_if_it_charges(client: Redis, new_events: NewEvents) -> None:
    client.execute_command("RL.THROTTLE", "k", 2, 1, 3600, 3)
    assert new_events() == [("k", "rl.take")]
    client.execute_command("RL.THROTTLE", "k", 2, 1, 3600)
    client.execute_command("RL.THROTTLE", "k", 2, 1, 3600, 0)
    assert new_events() == []


@pytest.mark.parametrize(
    ("classes", "expected"),
    [("Kd", ["rl.take"]), ("Kg", ["del"]), ("KA", ["rl.take", "del"]), ("", [])],
)
def test_charges_are_module_events_and_deletions_generic_ones(
    classes: str, expected: list[str], client: Redis, new_events: NewEvents
) -> None:
    client.config_set("notify-keyspace-events", classes)
    client.execute_command("RL.FIXED", "k", 10, "1h")
    client.execute_command("RL.FIXED", "k", 10, "1h", "COST", -1)
    assert [event for _, event in new_events()] == expected


def test_a_replica_sends_events_to_its_own_subscribers(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server()
    replica = primary.replica()
    replica.client().config_set("notify-keyspace-events", "KA")
    with replica.client(decode_responses=True).pubsub() as subscriber:
        subscriber.psubscribe("__keyspace@0__:*")
        messages(subscriber, 1)
        primary.client().execute_command("RL.FIXED", "k", 10, "1h")
        primary.client().execute_command("RL.FIXED", "k", 10, "1h", "COST", -1)
        assert [message["data"] for message in messages(subscriber, 2)] == ["rl.take", "del"]
