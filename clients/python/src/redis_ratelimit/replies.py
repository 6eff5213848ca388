"""Classification of the server's error replies: their cause, and a remedy.

The packages for other languages have the same table; `clients/replies.json` tests all of them.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from redis_ratelimit.errors import (
    CallError,
    FullError,
    NoPolicyError,
    RateLimitError,
    SetupError,
    UnavailableError,
)


class Cause(Enum):
    """Cause of an error reply."""

    # The server cannot decide at the moment: `on_outage` decides.
    OUTAGE = "outage"
    # The call is malformed.
    CALLER = "caller"
    # The server, its users, its keys or the application are misconfigured.
    OPERATOR = "operator"
    # The key or the server has no room. Nothing was charged.
    FULL = "full"


class _Row(NamedTuple):
    # Prefix of the reply.
    prefix: str
    cause: Cause
    # Advice in the error message.
    remedy: str = ""


_PASSWORD = "give the connection its user and password, as in redis://user:password@host"
_NO_PASSWORD = "the server has no password for this user: leave it out of the URL"
_MODULE = (
    "the redis-ratelimit module is not loaded: start the server with "
    "--loadmodule /path/to/libredis_ratelimit.so policies yes"
)
_CLUSTER = "this server is a node of a cluster: use a client for clusters"
_NO_CLUSTER = "this server is no cluster: use a client for one server"
_DATABASE = "choose another database in the URL"

# The first row whose prefix matches applies.
_TABLE = (
    _Row("LOADING ", Cause.OUTAGE),
    _Row("BUSY ", Cause.OUTAGE),
    _Row("MASTERDOWN ", Cause.OUTAGE),
    _Row("CLUSTERDOWN ", Cause.OUTAGE),
    _Row("TRYAGAIN ", Cause.OUTAGE),
    _Row("READONLY ", Cause.OUTAGE),
    _Row("REDIRECT ", Cause.OUTAGE),
    _Row("NOREPLICAS ", Cause.OUTAGE),
    _Row("MISCONF ", Cause.OUTAGE),
    _Row("UNBLOCKED ", Cause.OUTAGE),
    _Row("ERR max number of clients", Cause.OUTAGE),
    _Row("ERR internal error in module", Cause.OUTAGE),
    _Row("NOAUTH ", Cause.OPERATOR, _PASSWORD),
    _Row("WRONGPASS ", Cause.OPERATOR, _PASSWORD),
    _Row("ERR invalid password", Cause.OPERATOR, _PASSWORD),
    _Row("ERR AUTH ", Cause.OPERATOR, _NO_PASSWORD),
    _Row("ERR Client sent AUTH", Cause.OPERATOR, _NO_PASSWORD),
    _Row(
        "NOPERM ",
        Cause.OPERATOR,
        "let the connection's user run this command on these keys, by ACL SETUSER",
    ),
    _Row(
        "DENIED ",
        Cause.OPERATOR,
        "the server is in protected mode: give it a password",
    ),
    _Row("ERR unknown command", Cause.OPERATOR, _MODULE),
    _Row(
        "WRONGTYPE ",
        Cause.OPERATOR,
        "the key was made by something else or under another algorithm: "
        "give the limit another key, or delete this one",
    ),
    _Row(
        "CROSSSLOT ",
        Cause.OPERATOR,
        "give the keys of one call one tag, as in {acme}:user and {acme}:all",
    ),
    _Row("NOPOLICY ", Cause.OPERATOR, "set it, by RL.POLICYSET"),
    _Row("MOVED ", Cause.OPERATOR, _CLUSTER),
    _Row("ASK ", Cause.OPERATOR, _CLUSTER),
    _Row("ERR This instance has cluster support disabled", Cause.OPERATOR, _NO_CLUSTER),
    _Row("ERR DB index is out of range", Cause.OPERATOR, _DATABASE),
    _Row("ERR invalid DB index", Cause.OPERATOR, _DATABASE),
    _Row("ERR SELECT is not allowed in cluster mode", Cause.OPERATOR, _DATABASE),
    _Row("ERR this server keeps policies only if", Cause.OPERATOR),
    _Row(
        "ERR the policy was set by a later version",
        Cause.OPERATOR,
        "update the module of this server",
    ),
    _Row("ERR the policy already has the highest", Cause.OPERATOR),
    _Row(
        "OOM ",
        Cause.FULL,
        "give the server more memory, by maxmemory",
    ),
    _Row("ERR the key has ", Cause.FULL),
    _Row("ERR there are ", Cause.FULL),
)

# Errors for lack of room that a call without an idempotency key may not have.
_FULL_OF_IDS = re.compile(r"OOM |ERR the key has \d+ entries, as many as ratelimit\.max-ids ")

# Error code at the start of a reply. AUTH, DB and SELECT begin messages instead.
_CODE = re.compile(r"(?!(?:AUTH|DB|SELECT) )[A-Z][A-Z0-9]+ ")

# Error codes by class: redis-py and valkey-py strip the code from replies that have a class of
# their own, including those of clusters.
_CODES = {
    "AskError": "ASK",
    "AuthenticationError": "WRONGPASS",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}


def reply_of(error: BaseException, response_error: type[Exception]) -> str | None:
    """Returns the server's error reply as it was sent, or None for an error of the connection.
    `response_error` is the library's ResponseError.
    """
    text = str(error)
    if text.startswith("max number of clients"):
        return f"ERR {text}"
    name = type(error).__name__
    if name == "AuthenticationError":
        if text.startswith("Authentication required"):
            return f"NOAUTH {text}"
        if text.startswith(("AUTH ", "Client sent AUTH", "invalid password")):
            return f"ERR {text}"
    elif name != "BusyLoadingError" and not isinstance(error, response_error):
        return None
    code = getattr(error, "status_code", None) or _CODES.get(name)
    if code is not None:
        return f"{code} {text}"
    return text if _CODE.match(text) else f"ERR {text}"


def _row(reply: str) -> _Row:
    for row in _TABLE:
        if reply.startswith(row.prefix):
            return row
    # The module's errors about malformed calls begin with ERR. Other codes are unknown.
    return _Row("", Cause.CALLER if reply.startswith("ERR ") else Cause.OPERATOR)


def cause_of(reply: str) -> Cause:
    return _row(reply).cause


def to_exception(reply: str) -> RateLimitError:
    """Returns an error reply as an exception of this package, with its remedy."""
    row = _row(reply)
    # "unknown command" repeats the entire command, which does not help.
    text = "" if row.remedy == _MODULE else reply.removeprefix("ERR ").rstrip(".")
    message = ": ".join(filter(None, (text, row.remedy)))
    if row.cause is Cause.OPERATOR:
        return (NoPolicyError if reply.startswith("NOPOLICY ") else SetupError)(message)
    classes = {Cause.OUTAGE: UnavailableError, Cause.CALLER: CallError, Cause.FULL: FullError}
    return classes[row.cause](message)


def may_pass_without_id(reply: str) -> bool:
    """Returns `True` if the key had no room for the idempotency key of the call."""
    return _FULL_OF_IDS.match(reply) is not None
