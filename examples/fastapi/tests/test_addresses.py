"""Addresses of clients, with and without proxies."""

from redis_ratelimit import TokenBucket
from serving import Serve
from traffic import get

IP = {"ip:{ip}": TokenBucket(2, 1, "1h", name="ip")}


def statuses(url: str, *forwarded: str) -> list[int]:
    return [get(url, headers={"X-Forwarded-For": address}).status_code for address in forwarded]


def test_client_cannot_choose_its_address(serve: Serve) -> None:
    url = serve(limits=IP)
    assert statuses(url, "192.0.2.1", "192.0.2.2", "192.0.2.3") == [200, 200, 429]


def test_behind_a_proxy_each_client_has_its_own_limit(serve: Serve) -> None:
    url = serve(limits=IP, forwarded_allow_ips="127.0.0.1")
    assert statuses(url, "192.0.2.1", "192.0.2.1", "192.0.2.1") == [200, 200, 429]
    assert statuses(url, "192.0.2.2") == [200]


def test_forwarded_addresses_of_the_client_are_ignored(serve: Serve) -> None:
    url = serve(limits=IP, forwarded_allow_ips="127.0.0.1")
    forged = [f"198.51.100.{number}, 192.0.2.1" for number in range(3)]
    assert statuses(url, *forged) == [200, 200, 429]


def test_behind_two_proxies_the_address_is_the_one_that_the_outer_proxy_saw(serve: Serve) -> None:
    url = serve(limits=IP, forwarded_allow_ips="127.0.0.1,10.0.0.0/8")
    chain = [f"198.51.100.{number}, 192.0.2.1, 10.1.2.{number}" for number in range(3)]
    assert statuses(url, *chain) == [200, 200, 429]


def test_an_ipv6_subscriber_is_one_client(serve: Serve) -> None:
    url = serve(limits=IP, forwarded_allow_ips="127.0.0.1")
    assert statuses(url, "2001:db8::1", "2001:db8::2:1", "2001:db8::3") == [200, 200, 429]
    assert statuses(url, "2001:db8:0:1::1") == [200]
