"""Addresses, by the table that all packages share."""

from typing import Any

import pytest

from redis_ratelimit.addresses import network
from tables import table


@pytest.mark.parametrize("case", table("addresses")["addresses"], ids=repr)
def test_address_has_one_form(case: dict[str, Any]) -> None:
    options = {"ipv6_prefix": case["ipv6_prefix"]} if "ipv6_prefix" in case else {}
    assert network(case["text"], **options) == case["key"]
