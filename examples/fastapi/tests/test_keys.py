"""Callers do not share keys, and all keys of a tenant share a slot."""

from itertools import product

import pytest
from redis_ratelimit import TokenBucket
from tenants import limits_by_key

from support.cluster import slot_of

LIMITS = dict.fromkeys(("tenant", "user:{user}", "device:{user}:{device}"), TokenBucket(1, 1))

NAMES = ("a{b", "a(b", "a}b", "a)b", "a%7Bb", "a%257Bb", "a:b", "a", "b", "{}", "{", "}", "", "%")
# Also a name that contains part of another key, and names that are not valid UTF-8.
NAMES += (
    "a}:user:b",
    "a b",
    "a+b",
    "ä",
    "a\u0308",
    "\ud800",
    "\udc00",
    "\ufffd",
    "A",
    "a\0",
    "a\n",
)


def keys_of(**caller: str) -> list[str]:
    keys = list(limits_by_key(LIMITS, caller))
    assert len(keys) == len(LIMITS)
    return keys


def test_callers_share_only_keys_of_their_tenant() -> None:
    owners: dict[str, tuple[str, ...]] = {}
    for tenant, user, device in product(NAMES, NAMES, ("a", "b:a", "a:b", "")):
        keys = keys_of(tenant=tenant, user=user, device=device)
        for key, owner in zip(
            keys, [(tenant,), (tenant, user), (tenant, user, device)], strict=True
        ):
            assert owners.setdefault(key, owner) == owner


@pytest.mark.parametrize("tenant", NAMES)
def test_keys_of_a_tenant_share_a_slot(tenant: str) -> None:
    (tag,) = {
        key.split("{")[1].split("}")[0] for key in keys_of(tenant=tenant, user="{", device="}")
    }
    assert tag
    assert {slot_of(key) for key in keys_of(tenant=tenant, user="{", device="}")} == {slot_of(tag)}


def test_names_are_escaped_as_in_the_other_examples() -> None:
    """The tests of the Express example have the same table."""
    assert keys_of(tenant="a{b", user="ä !'()*~-_.:/@", device="")[1:] == [
        "rl:{a%7Bb}:user:%C3%A4%20!'()*~-_.%3A%2F%40",
        "rl:{a%7Bb}:device:%C3%A4%20!'()*~-_.%3A%2F%40:%",
    ]
