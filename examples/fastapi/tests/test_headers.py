"""Responses have the rate limit fields, whether the request is allowed or denied."""

from redis_ratelimit import Limiter, TokenBucket
from serving import ENDPOINT, IP, TIMEOUT, Serve
from traffic import ALICE, BOB, CAROL, burst, field, get

from support.server import Server

TWO_REQUESTS = {"user:{user}": TokenBucket(2, 1, "1h", name="user")}
NO_REQUESTS = {"none": TokenBucket(0, 1, name="none")}


def test_response_has_the_remaining_units_of_the_tightest_limit(serve: Serve) -> None:
    response = get(serve())
    assert response.status_code == 200
    assert response.json() == {"item": 1}
    assert response.headers["X-RateLimit-Limit"] == "120"
    assert response.headers["X-RateLimit-Remaining"] == "119"
    assert response.headers["X-RateLimit-Reset"] == "3600"
    assert "Retry-After" not in response.headers


def test_fields_of_the_ietf_draft_list_every_policy(serve: Serve) -> None:
    response = get(serve())
    assert field(response, "RateLimit-Policy") == {
        "endpoint": {"q": 10_000, "w": 36_000_000},
        "user": {"q": 120, "w": 432_000},
        "ip": {"q": 1000, "w": 36_000},
    }
    assert field(response, "RateLimit") == {
        "endpoint": {"r": 9999, "t": 3600},
        "user": {"r": 119, "t": 3600},
        "ip": {"r": 999, "t": 72_000},
    }


def test_denial_has_retry_after_and_the_violated_policy(serve: Serve) -> None:
    url = serve(limits=ENDPOINT | TWO_REQUESTS | IP)
    assert [get(url).status_code for _ in range(2)] == [200, 200]
    response = get(url)
    assert response.status_code == 429
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json()["violated-policies"] == ["user"]
    assert response.headers["X-RateLimit-Limit"] == "2"
    assert response.headers["X-RateLimit-Remaining"] == "0"
    retry_after = int(response.headers["Retry-After"])
    assert 0 < retry_after <= 3600
    # Only the denying limit has a reset; the others are not charged.
    limits = field(response, "RateLimit")
    assert limits == {"endpoint": {"r": 9998}, "user": {"r": 0, "t": retry_after}, "ip": {"r": 998}}


def test_a_denied_request_charges_no_limit(serve: Serve, server: Server) -> None:
    url = serve(limits=ENDPOINT | TWO_REQUESTS | IP)
    assert burst([url], clients=1, requests=10) == {200: 2, 429: 8}
    with server.client() as redis, Limiter(redis, timeout=TIMEOUT) as limiter:
        remaining = limiter.peek(
            "rl:{acme}:endpoint:%2Fitems", *ENDPOINT.values(), cost=0
        ).remaining
    assert remaining == 9998


def test_users_have_separate_limits(serve: Serve) -> None:
    url = serve(limits=TWO_REQUESTS)
    for headers in (ALICE, BOB, CAROL):
        assert burst([url], clients=1, requests=3, headers=headers) == {200: 2, 429: 1}


def test_a_limit_that_does_not_apply_to_the_caller_is_left_out(serve: Serve) -> None:
    response = get(serve(), headers={})
    assert set(field(response, "RateLimit")) == {"endpoint", "ip"}


def test_a_health_check_is_never_limited(serve: Serve) -> None:
    url = serve(limits=NO_REQUESTS)
    assert get(url).status_code == 429
    response = get(url, path="/health")
    assert response.status_code == 200
    assert "RateLimit" not in response.headers


def test_a_cost_that_never_fits_has_no_retry_after(serve: Serve) -> None:
    response = get(serve(limits=NO_REQUESTS))
    assert response.status_code == 429
    assert "Retry-After" not in response.headers
    assert field(response, "RateLimit") == {"none": {"r": 0}}


def test_paths_that_do_not_exist_are_one_endpoint(serve: Serve) -> None:
    url = serve(limits={"endpoint:{endpoint}": TokenBucket(2, 1, "1h", name="endpoint")})
    statuses = [get(url, path=f"/nothing/{number}").status_code for number in range(4)]
    assert statuses == [404, 404, 429, 429]
