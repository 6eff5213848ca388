"""What an error reply of the server means: whose it is to mend, and what to do.

The package for Node.js has this table too, and `clients/replies.json` holds both to it.
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


class Kind(Enum):
    # The server cannot decide at the moment: `on_outage` decides.
    OUTAGE = "outage"
    # The call is wrong as it is.
    CALLER = "caller"
    # The server, its users, its keys or the application are set up in a way that cannot work.
    OPERATOR = "operator"
    # There is no room for what the call would add. Nothing was charged.
    FULL = "full"


class _Row(NamedTuple):
    # Of the reply.
    begins: str
    kind: Kind
    # What to do.
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

# The first row that the reply begins with rules.
_TABLE = (
    _Row("LOADING ", Kind.OUTAGE),
    _Row("BUSY ", Kind.OUTAGE),
    _Row("MASTERDOWN ", Kind.OUTAGE),
    _Row("CLUSTERDOWN ", Kind.OUTAGE),
    _Row("TRYAGAIN ", Kind.OUTAGE),
    _Row("READONLY ", Kind.OUTAGE),
    _Row("REDIRECT ", Kind.OUTAGE),
    _Row("NOREPLICAS ", Kind.OUTAGE),
    _Row("MISCONF ", Kind.OUTAGE),
    _Row("UNBLOCKED ", Kind.OUTAGE),
    _Row("ERR max number of clients", Kind.OUTAGE),
    _Row("ERR internal error in module", Kind.OUTAGE),
    _Row("NOAUTH ", Kind.OPERATOR, _PASSWORD),
    _Row("WRONGPASS ", Kind.OPERATOR, _PASSWORD),
    _Row("ERR invalid password", Kind.OPERATOR, _PASSWORD),
    _Row("ERR AUTH ", Kind.OPERATOR, _NO_PASSWORD),
    _Row("ERR Client sent AUTH", Kind.OPERATOR, _NO_PASSWORD),
    _Row(
        "NOPERM ",
        Kind.OPERATOR,
        "let the connection's user run this command on these keys, by ACL SETUSER",
    ),
    _Row(
        "DENIED ",
        Kind.OPERATOR,
        "the server is in protected mode: give it a password",
    ),
    _Row("ERR unknown command", Kind.OPERATOR, _MODULE),
    _Row(
        "WRONGTYPE ",
        Kind.OPERATOR,
        "the key was made by something else or under another algorithm: "
        "give the limit another key, or delete this one",
    ),
    _Row(
        "CROSSSLOT ",
        Kind.OPERATOR,
        "give the keys of one call one tag, as in {acme}:user and {acme}:all",
    ),
    _Row("NOPOLICY ", Kind.OPERATOR, "set it, by RL.POLICYSET"),
    _Row("MOVED ", Kind.OPERATOR, _CLUSTER),
    _Row("ASK ", Kind.OPERATOR, _CLUSTER),
    _Row("ERR This instance has cluster support disabled", Kind.OPERATOR, _NO_CLUSTER),
    _Row("ERR DB index is out of range", Kind.OPERATOR, _DATABASE),
    _Row("ERR invalid DB index", Kind.OPERATOR, _DATABASE),
    _Row("ERR SELECT is not allowed in cluster mode", Kind.OPERATOR, _DATABASE),
    _Row("ERR this server keeps policies only if", Kind.OPERATOR),
    _Row(
        "ERR the policy was set by a later version",
        Kind.OPERATOR,
        "update the module of this server",
    ),
    _Row("ERR the policy already has the highest", Kind.OPERATOR),
    _Row(
        "OOM ",
        Kind.FULL,
        "give the server more memory, by maxmemory",
    ),
    _Row("ERR the key has ", Kind.FULL),
    _Row("ERR there are ", Kind.FULL),
)

# Without an id the call may pass: it would have been one more, or would have made the key larger.
_FULL_OF_IDS = re.compile(r"OOM |ERR the key has \d+ entries, as many as ratelimit\.max-ids ")

# Not the first word of what a server says of these.
_CODE = re.compile(r"(?!(?:AUTH|DB|SELECT) )[A-Z][A-Z0-9]+ ")

# redis-py and valkey-py take the code away from replies that they have classes for; those of
# clusters too, and redis-py does it for all clients.
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


def reply_of(error: BaseException, refused: type[Exception]) -> str | None:
    """The server's reply, as it was sent; None if the error is of the connection. `refused` is the
    library's ResponseError.
    """
    text = str(error)
    if text.startswith("max number of clients"):
        return f"ERR {text}"
    kind = type(error).__name__
    if kind == "AuthenticationError":
        if text.startswith("Authentication required"):
            return f"NOAUTH {text}"
        if text.startswith(("AUTH ", "Client sent AUTH", "invalid password")):
            return f"ERR {text}"
    elif kind != "BusyLoadingError" and not isinstance(error, refused):
        return None
    code = getattr(error, "status_code", None) or _CODES.get(kind)
    if code is not None:
        return f"{code} {text}"
    return text if _CODE.match(text) else f"ERR {text}"


def _row(reply: str) -> _Row:
    for row in _TABLE:
        if reply.startswith(row.begins):
            return row
    # The module's own, of the words of a call; or a code that nobody has told us of.
    kind = Kind.CALLER if reply.startswith("ERR ") else Kind.OPERATOR
    return _Row("", kind)


def kind_of(reply: str) -> Kind:
    return _row(reply).kind


def explained(reply: str) -> RateLimitError:
    """As an exception of this package, in the words of whoever has to do something about it."""
    row = _row(reply)
    # What was sent is in it, and is of no help.
    text = "" if row.remedy == _MODULE else reply.removeprefix("ERR ").rstrip(".")
    message = ": ".join(filter(None, (text, row.remedy)))
    if row.kind is Kind.OPERATOR:
        return (NoPolicyError if reply.startswith("NOPOLICY ") else SetupError)(message)
    kinds = {Kind.OUTAGE: UnavailableError, Kind.CALLER: CallError, Kind.FULL: FullError}
    return kinds[row.kind](message)


def may_pass_without_id(reply: str) -> bool:
    """Whether a call that there is no room for may be in order but for its id."""
    return _FULL_OF_IDS.match(reply) is not None
