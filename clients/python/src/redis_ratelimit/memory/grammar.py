"""Parser of calls, with the server's error messages."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from redis_ratelimit.memory.calendar import CALENDAR, AlignedWindows
from redis_ratelimit.memory.leases import Concurrency
from redis_ratelimit.memory.options import Options, Request, Words, duration_of, refusal
from redis_ratelimit.memory.pools import Bucket, Fixed
from redis_ratelimit.memory.rule import LATEST, Rule
from redis_ratelimit.memory.windows import Sliding, SlidingLog, Strict

_MAX_SPECS = 8

_OPTIONS_OF_KEYS = {"COST", "FORCE", "MAXWAIT", "KEEP", "ONCE", "SETTLE"}
_OPTIONS_OF_CALL = _OPTIONS_OF_KEYS | {"UPTO", "EACH"}
_OPTIONS_OF_RATE = (_OPTIONS_OF_CALL | {"AS"}) - {"EACH", "MAXWAIT"}
_OPTIONS_OF_LEASES = {"COST", "KEEP", "AS", "NX"}
# Options that may follow the arguments of each algorithm.
_OPTIONS_AFTER = {
    "TOKENBUCKET": _OPTIONS_OF_RATE | {"MAXWAIT"},
    "LEAKYBUCKET": _OPTIONS_OF_RATE,
    "FIXED": _OPTIONS_OF_RATE | {"ALIGNED", "OFFSET", "ANCHOR"},
    "SLIDING": _OPTIONS_OF_RATE | {"STRICT"},
    "SLIDINGLOG": _OPTIONS_OF_RATE,
    "CONCURRENCY": _OPTIONS_OF_LEASES,
}
# Features that need a server, by command or word.
_ONLY_SERVER = {
    "SKETCH": "sketches",
    "POLICY": "policies",
    "RL.LIMIT": "policies",
    "RL.DELAY": "policies",
    "BAN": "bans",
    "RL.BAN": "bans",
}


def refuse_server_features(word: str) -> None:
    """Raises RefusedError if the command or word needs a server."""
    feature = "policies" if word.startswith("RL.POLICY") else _ONLY_SERVER.get(word)
    if feature is not None:
        raise refusal(f"a limiter in memory has no {feature}: they need a server with the module")


_NO_CHARGE = Request("TAKE", 0)


@dataclass
class Spec:
    """Limit and the request to the limit. KEEP has lowered the limit by `kept`."""

    rule: Rule
    request: Request
    kept: int
    name: str | None
    has_own_cost: bool

    @property
    def identity(self) -> object:
        return (self.rule.key,) if self.name is None else self.name


@dataclass
class Call:
    """Parsed call for one key. `purpose` is CHARGE, CHECK, BACK or SETTLE."""

    specs: list[Spec]
    purpose: str
    # Id, and its ttl in microseconds.
    once: tuple[bytes, int] | None = None
    # Id, and the actual cost in millionths.
    settle: tuple[bytes, int] | None = None
    each: bool = False
    # `True` if a plain key, which stores the usage of one limit alone, can serve the call.
    is_plain: bool = False


class Common:
    """Options before the first spec, which apply to all specs."""

    def __init__(self, options: Options) -> None:
        self.options = options
        if options.settle is not None:
            if options.cost is not None or options.mode or options.keep is not None:
                raise refusal("syntax error: SETTLE says the cost")
            self.purpose = "SETTLE"
        elif options.gives_back:
            self.purpose = "BACK"
        else:
            self.purpose = "CHECK" if options.cost == 0 else "CHARGE"
        self._refuse_keep(options.keep, options.request(options.mode, options.max_wait))
        self._refuse_once(options)

    def _refuse_keep(self, keep: int | str | None, request: Request) -> None:
        if keep is not None and (
            self.purpose in {"SETTLE", "BACK"} or request.mode in {"FORCE", "BACK"}
        ):
            raise refusal("syntax error, unexpected KEEP: it keeps nothing of such a call")

    def _refuse_once(self, options: Options) -> None:
        if self.options.once is not None and options.gives_back:
            raise refusal("cost must be 0 or more with ONCE")

    def spec(self, rule: Rule, spec_options: Options) -> Spec:
        of_leases = isinstance(rule, Concurrency)
        request = self._request(
            rule, spec_options, is_apart=spec_options.cost is not None or of_leases
        )
        self._refuse_once(spec_options)
        keep = spec_options.keep
        if keep is None and (
            isinstance(self.options.keep, str) or not (spec_options.cost is not None or of_leases)
        ):
            keep = self.options.keep
        self._refuse_keep(keep, request)
        kept = 0
        if keep is not None:
            share = Fraction(keep) * rule.limit / 100 if isinstance(keep, str) else keep
            if ceil(share) > rule.limit and request.is_peek:
                request = Request("PAST", 0)
            kept = min(ceil(share), rule.limit)
            rule.limit -= kept
        if isinstance(rule, Concurrency):
            rule.nx = "NX" in spec_options.flags
        return Spec(rule, request, kept, spec_options.name, spec_options.cost is not None)

    def _request(self, rule: Rule, spec_options: Options, *, is_apart: bool) -> Request:
        """Returns the request to one limit. With `is_apart`, the options before the first spec do
        not apply to it.
        """
        if self.purpose == "SETTLE":
            if spec_options.mode and not is_apart:
                raise refusal(f"syntax error, unexpected {spec_options.mode}: SETTLE says the cost")
            return _NO_CHARGE
        if is_apart:
            charges = self.purpose == "CHARGE"
            return (
                spec_options.request(spec_options.mode, spec_options.max_wait)
                if charges
                else _NO_CHARGE
            )
        if spec_options.mode:
            return self.options.request(spec_options.mode, spec_options.max_wait)
        if self.options.mode == "MAXWAIT" and not rule.can_wait:
            return self.options.request("", 0)
        return self.options.request(self.options.mode, self.options.max_wait)


def _read_spec(words: Words) -> tuple[Rule, Options]:
    algorithm = words.peek()
    refuse_server_features(algorithm)
    allowed = _OPTIONS_AFTER.get(algorithm)
    if allowed is None:
        raise refusal(f"syntax error, unexpected {algorithm!r}: a spec is needed")
    words.raw("spec")
    return read_rule(words, algorithm, allowed)


def read_rule(words: Words, algorithm: str, allowed: set[str]) -> tuple[Rule, Options]:
    """Parses the arguments of an algorithm and the options after them."""
    limit = words.amount("limit")
    if algorithm in {"TOKENBUCKET", "LEAKYBUCKET"}:
        refill, period = words.amount("refill"), words.duration("period")
        options = Options.read(words, allowed)
        if refill == 0:
            raise refusal("refill must be a number from 0.000001 to 1000000000000, such as 100")
        bucket = Bucket(limit, refill, period, queues=algorithm == "LEAKYBUCKET")
        if bucket.drains_in(limit) > LATEST // 10:
            raise refusal("refill must be enough to refill the capacity within 36500d")
        return bucket, options
    if algorithm == "FIXED":
        return _fixed(words, limit, allowed)
    window = words.duration("window")
    if algorithm == "CONCURRENCY":
        holder = words.name("holder")
        options = Options.read(words, allowed)
        if options.cost is not None and options.cost <= 0:
            raise refusal("cost must be a number above 0, up to 1000000000000, such as 1")
        return Concurrency(limit, window, holder), options
    options = Options.read(words, allowed)
    if algorithm == "SLIDINGLOG":
        return SlidingLog(limit, window), options
    return (Strict if "STRICT" in options.flags else Sliding)(limit, window), options


def _fixed(words: Words, limit: int, allowed: set[str]) -> tuple[Rule, Options]:
    text = words.text("window")
    window, calendar = duration_of(text), text if text in CALENDAR else None
    if not (window or calendar):
        raise refusal(
            "window must be a duration from 1us to 3650d, or with ALIGNED 1w, 1mo, 3mo or 1y"
        )
    options = Options.read(words, allowed)
    is_shifted = options.offset is not None or options.anchor is not None
    if "ALIGNED" not in options.flags:
        if is_shifted or calendar:
            raise refusal(f"syntax error: windows of {text} need ALIGNED")
        return Fixed(limit, window or 0, None), options
    if options.anchor is not None and calendar not in {"1mo", "3mo"}:
        raise refusal("syntax error, unexpected ANCHOR: it is for months and quarters")
    aligned_windows = AlignedWindows(
        window or 0, calendar, options.offset or 0, options.anchor or 1
    )
    return Fixed(limit, window or 0, aligned_windows), options


def read_call(words: Words, *, is_peek: bool) -> Call:
    """Parses the arguments of a call for one key: `[options] spec [spec ...]`."""
    common = Common(Options.read(words, _OPTIONS_OF_CALL))
    parsed = [_read_spec(words)]
    while words.has_next():
        parsed.append(_read_spec(words))
    if len(parsed) > 1:
        specs = [_one_of_several(common, *rule_and_options) for rule_and_options in parsed]
        if any(spec_options.gives_back for _, spec_options in parsed):
            raise refusal("cost must be 0 or more behind one of several limits")
        _refuse_duplicates(specs)
        return _call(common, specs, common.purpose, is_peek=is_peek)
    rule, spec_options = parsed[0]
    return _only_call(common, rule, spec_options, is_peek=is_peek)


def _only_call(common: Common, rule: Rule, spec_options: Options, *, is_peek: bool = False) -> Call:
    if spec_options.once is not None or spec_options.settle is not None:
        if common.options.once is not None or common.options.settle is not None:
            raise refusal("syntax error: the call has an id already")
        if spec_options.settle is not None and (
            spec_options.cost is not None or spec_options.mode or spec_options.keep is not None
        ):
            raise refusal("syntax error: SETTLE says the cost")
        common.options.once, common.options.settle = spec_options.once, spec_options.settle
        common = Common(common.options)
    spec = common.spec(rule, spec_options)
    purpose = common.purpose
    if purpose == "CHARGE":
        purpose = _purpose_of(spec.request)
    call = _call(common, [spec], purpose, is_peek=is_peek)
    only_checks = purpose == "BACK" and spec.request.mode != "BACK"
    call.is_plain = not (call.once or call.settle or spec.name or call.each or only_checks)
    return call


def _purpose_of(request: Request) -> str:
    return "BACK" if request.mode == "BACK" else "CHECK" if request.is_peek else "CHARGE"


def _call(common: Common, specs: list[Spec], purpose: str, *, is_peek: bool) -> Call:
    options = common.options
    if is_peek and options.settle is not None:
        raise refusal("syntax error, unexpected SETTLE: a peek settles nothing")
    once = None if is_peek else options.once
    return Call(specs, purpose, once, options.settle, "EACH" in options.flags)


def _one_of_several(common: Common, rule: Rule, spec_options: Options) -> Spec:
    if (
        spec_options.once is not None
        or spec_options.settle is not None
        or spec_options.mode == "UPTO"
    ):
        raise refusal("syntax error: ONCE, SETTLE and UPTO stand before the first of several specs")
    return common.spec(rule, spec_options)


def _refuse_duplicates(specs: list[Spec]) -> None:
    if len(specs) > _MAX_SPECS:
        raise refusal(f"syntax error: a call has at most {_MAX_SPECS} specs")
    counts = Counter(
        (spec.rule.kind, None if spec.rule.key is None else spec.identity) for spec in specs
    )
    if max(counts.values()) > 1:
        raise refusal("specs of one kind must have different windows or different names")


def read_keys(words: Words, *, is_peek: bool) -> list[tuple[bytes, Call]]:
    """Parses the arguments of a call for several keys:
    `numkeys key [key ...] [options] spec [spec ...]`.
    """
    numkeys = words.text("numkeys")
    if not re.fullmatch(r"[1-9]\d{0,5}", numkeys):
        raise refusal("numkeys must be how many keys follow")
    keys = [words.raw("key") for _ in range(int(numkeys))]
    common = Common(Options.read(words, _OPTIONS_OF_KEYS))
    calls = []
    for _ in keys:
        spec = _one_of_several(common, *_read_spec(words))
        purpose = common.purpose
        if purpose == "CHARGE":
            purpose = _purpose_of(spec.request)
        call = _call(common, [spec], purpose, is_peek=is_peek)
        call.is_plain = not (call.once or call.settle or spec.name)
        calls.append(call)
    if words.has_next():
        raise refusal("syntax error: more words than specs for the keys")
    if len(set(keys)) < len(keys):
        raise refusal("keys must be different from each other")
    return list(zip(keys, calls, strict=True))


def read_acquire(words: Words) -> tuple[Call, bool]:
    """Parses `limit ttl holder [options]`. Returns the call, and `True` if it has FENCE."""
    rule, spec_options = read_rule(words, "CONCURRENCY", _OPTIONS_OF_LEASES | {"FENCE"})
    if words.has_next():
        raise refusal(f"syntax error, unexpected {words.peek()!r}")
    return _only_call(Common(Options()), rule, spec_options), "FENCE" in spec_options.flags
