"""Steps of the controller, and errors in its loop."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from controller import Controller, query_prometheus, run
from redis import Redis
from redis_ratelimit import Limiter
from simulation import LIMIT, POLICY, TIMEOUT

from support.clock import Clock


@pytest.fixture
def controller(redis: Redis, clock: Clock) -> Iterator[Controller]:  # noqa: ARG001
    with Limiter(redis, timeout=TIMEOUT) as limiter:
        limiter.policies.set(POLICY, LIMIT)
        yield Controller(limiter, POLICY, target_ms=500)


def test_step_multiplies_the_scale_above_the_target_and_adds_below(controller: Controller) -> None:
    assert controller.step(501) == pytest.approx(0.7)
    assert controller.step(501) == pytest.approx(0.49)
    assert controller.step(500) == pytest.approx(0.54)
    assert controller.scale() == pytest.approx(0.54)


def test_scale_stays_between_the_minimum_and_1(
    controller: Controller,
) -> None:
    assert controller.step(100) == 1
    for _ in range(20):
        scale = controller.step(float("inf"))
    assert scale == controller.min_scale == controller.scale()


def test_restarted_controller_continues_from_the_current_scale(controller: Controller) -> None:
    controller.step(501)
    another = Controller(controller.limiter, POLICY, target_ms=500)
    assert another.step(501) == pytest.approx(0.49)


def test_two_controllers_of_a_policy_make_one_step(controller: Controller, clock: Clock) -> None:
    pair = [Controller(controller.limiter, POLICY, target_ms=500, every=0.9) for _ in range(2)]
    for scale in (0.7, 0.49):
        assert [one.step(501) for one in pair] == pytest.approx([scale, scale])
        clock.advance("1s")
    assert [one.step(500) for one in pair] == pytest.approx([0.54, 0.54])


def test_scale_expires_without_a_latency(controller: Controller, clock: Clock) -> None:
    controller.step(501)
    clock.advance("4s")
    assert controller.step(None) == pytest.approx(0.7)
    clock.advance("1s")
    assert controller.step(None) == 1


def test_controller_works_with_resp2_and_resp3(
    controller: Controller,
    server_and_clock: tuple,
    clock: Clock,  # noqa: ARG001
) -> None:
    controller.step(501)
    for protocol in (2, 3):
        for decode in (False, True):
            with (
                server_and_clock[0].client(protocol, decode_responses=decode) as client,
                Limiter(client, timeout=TIMEOUT) as limiter,
            ):
                assert Controller(limiter, POLICY, target_ms=500).scale() == pytest.approx(0.7)


class StopError(Exception):
    pass


def test_loop_continues_after_errors(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_to_connect() -> float:
        raise OSError("no route to host")

    def delete_policy() -> float:
        controller.limiter.policies.delete(POLICY)
        return 501

    def set_policy() -> float:
        controller.limiter.policies.set(POLICY, LIMIT)
        return 501

    measurements = iter([fail_to_connect, delete_policy, set_policy])

    def measure() -> float:
        return next(measurements)()

    pauses = iter([None, None, StopError])

    def pause() -> None:
        if error := next(pauses):
            raise error

    with caplog.at_level("INFO"), pytest.raises(StopError):
        run(controller, measure, pause)
    missing = f"NOPOLICY no policy '{POLICY}': set it, by RL.POLICYSET"
    assert caplog.messages == [
        "no step: no route to host",
        f"Redis refuses a call for '{POLICY}': {missing}",
        f"no step: {missing}",
        f"{POLICY} is scaled to 0.700",
    ]


@pytest.fixture
def monitoring() -> Iterator[tuple[str, list[str]]]:
    """Prometheus with the listed results. Yields its address and the list."""
    answers: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/api/v1/query?query=up+%3E+0"
            result = [{"metric": {}, "value": [1700000000, answer]} for answer in answers]
            body = json.dumps({"status": "success", "data": {"result": result}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", answers
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("results", "p99_ms"),
    [(["0.25"], 250), (["+Inf"], float("inf")), (["NaN"], None), ([], None)],
)
def test_latency_is_read_from_prometheus(
    monitoring: tuple[str, list[str]], results: list[str], p99_ms: float | None
) -> None:
    url, answers = monitoring
    answers += results
    assert query_prometheus(url, "up > 0") == p99_ms
