"""Logging in: a few tries a minute, and whoever goes on guessing is banned."""

from hmac import compare_digest

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field
from ratelimit import DeniedError, Limit, address

# Of one account and from one address: behind an address may be a thousand people, and whoever
# guesses from elsewhere must not lock the account's owner out.
LIMITS = (Limit.sliding("login", "login:{account}:{ip}", limit=5, seconds=60),)
# The third try within ten minutes that is denied bans for an hour, the right password too.
BAN = "3 10m 1h"

# Stands for whatever knows passwords, and knows them only as hashes.
ACCOUNTS = {"alice": ("correct horse battery staple", "alice-key")}

router = APIRouter()


class Credentials(BaseModel):
    # It becomes part of a key.
    account: str = Field(max_length=64)
    password: str = Field(max_length=1024)


@router.post("/login")
async def login(credentials: Credentials, request: Request) -> dict[str, str]:
    # One tenant for all, since who it is is not known yet.
    caller = {"tenant": "public", "account": credentials.account, "ip": address(request)}
    verdict = await request.app.state.limiter.take_on_one_key(LIMITS, caller, ban=BAN)
    if not verdict.allowed:
        raise DeniedError(verdict)
    password, api_key = ACCOUNTS.get(credentials.account, ("", ""))
    if not (api_key and compare_digest(credentials.password.encode(), password.encode())):
        raise HTTPException(401, "wrong account or password")
    return {"api_key": api_key}
