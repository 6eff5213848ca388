"""Words of a call: its options and limits, validated before anything is sent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import Decimal

from redis_ratelimit.ids import Id
from redis_ratelimit.limits import Ban, Limit, Policy, spec_words
from redis_ratelimit.quantities import Amount, Duration, Key, Word, amount, duration, keep_word


def once_words(id: Id | None) -> list[Word]:
    return [] if id is None else id.words()


def single_key_command(
    command: str,
    key: Key,
    limits: Sequence[Limit],
    options: list[Word],
    holder: Key | None,
    ban: Ban | None,
    item: Key | None = None,
) -> list[Word]:
    if command == "RL.TAKE" and len(limits) == 1 and isinstance(limits[0], Policy):
        # RL.LIMIT is shorter, and faster on the server.
        _, *names = limits[0].spec(item=item)
        return ["RL.LIMIT", key, *names, *options]
    return [
        command,
        key,
        *options,
        *spec_words(limits, holder, item),
        *(ban.words() if ban else []),
    ]


def options(
    cost: Amount,
    *,
    upto: bool = False,
    force: bool = False,
    max_wait: Duration | None = None,
    keep: Amount | str | None = None,
) -> list[Word]:
    if isinstance(cost, (int, float, Decimal)) and cost < 0:
        raise ValueError(
            f"cost must be 0 or more, not {cost!r}: what is given back, give_back does"
        )
    words: list[Word] = [] if cost == 1 else ["COST", amount(cost, "cost")]
    if upto:
        words.append("UPTO")
    if force:
        words.append("FORCE")
    if max_wait is not None:
        words += ["MAXWAIT", duration(max_wait, "max_wait", zero=True)]
    if keep is not None:
        words += ["KEEP", keep_word(keep)]
    return words


def costs(limits: Collection[Limit], cost: Amount) -> list[float]:
    return [float(cost if limit.cost is None else limit.cost) for limit in limits]


def is_policy(limits: Sequence[Limit]) -> bool:
    return isinstance(limits[0], Policy)


def require_limits(limits: Collection[Limit], key: object = None) -> None:
    """Raises ValueError if a call has no limits."""
    if limits:
        return
    if isinstance(key, Limit):
        raise ValueError(f"the key comes first: take('user:42', {key!r})")
    raise ValueError(
        "a call needs a limit, such as Fixed(100, '1m'), Policy('api') or '100/minute'"
    )


def require_keys(*keys: Key) -> None:
    """Raises TypeError for a key that is neither text nor bytes. The client library would fail
    later, as if there were an outage.
    """
    for key in keys:
        if isinstance(key, Limit):
            raise TypeError(f"the key comes first: take('user:42', {key!r})")
        if not isinstance(key, (str, bytes)):
            raise TypeError(f"a key must be text or bytes, not {key!r}")
