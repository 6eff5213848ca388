"""64 clients on one key are granted exactly what the arithmetic allows, at every moment."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock

import pytest
from redis import Redis

from support.clock import START_US

CLIENTS = 64
LIMITS = [
    "RL.TOKENBUCKET hot 10 10 1s",
    "RL.TAKE hot TOKENBUCKET 10 10 1s",
    "RL.LEAKYBUCKET hot 10 10 1s",
]


@pytest.fixture
def clients(server) -> Iterator[list[Redis]]:
    with ExitStack() as connected:
        clients = [connected.enter_context(server.client()) for _ in range(CLIENTS)]
        assert len({client.client_id() for client in clients}) == CLIENTS
        yield clients


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CLIENTS) as threads:
        yield threads


@pytest.mark.parametrize("limit", LIMITS)
def test_at_every_moment_exactly_the_burst_and_the_refill_are_admitted(
    clients, threads, clock, limit
):
    admitted, expected = [], []
    for now_ms in range(0, 3001, 50):
        clock.set(START_US + now_ms * 1000)
        replies = threads.map(lambda client: client.execute_command(limit), clients)
        admitted.append(sum(reply[0] for reply in replies))
        expected.append(10 + now_ms // 100)
    assert [sum(admitted[: i + 1]) for i in range(len(admitted))] == expected
    assert sum(admitted) == 10 + 30


@pytest.mark.parametrize("limit", LIMITS)
def test_the_limit_holds_while_the_clock_moves(clients, threads, clock, limit):
    clock_lock = Lock()
    end = START_US + 3_000_000

    def run(client: Redis) -> int:
        admitted = 0
        while True:
            at_the_end = clock.now == end
            allowed = client.execute_command(limit)[0]
            admitted += allowed
            if at_the_end and not allowed:
                return admitted
            with clock_lock:
                if clock.now < end:
                    clock.advance("1ms")

    assert sum(threads.map(run, clients)) == 10 + 30


def test_units_taken_and_returned_in_batches_add_up(clients, threads):
    def run(client: Redis) -> int:
        granted = client.execute_command("RL.TOKENBUCKET hot 10000 1 1s COST 250 UPTO")[5]
        for _ in range(granted % 7):
            client.execute_command("RL.TOKENBUCKET hot 10000 1 1s COST -3")
            granted -= 3
            granted += client.execute_command("RL.TOKENBUCKET hot 10000 1 1s COST 2 UPTO")[5]
        return granted

    granted = sum(threads.map(run, clients))
    remaining = clients[0].execute_command("RL.PEEK hot TOKENBUCKET 10000 1 1s COST 0")[2]
    assert granted + remaining == 10_000
